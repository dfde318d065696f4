"""Attention with bounded-memory control (ABC): queries read n slots instead of N keys.

Every key and value is written into a memory of n slots, K~ = sum_i phi_i k_i^T and V~ = sum_i phi_i v_i^T, and a query
reads it with a softmax, o = V~^T softmax(K~ q / sqrt(D)) (Peng et al., 2022, arXiv:2110.02488, section 3). What the
members of the family have in common is here; they differ in their control phi: what goes into which slot.

A causal query reads the memory of its own prefix. Both halves of that are sums over visible keys as linear attention
has them (`forms`): the logits with the control in place of the values, the output with the control in place of the
keys. So training is linear in N, without a tensor of size N x n x D.

Shapes: B batch, H heads, T queries, S keys, n slots, D head dimension, E value dimension, G batch times heads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LeapformerError
from . import forms
from .base import BLOCKS, Form, Mechanism, State
from .carried import carried
from .linear import accumulated
from .masks import CAUSAL, Rows, Visible
from .registry import Option

SLOTS = Option(
    "abc_slots",
    "32/8/32",
    "abc: slots of the memory, one number or ENCODER/DECODER/CROSS; a window's are the tokens it sees",
)
EMPTY_SLOTS = Option(
    "abc_empty_slots",
    "mask",
    "abc: slots that nothing was written to are left out of the softmax (mask), or take part as zeros, as the paper's "
    "formula has it (literal)",
    ("mask", "literal"),
)
# Rows read at once in training, over all heads and the batch: few enough for the cache (2,000 to 8,000 do as well).
ROWS = 8192


def per_block(flag: str, value: str | int, block: str | None, least: int) -> int:
    """The number that holds in `block` (without one: the first) of an option such as 8 or 32/8/32."""
    try:
        numbers = [int(number) for number in str(value).split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, len(BLOCKS)) or min(numbers) < least:
        raise LeapformerError(
            f"{flag} {value!r}: give a whole number of at least {least}, or one each for {'/'.join(BLOCKS)}, as in "
            f"{SLOTS.default}"
        )
    return numbers[0] if len(numbers) == 1 or block is None else numbers[BLOCKS.index(block)]


class BoundedMechanism(Mechanism):
    """A memory of n slots that is read with a softmax: what all members of the family do alike.

    A subclass says what the memory is made of (`state_class`, `_empty`), how it is written and read (`_update`,
    `_attend`), and both at once for causal rows (`_extend`); what these get is float32 (float64 for double inputs), and
    so is the memory. Dropout falls on the slots' weights.
    """

    forms: ClassVar[tuple[str, ...]] = ("parallel", "chunkwise")
    prefixes = False
    state_class: ClassVar[type[State]]

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        *,
        abc_slots: str | int = "32/8/32",
        abc_empty_slots: str = "mask",
        **options: Any,
    ) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.slots = per_block(SLOTS.flag, abc_slots, self.block, least=1)
        self.literal = abc_empty_slots == "literal"

    @abstractmethod
    def _empty(self, rows: int, value_dim: int, like: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the state before the first key."""

    @abstractmethod
    def _update(self, memory: Sequence[Tensor], k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        """The memory after reading more rows; may change the old one in place."""

    @abstractmethod
    def _attend(self, memory: Sequence[Tensor], q: Tensor, rows: Rows) -> Tensor:
        """Output of queries that see all of the memory."""

    @abstractmethod
    def _extend(
        self, memory: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, rows: Rows, chunk: int | None
    ) -> tuple[Tensor, ...]:
        """Causal attention of rows that follow a memory: the output and the tensors of the memory after them."""

    @abstractmethod
    def _weights(self, q: Tensor, k: Tensor, query: Rows, key: Rows, visible: Visible | None, dropout: float) -> Tensor:
        """What every key contributes to every query, (B, H, T, S): quadratic, the reference of all else."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | None = None,
        form: Form = "auto",
        chunk: int | None = None,
    ) -> Tensor:
        q, k, v, query, key, dtype = self._prepared(q, k, v, query, key, visible)
        with torch.autocast(q.device.type, enabled=False):
            if form == "parallel":
                return self._parallel(q, k, v, query, key, visible).to(dtype)
            if visible is None:
                return self.attend(self.update(None, k, v, key), q, query).to(dtype)
            return self._causal(q, k, v, key, chunk).to(dtype)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | None = None,
    ) -> Tensor:
        keys = k.shape[2]
        q, k, _, query, key, dtype = self._prepared(q, k, k, query, key, visible)
        with torch.autocast(q.device.type, enabled=False):
            weights = self._weights(q, k, query, key, visible, 0.0)
            return F.pad(weights, (0, keys - k.shape[2])).to(dtype)

    def update(self, state: State | None, k: Tensor, v: Tensor, key: Rows) -> State:
        with torch.autocast(k.device.type, enabled=False):
            k, v = accumulated(k), accumulated(v)
            return self.state_class(*self._update(self._memory(state, k, v, key), k, v, key))

    def attend(self, state: State, q: Tensor, query: Rows) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            return self._attend(self._tensors(state), accumulated(q), query).to(q.dtype)

    def extend(self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, State]:
        q, k, v, _, rows, dtype = self._prepared(q, k, v, rows, rows, CAUSAL)
        with torch.autocast(q.device.type, enabled=False):
            memory = self._memory(state, k, v, rows)
            if q.shape[2] == 1:
                out, *after = self._extend_by_one(memory, q, k, v, rows)
            else:
                out, *after = self._extend(memory, q, k, v, rows, None)
            return out.to(dtype), self.state_class(*after)

    def _extend_by_one(
        self, memory: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, rows: Rows
    ) -> tuple[Tensor, ...]:
        """The same for one row, a decoding step: without the means that serve many."""
        memory = self._update(memory, k, v, rows)
        return self._attend(memory, q, rows), *memory

    def _parallel(self, q: Tensor, k: Tensor, v: Tensor, query: Rows, key: Rows, visible: Visible | None) -> Tensor:
        return self._weights(q, k, query, key, visible, self.dropping()) @ v

    def _prepared(
        self, q: Tensor, k: Tensor, v: Tensor, query: Rows | None, key: Rows | None, visible: Visible | None
    ) -> tuple[Tensor, Tensor, Tensor, Rows, Rows, torch.dtype]:
        """Inputs in the precision of the sums, with their rows, and the precision they came in.

        The rows of causal queries are those of the keys; keys that no query sees are cut off.
        """
        objection = self.objection(visible)
        if objection is not None:
            raise LeapformerError(f"{self.name} attention cannot be used like this: {objection}")
        queries, keys = q.shape[2], k.shape[2]
        key = key or Rows.whole(keys, device=k.device)
        if visible is not None:
            if queries > keys:
                raise LeapformerError(
                    f"{self.name} attention of {queries} causal queries over {keys} keys; give as many of both"
                )
            if queries < keys:
                k, v, key = k[:, :, :queries], v[:, :, :queries], key.narrow(0, queries)
            query = key
        query = query or Rows.whole(queries, device=q.device)
        return accumulated(q), accumulated(k), accumulated(v), query, key, v.dtype

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, chunk: int | None) -> Tensor:
        """Causal attention in stretches; what happens inside one is not kept for the backward pass but done again."""
        size, first = self._stretch(q, chunk), self._memory(None, k, v, rows)
        if q.shape[2] <= size:
            return self._extend(first, q, k, v, rows, chunk)[0]

        def run(memory: Sequence[Tensor], parts: Sequence[Tensor], start: int) -> tuple[Tensor, ...]:
            q, k, v, *inputs = parts
            here = replace(rows.narrow(start, start + size), inputs=inputs[0].squeeze(1) if inputs else None)
            return self._extend(memory, q, k, v, here, chunk)

        inputs = () if rows.inputs is None else (rows.inputs.unsqueeze(1),)
        parameters = [parameter for parameter in self._writing() if parameter.requires_grad]
        return carried(run, first, (q, k, v, *inputs), parameters, size, random=self.dropping() > 0)

    def _writing(self) -> Iterator[nn.Parameter]:
        """The parameters that writing into the memory uses."""
        return self.parameters()

    def _stretch(self, q: Tensor, chunk: int | None) -> int:
        """How many rows to read at once."""
        chunk = chunk or forms.default_chunk(CAUSAL)
        return max(1, ROWS // (q.shape[0] * q.shape[1] * chunk)) * chunk

    def _memory(self, state: State | None, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        """The tensors of a state; without one those before the first of these rows."""
        return self._empty(len(k), v.shape[3], k) if state is None else self._tensors(state)

    def _tensors(self, state: State) -> tuple[Tensor, ...]:
        """The tensors of a state, which must be of this mechanism."""
        if not isinstance(state, self.state_class):
            raise TypeError(f"a {type(state).__name__} does not belong to this mechanism")
        return tuple(state.tensors().values())

    def _scaled(self, q: Tensor) -> Tensor:
        return q * self.head_dim**-0.5

    def dropping(self) -> float:
        """How much of the weights is dropped out now."""
        return self.dropout if self.training else 0.0


def inputs_of(k: Tensor, rows: Rows) -> Tensor:
    """What a control reads, (B, S, C): the block's input or, without one, as a library, the keys of all heads."""
    return k.transpose(1, 2).flatten(2) if rows.inputs is None else rows.inputs.to(k.dtype)


def read(logits: Tensor, empty: Tensor | None, dropout: float) -> Tensor:
    """Weights of the slots: a softmax that leaves out the `empty` ones. Where all are, any weights do: they hold 0."""
    if empty is not None:
        logits = logits.masked_fill(empty, torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1)
    return F.dropout(weights, dropout) if dropout else weights


def kept(alpha: Tensor, rows: Rows) -> Tensor:
    """What rows write, (B, H, S, n), with nothing from padding."""
    return alpha if rows.keep is None else alpha * rows.keep[:, None, :, None].to(alpha.dtype)


def causal_sums(q: Tensor, k: Tensor, v: Tensor, first: Tensor, chunk: int | None) -> tuple[Tensor, Tensor]:
    """`forms.chunk_sums` of all heads: the sums (B, H, T, M) behind the state `first`, and the state after all keys."""
    heads = q.shape[:2]
    q, k, v, first = (x.flatten(0, 1) for x in (q, k, v, first))
    sums, after = forms.chunk_sums(q, k, v, first, chunk=chunk)
    return sums.unflatten(0, heads), after.unflatten(0, heads)


def added(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The total and a @ b; in place where no gradient is wanted, for one row without new memory."""
    if torch.is_grad_enabled():
        return total + a @ b
    return total.addcmul_(a, b) if a.shape[-1] == 1 else total.add_(a @ b)
