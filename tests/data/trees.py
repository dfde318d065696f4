"""Tiny data sets in the layout of the releases: MuST-C, CoVoST 2, Mboshi-French and Quechua-Spanish."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

RATE = 16_000
PAUSE = np.zeros(RATE // 4, dtype=np.float32)


@dataclass(frozen=True)
class Spoken:
    """An utterance: samples at 16 kHz and what is said, in the source and in the target language."""

    samples: np.ndarray
    source: str
    target: str
    speaker: str = "spk.1"


def noises(count: int, seed: int = 0, seconds: float = 0.5) -> list[Spoken]:
    """Utterances of noise with different lengths and texts."""
    rng = np.random.default_rng(seed)
    lengths = (RATE * seconds * rng.uniform(0.8, 1.2, count)).astype(int)
    return [
        Spoken(0.1 * rng.standard_normal(length).astype(np.float32), f"source {seed} {n}", f"Ziel {seed} {n}")
        for n, length in enumerate(lengths)
    ]


def mustc_tree(root: Path, splits: Mapping[str, Sequence[Spoken]], per_talk: int = 3) -> Path:
    """ROOT/en-de/data/SPLIT/{wav,txt}; `per_talk` utterances make a wav, with pauses between them."""
    for split, utterances in splits.items():
        folder = root / "en-de" / "data" / split
        (folder / "wav").mkdir(parents=True)
        (folder / "txt").mkdir()
        rows = []
        for first in range(0, len(utterances), per_talk):
            name, pieces, position = f"ted_{split}_{first}.wav", [], 0
            for spoken in utterances[first : first + per_talk]:
                start, length = position + len(PAUSE), len(spoken.samples)
                rows.append(
                    f"- {{duration: {length / RATE:.6f}, offset: {start / RATE:.6f}, rW: 3, "
                    f"speaker_id: {spoken.speaker}, uW: 0, wav: {name}}}\n"
                )
                pieces += [PAUSE, spoken.samples]
                position = start + length
            soundfile.write(str(folder / "wav" / name), np.concatenate([*pieces, PAUSE]), RATE, subtype="PCM_16")
        (folder / "txt" / f"{split}.yaml").write_text("".join(rows), encoding="utf-8")
        for language, field in (("en", "source"), ("de", "target")):
            lines = "".join(getattr(spoken, field) + "\n" for spoken in utterances)
            (folder / "txt" / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return root


def covost2_tree(root: Path, splits: Mapping[str, Sequence[Spoken]], suffix: str = ".mp3", rate: int = 48_000) -> Path:
    """ROOT/{validated.tsv,covost_v2.fr_en.tsv,clips/*}; clips as Common Voice publishes them, mp3 at 48 kHz."""
    (root / "clips").mkdir(parents=True)
    validated, translations = [], []
    for split, utterances in splits.items():
        for n, spoken in enumerate(utterances):
            name = f"common_voice_fr_{split}{n:04d}"
            samples = resample_poly(spoken.samples, rate // RATE, 1)
            soundfile.write(str(root / "clips" / (name + suffix)), samples, rate)
            validated.append([spoken.speaker, f"{name}.mp3", spoken.source, "2", "0"])
            translations.append([f"{name}.mp3", spoken.target, split])
    _write_table(root / "validated.tsv", ["client_id", "path", "sentence", "up_votes", "down_votes"], validated)
    _write_table(root / "covost_v2.fr_en.tsv", ["path", "translation", "split"], translations)
    return root


def mboshi_tree(root: Path, splits: Mapping[str, Sequence[Spoken]]) -> Path:
    """ROOT/full_corpus_newsplit/{train,dev}/SPEAKER_N.{wav,mb.cleaned,fr.cleaned}, as escaped as in the release."""
    for split, utterances in splits.items():
        folder = root / "full_corpus_newsplit" / split
        folder.mkdir(parents=True)
        for n, spoken in enumerate(utterances):
            stem = folder / f"{spoken.speaker}_2015-09-08-11-18-39_samsung-SM-T530_mdw_elicit_{split}_{n}"
            soundfile.write(f"{stem}.wav", spoken.samples, RATE, subtype="PCM_16")
            for language, text in (("mb", spoken.source), ("fr", spoken.target)):
                Path(f"{stem}.{language}.cleaned").write_text(text.replace("'", "&apos;") + " \n", encoding="utf-8")
    return root


def quechua_tree(root: Path, splits: Mapping[str, Sequence[Spoken]]) -> Path:
    """ROOT/que_spa_clean/SPLIT/{wav,txt}, a wav an utterance; the test split has no texts."""
    for split, utterances in splits.items():
        folder = root / "que_spa_clean" / split
        (folder / "wav").mkdir(parents=True)
        (folder / "txt").mkdir()
        names = [f"quechua{n:06d}.wav" for n in range(len(utterances))]
        for name, spoken in zip(names, utterances, strict=True):
            soundfile.write(str(folder / "wav" / name), spoken.samples, RATE, subtype="PCM_16")
        rows = [
            f"- {{duration: {len(one.samples) / RATE}, offset: 0.0, speaker_id: {one.speaker}, wav: {name}}}\n"
            for name, one in zip(names, utterances, strict=True)
        ]
        (folder / "txt" / f"{split}.yaml").write_text("".join(rows), encoding="utf-8")
        for language, field in (("que", "source"), ("spa", "target")) if split != "test" else ():
            lines = "".join(getattr(spoken, field) + "\n" for spoken in utterances)
            (folder / "txt" / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return root


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, escapechar="\\", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
