"""Reading data: numpy 2, audio without torchaudio, and the thread that reads batches."""

from __future__ import annotations

import atexit
import functools
import inspect
import math
import queue
import tempfile
import time
import types
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files import paths_beside
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
    from ..audio import INT16_SCALE, fbank

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
        _torchaudio_fails,
        _replace_torchaudio,
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
