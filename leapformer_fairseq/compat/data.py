"""Reading data: numpy 2, audio without torchaudio, manifests, and the thread that reads batches."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import queue
import re
import time
import types
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from ..errors import LeapformerError
from .patch import Patch, always

logger = logging.getLogger(__name__)


def _np_compat_is_missing() -> bool:
    return not hasattr(np, "compat")


def _restore_np_compat() -> None:
    np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


def _convert_waveform(
    waveform: np.ndarray | torch.Tensor,
    sample_rate: int,
    normalize_volume: bool = False,
    to_mono: bool = False,
    to_sample_rate: int | None = None,
) -> tuple[np.ndarray | torch.Tensor, int]:
    """fairseq's `convert_waveform` on (channels, T), in its order: volume to full scale, rate, mix-down."""
    samples = np.asarray(waveform)
    if normalize_volume:
        samples = samples / max(float(np.abs(samples).max(initial=0.0)), 1e-8)
    if to_sample_rate is not None and to_sample_rate != sample_rate:
        from scipy.signal import resample_poly  # a slow import, needed by few

        shared = math.gcd(int(sample_rate), int(to_sample_rate))
        samples = resample_poly(samples, to_sample_rate // shared, sample_rate // shared, axis=-1)
        sample_rate = to_sample_rate
    if to_mono and samples.shape[0] > 1:
        samples = samples.mean(axis=0, keepdims=True)
    samples = samples.astype(np.float32, copy=False)
    return (torch.from_numpy(samples) if isinstance(waveform, torch.Tensor) else samples), sample_rate


def _kaldi_fbank(waveform: np.ndarray, sample_rate: int, n_bins: int = 80) -> np.ndarray:
    """fairseq's feature hook: `waveform` is (1, T) at 16-bit integer scale."""
    from ..audio import INT16_SCALE, fbank

    return fbank(np.asarray(waveform)[0] / np.float32(INT16_SCALE), sample_rate, n_bins)


def _fairseq_wants_torchaudio() -> bool:
    from fairseq.data.audio import audio_utils

    return hasattr(audio_utils, "_get_torchaudio_fbank")


def _replace_torchaudio() -> None:
    from fairseq.data.audio import audio_utils

    audio_utils.convert_waveform = _convert_waveform
    audio_utils._get_torchaudio_fbank = _kaldi_fbank


def _name_unreadable_rows() -> None:
    """Turn 'file not found' deep in a data loader into an error that names the manifest, the row and the file."""
    import soundfile
    from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDataset

    read = SpeechToTextDataset._get_source_audio

    @functools.wraps(read)
    def read_or_name_row(self: Any, index: Any) -> torch.Tensor:
        try:
            return read(self, index)
        except (OSError, soundfile.LibsndfileError) as error:
            rows = np.atleast_1d(index).tolist()  # several when recordings are concatenated as augmentation
            where = ", ".join(f"row {row + 1} ({self.audio_paths[row]})" for row in rows)
            raise LeapformerError(
                f"{self.split}.tsv, {where}: the audio cannot be read ({error}); mend the path or remove the row"
            ) from error

    SpeechToTextDataset._get_source_audio = read_or_name_row


def _name_wrong_durations() -> None:
    """Say which row's durations do not fit its phonemes or frames; without it training learns from them, or asserts."""
    from fairseq.data.audio.text_to_speech_dataset import TextToSpeechDatasetCreator

    make = TextToSpeechDatasetCreator.__dict__["_from_list"].__func__

    @functools.wraps(make)
    def check_and_make(
        cls: Any, split: str, is_train: bool, rows: list[dict[str, str]], *rest: Any, **more: Any
    ) -> Any:
        for number, row in enumerate(rows, 2):  # line 1 holds the names of the columns
            objection = _objection_to_durations(row)
            if objection is not None:
                raise LeapformerError(
                    f"{split}.tsv, line {number} ({row.get('id')}): {objection}; mend the row, or leave the column "
                    "duration out"
                )
        return make(cls, split, is_train, rows, *rest, **more)

    TextToSpeechDatasetCreator._from_list = classmethod(check_and_make)


def _objection_to_durations(row: dict[str, str]) -> str | None:
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


def _keep_last_batches() -> None:
    """Keep the last batch whatever its size; fairseq drops it unless that is a multiple of 8 (or as many as asked)."""
    from fairseq.data import data_utils

    make = data_utils.batch_by_size

    @functools.wraps(make)
    def batch_by_size(indices: Any, *args: Any, **kwargs: Any) -> Any:
        indices = indices if isinstance(indices, np.ndarray) else np.fromiter(indices, dtype=np.int64)
        batches = list(make(indices, *args, **kwargs)) if len(indices) else []
        rest = indices[sum(map(len, batches)) :]  # batches follow the order of the indices
        return [*batches, rest] if len(rest) and kwargs.get("fixed_shapes") is None else batches

    data_utils.batch_by_size = batch_by_size


def _name_samples_that_are_too_long() -> None:
    """One line for what does not fit the model's positions, where fairseq ends in a traceback."""
    from fairseq.tasks.fairseq_task import FairseqTask

    choose = FairseqTask.filter_indices_by_size

    @functools.wraps(choose)
    def filter_indices_by_size(self: Any, indices: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return choose(self, indices, dataset, *args, **kwargs)
        except Exception as error:
            found = re.match(r"Size of sample #(\d+) is invalid \(=(.*)\) since max_positions=(.*), skip", str(error))
            if found is None:
                raise
            sample, size, limit = (re.sub(r"np\.\w+\((\d+)\)", r"\1", part) for part in found.groups())
            raise LeapformerError(
                f"sample {sample} is too long: {size} tokens or frames, the model's positions are {limit}; cut it, or "
                "leave out what is too long with --skip-invalid-size-inputs-valid-test"
            ) from None

    FairseqTask.filter_indices_by_size = filter_indices_by_size


def _tell_of_unknown_words() -> None:
    """Say which lines that fairseq-interactive reads are empty, or hold words the model does not know."""
    from fairseq.tasks.fairseq_task import FairseqTask

    encode = FairseqTask.get_interactive_tokens_and_lengths

    @functools.wraps(encode)
    def get_interactive_tokens_and_lengths(self: Any, lines: list[str], encode_fn: Any) -> Any:
        words = self.source_dictionary
        for line in lines:
            pieces = encode_fn(line).split()
            unknown = [piece for piece in dict.fromkeys(pieces) if words.index(piece) == words.unk()]
            if not pieces:
                logger.warning("an empty line: the model gets nothing to read; leave such lines out")
            elif unknown:
                logger.warning(
                    "%r: not in the dictionary: %s; prepare the text as in training", line[:80], " ".join(unknown[:5])
                )
        return encode(self, lines, encode_fn)

    FairseqTask.get_interactive_tokens_and_lengths = get_interactive_tokens_and_lengths


def _consumer_is_daemon() -> bool:
    from fairseq.data import iterators

    return hasattr(iterators.BufferedIterator, "_create_consumer")


def _stop_consumers_at_exit() -> None:
    """Let the batch reading threads end before the interpreter does."""
    from fairseq.data.iterators import BufferedIterator

    consumers: weakref.WeakSet[Any] = weakref.WeakSet()
    create = BufferedIterator._create_consumer

    @functools.wraps(create)
    def create_and_remember(self: Any) -> None:
        create(self)
        consumers.add(self._consumer)

    BufferedIterator._create_consumer = create_and_remember
    atexit.register(lambda: _stop(list(consumers)))


def _stop(consumers: list[Any], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s  # better an ugly exit than one that never comes
    for consumer in consumers:
        consumer._max_len = 0  # the thread looks at it after each batch
        while consumer.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                consumer._queue.get(timeout=0.05)  # makes room: the thread may wait in put()


PATCHES = (
    Patch(
        "np.compat",
        "np.compat.long is used by --sample-break-mode eos, language model generation and --num-batch-buckets",
        "numpy >= 2.0",
        _np_compat_is_missing,
        _restore_np_compat,
    ),
    Patch(
        "audio-without-torchaudio",
        "resampling needs torchaudio.sox_effects and features torchaudio.compliance; soundfile, scipy and "
        "kaldi-native-fbank do it, with the same features offline and streaming",
        "torchaudio >= 2.9, absent, or built for another torch",
        _fairseq_wants_torchaudio,
        _replace_torchaudio,
    ),
    Patch(
        "manifest-row",
        "a missing or unreadable recording is reported without its manifest and row",
        "fairseq 0.12",
        always,
        _name_unreadable_rows,
    ),
    Patch(
        "durations",
        "durations that do not fit the phonemes or the audio of a text_to_speech manifest end in an assertion, or are "
        "trained on",
        "fairseq 0.12",
        always,
        _name_wrong_durations,
    ),
    Patch(
        "last-batch",
        "the last batch is dropped unless its size is a multiple of --required-batch-size-multiple (8), so that some "
        "sentences are neither generated nor validated nor trained on",
        "fairseq 0.12.3",
        always,
        _keep_last_batches,
    ),
    Patch(
        "too-long",
        "a sample that is longer than the model's positions ends in a traceback",
        "fairseq 0.12",
        always,
        _name_samples_that_are_too_long,
    ),
    Patch(
        "unknown-words",
        "fairseq-interactive reads empty lines and unknown words without a word",
        "fairseq 0.12",
        always,
        _tell_of_unknown_words,
    ),
    Patch(
        "exit-code-134",
        "the daemon thread that reads batches can be inside torch when the interpreter ends, which then aborts",
        "fairseq 0.12 with --num-workers 0",
        _consumer_is_daemon,
        _stop_consumers_at_exit,
    ),
)
