"""What fairseq's speech tasks do differently for our models: errors name the manifest and the row."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import soundfile
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDataset
from fairseq.data.audio.text_to_speech_dataset import TextToSpeechDatasetCreator
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.text_to_speech import TextToSpeechTask
from torch import Tensor

from ..errors import LeapformerError


def load_dataset(task: SpeechToTextTask, split: str, *args: Any, **kwargs: Any) -> None:
    """fairseq's. Raises LeapformerError for a row with wrong durations, and later for one that cannot be read."""
    if isinstance(task, TextToSpeechTask):
        for name in split.split(","):
            check_durations(name, TextToSpeechDatasetCreator._load_samples_from_tsv(task.args.data, name))
    type(task).load_dataset(task, split, *args, **kwargs)
    _name_rows(task.datasets[split])


def build_dataset_for_inference(task: SpeechToTextTask, *args: Any, **kwargs: Any) -> SpeechToTextDataset:
    """fairseq's. Raises LeapformerError for a recording that cannot be read when it is looked at."""
    dataset = type(task).build_dataset_for_inference(task, *args, **kwargs)
    _name_rows(dataset)
    return dataset


def _name_rows(dataset: Any) -> None:
    """Let a dataset, and all that it is made of, name the row that it cannot read."""
    if isinstance(dataset, SpeechToTextDataset):
        dataset._get_source_audio = partial(_read_or_name_row, dataset)
    for part in getattr(dataset, "datasets", [getattr(dataset, "dataset", None)]):
        if part is not None:
            _name_rows(part)


def _read_or_name_row(dataset: SpeechToTextDataset, index: Any) -> Tensor:
    """Turn 'file not found' deep in a data loader into an error that names the manifest, the row and the file."""
    try:
        return type(dataset)._get_source_audio(dataset, index)
    except (OSError, soundfile.LibsndfileError) as error:
        rows = np.atleast_1d(index).tolist()  # several when recordings are concatenated as augmentation
        where = ", ".join(f"row {row + 1} ({dataset.audio_paths[row]})" for row in rows)
        raise LeapformerError(
            f"{dataset.split}.tsv, {where}: the audio cannot be read ({error}); correct the path or remove the row"
        ) from error


def check_durations(split: str, rows: list[dict[str, str]]) -> None:
    """Refuse durations that do not fit a row's phonemes or frames; fairseq trains on them, or fails an assertion."""
    for number, row in enumerate(rows, 2):  # line 1 holds the names of the columns
        reason = _wrong_durations(row)
        if reason is not None:
            raise LeapformerError(
                f"{split}.tsv, line {number} ({row.get('id')}): {reason}; correct the row, or leave the column "
                "duration out"
            )


def _wrong_durations(row: dict[str, str]) -> str | None:
    """What is wrong with the frames of each phoneme in a row of a text_to_speech manifest; None if nothing is."""
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
