"""Reading data: numpy 2, audio without torchaudio, and the thread that reads batches."""

from __future__ import annotations

import atexit
import functools
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
from .patch import Patch


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
    from ..runtime.audio import INT16_SCALE, fbank

    return fbank(np.asarray(waveform)[0] / np.float32(INT16_SCALE), sample_rate, n_bins)


def _torchaudio_fails() -> bool:
    from fairseq.data.audio import audio_utils

    silence = np.zeros((1, 800), np.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of functions that the next version removes
            audio_utils.convert_waveform(silence, 8_000, to_sample_rate=16_000)
            return audio_utils._get_torchaudio_fbank(silence, 16_000) is None
    except Exception:  # missing, too new, or built for another torch: each ends in another error
        return True


def _replace_torchaudio() -> None:
    from fairseq.data.audio import audio_utils

    audio_utils.convert_waveform = _convert_waveform
    audio_utils._get_torchaudio_fbank = _kaldi_fbank


def _audio_is_not_checked() -> bool:
    from fairseq.data.audio import audio_utils

    return "sf.read" in inspect.getsource(audio_utils.get_waveform)


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
    """fairseq's `get_waveform`, which reads a file once, as all our readers do. Raises AudioError as they do."""
    from fairseq.data.audio import audio_utils

    from ..runtime.audio import open_audio, samples_of

    named = isinstance(path_or_fp, str)
    name = str(path_or_fp) if named else "a recording in an archive"
    if named and Path(name).suffix not in audio_utils.SF_AUDIO_FILE_EXTENSIONS:
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


def _consumer_is_daemon() -> bool:
    from fairseq.data.iterators import BufferedIterator

    # Read, not run: a thread of its own would start CUDA where there is a GPU.
    return "daemon = True" in inspect.getsource(BufferedIterator._create_consumer)


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


def _paths_are_of_the_working_directory() -> bool:
    from fairseq.data.audio import data_cfg

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text("audio_root: .\n")
        return bool(data_cfg.get_config_from_yaml(file)["audio_root"] == ".")


def _look_beside_the_configuration() -> None:
    from fairseq.data.audio import data_cfg

    read = data_cfg.get_config_from_yaml

    @functools.wraps(read)
    def get_config_from_yaml(yaml_path: Path) -> Any:
        found = read(yaml_path)
        return paths_beside(found, Path(yaml_path).parent) if isinstance(found, dict) else found

    data_cfg.get_config_from_yaml = get_config_from_yaml


def _chunks_end_at_any_line_end() -> bool:
    from fairseq import file_chunker_utils

    source = inspect.getsource(file_chunker_utils.Chunker)
    return '"rb"' not in source and "newline=" not in source


def _end_lines_of_chunks_at_line_feeds() -> None:
    from fairseq import binarizer, file_chunker_utils
    from fairseq.data import dictionary

    for module in (file_chunker_utils, binarizer, dictionary):
        module.Chunker, module.find_offsets = _chunk, _chunk_offsets


def _chunk_offsets(filename: str, num_chunks: int) -> list[int]:
    """Where to cut a file so that every chunk begins with a line: the first byte of each chunk, and the size."""
    with open(filename, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offsets = [0]
        for number in range(1, num_chunks):
            file.seek(size // num_chunks * number)
            file.readline()
            offsets.append(file.tell())
        return [*offsets, size]


@contextmanager
def _chunk(path: str, start_offset: int, end_offset: int) -> Iterator[Iterator[str]]:
    """The lines of a chunk, to the end of the file if `end_offset` is not above 0."""
    with open(path, "rb") as file:
        before = sum(1 for _ in _lines_before(file, start_offset))
        yield decoded(_lines_before(file, end_offset if end_offset > 0 else None), path, before + 1)


def _lines_before(file: BinaryIO, end: int | None) -> Iterator[bytes]:
    """The lines of a file that begin before a place in it."""
    while (end is None or file.tell() < end) and (line := file.readline()):
        yield line


def _input_ends_at_any_line_end() -> bool:
    from fairseq_cli import interactive

    return "fileinput" in inspect.getsource(interactive.buffered_read)


def _end_lines_of_input_at_line_feeds() -> None:
    from fairseq_cli import interactive

    interactive.buffered_read = _buffered_read


def _buffered_read(input: str, buffer_size: int) -> Iterator[list[str]]:
    found = decoded(sys.stdin.buffer, "standard input") if input == "-" else read_lines(input, "--input")
    lines = (line.strip() for line in found)
    while batch := list(islice(lines, buffer_size)):
        yield batch


def _counts_are_not_compared() -> bool:
    from fairseq_cli import preprocess

    return "!=" not in inspect.getsource(preprocess._make_all)


def _compare_counts() -> None:
    from fairseq_cli import preprocess

    make = preprocess._make_all

    def make_all(lang: str, vocab: Any, args: Any) -> None:
        if lang == args.source_lang and not args.only_source:
            for path, other in _paired(args):
                counts = [_count(path), _count(other)]
                if counts[0] != counts[1]:
                    raise LeapformerError(
                        f"{path} has {counts[0]} lines but {other} has {counts[1]}, so they are no translations line "
                        "by line; give the files that belong together"
                    )
        make(lang, vocab, args)

    preprocess._make_all = make_all


def _count(path: str) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def _paired(args: Any) -> Iterator[tuple[str, str]]:
    """The files of `preprocess` that must have as many lines as the source beside them."""
    prefixes = [
        prefix for given in (args.trainpref, args.validpref, args.testpref) if given for prefix in given.split(",")
    ]
    for prefix in prefixes:
        source = f"{prefix}.{args.source_lang}"
        others = [f"{prefix}.{part}" for part in (args.target_lang, args.align_suffix) if part]
        if prefix == args.trainpref and args.alignfile:
            others.append(args.alignfile)
        yield from ((source, other) for other in others if os.path.isfile(source) and os.path.isfile(other))


def _pools_wait_for_the_dead() -> bool:
    from fairseq import binarizer
    from fairseq.data import dictionary

    return multiprocessing.Pool in (binarizer.Pool, dictionary.Pool)


def _let_pools_notice_the_dead() -> None:
    from fairseq import binarizer
    from fairseq.data import dictionary

    binarizer.Pool = dictionary.Pool = Pool


PATCHES = (
    Patch(
        "pools",
        "preprocess --workers waits for ever for a process that was killed",
        "every fairseq",
        _pools_wait_for_the_dead,
        _let_pools_notice_the_dead,
    ),
    Patch(
        "lines-of-files",
        "preprocess ends a line at a carriage return inside a sentence, which pairs every later line with a wrong one; "
        "here only a line feed does, and what is not UTF-8 is named with its line",
        "every fairseq",
        _chunks_end_at_any_line_end,
        _end_lines_of_chunks_at_line_feeds,
    ),
    Patch(
        "lines-of-input",
        "interactive ends a line at a carriage return inside a sentence, and translates one sentence more than it got",
        "every fairseq",
        _input_ends_at_any_line_end,
        _end_lines_of_input_at_line_feeds,
    ),
    Patch(
        "counts-of-lines",
        "preprocess makes a data set of a source and a target with different numbers of lines",
        "every fairseq",
        _counts_are_not_compared,
        _compare_counts,
    ),
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
        "onnxruntime do it, with the same features offline and streaming",
        "torchaudio >= 2.9, absent, or built for another torch",
        _torchaudio_fails,
        _replace_torchaudio,
    ),
    Patch(
        "checked-audio",
        "audio of any length, rate and scale is decoded: a damaged header fills the memory, and 16-bit integers taken "
        "for floats give features of another level; here it is read as everywhere else",
        "every fairseq",
        _audio_is_not_checked,
        _check_audio,
    ),
    Patch(
        "exit-code-134",
        "the daemon thread that reads batches can be inside torch when the interpreter ends, which then aborts",
        "fairseq 0.12 with --num-workers 0",
        _consumer_is_daemon,
        _stop_consumers_at_exit,
    ),
    Patch(
        "moved-data",
        "paths of a speech data configuration are those of the working directory, or absolute: the folder stays there",
        "fairseq 0.12",
        _paths_are_of_the_working_directory,
        _look_beside_the_configuration,
    ),
)
