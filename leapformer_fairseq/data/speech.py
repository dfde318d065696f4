"""Prepare a released speech translation data set for training and evaluation.

A prepared folder contains `gcmvn.npz`, `spm_{asr,st}*` and `config_{asr,st}.yaml`; for each split, `fbank80_SPLIT.zip`
and `SPLIT_{asr,st}.tsv`; and for all but the training split, `wav/SPLIT/ID.wav` and SimulEval's lists
`SPLIT.{source,target}`. `prepared.json` lists complete splits, so an interrupted preparation resumes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from tqdm import tqdm

from ..runtime.audio import FRAME_MS, SAMPLE_RATE, fbank
from ..support.errors import LeapformerError
from ..support.files import replacing
from ..support.lines import write_lines
from ..support.processes import pool_of
from . import prepared
from .manifests import (
    BINS,
    CMVN,
    BinStatistics,
    FeatureArchive,
    read_manifest,
    train_subwords,
    write_config,
    write_manifest,
)
from .recordings import Recording, Unusable, need_recordings
from .text import tidy

TASKS = ("asr", "st")  # with transcripts or translations as targets
VOCAB_SIZE = 10_000
MIN_FRAMES, MAX_TRAINING_FRAMES = 5, 3000  # frames of 10 ms, as in fairseq's recipes
STATISTICS_FROM = 50_000  # at most about this many utterances, evenly spread over the training split
# The "LibriSpeech basic" policy of SpecAugment (Park et al., 2019, arXiv:1904.08779).
SPECAUGMENT = {"freq_mask_N": 1, "freq_mask_F": 27, "time_mask_N": 1, "time_mask_T": 100, "time_mask_p": 1.0}
FEW_HOURS = 20  # below this many hours of training speech, the recipes' models are tiny
# A tiny model learns more slowly with the policy above (docs/results/speech.md).
LESS_SPECAUGMENT = SPECAUGMENT | {"freq_mask_F": 10, "time_mask_T": 20}


@dataclass(frozen=True)
class SpeechDataset:
    """How to read a data set. `splits` begins with the training split, the only one that `clean_text` is applied to.

    `vocab_type` is sentencepiece's model type (unigram, bpe or char) for translations, `transcript_type` that for
    transcripts, the recogniser's targets; `vocab_size` is a suitable number of subwords.
    """

    name: str
    splits: tuple[str, ...]
    read_split: Callable[[Path, str], list[Recording]]
    read_audio: Callable[[Recording], np.ndarray]
    clean_text: Callable[[str], str]
    vocab_type: str = "unigram"
    vocab_size: int = VOCAB_SIZE
    transcript_type: str = "unigram"

    def type_of(self, task: str) -> str:
        """The type of the subword model for a task's targets."""
        return self.transcript_type if task == TASKS[0] else self.vocab_type


@dataclass(frozen=True)
class SplitSummary:
    """Summary of a split; `dropped` counts the recordings that were left out, by reason."""

    utterances: int
    seconds: float
    dropped: dict[str, int]

    def reasons(self) -> str:
        """Describe the recordings left out, such as "2 silent, 1 too short"; "" if there are none."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))


def prepare(
    dataset: SpeechDataset, root: str | Path, out: str | Path, vocab_size: int = VOCAB_SIZE, workers: int = 1
) -> dict[str, SplitSummary]:
    """Prepare the data set in `root` for training and evaluation in `out`; finished work is not repeated.

    Raises LeapformerError for impossible options, missing or unusable data, and an `out` that contains other data.
    """
    need_workers(workers)
    root, out = Path(root).absolute(), Path(out).absolute()
    done = _complete_splits(out, dataset, root, vocab_size)
    pending = {split: _recordings(dataset, root, split) for split in dataset.splits if split not in done}
    out.mkdir(parents=True, exist_ok=True)
    _write_state(out, dataset, root, vocab_size, done)  # marks the folder as ours, so that a rerun may resume it
    with mapper(workers) as run:
        for split, recordings in pending.items():
            done[split] = _prepare_split(dataset, split, recordings, out, run)
            _write_state(out, dataset, root, vocab_size, done)
    train, *others = dataset.splits
    masks = LESS_SPECAUGMENT if done[train].seconds < FEW_HOURS * 3_600 else SPECAUGMENT
    for task in TASKS:
        _write_subwords(out, task, dataset, vocab_size)
        write_config(out / f"config_{task}.yaml", f"spm_{task}", masks)
    texts = (row["tgt_text"] for row in read_manifest(out / f"{train}_st.tsv", "tgt_text"))
    write_lines(out / f"{train}.target", texts)  # for `leapformer score --training-text`
    for split in others:
        _write_evaluation_lists(out, split)
    return done


# ------------------------------------------------------------------------------------------------- what is complete
def _complete_splits(out: Path, dataset: SpeechDataset, root: Path, vocab_size: int) -> dict[str, SplitSummary]:
    """The splits that are complete in `out`; empty for a new folder.

    Raises LeapformerError if the folder holds anything else, so that data sets are never mixed.
    """
    state = prepared.read_state(out, lambda state: _parsed(state, dataset))
    if state is None:
        return {}
    recorded, splits = state
    options = _options(dataset, root, vocab_size)
    if set(splits) == set(dataset.splits):
        recorded["root"] = options["root"]  # no longer needed, so the release may have been moved
    prepared.need_same(out, recorded, options)
    return splits


def _parsed(state: Any, dataset: SpeechDataset) -> tuple[dict[str, Any], dict[str, SplitSummary]]:
    """The options and the splits in a state file."""
    recorded = {name: state[name] for name in ("dataset", "root", "vocab_size")}
    # Folders of older versions lack these two; the transcripts then have the type of the translations.
    recorded["vocab_type"] = state.get("vocab_type", dataset.vocab_type)
    recorded["transcript_type"] = state.get("transcript_type", recorded["vocab_type"])
    return recorded, {split: SplitSummary(**summary) for split, summary in state["splits"].items()}


def _options(dataset: SpeechDataset, root: Path, vocab_size: int) -> dict[str, Any]:
    types = {"vocab_type": dataset.vocab_type, "transcript_type": dataset.transcript_type}
    return {"dataset": dataset.name, "root": str(root), "vocab_size": vocab_size, **types}


def _write_state(out: Path, dataset: SpeechDataset, root: Path, vocab_size: int, done: dict[str, SplitSummary]) -> None:
    splits = {split: asdict(summary) for split, summary in done.items()}
    state = {**_options(dataset, root, vocab_size), "splits": splits}
    with replacing(out / prepared.STATE) as part:
        part.write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


# ------------------------------------------------------------------------------------------------------- one split
def _recordings(dataset: SpeechDataset, root: Path, split: str) -> list[Recording]:
    """All recordings of a split. Raises LeapformerError now, and not after hours of work, if one is missing."""
    if not root.is_dir():
        raise LeapformerError(f"{dataset.name} root {root} is not a folder; check the path")
    recordings = dataset.read_split(root, split)
    need_recordings(recordings, split)
    return recordings


@dataclass(frozen=True)
class _Extraction:
    """The work on one recording, in a form that can be sent to another process."""

    read_audio: Callable[[Recording], np.ndarray]
    clean_text: Callable[[str], str]
    max_frames: int | None
    wav_folder: Path | None  # SimulEval reads the audio there

    def __call__(self, recording: Recording) -> tuple[Recording, np.ndarray | str]:
        """The recording with clean texts and its features (frames, bins), or the recording and why it is left out."""
        try:
            return self._extract(recording)
        except Unusable as reason:
            return recording, str(reason)

    def _extract(self, recording: Recording) -> tuple[Recording, np.ndarray]:
        source, target = (self.clean_text(tidy(text)) for text in (recording.source, recording.target))
        if not source or not target:  # before the audio is read, which takes longer
            raise Unusable("no text")
        samples = self.read_audio(recording)
        features = fbank(samples, SAMPLE_RATE, BINS)
        if len(features) < MIN_FRAMES:
            raise Unusable("too short")
        if self.max_frames is not None and len(features) > self.max_frames:
            raise Unusable("too long")
        if self.wav_folder is not None:
            soundfile.write(str(self.wav_folder / f"{recording.id}.wav"), samples, SAMPLE_RATE, subtype="PCM_16")
        return replace(recording, source=source, target=target), features


def _prepare_split(
    dataset: SpeechDataset, name: str, recordings: list[Recording], out: Path, run: Callable[..., Iterable[Any]]
) -> SplitSummary:
    """Write the features, audio and manifests of a split; `run` is `map`, possibly in several processes."""
    training = name == dataset.splits[0]
    extract = _Extraction(
        dataset.read_audio,
        clean_text=dataset.clean_text if training else tidy,  # references stay as released, see `text`
        max_frames=MAX_TRAINING_FRAMES if training else None,  # no evaluation sentence may be missing
        wav_folder=None if training else _new_wav_folder(out, name),
    )
    every = math.ceil(len(recordings) / STATISTICS_FROM)
    rows: dict[str, list[list[str]]] = {task: [] for task in TASKS}
    left_out: list[tuple[str, Path, str]] = []
    statistics, frames = BinStatistics(), 0
    path = out / f"fbank{BINS}_{name}.zip"
    # The archive takes its name once it is complete; a split interrupted before that is prepared again.
    with replacing(path) as part, FeatureArchive(part, path.name) as archive:
        progress = tqdm(
            run(extract, recordings), total=len(recordings), desc=f"{dataset.name} {name}", unit="utt", mininterval=1.0
        )
        for rank, (recording, features) in enumerate(progress):
            if isinstance(features, str):  # the reason to leave the recording out
                left_out.append((recording.id, recording.path, features))
                continue
            stored = archive.add(recording.id, features)
            frames += stored.frames
            for task, text in zip(TASKS, (recording.source, recording.target), strict=True):
                rows[task].append([recording.id, stored.address, str(stored.frames), text, recording.speaker])
            if rank % every == 0:
                statistics.add(features)
    dropped = dict(Counter(reason for _, _, reason in left_out))
    summary = SplitSummary(len(rows[TASKS[0]]), round(frames * FRAME_MS / 1000, 2), dropped)
    if left_out:
        write_lines(out / f"left_out_{name}.tsv", ("\t".join(map(str, row)) for row in left_out))
    if not summary.utterances:
        raise LeapformerError(f"all of split {name} was left out ({summary.reasons()}); check the audio files")
    if training:
        statistics.save(out / CMVN)
    for task in TASKS:
        write_manifest(out / f"{name}_{task}.tsv", rows[task])
    return summary


def _new_wav_folder(out: Path, split: str) -> Path:
    folder = out / "wav" / split
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_subwords(out: Path, task: str, dataset: SpeechDataset, vocab_size: int) -> None:
    subwords = out / f"spm_{task}"
    if not subwords.with_suffix(".model").is_file():
        texts = (row["tgt_text"] for row in read_manifest(out / f"{dataset.splits[0]}_{task}.tsv", "tgt_text"))
        train_subwords(subwords, texts, vocab_size, dataset.type_of(task))


def _write_evaluation_lists(out: Path, split: str) -> None:
    """Write SimulEval's lists, with absolute paths; every run does so again, in case the folder was moved."""
    rows = list(read_manifest(out / f"{split}_st.tsv", "id", "tgt_text"))
    write_lines(out / f"{split}.source", (out / "wav" / split / f"{row['id']}.wav" for row in rows))
    write_lines(out / f"{split}.target", (row["tgt_text"] for row in rows))


def need_workers(workers: int) -> None:
    """Raise LeapformerError if `mapper` cannot use this many processes."""
    if workers < 1:
        raise LeapformerError(f"--workers is {workers}; give at least 1")


@contextmanager
def mapper(
    workers: int, kept: str = "finished work is kept, give fewer and the same command resumes"
) -> Iterator[Callable[..., Iterable[Any]]]:
    """Provide `map`, in this process or in several; results arrive in order.

    Raises LeapformerError if a process dies; its message ends with `kept`, what is lost and what to do.
    """
    if workers == 1:
        yield map
        return
    with pool_of(workers, f"--workers {workers}", kept) as pool:
        yield partial(pool.map, chunksize=16)  # recordings per message between processes
