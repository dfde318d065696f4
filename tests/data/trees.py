"""Tiny data sets in the layout of the releases: MuST-C (talks and yaml) and CoVoST 2 (tables and mp3 clips)."""

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


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, escapechar="\\", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
