"""Mel spectrograms as fairseq's text_to_speech task stores them, and the filterbanks behind them.

fairseq takes its filters from librosa and its cepstra from torchaudio; here are both filterbanks in a few lines, so
that neither library is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import LeapformerError

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

    def filters(self, scale: Scale = "slaney") -> Tensor:
        """The mel filters, (n_mels, n_fft // 2 + 1)."""
        return mel_filters(self.sample_rate, self.n_fft, self.n_mels, self.f_min, self.f_max, scale)

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
            "n_stft": self.n_fft // 2 + 1,
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


def mel_filters(sample_rate: int, n_fft: int, n_mels: int, f_min: float, f_max: float, scale: Scale) -> Tensor:
    """Triangular filters with equal distances in mel, (n_mels, n_fft // 2 + 1) float32.

    "slaney" is the scale of the Auditory Toolbox with filters of equal area: librosa's default, and so that of
    fairseq's and HiFi-GAN's spectrograms. "htk" is 2595 log10(1 + f / 700) with filters of equal height: that of
    torchaudio's MFCC.
    """
    to_mel, to_hz = _SCALES[scale]
    bins = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    first, last = to_mel(torch.tensor([f_min, f_max], dtype=torch.float64)).tolist()
    edges = to_hz(torch.linspace(first, last, n_mels + 2, dtype=torch.float64))
    left, centre, right = (edges[i : i + n_mels, None] for i in range(3))
    filters = torch.minimum((bins - left) / (centre - left), (right - bins) / (right - centre)).clamp(min=0)
    if scale == "slaney":
        filters = filters * 2 / (right - left)
    return filters.float()


def _slaney_mel(hz: Tensor) -> Tensor:
    above = _KNEE_HZ * _MELS_PER_HZ + (hz.clamp(min=_KNEE_HZ) / _KNEE_HZ).log() * _MELS_PER_NEPER
    return torch.where(hz < _KNEE_HZ, hz * _MELS_PER_HZ, above)


def _slaney_hz(mel: Tensor) -> Tensor:
    knee = _KNEE_HZ * _MELS_PER_HZ
    return torch.where(mel < knee, mel / _MELS_PER_HZ, _KNEE_HZ * ((mel - knee) / _MELS_PER_NEPER).exp())


def _htk_mel(hz: Tensor) -> Tensor:
    return 2595 * (1 + hz / 700).log10()


def _htk_hz(mel: Tensor) -> Tensor:
    return 700 * (10 ** (mel / 2595) - 1)


_SCALES = {"slaney": (_slaney_mel, _slaney_hz), "htk": (_htk_mel, _htk_hz)}


def stft(waveform: Tensor, config: MelConfig) -> Tensor:
    """Complex spectrogram with a Hann window of a waveform (T,): (n_fft // 2 + 1, 1 + T // hop_length).

    Frame t is centred on sample t * hop_length. The waveform is mirrored at its ends or, where it is too short for
    that, surrounded by silence.
    """
    margin = config.n_fft // 2
    mode = "reflect" if len(waveform) > margin else "constant"
    padded = functional.pad(waveform[None], (margin, margin), mode)[0]
    window = torch.hann_window(config.win_length, dtype=waveform.dtype, device=waveform.device)
    lengths = (config.n_fft, config.hop_length, config.win_length)
    return torch.stft(padded, *lengths, window, center=False, return_complex=True)


def log_mel(waveform: Tensor, config: MelConfig) -> Tensor:
    """Log-mel spectrogram of a waveform (T,) with samples in [-1, 1]: (1 + T // hop_length, n_mels) float32."""
    magnitudes = stft(waveform.float(), config).abs().T
    return (magnitudes @ config.filters().T.to(magnitudes)).clamp(min=config.floor).log()
