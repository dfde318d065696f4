"""How long will the target be? For mechanisms that need its length (cosFormer) when nobody knows it yet.

Agostinelli and Chen, 2023, Modular Linearized Attention: a ratio of the source's length, a table of durations, or a
small network on the encoder's output. Lengths are in decoder steps; durations of source tokens in frames, of which a
decoder may write several in a step (text to speech).

Shapes: B sentences, S source positions, C width.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Option
from ..errors import LeapformerError

LONGEST = 1000  # decoder steps that the network may predict
PRECISION = 1000  # a table's lengths are kept in this many parts of a frame
LONGEST_DURATION = 100_000  # frames of a token in a table, more are a mistake

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
    #: True when it looks at the source's tokens, which speech has none of
    needs_tokens: ClassVar[bool] = False

    def __init__(self, setting: Setting) -> None:
        super().__init__()

    @property
    def ready(self) -> bool:
        """False as long as it has not learned what it needs to predict."""
        return True

    def forward(self, source: Source) -> Tensor:
        """Decoder steps, (B,), float32. Raises LeapformerError when it never learned what it would need."""
        raise NotImplementedError

    def observe(self, source: Source) -> None:
        """Learn from sentences of known `target` lengths."""

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        """Learn from frames (B, S) of the source's tokens."""

    def log_durations(self, source: Source) -> Tensor | None:
        """log(1 + duration) of every position, (B, S), of which `loss` is made; None where there is no loss."""
        return None

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None = None) -> Tensor:
        """What its parameters are trained by."""
        raise NotImplementedError


LENGTH_PREDICTORS: dict[str, type[Predictor]] = {}
P = TypeVar("P", bound=type[Predictor])


def register(name: str, *options: Option) -> Callable[[P], P]:
    """Class decorator that makes a predictor known under `name` with its `options`.

    Raises LeapformerError when the name is taken.
    """

    def add(cls: P) -> P:
        if name in LENGTH_PREDICTORS:
            raise LeapformerError(
                f"length predictor {name!r} is already registered by {LENGTH_PREDICTORS[name].__module__}; rename it"
            )
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
        if not 0 <= self.given < math.inf:
            raise LeapformerError(f"--length-ratio {self.given}: give decoder steps per position, or 0 to estimate it")
        for name in ("source_length", "target_length"):
            self.register_buffer(name, torch.zeros((), dtype=torch.long))

    def observe(self, source: Source) -> None:
        self.source_length += source.keep.sum()
        self.target_length += source.target.sum()

    @property
    def ready(self) -> bool:
        return bool(self.given or self.source_length)

    def forward(self, source: Source) -> Tensor:
        if not self.ready:
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
    """The sum of the mean durations of the source's tokens; a token without one takes the mean of all.

    The mark of the end lasts no time, unless a table gives it some.
    """

    needs_tokens = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.dictionary is None:
            raise LeapformerError(
                "--length-predictor lookup needs source tokens, here the source is speech; take ratio or conv"
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
        # A checkpoint has its own copy of the table, so that the file need not be here any more.
        self.read = self.table is not None and self.table.is_file()
        if self.read:
            for token, frames in _read_table(self.table, setting.dictionary):
                self.frames[token] = round(frames * PRECISION)
                self.tokens[token] = PRECISION

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """A table that is read holds, whatever the checkpoint says."""
        if self.read:
            state_dict.update({f"{name}.{key}": value for key, value in self.state_dict().items()})

    @property
    def ready(self) -> bool:
        return bool(self.tokens.any())

    def observe(self, source: Source) -> None:
        """Nothing; but a table that nobody has read is noticed before anything is trained."""
        if self.table is not None and not self.read and not self.ready:
            raise LeapformerError(f"--length-table {self.table}: there is no such file; give a table of durations")

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        if self.table is None:
            counted = source.keep & source.tokens.ne(self.end)
            tokens = source.tokens[counted]
            self.frames.index_add_(0, tokens, durations[counted].long())
            self.tokens.index_add_(0, tokens, torch.ones_like(tokens))

    def forward(self, source: Source) -> Tensor:
        if not self.ready:
            raise LeapformerError(
                "there are no durations of source tokens; give --length-table, or train with --criterion "
                "tacotron2_with_length on data with a column duration"
            )
        durations = self.frames / self.tokens.clamp_min(1)
        unknown = self.tokens == 0
        unknown[self.end] = False
        durations[unknown] = self.frames.sum() / self.tokens.sum()
        total = (durations[source.tokens] * source.keep).sum(1)
        return (total / self.frames_per_step).floor() / self.dampening


def _read_table(path: Path, dictionary: Any) -> Iterator[tuple[int, float]]:
    """Tokens and their mean frames, from a file with one of each a line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LeapformerError(f"--length-table {path} cannot be read ({error}); give a text file in UTF-8") from error
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
                f"--length-table {path}: {token!r} is not in the dictionary; make the table with this vocabulary"
            )
        yield dictionary.index(token), mean


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
        dropout = setting.options.length_dropout
        if kernel % 2 == 0 or kernel < 1 or width < 1:
            raise LeapformerError(
                f"--length-kernel {kernel}, --length-hidden {width}: give an odd kernel and a width >= 1"
            )
        if not 0 <= dropout < 1:
            raise LeapformerError(f"--length-dropout {dropout}: give a probability below 1")
        widths = (setting.width, width, width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, kernel, padding=kernel // 2)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in self.convolutions)
        self.out = nn.Linear(width, 1)
        self.dropout, self.frames_per_step, self.timed = dropout, setting.frames_per_step, setting.timed
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def log_durations(self, source: Source) -> Tensor:
        """log(1 + duration) of every position, (B, S); padding sees and gives zeros."""
        keep = source.keep.unsqueeze(-1).to(source.states.dtype)
        x = source.states
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolution((x * keep).transpose(1, 2)).transpose(1, 2)
            x = F.dropout(norm(x.relu()), self.dropout, self.training)
        return (self.out(x) * keep).squeeze(-1)

    def loss(self, log_durations: Tensor, source: Source, durations: Tensor | None = None) -> Tensor:
        """L1 + squared error of log(1 + duration), the mean over tokens; without durations of log(1 + length)."""
        if self.training:
            self.updates += 1
        if durations is None:
            predicted = _durations(log_durations).sum(1).log1p()
            expected = (source.target.float() * self.frames_per_step).log1p()
        else:
            predicted, expected = log_durations.float()[source.keep], durations[source.keep].float().log1p()
        return F.l1_loss(predicted, expected) + F.mse_loss(predicted, expected)

    @property
    def ready(self) -> bool:
        return bool(self.updates)

    def forward(self, source: Source) -> Tensor:
        if not self.ready:
            raise LeapformerError(
                "the length predictor conv was never trained; train with a criterion that adds its loss "
                "(tacotron2_with_length, label_smoothed_cross_entropy_with_length), or take ratio"
            )
        durations = _durations(self.log_durations(source))
        if self.timed:
            durations = durations.round()
        return (durations.sum(1) / self.frames_per_step).floor().clamp(1, LONGEST)


def _durations(log_durations: Tensor) -> Tensor:
    """The inverse of log(1 + duration), never negative."""
    return log_durations.float().expm1().clamp_min(0)


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
        if self.chosen not in LENGTH_PREDICTORS:
            raise LeapformerError(
                f"--length-predictor {self.chosen!r} is unknown; choose from: {', '.join(sorted(LENGTH_PREDICTORS))}"
            )
        for option in length_options():
            option.check(getattr(setting.options, option.name))
        self.in_training: bool = setting.options.length_in_training == "predicted"
        self.by_name = nn.ModuleDict()
        for name, cls in LENGTH_PREDICTORS.items():
            if name == self.chosen or not (cls.trained or (cls.needs_tokens and setting.dictionary is None)):
                self.by_name[name] = cls(setting)

    @property
    def ready(self) -> bool:
        """False as long as the chosen predictor has not learned what it needs."""
        return self.by_name[self.chosen].ready

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
        return self.by_name[self.chosen].log_durations(source)

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
