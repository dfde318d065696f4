"""How long will the target be? For mechanisms that need its length (cosFormer) when nobody knows it yet.

Agostinelli and Chen, 2023, Modular Linearized Attention: a ratio of the source's length, a table of durations, or a
small network on the encoder's output. Lengths are in decoder steps; durations of source tokens in frames, of which a
decoder may write several in a step (text to speech).

Shapes: B sentences, S source positions, C width.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Option
from ..errors import LeapformerError

logger = logging.getLogger(__name__)

LONGEST = 1000  # decoder steps that the network may predict
PRECISION = 1000  # a table's lengths are kept in this many parts of a frame

IN_TRAINING = Option(
    "length_in_training",
    "true",
    "lengths that training and teacher-forced scoring see: the true ones, or predicted ones as in generation",
    ("true", "predicted"),
)


@dataclass(frozen=True)
class Source:
    """What a predictor may look at.

    tokens: (B, S), or None where the source is speech.
    states: (B, S, C), the encoder's output.
    keep:   (B, S), True at real positions.
    target: (B,), the true lengths, where they are known.
    """

    tokens: Tensor | None
    states: Tensor
    keep: Tensor
    target: Tensor | None = None


@dataclass(frozen=True)
class Setting:
    """What predictors are built from: the options, the source's `dictionary` (None for speech) and sizes.

    `frames_per_step` counts the frames that a decoder writes in a step; `timed` says that tokens may have durations.
    """

    options: argparse.Namespace
    width: int
    dictionary: Any = None
    frames_per_step: int = 1
    timed: bool = False


class Predictor(nn.Module):
    """One way to predict. What it learns from data is kept in integer buffers, which half precision leaves alone."""

    options: ClassVar[tuple[Option, ...]] = ()
    #: True when its parameters are trained by a loss, and so exist only if it was chosen
    trained: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        super().__init__()

    def forward(self, source: Source) -> Tensor:
        """Decoder steps, (B,), float32. Raises LeapformerError when it never learned what it would need."""
        raise NotImplementedError

    def observe(self, source: Source) -> None:
        """Learn from sentences of known `target` lengths."""

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        """Learn from frames (B, S) of the source's tokens."""


LENGTH_PREDICTORS: dict[str, type[Predictor]] = {}
P = TypeVar("P", bound=type[Predictor])


def register(name: str, *options: Option) -> Callable[[P], P]:
    """Class decorator that makes a predictor known under `name` with its `options`."""

    def add(cls: P) -> P:
        cls.options = options
        LENGTH_PREDICTORS[name] = cls
        return cls

    return add


@register(
    "ratio",
    Option("length_ratio", 0.0, "ratio: decoder steps per source position; 0 estimates it from the training data"),
)
class Ratio(Predictor):
    """A constant times the length of the source (there 1.25 to 1.5 for speech, 0.6 for translation)."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.given = setting.options.length_ratio
        if self.given < 0:
            raise LeapformerError(f"--length-ratio {self.given} is negative; give steps per position, or 0 to estimate")
        for name in ("source_length", "target_length"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))

    def observe(self, source: Source) -> None:
        self.source_length += source.keep.sum()
        self.target_length += source.target.sum()

    def forward(self, source: Source) -> Tensor:
        if not self.given and not self.source_length:
            raise LeapformerError(
                "the ratio of target and source lengths is unknown; train with it, or give --length-ratio"
            )
        ratio = self.given or float(self.target_length / self.source_length)
        return source.keep.sum(1).float() * ratio


@register(
    "lookup",
    Option("length_table", "", "lookup: file of source tokens and their mean frames; default: durations in the data"),
    Option("length_dampening", 1.0, "lookup: predicted lengths are divided by this"),
)
class Lookup(Predictor):
    """The sum of the mean durations of the source's tokens; a token without one takes the mean of all."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.dictionary is None:
            raise LeapformerError(
                "--length-predictor lookup needs source tokens, here the source is speech; take ratio or conv"
            )
        self.dampening, self.frames_per_step = setting.options.length_dampening, setting.frames_per_step
        if not self.dampening > 0:
            raise LeapformerError(
                f"--length-dampening {self.dampening}: lengths are divided by it, give a number above 0"
            )
        for name in ("frames", "tokens"):
            self.register_buffer(name, torch.zeros(len(setting.dictionary), dtype=torch.long))
        self.given = False
        if setting.options.length_table:
            self._read(Path(setting.options.length_table), setting.dictionary)

    def _read(self, path: Path, dictionary: Any) -> None:
        """Take the durations from a file with a token and its mean frames a line."""
        if not path.is_file():  # no error yet: a checkpoint has its own copy
            logger.info("--length-table %s is not here; lengths come from the checkpoint", path)
            return
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                token, frames = line.split()
                frames_of = float(frames)
            except ValueError:
                raise LeapformerError(f"{path}, line {number}: {line!r} is not a token and a number") from None
            if dictionary.index(token) == dictionary.unk() and token != dictionary.unk_word:
                raise LeapformerError(
                    f"--length-table {path}: {token!r} is not in the dictionary; make the table with this vocabulary"
                )
            self.frames[dictionary.index(token)] = round(frames_of * PRECISION)
            self.tokens[dictionary.index(token)] = PRECISION
        self.given = True

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """A table that is given holds, whatever the checkpoint says."""
        if self.given:
            state_dict.update({f"{name}.{key}": value for key, value in self.state_dict().items()})

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        if not self.given:
            tokens = source.tokens[source.keep]
            self.frames.index_add_(0, tokens, durations[source.keep].long())
            self.tokens.index_add_(0, tokens, torch.ones_like(tokens))

    def forward(self, source: Source) -> Tensor:
        if not self.tokens.any():
            raise LeapformerError(
                "there are no durations of source tokens; give --length-table, or train with --criterion "
                "tacotron2_with_length on data with a column duration"
            )
        mean = self.frames.sum() / self.tokens.sum()
        durations = torch.where(self.tokens > 0, self.frames / self.tokens.clamp_min(1), mean)
        total = (durations[source.tokens] * source.keep).sum(1)
        return (total / self.frames_per_step).floor() / self.dampening


@register(
    "conv",
    Option("length_hidden", 128, "conv: width of the network"),
    Option("length_kernel", 3, "conv: positions that a convolution sees, odd"),
    Option("length_dropout", 0.5, "conv: dropout"),
)
class Conv(Predictor):
    """Two convolutions over the encoder's output and a log duration for each position (as in FastSpeech 2).

    Trained by `loss`, which a criterion adds. Without durations in the data only their sum is compared with the length.
    """

    trained = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        width, kernel = setting.options.length_hidden, setting.options.length_kernel
        if kernel % 2 == 0 or kernel < 1 or width < 1:
            raise LeapformerError(
                f"--length-kernel {kernel}, --length-hidden {width}: give an odd kernel and a width >= 1"
            )
        widths = (setting.width, width, width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, kernel, padding=kernel // 2)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in self.convolutions)
        self.out = nn.Linear(width, 1)
        self.dropout, self.frames_per_step, self.timed = (
            setting.options.length_dropout,
            setting.frames_per_step,
            setting.timed,
        )
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def log_durations(self, source: Source) -> Tensor:
        """log(1 + duration) of every position, (B, S); padding sees and gives zeros."""
        keep = source.keep.unsqueeze(-1).to(source.states.dtype)
        x = source.states
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolution((x * keep).transpose(1, 2)).transpose(1, 2)
            x = F.dropout(norm(x.relu()), self.dropout, self.training)
        return (self.out(x) * keep).squeeze(-1)

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None) -> Tensor:
        """L1 + squared error of log(1 + duration), the mean over tokens; without durations of log(1 + length)."""
        if self.training:
            self.updates += 1
        if durations is None:
            predicted = log_durations.float().expm1().clamp_min(0).sum(1).log1p()
            expected = (source.target.float() * self.frames_per_step).log1p()
        else:
            predicted, expected = log_durations.float()[source.keep], durations[source.keep].float().log1p()
        return F.l1_loss(predicted, expected) + F.mse_loss(predicted, expected)

    def forward(self, source: Source) -> Tensor:
        if not self.updates:
            raise LeapformerError(
                "the length predictor conv was never trained; train with a criterion that adds its loss "
                "(tacotron2_with_length, label_smoothed_cross_entropy_with_length), or take ratio"
            )
        durations = self.log_durations(source).float().expm1().clamp_min(0)
        if self.timed:
            durations = durations.round()
        return (durations.sum(1) / self.frames_per_step).floor().clamp(1, LONGEST)


@register("oracle")
class Oracle(Predictor):
    """The true length, for training and analysis."""

    def forward(self, source: Source) -> Tensor:
        if source.target is None:
            raise LeapformerError(
                "--length-predictor oracle needs the targets; take ratio, lookup or conv where there are none"
            )
        return source.target.float()


class LengthPredictor(nn.Module):
    """The chosen predictor, and all others that learn without a loss.

    So a model that was trained with one serves with another: `--model-overrides "{'length_predictor': 'lookup'}"`.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.chosen: str = setting.options.length_predictor
        self.in_training: bool = setting.options.length_in_training == "predicted"
        self.by_name = nn.ModuleDict()
        for name, cls in LENGTH_PREDICTORS.items():
            if name == self.chosen or not (cls.trained or (cls is Lookup and setting.dictionary is None)):
                self.by_name[name] = cls(setting)

    @torch.no_grad()
    def forward(self, source: Source) -> Tensor:
        """Predicted decoder steps, (B,), at least 1."""
        return self.by_name[self.chosen](source).clamp_min(1)

    @torch.no_grad()
    def observe(self, source: Source) -> None:
        """Learn from sentences of known target lengths, in training."""
        for predictor in self.by_name.values():
            predictor.observe(source)

    @torch.no_grad()
    def observe_durations(self, source: Source, durations: Tensor) -> None:
        """Learn from frames (B, S) of the source's tokens, in training."""
        for predictor in self.by_name.values():
            predictor.observe_durations(source, durations)

    def log_durations(self, source: Source) -> Tensor | None:
        """What the chosen predictor's loss needs, from the model's forward pass; None where it has no loss."""
        predictor = self.by_name[self.chosen]
        return predictor.log_durations(source) if isinstance(predictor, Conv) else None

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None = None) -> Tensor:
        """What the chosen predictor is trained by."""
        return self.by_name[self.chosen].loss(log_durations, source, durations)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """A checkpoint with another predictor, or none, loads: what it lacks starts anew, what is not built is left."""
        own = {f"{name}.{key}": value for key, value in self.state_dict().items()}
        for key in [key for key in state_dict if key.startswith(f"{name}.") and key not in own]:
            del state_dict[key]
        for key, value in own.items():
            state_dict.setdefault(key, value)


def length_options() -> list[Option]:
    """Every option of every predictor."""
    return [IN_TRAINING, *(option for cls in LENGTH_PREDICTORS.values() for option in cls.options)]
