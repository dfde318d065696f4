"""Reading data: numpy 2, audio without torchaudio, line ends in text, and the thread that reads batches."""

from __future__ import annotations

import atexit
import inspect
import math
import multiprocessing
import os
import queue
import sys
import tempfile
import time
import types
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from ..support.errors import LeapformerError
from ..support.files import paths_beside
from ..support.lines import decoded, read_lines
from ..support.processes import Pool
from .patch import patch, source_has, wrapping


@patch(
    "np.compat",
    "np.compat.long is used by --sample-break-mode eos, language model generation and --num-batch-buckets",
    lambda: not hasattr(np, "compat"),
    "numpy >= 2.0",
)
def _restore_np_compat() -> None:
    np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


def _convert_waveform(
    waveform: np.ndarray | torch.Tensor,
    sample_rate: int,
    normalize_volume: bool = False,
    to_mono: bool = False,
    to_sample_rate: int | None = None,
) -> tuple[np.ndarray | torch.Tensor, int]:
    """Convert (channels, T) in the order of fairseq's `convert_waveform`: peak normalisation, resampling, mono."""
    samples = np.asarray(waveform)
    if normalize_volume:
        samples = samples / max(float(np.abs(samples).max(initial=0.0)), 1e-8)
    if to_sample_rate is not None and to_sample_rate != sample_rate:
        from scipy.signal import resample_poly  # slow to import, and rarely needed

        divisor = math.gcd(int(sample_rate), int(to_sample_rate))
        samples = resample_poly(samples, to_sample_rate // divisor, sample_rate // divisor, axis=-1)
        sample_rate = to_sample_rate
    if to_mono and samples.shape[0] > 1:
        samples = samples.mean(axis=0, keepdims=True)
    samples = samples.astype(np.float32, copy=False)
    return (torch.from_numpy(samples) if isinstance(waveform, torch.Tensor) else samples), sample_rate


def _kaldi_fbank(waveform: np.ndarray, sample_rate: int, n_bins: int = 80) -> np.ndarray:
    """Log-mel features (frames, n_bins) of a (1, T) waveform at 16-bit integer scale, the scale of fairseq's hook."""
    from ..runtime.audio import INT16_SCALE, fbank

    return fbank(np.asarray(waveform)[0] / np.float32(INT16_SCALE), sample_rate, n_bins)


def _torchaudio_fails() -> bool:
    from fairseq.data.audio import audio_utils

    silence = np.zeros((1, 800), np.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # versions that still have these functions announce their removal
            audio_utils.convert_waveform(silence, 8_000, to_sample_rate=16_000)
            return audio_utils._get_torchaudio_fbank(silence, 16_000) is None
    except Exception:  # missing, too new, or built for another torch: each raises something else
        return True


@patch(
    "audio-without-torchaudio",
    "resampling needs torchaudio.sox_effects and features torchaudio.compliance; soundfile, scipy and onnxruntime do "
    "it, with the same features offline and streaming",
    _torchaudio_fails,
    "torchaudio >= 2.9, absent, or built for another torch",
)
def _replace_torchaudio() -> None:
    from fairseq.data.audio import audio_utils

    audio_utils.convert_waveform = _convert_waveform
    audio_utils._get_torchaudio_fbank = _kaldi_fbank


@patch(
    "checked-audio",
    "audio of any length, rate and scale is decoded: a damaged header fills the memory, and 16-bit integers taken for "
    "floats give features at another level; here our own reader checks it",
    source_has("fairseq.data.audio.audio_utils:get_waveform", "sf.read"),
    "every fairseq",
)
def _check_audio() -> None:
    from fairseq.data.audio import audio_utils

    audio_utils.get_waveform = _get_waveform


def _get_waveform(
    path_or_fp: str | BinaryIO,
    normalization: bool = True,
    mono: bool = True,
    frames: int = -1,
    start: int = 0,
    always_2d: bool = True,
    output_sample_rate: int | None = None,
    normalize_volume: bool = False,
    waveform_transforms: Any = None,
) -> tuple[np.ndarray, int]:
    """fairseq's `get_waveform` on our audio reader; raises AudioError for what that refuses.

    `frames` and `start` count samples; -1 frames are all, a negative start counts from the end. Returns (channels, T),
    or (T,) for mono without `always_2d`, in [-1, 1] or, without `normalization`, at 16-bit scale; and the rate in Hz.
    """
    from fairseq.data.audio import audio_utils

    from ..runtime.audio import open_audio, samples_of

    is_path = isinstance(path_or_fp, str)
    name = str(path_or_fp) if is_path else "a recording in an archive"
    if is_path and Path(name).suffix not in audio_utils.SF_AUDIO_FILE_EXTENSIONS:
        raise ValueError(f"Unsupported audio format: {Path(name).suffix}")
    with open_audio(path_or_fp, name) as file:
        first = start if start >= 0 else max(0, file.frames + start)
        samples, rate = samples_of(file, name, first, None if frames < 0 else frames), file.samplerate
    waveform, rate = audio_utils.convert_waveform(
        samples.T, rate, normalize_volume=normalize_volume, to_mono=mono, to_sample_rate=output_sample_rate
    )
    if not normalization:
        waveform = waveform * np.float32(2**15)
    if waveform_transforms is not None:
        waveform, rate = waveform_transforms(waveform, rate)
    return (waveform if always_2d else waveform.squeeze(axis=0)), rate


_consumers: weakref.WeakSet[Any] = weakref.WeakSet()


@patch(
    "exit-code-134",
    "the daemon thread that reads batches can be inside torch when the interpreter exits, which then aborts",
    # A consumer started to look at it would initialise CUDA if there is a GPU.
    source_has("fairseq.data.iterators:BufferedIterator._create_consumer", "daemon = True"),
    "fairseq 0.12 with --num-workers 0",
)
def _stop_consumers_at_exit() -> None:
    """Stop the threads that read batches before the interpreter exits."""
    _remember_consumer()
    atexit.register(lambda: _stop(list(_consumers)))


@wrapping("fairseq.data.iterators:BufferedIterator._create_consumer")
def _remember_consumer(create: Any, self: Any) -> None:
    create(self)
    _consumers.add(self._consumer)


def _stop(consumers: list[Any], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s  # after it, exit code 134 is better than a process that hangs
    for consumer in consumers:
        consumer._max_len = 0  # the thread checks this after each batch, and ends
        while consumer.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                consumer._queue.get(timeout=0.05)  # the thread may be blocked in put() on the full queue


def _paths_are_relative_to_working_directory() -> bool:
    from fairseq.data.audio import data_cfg

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text("audio_root: .\n")
        return bool(data_cfg.get_config_from_yaml(file)["audio_root"] == ".")


@patch(
    "moved-data",
    "paths in a speech data configuration are absolute or relative to the working directory, so that its folder cannot "
    "be moved",
    _paths_are_relative_to_working_directory,
)
@wrapping("fairseq.data.audio.data_cfg:get_config_from_yaml")
def _look_beside_the_configuration(read: Any, yaml_path: Path) -> Any:
    config = read(yaml_path)
    return paths_beside(config, Path(yaml_path).parent) if isinstance(config, dict) else config


def _chunks_end_at_any_line_end() -> bool:
    from fairseq import file_chunker_utils

    source = inspect.getsource(file_chunker_utils.Chunker)
    return '"rb"' not in source and "newline=" not in source


@patch(
    "lines-of-files",
    "preprocess ends a line at a carriage return inside a sentence, which pairs every later line with a wrong one; "
    "here only a line feed does, and an error about text that is not UTF-8 names the line",
    _chunks_end_at_any_line_end,
    "every fairseq",
)
def _end_lines_of_chunks_at_line_feeds() -> None:
    from fairseq import binarizer, file_chunker_utils
    from fairseq.data import dictionary

    for module in (file_chunker_utils, binarizer, dictionary):  # the last two imported the names themselves
        module.Chunker, module.find_offsets = _chunk, _chunk_offsets


def _chunk_offsets(filename: str, num_chunks: int) -> list[int]:
    """Byte offsets that cut a file into `num_chunks` chunks of whole lines: the start of each, then the file's size."""
    with open(filename, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offsets = [0]
        for number in range(1, num_chunks):
            file.seek(size // num_chunks * number)
            file.readline()  # to the end of the line that the cut falls into; it belongs to the chunk before
            offsets.append(file.tell())
        return [*offsets, size]


@contextmanager
def _chunk(path: str, start_offset: int, end_offset: int) -> Iterator[Iterator[str]]:
    """The decoded lines of a chunk; up to the end of the file if `end_offset` is not positive."""
    with open(path, "rb") as file:
        before = sum(1 for _ in _lines_before(file, start_offset))  # for the line number in an error of decoding
        yield decoded(_lines_before(file, end_offset if end_offset > 0 else None), path, before + 1)


def _lines_before(file: BinaryIO, end: int | None) -> Iterator[bytes]:
    """The lines that begin before byte `end`, from the current position on."""
    while (end is None or file.tell() < end) and (line := file.readline()):
        yield line


@patch(
    "lines-of-input",
    "interactive ends a line at a carriage return inside a sentence, and translates one sentence more than it got",
    source_has("fairseq_cli.interactive:buffered_read", "fileinput"),
    "every fairseq",
)
@wrapping("fairseq_cli.interactive:buffered_read")
def _end_lines_of_input_at_line_feeds(_: Any, input: str, buffer_size: int) -> Iterator[list[str]]:
    source = decoded(sys.stdin.buffer, "standard input") if input == "-" else read_lines(input, "--input")
    lines = (line.strip() for line in source)
    while batch := list(islice(lines, buffer_size)):
        yield batch


@patch(
    "counts-of-lines",
    "preprocess accepts a source and a target with different numbers of lines",
    source_has("fairseq_cli.preprocess:_make_all", "!=", not_yet=True),
    "every fairseq",
)
@wrapping("fairseq_cli.preprocess:_make_all")
def _compare_counts(make: Any, lang: str, vocab: Any, args: Any) -> None:
    if lang == args.source_lang and not args.only_source:
        for path, other in _parallel_files(args):
            counts = [_line_count(path), _line_count(other)]
            if counts[0] != counts[1]:
                raise LeapformerError(
                    f"{path} has {counts[0]} lines but {other} has {counts[1]}, so they are not translations line by "
                    "line; give the files that belong together"
                )
    make(lang, vocab, args)


def _line_count(path: str) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def _parallel_files(args: Any) -> Iterator[tuple[str, str]]:
    """Pairs of a source file of `preprocess` and a file that must have as many lines: target, alignments."""
    prefixes = [
        prefix for option in (args.trainpref, args.validpref, args.testpref) if option for prefix in option.split(",")
    ]
    for prefix in prefixes:
        source = f"{prefix}.{args.source_lang}"
        others = [f"{prefix}.{part}" for part in (args.target_lang, args.align_suffix) if part]
        if prefix == args.trainpref and args.alignfile:
            others.append(args.alignfile)
        yield from ((source, other) for other in others if os.path.isfile(source) and os.path.isfile(other))


def _pools_wait_for_killed_processes() -> bool:
    from fairseq import binarizer
    from fairseq.data import dictionary

    return multiprocessing.Pool in (binarizer.Pool, dictionary.Pool)


@patch(
    "pools",
    "preprocess --workers waits forever for a worker that was killed",
    _pools_wait_for_killed_processes,
    "every fairseq",
)
def _let_pools_notice_killed_processes() -> None:
    from fairseq import binarizer
    from fairseq.data import dictionary

    binarizer.Pool = dictionary.Pool = Pool
