"""The contract of an attention mechanism: one function, asked for in parallel, chunkwise or recurrent form.

Shapes: B batch, H heads, T queries, S keys, D head dimension, E value dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from .masks import CAUSAL, Blocks, Packed, Rows, Visible
from .registry import Option
from .step import Projections, Step

Form = Literal["auto", "parallel", "chunkwise", "recompute"]
BLOCKS: tuple[str, ...] = ("encoder-self", "decoder-self", "decoder-cross")


@dataclass
class State:
    """What a mechanism remembers of the keys and values it was given. Every tensor is batch first.

    `update` may change a state in place; `fork` first when the old one is needed again.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, for saving; `type(state)(**tensors)` brings the state back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fork(self) -> State:
        """An independent copy."""
        return type(self)(**{name: tensor.clone() for name, tensor in self.tensors().items()})

    def reorder(self, order: Tensor) -> State:
        """The state whose row i is the old row order[i]; beam search repeats, drops and permutes rows."""
        return type(self)(**{name: tensor.index_select(0, order) for name, tensor in self.tensors().items()})

    def rows(self) -> int:
        """How many sequences it holds."""
        return len(next(iter(self.tensors().values())))

    def nbytes(self) -> int:
        """Bytes held by the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


class Mechanism(nn.Module):
    """How queries read keys and values, apart from the projections around it.

    A subclass answers in three forms that agree: `forward` (parallel or chunkwise, for training), and `update` and
    `attend` (recurrent, for generation). Class attributes say what it can do; impossible plans fail when the model is
    built.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    blocks: ClassVar[tuple[str, ...]] = BLOCKS
    #: why it cannot serve the other blocks
    undefined: ClassVar[str] = "it is not defined for this block"
    #: `forward` may be asked for these forms besides "auto"
    forms: ClassVar[tuple[str, ...]] = ("parallel",)
    #: True when the output depends on the lengths of the whole sequences
    needs_length: ClassVar[bool] = False
    #: True when the keys' `Rows.inputs`, the block's input before the projections, is to be given
    needs_inputs: ClassVar[bool] = False
    #: True when layers hand a packed sequence on to each other (`Rows.packed`), which `packed_after` a state gives
    packs: bool = False
    #: True when the first layer has no packed sequence of its own, so the encoder must hand one on
    needs_packed: bool = False
    #: True when k is v: one projection serves for both (`adopt` is for a use of the other)
    keys_are_values: bool = False
    #: True when queries may see prefixes of the keys other than the causal one (wait-k)
    prefixes: ClassVar[bool] = True
    #: names of the parameters that all layers of a block have in common
    tied: tuple[str, ...] = ()
    #: the longest target it can serve in a decoder, if there is a limit
    max_positions: int | None = None
    #: False when the state grows with what was read
    constant_state: ClassVar[bool] = True
    #: True when new keys may be appended to a state without changing what the old ones contributed
    streaming: bool = True

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        block: str | None = None,
        input_dim: int | None = None,
        **options: Any,
    ) -> None:
        """`block` is where it will serve, `input_dim` the width of the keys' inputs (default: that of all heads)."""
        super().__init__()
        self.head_dim, self.num_heads, self.dropout = head_dim, num_heads, dropout
        self.block, self.input_dim = block, head_dim * num_heads if input_dim is None else input_dim

    def share(self, first: Self) -> None:
        """Have the `tied` parameters in common with the same block's mechanism in the first layer that has it."""
        for name in self.tied:
            setattr(self, name, getattr(first, name))

    def adopt(self, projections: Projections) -> None:
        """Know the block's projections, for mechanisms that also project what is neither queries nor keys nor values.

        They remain the block's: nothing of them may be registered as a part of the mechanism.
        """

    def refusal(self, block: str, length_known: bool = False) -> str | None:
        """Why this mechanism with its options cannot serve `block`, with the remedy; None when it can.

        `length_known`: there is a predictor of the target's length.
        """
        if block in self.blocks:
            return None
        return f"{self.undefined}; allowed: {', '.join(self.blocks)}"

    def objection(self, visible: Visible | Blocks | None) -> str | None:
        """Why it cannot let queries see this much of the keys, whatever the block; None when it can."""
        if isinstance(visible, Blocks):
            reason = "it depends on the whole sequence, which is not there while rows arrive"
            return self.refusal(BLOCKS[0]) if self.streaming else reason
        if visible not in (None, CAUSAL):
            return None if self.prefixes else "it is not defined over the prefixes of wait-k"
        blocks = BLOCKS[1:2] if visible == CAUSAL else (BLOCKS[0], BLOCKS[2])
        reasons = [self.refusal(block, length_known=True) for block in blocks]
        return None if None in reasons else reasons[0]

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
    ) -> Tensor:
        """Attention output (B, H, T, E) of q (B, H, T, D), k (B, H, S, D), v (B, H, S, E).

        `query` and `key` describe the rows (positions, true lengths, padding); None means no padding. `visible` limits
        each query to a prefix of the keys (CAUSAL, wait-k) and None is bidirectional. Rows of padded queries are
        undefined but finite.
        """
        raise NotImplementedError

    def blockwise(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, blocks: Blocks) -> Tensor:
        """Self-attention in blocks of whole sequences, (B, H, T, E), for training. This default goes block by block."""
        if blocks.rows == 1:
            return self(q, k, v, query=rows, key=rows, visible=CAUSAL)
        return self.extend_blocks(None, q, k, v, rows, blocks)[0]

    def extend_blocks(
        self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows, blocks: Blocks
    ) -> tuple[Tensor, State]:
        """More blocks, each with its rows ahead: (output, state without those). The last one may be shorter."""
        if blocks.rows == 1:
            return self.extend(state, q, k, v, rows)
        outputs = []
        for start in range(0, q.shape[2], blocks.rows):
            middle, stop = start + blocks.size, min(start + blocks.rows, q.shape[2])
            own, ahead = slice(start, min(middle, stop)), slice(middle, stop)
            state = self.update(state, k[:, :, own], v[:, :, own], rows.narrow(own.start, own.stop))
            seen = state
            if middle < stop:
                seen = self.update(state.fork(), k[:, :, ahead], v[:, :, ahead], rows.narrow(middle, stop))
            outputs.append(self.attend(seen, q[:, :, start:stop], rows.narrow(start, stop)))
        if state is None:
            raise ValueError("extend_blocks needs at least one row")
        return torch.cat(outputs, 2), state

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | None = None,
    ) -> Tensor:
        """Normalised attention weights (B, H, T, S), quadratic: for alignments and pictures."""
        raise NotImplementedError

    def update(self, state: State | None, k: Tensor, v: Tensor, key: Rows) -> State:
        """The state after reading more keys and values; may reuse the memory of `state`."""
        raise NotImplementedError

    def attend(self, state: State, q: Tensor, query: Rows) -> Tensor:
        """Output (B, H, T, E) of queries that see everything in the state."""
        raise NotImplementedError

    def first_packed(self, count: int) -> Packed:
        """The packed sequences of `count` sentences before the first layer; where it `packs`."""
        raise NotImplementedError

    def packed_after(self, state: State) -> Packed:
        """The packed sequence that the next layer gets, once this one has read its keys; where it `packs`."""
        raise NotImplementedError

    def step(self, projections: Projections) -> Step | None:
        """A faster way through one row, projections included: self-attention, or cross-attention without k and v.

        None where there is only the general way, `extend` and `attend`.
        """
        return None

    def empty_state(self, rows: int, value_dim: int, like: Tensor) -> State | None:
        """The state before the first key, asked for where there is a `step`; None where it takes more to tell."""
        raise NotImplementedError

    def extend(self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, State]:
        """Causal self-attention over T new rows after what the state holds: (output, new state).

        One row is a decoding step, many are a prompt. This default goes row by row; a mechanism that can reads a
        prompt in one pass.
        """
        outputs = []
        for t in range(q.shape[2]):
            row = rows.narrow(t, t + 1)
            state = self.update(state, k[:, :, t : t + 1], v[:, :, t : t + 1], row)
            outputs.append(self.attend(state, q[:, :, t : t + 1], row))
        if state is None:
            raise ValueError("extend needs at least one row")
        return torch.cat(outputs, 2), state
