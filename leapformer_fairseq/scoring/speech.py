"""Scores of synthesised speech: distortion from the recordings of the same sentences, and duration.

A run is a folder of `leapformer tts` with `manifest.tsv`, one row per sentence, and `run.json`, which describes the
model and its features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from ..runtime.acoustics.mel import MelConfig, log_mel
from ..runtime.acoustics.vocoder import GriffinLim
from ..runtime.audio import read_speech
from ..support.errors import LeapformerError
from ..support.lines import read_table
from .distortion import Distortion, cepstra, distance, log_spectrum
from .table import Column, Table

MANIFEST, DESCRIPTION = "manifest.tsv", "run.json"
COLUMNS = ("id", "text", "audio", "frames", "stopped", "reference", "reference_frames")
PREDICTED = "predicted_frames"  # optional column, for models that predict the length
Kind = Literal["resynthesised", "recording"]

# column of the table -> name of the score, format
_TABLE = {
    "MCD": ("MCD", ".3f"),
    "MSD": ("MSD", ".3f"),
    "MCD aligned": ("MCD_aligned", ".3f"),
    "MSD aligned": ("MSD_aligned", ".3f"),
    "inserted": ("insertions", ".1%"),
    "deleted": ("deletions", ".1%"),
    "frames": ("frames", ",d"),
    "to reference": ("duration_ratio", ".3f"),
    "duration error": ("duration_error", ".1%"),
    "predicted error": ("prediction_error", ".1%"),
    "stopped": ("stopped", ".1%"),
}

Report = dict[str, Any]
Distortions = dict[str, Distortion]  # by measure: MCD and MSD


@dataclass(frozen=True)
class Sentence:
    """A sentence that was synthesised to `audio`, and its recording `reference`.

    stopped:          whether the model predicted the end, rather than reaching the limit of steps.
    predicted_frames: the length that the model's length predictor gave; None without one.
    """

    id: str
    text: str
    audio: Path
    frames: int
    stopped: bool
    reference: Path
    reference_frames: int
    predicted_frames: float | None = None


@dataclass(frozen=True)
class Run:
    """The synthesised speech of a model, the features it was trained on, and the content of `run.json`."""

    folder: Path
    sentences: Sequence[Sentence]
    mels: MelConfig
    model: Mapping[str, Any]


def read_run(folder: str | Path) -> Run:
    """Read a run. Raises LeapformerError if a file is missing or damaged, or if a sentence has no recording."""
    folder = Path(folder)
    model = _description(folder / DESCRIPTION)
    sentences = _sentences(folder / MANIFEST)
    files = [path for sentence in sentences for path in (sentence.audio, sentence.reference)]
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise LeapformerError(
            f"{len(missing)} audio files of {folder} are missing, the first is {missing[0]}; check {folder / MANIFEST}"
        )
    return Run(folder, sentences, MelConfig.from_features(model["features"]), model)


def _description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LeapformerError(f"{path} cannot be read ({reason}); give a folder of `leapformer tts`") from error
    if not isinstance(description, dict) or not isinstance(description.get("features"), dict):
        raise LeapformerError(f"{path} describes no features; give a folder of `leapformer tts`")
    return description


def _sentences(path: Path) -> list[Sentence]:
    if not path.is_file():
        raise LeapformerError(f"no {path.name} in {path.parent}; give a folder of `leapformer tts`")
    rows = read_table(path, dict.fromkeys(COLUMNS, "give a folder of `leapformer tts`"))
    sentences = [_sentence(row, path) for _, row in rows]
    if not sentences:
        raise LeapformerError(f"{path} lists no sentences; synthesise some first")
    return sentences


def _sentence(row: Mapping[str, str | None], manifest: Path) -> Sentence:
    values = {column: row[column] or "" for column in COLUMNS}
    name = f"sentence {values['id']!r} in {manifest}"
    if not values["reference"]:
        raise LeapformerError(f"{name} has no reference; speech can be scored against recordings only")
    try:
        frames, reference_frames = int(values["frames"]), int(values["reference_frames"])
        stopped = {"0": False, "1": True}[values["stopped"]]
        predicted = float(row[PREDICTED] or "") if row.get(PREDICTED) else None
    except (KeyError, ValueError) as error:
        raise LeapformerError(f"{name} has no usable frames or stopped ({error}); synthesise it again") from error
    if frames < 0 or reference_frames < 1:  # scores are divided by the latter
        raise LeapformerError(
            f"{name} has {frames} frames for {reference_frames} of the reference; synthesise it again"
        )
    audio, reference = (manifest.parent / values[column] for column in ("audio", "reference"))
    return Sentence(values["id"], values["text"], audio, frames, stopped, reference, reference_frames, predicted)


def check_same(first: Run, other: Run) -> None:
    """Raise LeapformerError unless two runs have the same sentences, recordings and features."""
    if first.mels != other.mels:
        raise LeapformerError(f"{other.folder} has other features than {first.folder}; score them separately")
    theirs, ours = ([(s.id, s.text, s.reference.resolve()) for s in run.sentences] for run in (other, first))
    if theirs != ours:
        raise LeapformerError(f"{other.folder} has other sentences than {first.folder}; score them separately")


class Spectra:
    """Computes the spectra to compare; those of recordings are cached, because all runs share them.

    Synthesised speech has been through a vocoder. A "resynthesised" recording has been, too: Griffin-Lim applied to its
    own log-mels, so that the score does not blame the model for the vocoder. "recording" is the recording itself.
    """

    def __init__(self, mels: MelConfig) -> None:
        self.mels, self._vocoder = mels, GriffinLim(mels)
        self._recordings: dict[tuple[Path, Kind], np.ndarray] = {}

    def of_recording(self, path: Path, kind: Kind) -> np.ndarray:
        """The spectrum of a recording, (frames, 80), resynthesised or as it is."""
        if (path, kind) not in self._recordings:
            vocode = kind == "resynthesised"
            self._recordings[path, kind] = self.of_log_mels(self.log_mels(path)) if vocode else self.of_file(path)
        return self._recordings[path, kind]

    def of_log_mels(self, log_mels: np.ndarray) -> np.ndarray:
        """The spectrum of the speech that Griffin-Lim computes from log-mels (frames, n_mels)."""
        return log_spectrum(self._vocoder(log_mels), self.mels.sample_rate)

    def of_file(self, path: Path) -> np.ndarray:
        """The spectrum of an audio file as it is."""
        return log_spectrum(self._samples(path), self.mels.sample_rate)

    def log_mels(self, path: Path) -> np.ndarray:
        """Log-mels (frames, n_mels) of an audio file. Raises LeapformerError if unreadable or of another rate."""
        return log_mel(self._samples(path), self.mels)

    def _samples(self, path: Path) -> np.ndarray:
        return read_speech(path, self.mels.sample_rate)


def score_speech(run: Run, spectra: Spectra, kind: Kind) -> Report:
    """Score a run against its recordings of a kind.

    `scores` of the corpus has MCD and MSD per reference frame and, with the suffix `_aligned`, per aligned pair of
    frames; insertions and deletions in MCD's alignment, as shares of the reference frames; `frames` and their ratio to
    those of the reference; the mean absolute relative error of the durations and, if there is one, of the predicted
    length; and the share of sentences with a predicted end. Other keys: `alignment` (sums behind the scores),
    `n_instances`, `reference` (the kind), `instances` (scores of each sentence) and `model`.
    """
    distortions = _compare(run, run.folder.name, spectra, kind, lambda sentence: spectra.of_file(sentence.audio))
    frames = sum(sentence.frames for sentence in run.sentences)
    reference_frames = sum(sentence.reference_frames for sentence in run.sentences)
    durations = {
        "frames": frames,
        "reference_frames": reference_frames,
        "duration_ratio": frames / reference_frames,
        "duration_error": _error(run, "frames"),
        "stopped": fmean(sentence.stopped for sentence in run.sentences),
    }
    if all(sentence.predicted_frames is not None for sentence in run.sentences):
        durations["prediction_error"] = _error(run, PREDICTED)
    instances = [
        {key: getattr(sentence, key) for key in ("id", "frames", "reference_frames", "stopped")}
        | {name: value.per_reference_frame for name, value in measures.items()}
        for sentence, measures in zip(run.sentences, distortions, strict=True)
    ]
    report = _corpus(distortions, kind)
    return report | {"scores": report["scores"] | durations, "instances": instances, "model": dict(run.model)}


def _error(run: Run, length: str) -> float:
    """The mean absolute relative error of a length, an attribute of the sentences."""
    return fmean(abs(getattr(sentence, length) / sentence.reference_frames - 1) for sentence in run.sentences)


def score_baselines(run: Run, spectra: Spectra, kind: Kind) -> dict[str, Report]:
    """Score baselines on the sentences of a run: name -> `scores` and `alignment`.

    "floor" compares Griffin-Lim of each recording's log-mels with the recording itself: the cost of the vocoder alone.
    "mean spectrogram" repeats the mean frame of all recordings for as long as each recording lasts: a model that has
    learned nothing about speech but its average.
    """
    log_mels = {sentence.reference: spectra.log_mels(sentence.reference) for sentence in run.sentences}
    mean = np.concatenate(list(log_mels.values())).mean(axis=0)

    def flat(sentence: Sentence) -> np.ndarray:
        return spectra.of_log_mels(np.broadcast_to(mean, log_mels[sentence.reference].shape))

    def resynthesised(sentence: Sentence) -> np.ndarray:
        return spectra.of_recording(sentence.reference, "resynthesised")

    rows: list[tuple[str, Kind, Callable[[Sentence], np.ndarray]]] = [
        ("floor", "recording", resynthesised),
        ("mean spectrogram", kind, flat),
    ]
    return {name: _corpus(_compare(run, name, spectra, of_kind, speech), of_kind) for name, of_kind, speech in rows}


def _compare(
    run: Run, name: str, spectra: Spectra, kind: Kind, speech: Callable[[Sentence], np.ndarray]
) -> list[Distortions]:
    """The distortions between the spectrum that `speech` returns for each sentence and that of its recording."""
    distortions = []
    for sentence in tqdm(run.sentences, desc=name, unit="sentence"):
        reference, synthesised = spectra.of_recording(sentence.reference, kind), speech(sentence)
        cepstral = distance(cepstra(reference), cepstra(synthesised))
        distortions.append({"MCD": cepstral, "MSD": distance(reference, synthesised)})
    return distortions


def _corpus(distortions: Sequence[Distortions], kind: Kind) -> Report:
    sums = {name: sum((of_sentence[name] for of_sentence in distortions), Distortion()) for name in distortions[0]}
    scores = {name: value.per_reference_frame for name, value in sums.items()}
    scores |= {f"{name}_aligned": value.per_aligned_frame for name, value in sums.items()}
    cepstral = sums["MCD"]
    for name in ("insertions", "deletions"):
        scores[name] = getattr(cepstral, name) / cepstral.reference_frames
    alignment = {
        name: asdict(value) | {"insertions": value.insertions, "deletions": value.deletions}
        for name, value in sums.items()
    }
    return {"scores": scores, "alignment": alignment, "n_instances": len(distortions), "reference": kind}


def speech_table(reports: Mapping[str, Report]) -> Table:
    """The table of named reports."""
    columns = [Column("system"), Column("n_instances", "sentences"), Column("reference")]
    columns += [Column(f"scores.{name}", title, form) for title, (name, form) in _TABLE.items()]
    return Table([{"system": name, **report} for name, report in reports.items()], columns)
