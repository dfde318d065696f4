"""What attention needs to know about the current pass of its encoder or decoder, and the carry from layer to layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..attention import Carry, Mechanism, PrefixMask, State, TokenInfo
from ..attention.mechanism import Execution


@dataclass
class StackFacts:
    """What holds for every pass of an encoder or decoder.

    knows_lengths: there is a predictor of the target's length.
    guesses_lengths: where it says nothing, as an oracle does while a target is written, the mechanisms guess.
    carrier:       the mechanism of the first layer that has a carry, if there is one.
    last:          what was said of the latest pass in any thread, see `PassContext.told`.
    """

    knows_lengths: bool = False
    guesses_lengths: bool = False
    carrier: Mechanism | None = None
    last: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold no pass."""
        return {**self.__dict__, "last": {}}


@dataclass(frozen=True)
class PassOptions:
    """What whoever runs passes decides about them, instead of the settings of the model.

    schedule:  the wait-k mask of cross-attention; None shows it the whole source.
    weights:   whether the layer that is asked for its alignment composes attention weights; no other layer does.
    execution: of mechanisms; "loop" where the pass becomes a graph.
    """

    schedule: PrefixMask | None = None
    weights: bool = False
    execution: Execution = "auto"


TOLD = ("lengths", "tokens", "options")


class PassContext(threading.local):
    """The pass that runs in this thread: two threads may use one model.

    lengths:   (B,), how long the targets are or are said to become; None where nobody knows.
    carry:     passed from layer to layer; None before the first layer that has a carry.
    tokens:    positions and padding of an encoder's tokens in chunks; None: those of whole sequences, as they come.
    states:    what every attention keeps, by its `slot`, of an utterance whose frames are arriving; the pass is then
               more chunks of it. None where whole utterances are read.
    beam_size: hypotheses of a sentence that come side by side.
    prompt:    (B, T), tokens that a language model's generation begins with; None: it reads token by token.
    options:   what whoever runs the pass decides about it; None: the settings of the model hold.
    watchers:  by `slot` of an attention, what is called with what its mechanism is given for whole sequences: q, k and
               their tokens, query, key, mask.
    """

    lengths: Tensor | None
    tokens: TokenInfo | None
    options: PassOptions | None

    def __init__(self, facts: StackFacts) -> None:  # Python calls this once per thread, with the same facts
        self.__dict__.update(dict.fromkeys(TOLD), facts=facts)  # not by assignment, which would be told to others
        self.carry: Carry | None = None
        self.states: dict[str, State] | None = None
        self.beam_size = 1
        self.prompt: Tensor | None = None
        self.watchers: dict[str, Callable[..., None]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in TOLD and torch.is_grad_enabled():  # without gradients no backward pass will ask
            self.facts.last[name] = value

    @contextmanager
    def own(self, options: PassOptions) -> Iterator[None]:
        """While this holds, passes of this thread have these options, and nothing else that was said in it before.

        What they say themselves is forgotten afterwards, also when one fails: so passes of different owners may follow
        each other in a thread in any order.
        """
        outside = dict(self.__dict__)
        PassContext.__init__(self, self.facts)
        self.options = options
        try:
            yield
        finally:
            self.options = outside["options"]
            self.__dict__.update(outside)

    def told(self, name: str) -> Any:
        """Lengths, tokens or options of this pass.

        Within a backward pass, where checkpointed layers run again and on a GPU in a thread of autograd's own, what was
        said last in any thread.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        return self.facts.last.get(name) if in_backward else getattr(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model has the same facts, and no pass runs in it."""
        return type(self), (self.facts,)

    def hand_over(self, batch: int) -> Carry:
        """What the last layer handed on; the carry before the first layer, if all were dropped.

        It is not kept: with it there would be the graph of a pass that is over.
        """
        assert self.facts.carrier is not None
        found, self.carry = self.carry or self.facts.carrier.first_carry(batch), None
        return found
