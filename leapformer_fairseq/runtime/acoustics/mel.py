"""Mel spectrograms as fairseq's text_to_speech task stores them, and the filterbanks behind them.

fairseq takes its filters from librosa and its cepstra from torchaudio; here are both filterbanks in a few lines, so
that neither library is needed.

Shapes: T samples, M mel channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from ...support.errors import LeapformerError

Scale = Literal["slaney", "htk"]
# Slaney's scale: so many mels per Hz up to the knee, and then equal ratios of frequencies.
_MELS_PER_HZ = 3 / 200
_KNEE_HZ = 1000.0
_MELS_PER_NEPER = 27 / math.log(6.4)


@dataclass(frozen=True)
class MelConfig:
    """How log-mels are computed: lengths in samples, frequencies in Hz, `floor` the least magnitude.

    The defaults are windows of 50 ms every 12.5 ms at 16 kHz. Raises LeapformerError for values that do not fit
    each other.
    """

    sample_rate: int = 16_000
    n_fft: int = 1024
    win_length: int = 800
    hop_length: int = 200
    n_mels: int = 80
    f_min: float = 20.0
    f_max: float = 8000.0
    floor: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 < self.hop_length <= self.win_length <= self.n_fft:
            raise LeapformerError(
                f"hop_length {self.hop_length}, win_length {self.win_length}, n_fft {self.n_fft}: "
                "they must be positive and none greater than the next; correct the features"
            )
        if not 0 <= self.f_min < self.f_max <= self.sample_rate / 2:
            raise LeapformerError(
                f"mel filters from {self.f_min:g} to {self.f_max:g} Hz at a sample rate of {self.sample_rate}: "
                "f_min must be below f_max, and f_max at most half the sample rate; correct the features"
            )
        if self.n_mels < 1 or not self.floor > 0:
            raise LeapformerError(f"n_mels {self.n_mels} and eps {self.floor:g} must be positive; correct the features")

    @classmethod
    def from_features(cls, features: Mapping[str, Any]) -> Self:
        """Read the `features` block of a text_to_speech data configuration.

        Lengths may be given in samples (win_length, hop_length) or seconds (win_len_t, hop_len_t). Raises
        LeapformerError for a key that is missing, or a value that is no number or not supported.
        """
        if _value(features, "window_fn", str) != "hann":
            raise LeapformerError(f"window_fn {features['window_fn']} is not supported; make features with hann")
        rate = _value(features, "sample_rate", int)
        return cls(
            sample_rate=rate,
            win_length=_samples(features, "win_length", "win_len_t", rate),
            hop_length=_samples(features, "hop_length", "hop_len_t", rate),
            floor=_value(features, "eps", float),
            **{name: _value(features, name, int) for name in ("n_fft", "n_mels")},
            **{name: _value(features, name, float) for name in ("f_min", "f_max")},
        )

    @property
    def bins(self) -> int:
        """Of a spectrogram."""
        return self.n_fft // 2 + 1

    def filters(self, scale: Scale = "slaney") -> np.ndarray:
        """The mel filters, (M, bins)."""
        return mel_filters(self.sample_rate, self.n_fft, self.n_mels, self.f_min, self.f_max, scale)

    def window(self) -> np.ndarray:
        """A Hann window in the middle of n_fft samples."""
        before = (self.n_fft - self.win_length) // 2
        angles = 2 * np.pi / self.win_length * np.arange(self.win_length)
        return np.pad(0.5 - 0.5 * np.cos(angles), (before, self.n_fft - self.win_length - before)).astype(np.float32)

    def features(self) -> dict[str, Any]:
        """The `features` block that fairseq's own preparation of speech synthesis data writes."""
        values = asdict(self)
        return {
            "type": "spectrogram+melscale+log",
            "eps": values.pop("floor"),
            "window_fn": "hann",
            **values,
            "win_len_t": self.win_length / self.sample_rate,
            "hop_len_t": self.hop_length / self.sample_rate,
            "n_stft": self.bins,
        }


def _value(features: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    if name not in features:
        raise LeapformerError(f"the features have no {name}; give the config.yaml of a text_to_speech data set")
    try:
        return kind(features[name])
    except (TypeError, ValueError) as error:
        raise LeapformerError(f"{name} is {features[name]!r} in the features; give a number") from error


def _samples(features: Mapping[str, Any], name: str, name_in_seconds: str, rate: int) -> int:
    if name in features or name_in_seconds not in features:
        return _value(features, name, int)
    return round(_value(features, name_in_seconds, float) * rate)


def mel_filters(sample_rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float, scale: Scale) -> np.ndarray:
    """Triangular filters with equal distances in mel, (n_mels, n_fft // 2 + 1) float32.

    "slaney" is the scale of the Auditory Toolbox with filters of equal area: librosa's default, and so that of
    fairseq's and HiFi-GAN's spectrograms. "htk" is 2595 log10(1 + f / 700) with filters of equal height: that of
    torchaudio's MFCC.
    """
    to_mel, to_hz = _SCALES[scale]
    bins = np.linspace(0, sample_rate / 2, n_fft // 2 + 1)
    first, last = to_mel(np.array([f_min, f_max])).tolist()
    edges = to_hz(np.linspace(first, last, n_mels + 2))
    left, centre, right = (edges[i : i + n_mels, None] for i in range(3))
    filters = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)).clip(min=0)
    if scale == "slaney":
        filters = filters * 2 / (right - left)
    return filters.astype(np.float32)


def _slaney_mel(hz: np.ndarray) -> np.ndarray:
    above = _KNEE_HZ * _MELS_PER_HZ + np.log(hz.clip(min=_KNEE_HZ) / _KNEE_HZ) * _MELS_PER_NEPER
    return np.where(hz < _KNEE_HZ, hz * _MELS_PER_HZ, above)


def _slaney_hz(mel: np.ndarray) -> np.ndarray:
    knee = _KNEE_HZ * _MELS_PER_HZ
    return np.where(mel < knee, mel / _MELS_PER_HZ, _KNEE_HZ * np.exp((mel - knee) / _MELS_PER_NEPER))


def htk_mel(hz: np.ndarray) -> np.ndarray:
    """Mels of frequencies in Hz, on the scale of HTK and Kaldi."""
    return 2595 * np.log10(1 + hz / 700)


def htk_hz(mel: np.ndarray) -> np.ndarray:
    """The inverse of `htk_mel`."""
    return 700 * (10 ** (mel / 2595) - 1)


_SCALES = {"slaney": (_slaney_mel, _slaney_hz), "htk": (htk_mel, htk_hz)}


def stft(samples: np.ndarray, config: MelConfig) -> np.ndarray:
    """Complex spectrogram with a Hann window of samples (T,): (1 + T // hop_length, bins).

    Frame t is centred on sample t * hop_length. The samples are mirrored at their ends or, where they are too few for
    that, surrounded by silence.
    """
    margin = config.n_fft // 2
    padded = np.pad(np.asarray(samples, np.float32), margin, "reflect" if len(samples) > margin else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(padded, config.n_fft)[:: config.hop_length]
    return np.fft.rfft(frames * config.window())


def istft(spectrogram: np.ndarray, config: MelConfig) -> np.ndarray:
    """The samples, (T,) float32, whose spectrogram is nearest to this, (frames, bins); a single frame is one hop."""
    window, count, hop = config.window(), len(spectrogram), config.hop_length
    blocks = -(-config.n_fft // hop)  # hops that a frame covers
    frames = np.fft.irfft(spectrogram, config.n_fft) * window
    frames = np.pad(frames, ((0, 0), (0, blocks * hop - config.n_fft))).reshape(count, blocks, hop)
    squares = np.pad(window * window, (0, blocks * hop - config.n_fft)).reshape(blocks, hop)
    total, weight = np.zeros((2, count + blocks, hop), np.float32)
    for block in range(blocks):
        total[block : block + count] += frames[:, block]
        weight[block : block + count] += squares[block]
    start = config.n_fft // 2
    samples = (total / weight.clip(min=np.finfo(np.float32).tiny)).ravel()
    return samples[start : start + hop * max(count - 1, 1)]


def log_mel(samples: np.ndarray, config: MelConfig) -> np.ndarray:
    """Log-mel spectrogram of samples (T,) in [-1, 1]: (1 + T // hop_length, M) float32."""
    return np.log((np.abs(stft(samples, config)) @ config.filters().T).clip(min=config.floor)).astype(np.float32)
