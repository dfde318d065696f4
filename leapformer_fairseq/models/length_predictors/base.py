"""Base class and registry of length predictors, and the module that a model owns.

Shapes: B sentences, S source positions, C width.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from ...attention import Option
from ...support.errors import LeapformerError

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

    def forward(self, source: Source) -> Tensor:
        """Predict decoder steps, (B,), float32. Call it only if nothing is `missing`."""
        raise NotImplementedError

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
    """Class decorator that registers a predictor and its options. Raises LeapformerError if the name is taken."""

    def add(cls: P) -> P:
        if name in LENGTH_PREDICTORS:
            raise LeapformerError(
                f"length predictor {name!r} is already registered by {LENGTH_PREDICTORS[name].__module__}; rename it"
            )
        cls.options = options
        LENGTH_PREDICTORS[name] = cls
        return cls

    return add


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
