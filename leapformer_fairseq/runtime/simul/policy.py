"""When to write: what a policy of simultaneous translation is given, and the registry of policies.

A policy is called after every pre-decision step of source that was read, and then writes as much of the translation as
it considers final, using the methods of `Draft`. After the end of the source, the rest is written without it. Ours are
in `policies.py`; `own.py` finds those of users.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from traceback import walk_tb
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np

from ...support.declared import Option, checked, enrolled, place
from ...support.errors import LeapformerError, first_line, suggestion

ENTRY_POINTS = "leapformer_fairseq.policies"  # the group in which installed packages name theirs
#: The layer whose attention weights a policy gets, and --history window follows: an option of every policy.
ALIGN_LAYER = Option(
    "align_layer", -1, "alignatt, edatt, --history window: the decoder layer that is looked at, from 1, or from the "
    "last one backwards, from -1",
)  # fmt: skip


@dataclass(frozen=True)
class Token:
    """A token that the model would write, with what it was chosen by; equal to all others of its `id`.

    `piece` is its text, a piece of a word; that of a word's first piece begins with U+2581. Probabilities are computed
    when they are first asked for.
    """

    id: int
    piece: str = field(default="", compare=False)
    scores: Callable[[], np.ndarray] | None = field(default=None, compare=False, repr=False)
    weights: np.ndarray | None = field(default=None, compare=False, repr=False)

    @cached_property
    def log_probabilities(self) -> np.ndarray:
        """Those of all tokens in its place, (V,), among the tokens that were allowed; -inf of those that were not.

        Their product with a probability of 0 is NaN: `-(np.exp(x) * np.maximum(x, -1e9)).sum()` is the entropy of x.
        """
        assert self.scores is not None
        return self.scores()

    @property
    def probability(self) -> float:
        """Its own, from 0 to 1."""
        return float(np.exp(self.log_probabilities[self.id]))

    @property
    def attention(self) -> np.ndarray:
        """How much it attends to each encoder state that it may see, (S,), the mean over heads.

        Raises RuntimeError if the policy does not declare `attends`.
        """
        if self.weights is None:
            raise RuntimeError("no attention weights were computed; declare `attends = True` in the policy")
        return self.weights


class Draft(Protocol):
    """A translation in progress, as policies see it; committed tokens are never taken back."""

    @property
    def n_steps(self) -> int:
        """Number of pre-decision steps of source read."""

    @property
    def n_states(self) -> int:
        """Number of encoder states that may be seen."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens committed."""

    @property
    def tokens(self) -> list[int]:
        """The ids of the tokens committed."""

    def write_next(self) -> bool:
        """Commit the best next token; False if there is none: it would end the sentence, or the limit is reached."""

    def write_while(self, accepts: Callable[[Token], bool]) -> None:
        """Commit the best next token, and the next, until one is not accepted, or there is none, as for `write_next`.

        `accepts` may read `n_steps`, `n_states`, `n_tokens` and `tokens`, which change with every token, but must not
        call other methods. Raises LeapformerError if it returns anything but a truth value.
        """

    def continuation(self) -> list[Token]:
        """The tokens that would be written from here on if the source ended now; nothing is committed.

        With --beam, the best hypothesis of a beam search.
        """

    def hypotheses(self) -> list[list[Token]]:
        """The hypotheses of a beam search from here on, best first; without --beam, `continuation` alone."""

    def commit(self, tokens: Sequence[Token | int]) -> None:
        """Write these tokens, or the tokens of these ids.

        Raises LeapformerError for ids that no text can have, and for more tokens than --max-len-a, --max-len-b allow.
        """


class Policy:
    """The policy of one utterance, created anew for each. `chosen` holds its options, given or default.

    A fork of a session copies the policy shallowly: replace attributes, never change a list in place.

    attends: its tokens come with attention weights, which costs a pass over the encoder states for each; an exported
             model has them if it was exported with --alignments.
    early:   it writes before the end of the source.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    attends: ClassVar[bool] = False
    early: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        """Raises LeapformerError for unknown options and impossible values."""
        self.chosen = SimpleNamespace(**checked("policy", self.name, self.options, options))

    @property
    def lag(self) -> int | None:
        """How many steps of source a token is written behind what it translates; None: that is not known."""
        return None

    @abstractmethod
    def write(self, draft: Draft) -> None:
        """Write what has become final after one more step of source."""


POLICIES: dict[str, type[Policy]] = {}
OPTIONS: dict[str, Option] = {ALIGN_LAYER.name: ALIGN_LAYER}
P = TypeVar("P", bound=type[Policy])
T = TypeVar("T")
MANY = 15  # names: a message lists fewer


def register(name: str, *options: Option) -> Callable[[P], P]:
    """Class decorator that registers a policy under `name` with its `options`.

    Policies may share an option if they declare it identically. Raises LeapformerError if the name is taken, an option
    is declared differently, or the class is no policy, has no `write` or does not take options.
    """
    return enrolled("policy", Policy, POLICIES, OPTIONS, name, options)


def is_ours(policy: type[Policy]) -> bool:
    """Whether a policy comes with this package."""
    return policy.__module__.partition(".")[0] == __name__.partition(".")[0]


def of_policy(policy: type[Policy], run: Callable[[], T]) -> T:
    """Run a method of a policy and return what it returns; as `of_user` for one of a user."""
    if is_ours(policy):
        return run()
    return of_user(run, f"policy {policy.name!r}", policy.__module__, policy)


def of_user(run: Callable[[], T], what: str, module: str, where: str | type) -> T:
    """Run code that a user wrote and return what it returns. Raises LeapformerError whatever it raises.

    The message says `what` failed, and the innermost line in `module` or its package; without one, `where` it is, or
    the place of that class.
    """
    try:
        return run()
    except (Exception, SystemExit) as error:
        package, lines = module.partition(".")[0], list[str]()
        for frame, number in walk_tb(error.__traceback__):
            if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
                lines.append(f"{frame.f_code.co_filename}, line {number}")
        if isinstance(error, SyntaxError):
            lines.append(f"{error.filename}, line {error.lineno}")
        at = lines[-1] if lines else where if isinstance(where, str) else place(where)
        raise LeapformerError(f"{what}: {at}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """What an error in a user's code says, with a remedy for those that are often made."""
    if isinstance(error, LeapformerError):
        return str(error)
    if isinstance(error, FloatingPointError):
        return (
            f"{first_line(error)}, so a decision would depend on NaN; log_probabilities of forbidden tokens are -inf: "
            "leave them out, or compute it under numpy.errstate(invalid='ignore')"
        )
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        known = Draft if hasattr(error.obj, "write_while") else error.obj
        names = [name for name in dir(known) if not name.startswith("_")]
        listed = f"it has {', '.join(names)}" if len(names) < MANY else ""
        return f"{first_line(error)}; {suggestion(error.name, names) or listed}".rstrip("; ")
    return first_line(error)


def find(name: str) -> type[Policy]:
    """The class of the policy `name`, which an installed package may bring as an entry point.

    Raises LeapformerError, with the names that there are, if there is none.
    """
    if name not in POLICIES:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            what = f"policy {name!r} of an installed package"
            of_user(point.load, what, point.module, point.value)
            if name not in POLICIES:
                raise LeapformerError(f"{what}: {point.module} registers none of this name; rename the entry point")
    if name not in POLICIES:
        raise LeapformerError(
            f"--policy {name!r}: {suggestion(name, POLICIES)}choose from {', '.join(POLICIES)}, or give the file that "
            f"registers {name!r} by --policy-file FILE"
        )
    return POLICIES[name]


@dataclass(frozen=True, init=False)
class PolicyOptions:
    """The choice of a policy, and the values of its options and of `align_layer`, which are attributes.

    `PolicyOptions("hold-n", hold=2).hold == 2`; options that are not given have their defaults.
    """

    name: str
    values: Mapping[str, Any] = field(hash=False)

    def __init__(self, name: str = "wait-k", **values: Any) -> None:
        """Raises LeapformerError for an unknown policy or option, and for an impossible value."""
        declared = (*find(name).options, ALIGN_LAYER)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", checked("policy", name, declared, values))

    def __getattr__(self, option: str) -> Any:
        if option.startswith("__") or option == "values" or option not in self.values:
            raise AttributeError(f"policy options have no {option!r}")
        return self.values[option]

    def but(self, **values: Any) -> Self:
        """The same policy with other values."""
        return type(self)(self.name, **{**self.values, **values})

    @property
    def policy(self) -> type[Policy]:
        """Its class."""
        return find(self.name)

    def make(self) -> Policy:
        """Create the policy of a new utterance. Raises LeapformerError where a value without a default is missing."""
        kind, given = self.policy, {option.name: self.values[option.name] for option in self.policy.options}
        return of_policy(kind, lambda: kind(**given))

    def with_lagging(self, k: int | None) -> Self:
        """With the k that a model was trained with, for a policy that has a k and was not given one."""
        return self.but(k=k) if self.lacks_lagging else self

    def of_layers(self, count: int) -> Self:
        """With `align_layer` counted from 1, for a decoder of `count` layers.

        Raises LeapformerError if there is no such layer.
        """
        layer = self.align_layer
        if not 0 < abs(layer) <= count:
            raise LeapformerError(f"--align-layer {layer}: the decoder has the layers 1 to {count}")
        return self.but(align_layer=layer + (count + 1 if layer < 0 else 0))

    @property
    def lacks_lagging(self) -> bool:
        """Whether the policy has a k that is not known yet."""
        return self.values.get("k", 0) is None
