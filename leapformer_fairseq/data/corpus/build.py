"""Building the corpus on disk: all or nothing, the same bytes for the same options, and never over other results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import Popen
from typing import Any

from ... import PLUGIN_DIR
from ...audio import FRAME_MS
from ...errors import LeapformerError
from . import espeak, files
from .plan import SPLITS, Utterance, fingerprint, plan

SIZES: Mapping[str, int] = {"train": 6000, "dev": 100, "test": 400}
SEED = 1
VOCAB_SIZE = 500
SNR_DB = (25.0, 40.0)
SPEAKERS = 2  # processes that synthesise speech
INFO = "corpus.json"
LIBRARIES = ("espeakng-loader", "numpy", "scipy", "sentencepiece", "soundfile", "kaldi-native-fbank")


@dataclass(frozen=True)
class SplitSummary:
    """Size of one split; `words` counts English words, `word_types` different ones."""

    utterances: int
    seconds: float
    words: int
    word_types: int


@dataclass(frozen=True)
class Corpus:
    """A finished corpus: its folder, the sha256 of all recordings and texts, and its size by split."""

    folder: Path
    checksum: str
    splits: dict[str, SplitSummary]


def build(
    out: str | Path,
    sizes: Mapping[str, int] = SIZES,
    seed: int = SEED,
    vocab_size: int = VOCAB_SIZE,
    snr_db: tuple[float, float] = SNR_DB,
    overwrite: bool = False,
) -> Corpus:
    """Make the corpus in the folder `out`, or return the one that is there if it was made with the same options.

    Layout: `wav/{split}/NNNNN.wav`, `fbank80.zip`, `{split}_{asr,st}.tsv`, `spm_{asr,st}.{model,txt}`,
    `config_{asr,st}.yaml`, `gcmvn.npz`, `{split}.{source,target}` for SimulEval, and `corpus.json`. The work is done in
    a folder beside `out` that is renamed at the end, so an interrupted build leaves nothing that looks finished.
    Raises LeapformerError for impossible options, when espeak-ng is missing, or when `out` holds something else.
    """
    out = Path(out).resolve()
    utterances = plan(sizes, seed, snr_db)
    options = {
        **{split: sizes[split] for split in SPLITS},
        "seed": seed,
        "vocab_size": vocab_size,
        "snr_db": [float(ratio) for ratio in snr_db],
        "plan_sha256": fingerprint(utterances),
    }
    found = read_info(out)
    if found is not None and found["options"] == options:
        return reuse(out, found, utterances)
    if found is not None and not overwrite:
        raise LeapformerError(
            f"{out} holds another corpus ({difference(found['options'], options)}); "
            "choose another --out, or replace it with --overwrite"
        )
    return make(out, utterances, options)


def make(out: Path, utterances: list[Utterance], options: dict[str, Any]) -> Corpus:
    """Build beside `out`, then take its place."""
    espeak.require_loader()
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    contents = fill(partial, out, utterances, options["vocab_size"])
    info = {"options": options, **contents, "libraries": library_versions()}
    write_info(partial, info)
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    return summary(out, info)


def read_info(out: Path) -> dict[str, Any] | None:
    """What `corpus.json` says, None where nothing is; a folder that is no corpus is refused, to be never written to."""
    path = out / INFO
    if not path.is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise LeapformerError(f"{out} exists and is no corpus (no {INFO} in it); choose another --out")
        return None
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        missing = {"options", "root", "checksum", "splits"} - info.keys()
    except (ValueError, AttributeError):
        missing = {"valid JSON"}
    if missing:
        raise LeapformerError(f"{path} lacks {', '.join(sorted(missing))}; remove {out}, or choose another --out")
    return info


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """Write `corpus.json`, the mark of a finished corpus."""
    (folder / INFO).write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What two sets of options disagree on, for people."""
    names = [name for name in wanted if name != "plan_sha256" and found.get(name) != wanted[name]]
    if not names:
        return "from another version of the grammar"
    return ", ".join(f"{name} {found.get(name)} there, {wanted[name]} asked for" for name in names)


def reuse(out: Path, info: dict[str, Any], utterances: list[Utterance]) -> Corpus:
    """The corpus as it is; only absolute paths are brought up to date, in case the folder was moved."""
    if info["root"] != str(out):
        files.write_locations(out, out, utterances)
        write_info(out, {**info, "root": str(out)})
    return summary(out, info)


def summary(out: Path, info: dict[str, Any]) -> Corpus:
    """What `build` returns, from what `corpus.json` says."""
    splits = {split: SplitSummary(**values) for split, values in info["splits"].items()}
    return Corpus(out, info["checksum"], splits)


def fill(folder: Path, root: Path, utterances: list[Utterance], vocab_size: int) -> dict[str, Any]:
    """Write everything but `corpus.json` into `folder`, with paths as they will be below `root`."""
    files.write_subwords(folder, utterances, vocab_size)  # first: the step that options can make fail
    synthesize(folder, utterances)
    features = files.write_features(folder, utterances)
    files.write_manifests(folder, utterances, features)
    files.write_locations(folder, root, utterances)
    splits = {}
    for split in SPLITS:
        members = files.of_split(utterances, split)
        words = [word for utterance in members for word in utterance.english.split()]
        seconds = round(sum(features[utterance.id].frames for utterance in members) * FRAME_MS / 1000, 2)
        splits[split] = asdict(SplitSummary(len(members), seconds, len(words), len(set(words))))
    return {"root": str(root), "checksum": checksum(folder, utterances), "splits": splits}


def synthesize(folder: Path, utterances: list[Utterance]) -> None:
    """Speak the plan in fresh processes, the only way in which espeak-ng repeats itself.

    Each speaks every SPEAKERS-th utterance in order. Their number never changes, whatever the machine: what espeak-ng
    said before changes what it says next.
    """
    path = folder / "plan.jsonl"
    path.write_text("".join(json.dumps(asdict(u)) + "\n" for u in utterances), encoding="utf-8")
    search_path = os.pathsep.join(filter(None, [str(PLUGIN_DIR.parent), os.environ.get("PYTHONPATH")]))
    worker = [sys.executable, "-m", f"{__package__}.synthesize", str(path), str(folder), str(SPEAKERS)]
    environment = {**os.environ, "PYTHONPATH": search_path}
    with ExitStack() as stack:
        speakers = [stack.enter_context(Popen([*worker, str(i)], env=environment)) for i in range(SPEAKERS)]
        stack.callback(lambda: [speaker.terminate() for speaker in speakers])
        for speaker in speakers:
            if speaker.wait():
                raise LeapformerError(f"speech synthesis failed with status {speaker.returncode}; its message is above")


def checksum(folder: Path, utterances: list[Utterance]) -> str:
    """sha256 over every utterance's id, texts and recording."""
    digest = hashlib.sha256()
    for utterance in utterances:
        digest.update(f"{utterance.id}\t{utterance.english}\t{utterance.german}\n".encode())
        digest.update((folder / utterance.wav).read_bytes())
    return digest.hexdigest()


def library_versions() -> dict[str, str]:
    """Versions of what the bytes of a corpus depend on."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions
