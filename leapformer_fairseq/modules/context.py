"""What attention must know about the current pass of its encoder or decoder, and the carry between layers."""

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

    knows_lengths:   whether a length predictor exists for the target.
    guesses_lengths: whether mechanisms guess lengths without a prediction; an oracle gives none in generation.
    carrier:         the mechanism of the first layer that has a carry, if any.
    last:            the values set for the latest pass in any thread (see `PassContext.value`).
    """

    knows_lengths: bool = False
    guesses_lengths: bool = False
    carrier: Mechanism | None = None
    last: dict[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not contain a pass."""
        return {**self.__dict__, "last": {}}


@dataclass(frozen=True)
class PassOptions:
    """Settings of passes by their caller, which replace the model's settings.

    schedule:  the wait-k mask of cross-attention; None: it sees the whole source.
    weights:   whether the layer that is asked for an alignment computes attention weights; other layers never do.
    execution: of mechanisms; "loop" if the pass is to become a graph.
    """

    schedule: PrefixMask | None = None
    weights: bool = False
    execution: Execution = "auto"


TOLD = ("lengths", "tokens", "options")


class PassContext(threading.local):
    """The pass that runs in this thread; several threads may use one model.

    lengths:   (B,), true or predicted lengths of the targets; None if unknown.
    carry:     passed from layer to layer; None before the first layer that has a carry.
    tokens:    positions and padding of an encoder's tokens in chunks; None: of whole sequences, from the padding mask.
    states:    states of attention, by `slot`, for an utterance that is arriving, of which the pass reads the next
               chunks; None if the pass reads whole utterances.
    beam_size: number of neighbouring batch entries that are hypotheses of one sentence.
    prompt:    (B, T), tokens with which a language model's generation begins; None: it reads token by token.
    options:   the caller's settings of the pass; None: the model's settings apply.
    watchers:  functions, by `slot` of an attention, that are called with the inputs of its mechanism for whole
               sequences: q, k, query, key, mask.
    """

    lengths: Tensor | None
    tokens: TokenInfo | None
    options: PassOptions | None

    def __init__(self, facts: StackFacts) -> None:  # Python calls this once per thread, with the same facts
        self.__dict__.update(dict.fromkeys(TOLD), facts=facts)  # `__setattr__` would set them in `facts.last`, too
        self.carry: Carry | None = None
        self.states: dict[str, State] | None = None
        self.beam_size = 1
        self.prompt: Tensor | None = None
        self.watchers: dict[str, Callable[..., None]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in TOLD and torch.is_grad_enabled():  # without gradients, no backward pass will need it
            self.facts.last[name] = value

    @contextmanager
    def own(self, options: PassOptions) -> Iterator[None]:
        """Run passes in this thread with these options, and without anything that was set before.

        Afterwards, even after an error, the previous values are restored. Passes of different owners may therefore
        follow each other in one thread in any order.
        """
        outside = dict(self.__dict__)
        PassContext.__init__(self, self.facts)
        self.options = options
        try:
            yield
        finally:
            self.options = outside["options"]
            self.__dict__.update(outside)

    def value(self, name: str) -> Any:
        """Lengths, tokens or options of this pass, by name.

        In a backward pass, the value that was set last in any thread: checkpointed layers then run again, on a GPU in
        one of autograd's threads.
        """
        in_backward = torch._C._current_graph_task_id() != -1
        return self.facts.last.get(name) if in_backward else getattr(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of a model have the same facts, but no running pass."""
        return type(self), (self.facts,)

    def hand_over(self, batch: int) -> Carry:
        """The carry after the last layer; if all layers were dropped, the carry before the first.

        The context forgets it, because it would keep the autograd graph of a finished pass alive.
        """
        assert self.facts.carrier is not None
        carry, self.carry = self.carry or self.facts.carrier.first_carry(batch), None
        return carry
