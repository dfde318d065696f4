"""Changes to fairseq's speech tasks for our models: errors that name the row, augmentation, a warning about wait-k.

`task.adapt` and `simulst` install them, method by method.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from fairseq.data.audio.audio_utils import SF_AUDIO_FILE_EXTENSIONS
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDataset
from fairseq.data.audio.text_to_speech_dataset import TextToSpeechDatasetCreator
from fairseq.distributed.utils import get_global_rank
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.text_to_speech import TextToSpeechTask
from torch import Tensor

from ..runtime.audio import AudioError, check_speech, open_audio
from ..runtime.schedule import outrun
from ..support.errors import LeapformerError
from .augmentation import JoinedSentences, join_sentences, perturb_speed

logger = logging.getLogger(__name__)


def load_dataset(task: SpeechToTextTask, split: str, *args: Any, **kwargs: Any) -> None:
    """As in fairseq, with augmentation of training sets if requested.

    Raises LeapformerError for a row with wrong durations. A recording that cannot be read raises one when it is read.
    """
    if isinstance(task, TextToSpeechTask):
        for name in split.split(","):
            check_durations(name, TextToSpeechDatasetCreator._load_samples_from_tsv(task.args.data, name))
    type(task).load_dataset(task, split, *args, **kwargs)
    for part in _parts(task.datasets[split]):
        # A private method, but fairseq has no other place between a row and its features.
        part._get_source_audio = partial(_read_or_name_row, part)
        if split.startswith("train"):  # as fairseq recognises training sets
            join_sentences(part, getattr(task.args, "join_sentences", 1), task.args.seed)
            perturb_speed(part, getattr(task.args, "speed_perturbation", 0))


def load_dataset_for_wait_k(
    laggings: Sequence[int], ratio: int, task: SpeechToTextTask, split: str, *args: Any, **kwargs: Any
) -> None:
    """`load_dataset`, with a warning if these k and this ratio ask for words before they are spoken."""
    load_dataset(task, split, *args, **kwargs)
    if split.startswith("train") and get_global_rank() == 0:
        parts = list(_parts(task.datasets[split]))
        frames = [count for part in parts for count in part.n_frames]
        tokens = [count + 1 for part in parts for count in part.tgt_lens]  # with the end of the sentence
        reason = outrun(frames, tokens, laggings, ratio)
        if reason is not None:
            logger.warning(reason)


def build_dataset_for_inference(task: SpeechToTextTask, *args: Any, **kwargs: Any) -> SpeechToTextDataset:
    """As in fairseq. Raises LeapformerError for a recording that cannot be read when it is accessed."""
    dataset = type(task).build_dataset_for_inference(task, *args, **kwargs)
    dataset._get_source_audio = partial(_read_or_name_row, dataset)
    return dataset


def _parts(dataset: Any) -> Iterator[SpeechToTextDataset]:
    """Iterate over the data sets of single manifests inside fairseq's wrappers."""
    if isinstance(dataset, SpeechToTextDataset):
        yield dataset
    for part in getattr(dataset, "datasets", [getattr(dataset, "dataset", None)]):
        if part is not None:
            yield from _parts(part)


def _read_or_name_row(dataset: SpeechToTextDataset, index: Any) -> Tensor:
    """Read features like `_get_source_audio`; raise a LeapformerError that names manifest, row and file if it fails."""
    joined: JoinedSentences | None = dataset.dataset_transforms.get_transform(JoinedSentences)
    try:
        for row in np.atleast_1d(index).tolist():
            _check_recording(dataset, row)  # when it is read, not all of a corpus at the start
        if joined is not None:
            return joined.source(dataset, index)
        return type(dataset)._get_source_audio(dataset, index)
    except (OSError, soundfile.LibsndfileError, AudioError) as error:
        rows = np.atleast_1d(index).tolist()  # several if recordings are joined
        where = ", ".join(f"row {row + 1} ({dataset.audio_paths[row]})" for row in rows)
        raise LeapformerError(
            f"{dataset.split}.tsv, {where}: the audio cannot be read ({error}); correct the path or remove the row"
        ) from error


def _check_recording(dataset: SpeechToTextDataset, row: int) -> None:
    """Reject a recording whose header has another sample rate: fairseq computes filterbanks without resampling."""
    path = dataset.audio_paths[row]
    if dataset.cfg.use_audio_input or Path(path).suffix.lower() not in SF_AUDIO_FILE_EXTENSIONS:
        return  # waveforms, which fairseq resamples; features; or a part of an archive
    if Path(path).is_file():  # reading reports a missing file
        with open_audio(path) as file:
            check_speech(1, file.samplerate, path, dataset.cfg.use_sample_rate)


def check_durations(split: str, rows: list[dict[str, str]]) -> None:
    """Raise LeapformerError for durations that do not match a row's phonemes or frames.

    fairseq would train on them or fail an assertion.
    """
    for number, row in enumerate(rows, 2):  # line 1 holds the names of the columns
        reason = _wrong_durations(row)
        if reason is not None:
            raise LeapformerError(
                f"{split}.tsv, line {number} ({row.get('id')}): {reason}; correct the row, or leave the column "
                "duration out"
            )


def _wrong_durations(row: dict[str, str]) -> str | None:
    """Say what is wrong with the durations, in frames, in a row of a text-to-speech manifest; None if nothing is."""
    written, phonemes = row.get("duration"), row["tgt_text"].split()
    if written is None:
        return None
    durations = written.split(" ")
    if not all(duration.isascii() and duration.isdigit() for duration in durations):
        return f"duration {written!r} is not a list of whole numbers with one space between them"
    if len(durations) != len(phonemes):
        return f"{len(durations)} durations for {len(phonemes)} phonemes"
    total, frames = sum(map(int, durations)), int(row["n_frames"])
    return f"durations of {total} frames are longer than the audio, {frames} frames" if total > frames else None
