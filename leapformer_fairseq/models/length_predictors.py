"""Predictors of the target length, for mechanisms such as cosFormer that need it before the target is known.

From Agostinelli and Chen, 2023, Modular Linearized Attention (arXiv:2304.08453): a ratio of the source length, a table
of durations, or a small network on the encoder output. Lengths are in decoder steps; durations of source tokens are in
frames, of which a text-to-speech decoder may write several per step. To add a predictor, register its class here.

Shapes: B sentences, S source positions, C width.
"""

from __future__ import annotations

import argparse
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Option
from ..support.declared import enrolled
from ..support.errors import LeapformerError
from ..support.lines import read_lines

IN_TRAINING = Option(
    "length_in_training",
    "true",
    "lengths used in training and teacher-forced scoring: the true ones, or predicted ones as in generation",
    ("true", "predicted"),
)


@dataclass(frozen=True)
class Source:
    """The inputs of a predictor.

    tokens: (B, S), or None for speech.
    states: (B, S, C), the encoder output.
    keep:   (B, S), True at real positions.
    target: (B,), the true lengths; None if unknown.
    """

    tokens: Tensor | None
    states: Tensor
    keep: Tensor
    target: Tensor | None = None


@dataclass(frozen=True)
class Setting:
    """The arguments of a predictor's constructor.

    width:           channels of the encoder output.
    dictionary:      of the source; None for speech.
    frames_per_step: frames that the decoder writes per step.
    timed:           whether the data may have durations of source tokens.
    """

    options: argparse.Namespace
    width: int
    dictionary: Any = None
    frames_per_step: int = 1
    timed: bool = False


class Predictor(nn.Module):
    """The interface of a length predictor.

    Statistics of the data are kept in integer buffers, since `--fp16` and `--bf16` convert floating-point buffers.
    """

    options: ClassVar[tuple[Option, ...]] = ()
    #: whether it is trained by a loss; such a predictor is built only if it is the chosen one
    trained: ClassVar[bool] = False
    #: whether it needs source tokens, so that it cannot be used with speech
    needs_tokens: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        super().__init__()

    @property
    def missing(self) -> str | None:
        """An error message if it cannot predict yet: what is missing, and the remedy; None if it can."""
        return None

    @abstractmethod
    def forward(self, source: Source) -> Tensor:
        """Predict decoder steps, (B,), float32. Call it only if nothing is `missing`."""

    def observe(self, source: Source) -> None:
        """Learn from sentences with known `target` lengths."""

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        """Learn from the durations (B, S) of the source tokens, in frames."""

    def log_durations(self, source: Source) -> Tensor | None:
        """log(1 + frames) of every source position, (B, S), the input of `loss`; None if it has no loss."""
        return None

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None = None) -> Tensor:
        """The training loss, a scalar."""
        raise NotImplementedError


LENGTH_PREDICTORS: dict[str, type[Predictor]] = {}
P = TypeVar("P", bound=type[Predictor])


def register(name: str, *options: Option) -> Callable[[P], P]:
    """Class decorator that registers a predictor and its options. Raises LeapformerError as for a mechanism."""
    known = {option.name: option for predictor in LENGTH_PREDICTORS.values() for option in predictor.options}
    return enrolled("length predictor", Predictor, LENGTH_PREDICTORS, known, name, options)


class LengthPredictor(nn.Module):
    """The chosen predictor, and all others that learn without a loss.

    A trained model can therefore switch to another one: `--model-overrides "{'length_predictor': 'lookup'}"`.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.chosen: str = setting.options.length_predictor
        if self.chosen not in LENGTH_PREDICTORS:
            raise LeapformerError(
                f"--length-predictor {self.chosen!r} is unknown; choose from: {', '.join(sorted(LENGTH_PREDICTORS))}"
            )
        for option in length_options():
            option.check(getattr(setting.options, option.name))
        self.in_training: bool = setting.options.length_in_training == "predicted"
        self.by_name = nn.ModuleDict()
        for name, cls in LENGTH_PREDICTORS.items():
            # One with a loss would get no gradients, which distributed training does not accept.
            if name == self.chosen or not (cls.trained or (cls.needs_tokens and setting.dictionary is None)):
                self.by_name[name] = cls(setting)

    @property
    def _predictor(self) -> Predictor:
        return cast(Predictor, self.by_name[self.chosen])

    def _predictors(self) -> Iterable[Predictor]:
        return cast(Iterable[Predictor], self.by_name.values())

    @property
    def ready(self) -> bool:
        """Whether the chosen predictor has learned enough to predict."""
        return self._predictor.missing is None

    def check(self) -> None:
        """Raise LeapformerError if it is not `ready`."""
        if self._predictor.missing is not None:
            raise LeapformerError(self._predictor.missing)

    def forward(self, source: Source) -> Tensor:
        """Predict decoder steps, (B,), at least 1. Raises LeapformerError if it is not `ready`."""
        self.check()
        return self.steps(source)

    @torch.no_grad()
    def steps(self, source: Source) -> Tensor:
        """`forward` without the check, which cannot be exported."""
        return self._predictor(source).clamp_min(1)

    @torch.no_grad()
    def observe(self, source: Source) -> None:
        """Learn from a training batch with known target lengths."""
        for predictor in self._predictors():
            predictor.observe(source)

    @torch.no_grad()
    def observe_durations(self, source: Source, durations: Tensor) -> None:
        """Learn from a training batch with durations (B, S) of the source tokens, in frames."""
        for predictor in self._predictors():
            predictor.observe_durations(source, durations)

    def log_durations(self, source: Source) -> Tensor | None:
        """The input of the chosen predictor's loss, (B, S); None if it has no loss."""
        return self._predictor.log_durations(source)

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None = None) -> Tensor:
        """The training loss of the chosen predictor."""
        return self._predictor.loss(log_durations, source, durations)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept checkpoints with another predictor or none: drop its parameters, and keep initial values of ours."""
        initial = {f"{name}.{key}": value for key, value in self.state_dict().items()}
        for key in [key for key in state_dict if key.startswith(f"{name}.") and key not in initial]:
            del state_dict[key]
        for key, value in initial.items():
            state_dict.setdefault(key, value)


def length_options() -> list[Option]:
    """The options of all predictors."""
    return [IN_TRAINING, *(option for cls in LENGTH_PREDICTORS.values() for option in cls.options)]


# ---------------------------------------------------------------------------------------------------------- predictors
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


PRECISION = 1000  # a table's durations are stored in units of 1 / PRECISION frames
LONGEST_DURATION = 100_000  # frames per token in a table; longer ones are an error


@register(
    "lookup",
    Option("length_table", "", "lookup: file of source tokens and their mean frames; default: durations in the data"),
    Option("length_dampening", 1.0, "lookup: predicted lengths are divided by this"),
)
class Lookup(Predictor):
    """Predicts the sum of the mean durations of the source tokens; tokens without a duration take the overall mean.

    The end-of-sentence token counts as 0 frames unless the table has a duration for it.
    """

    needs_tokens = True
    frames: Tensor
    tokens: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.dictionary is None:
            raise LeapformerError(
                "--length-predictor lookup needs source tokens, but the source is speech; use ratio or conv"
            )
        self.dampening, self.frames_per_step = setting.options.length_dampening, setting.frames_per_step
        if not 0 < self.dampening < math.inf:
            raise LeapformerError(
                f"--length-dampening {self.dampening}: lengths are divided by it, give a number above 0"
            )
        for name in ("frames", "tokens"):
            self.register_buffer(name, torch.zeros(len(setting.dictionary), dtype=torch.long))
        self.end = setting.dictionary.eos()
        self.table = Path(setting.options.length_table) if setting.options.length_table else None
        # Checkpoints contain the table, so the file is only needed in training.
        self.read = self.table is not None and self.table.is_file()
        if self.table is not None and self.read:
            for token, frames in _read_table(self.table, setting.dictionary):
                self.frames[token] = round(frames * PRECISION)
                self.tokens[token] = PRECISION

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Let a table that was read from a file take precedence over the one in the checkpoint."""
        if self.read:
            state_dict.update({f"{name}.{key}": value for key, value in self.state_dict().items()})

    @property
    def missing(self) -> str | None:
        if self.tokens.any():
            return None
        return (
            "there are no durations of source tokens; give --length-table, or train with --criterion "
            "tacotron2_with_length on data with a column duration"
        )

    def observe(self, source: Source) -> None:
        """Learn nothing, but raise LeapformerError for a missing table before time is spent on training."""
        if self.table is not None and not self.read and self.missing:
            raise LeapformerError(f"--length-table {self.table}: there is no such file; give a table of durations")

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        if self.table is None:
            assert source.tokens is not None
            counted = source.keep & source.tokens.ne(self.end)
            tokens = source.tokens[counted]
            self.frames.index_add_(0, tokens, durations[counted].long())
            self.tokens.index_add_(0, tokens, torch.ones_like(tokens))

    def forward(self, source: Source) -> Tensor:
        durations = self.frames / self.tokens.clamp_min(1)
        unknown = self.tokens == 0
        unknown[self.end] = False
        durations = torch.where(unknown, self.frames.sum() / self.tokens.sum(), durations)
        total = (durations[source.tokens] * source.keep).sum(1)
        return (total / self.frames_per_step).floor() / self.dampening


def _read_table(path: Path, dictionary: Any) -> Iterator[tuple[int, float]]:
    """Iterate over (index of a token, mean frames) of a text file with one token and its frames per line."""
    lines = list(read_lines(path, "--length-table", "give a text file in UTF-8"))
    for number, line in enumerate(lines, 1):
        token, *frames = line.split() or [""]
        try:
            (mean,) = map(float, frames)
        except ValueError:
            mean = math.nan
        if not 0 <= mean < LONGEST_DURATION:
            raise LeapformerError(
                f"--length-table {path}, line {number}: {line!r} is not a token and its mean frames "
                f"(0 to {LONGEST_DURATION})"
            )
        if dictionary.index(token) == dictionary.unk() and token != dictionary.unk_word:
            raise LeapformerError(
                f"--length-table {path}: {token!r} is not in the dictionary; create the table with this vocabulary"
            )
        yield dictionary.index(token), mean


@register("oracle")
class Oracle(Predictor):
    """Returns the true length, for training and analysis."""

    def forward(self, source: Source) -> Tensor:
        if source.target is None:
            raise LeapformerError(
                "--length-predictor oracle needs the targets, which translation and speech synthesis do not have; "
                "train with another predictor (ratio, lookup, conv), or use a plan that needs no length"
            )
        return source.target.float()


@register(
    "ratio",
    Option("length_ratio", 0.0, "ratio: decoder steps per source position; 0 estimates it from the training data"),
)
class Ratio(Predictor):
    """Predicts a constant times the source length (in the paper 1.25 to 1.5 for speech, 0.6 for translation)."""

    source_length: Tensor
    target_length: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.fixed = setting.options.length_ratio
        if not 0 <= self.fixed < math.inf:
            raise LeapformerError(f"--length-ratio {self.fixed}: give decoder steps per position, or 0 to estimate it")
        for name in ("source_length", "target_length"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))

    def observe(self, source: Source) -> None:
        assert source.target is not None
        self.source_length += source.keep.sum()
        self.target_length += source.target.sum()

    @property
    def missing(self) -> str | None:
        if self.fixed or self.source_length:
            return None
        return "the ratio of target and source lengths is unknown; train with it, or give --length-ratio"

    def forward(self, source: Source) -> Tensor:
        ratio = self.fixed or self.target_length / self.source_length
        return source.keep.sum(1).float() * ratio
