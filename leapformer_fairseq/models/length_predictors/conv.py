"""The conv predictor: a small convolutional network on the encoder output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...attention import Option
from ...support.errors import LeapformerError
from .base import Predictor, Setting, Source, register

LONGEST = 1000  # decoder steps of the longest prediction


@register(
    "conv",
    Option("length_layers", 2, "conv: convolutions"),
    Option("length_hidden", 128, "conv: width of the network"),
    Option("length_kernel", 3, "conv: positions that a convolution sees, odd"),
    Option("length_dropout", 0.5, "conv: dropout"),
)
class Conv(Predictor):
    """Convolutions over the encoder output that predict a log duration per position (as in FastSpeech 2, with two).

    Trained by `loss`, which a criterion adds. Without durations in the data, their sum is compared with the target
    length.
    """

    trained = True
    updates: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        width, kernel = setting.options.length_hidden, setting.options.length_kernel
        layers = setting.options.length_layers
        dropout = setting.options.length_dropout
        if kernel % 2 == 0 or kernel < 1 or width < 1:
            raise LeapformerError(
                f"--length-kernel {kernel}, --length-hidden {width}: give an odd kernel and a width >= 1"
            )
        if layers < 1:
            raise LeapformerError(f"--length-layers {layers}: give at least one convolution")
        if not 0 <= dropout < 1:
            raise LeapformerError(f"--length-dropout {dropout}: give a probability below 1")
        widths = (setting.width, *[width] * layers)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, kernel, padding=kernel // 2)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in self.convolutions)
        self.out = nn.Linear(width, 1)
        self.dropout, self.frames_per_step, self.timed = dropout, setting.frames_per_step, setting.timed
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def log_durations(self, source: Source) -> Tensor:
        """log(1 + frames) of every source position, (B, S); 0 at padding, which the convolutions also see as 0."""
        keep = source.keep.unsqueeze(-1).to(source.states.dtype)
        x = source.states
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolution((x * keep).transpose(1, 2)).transpose(1, 2)
            x = F.dropout(norm(x.relu()), self.dropout, self.training)
        return (self.out(x) * keep).squeeze(-1)

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None = None) -> Tensor:
        """L1 + squared error of log(1 + frames), averaged over tokens; without durations, of each sentence's sum."""
        if self.training:
            self.updates += 1
        if durations is None:
            assert source.target is not None
            predicted = _durations(log_durations).sum(1).log1p()
            expected = (source.target.float() * self.frames_per_step).log1p()
        else:
            predicted, expected = log_durations.float()[source.keep], durations[source.keep].float().log1p()
        return F.l1_loss(predicted, expected) + F.mse_loss(predicted, expected)

    @property
    def missing(self) -> str | None:
        if self.updates:
            return None
        return (
            "the length predictor conv was never trained; train with a criterion that adds its loss "
            "(tacotron2_with_length, label_smoothed_cross_entropy_with_length), or use ratio"
        )

    def forward(self, source: Source) -> Tensor:
        durations = _durations(self.log_durations(source))
        if self.timed:  # frames of a token are whole numbers
            durations = durations.round()
        return (durations.sum(1) / self.frames_per_step).floor().clamp(1, LONGEST)


def _durations(log_durations: Tensor) -> Tensor:
    """The inverse of log(1 + duration), never negative."""
    return log_durations.float().expm1().clamp_min(0)
