"""Reading speech and computing log-mel filterbanks, whole or while the audio arrives.

Everything here follows Kaldi's filterbank as fairseq uses it (25 ms windows every 10 ms, povey window, pre-emphasis
0.97, no dither, samples at 16-bit integer scale). `kaldi-native-fbank` computes both the offline and the online form,
so a model sees while streaming what it saw in training. No import of fairseq or torchaudio.
"""

from __future__ import annotations

from pathlib import Path

import kaldi_native_fbank as knf
import numpy as np
import soundfile

from .errors import LeapformerError

SAMPLE_RATE = 16_000
FRAME_MS = 10  # hop between two filterbank frames
WINDOW_MS = 25
INT16_SCALE = 2.0**15  # [-1, 1] samples times this are at the scale that fairseq's features are computed on


def read_speech(path: str | Path, sample_rate: int = SAMPLE_RATE) -> np.ndarray:
    """Samples in [-1, 1], shape (T,), of a mono recording at `sample_rate`.

    Raises LeapformerError when the file is missing, unreadable, empty, not mono or has another rate.
    """
    path = Path(path)
    if not path.is_file():
        raise LeapformerError(f"no audio file at {path}; check the manifest or the --audio root")
    try:
        samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise LeapformerError(f"{path} cannot be read as audio ({error}); is the file truncated?") from error
    check_speech(samples.shape[1], rate, str(path), sample_rate)
    if len(samples) == 0:
        raise LeapformerError(f"{path} holds no samples; remove it from the list")
    return samples[:, 0]


def check_speech(channels: int, rate: int, name: str, sample_rate: int = SAMPLE_RATE) -> None:
    """Refuse audio that the features were not made for; a wrong rate or channel would give useless output silently."""
    if channels != 1:
        raise LeapformerError(
            f"{name} has {channels} channels, mono is needed; mix it down, e.g. `sox in.wav -c 1 out.wav`"
        )
    if rate != sample_rate:
        raise LeapformerError(
            f"{name} is sampled at {rate} Hz, {sample_rate} Hz is needed; "
            f"resample it, e.g. `sox in.wav -r {sample_rate} out.wav`"
        )


class OnlineFbank:
    """Filterbank frames of audio that arrives piece by piece; every frame is computed once.

    `push` takes samples in [-1, 1] and returns the frames they completed, shape (n, n_bins), n may be 0. Any cutting of
    the audio gives the frames of `fbank` on the whole (no frame is padded: the last incomplete window is dropped).
    """

    def __init__(self, sample_rate: int = SAMPLE_RATE, n_bins: int = 80) -> None:
        options = knf.FbankOptions()
        options.frame_opts.samp_freq = float(sample_rate)
        options.frame_opts.dither = 0.0
        options.frame_opts.snip_edges = True
        options.mel_opts.num_bins = n_bins
        self.sample_rate, self.n_bins = sample_rate, n_bins
        self._fbank = knf.OnlineFbank(options)
        self._done = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take in samples, (T,), and return the frames they completed, (n, n_bins)."""
        if len(samples):
            scaled = np.asarray(samples, dtype=np.float32) * np.float32(INT16_SCALE)
            self._fbank.accept_waveform(float(self.sample_rate), scaled.tolist())
        ready = self._fbank.num_frames_ready
        frames = np.empty((ready - self._done, self.n_bins), dtype=np.float32)
        for row, index in enumerate(range(self._done, ready)):
            frames[row] = self._fbank.get_frame(index)
        self._fbank.pop(ready - self._done)
        self._done = ready
        return frames


def fbank(samples: np.ndarray, sample_rate: int = SAMPLE_RATE, n_bins: int = 80) -> np.ndarray:
    """Log-mel filterbank, (frames, n_bins), of a whole recording with samples in [-1, 1], shape (T,)."""
    return OnlineFbank(sample_rate, n_bins).push(samples)
