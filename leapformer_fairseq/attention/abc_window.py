"""ABC that remembers the last tokens: sliding and dilated windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import State
from .bounded import EMPTY_SLOTS, SLOTS, BoundedMechanism, read
from .linear import accumulated
from .masks import Rows, Visible
from .registry import register

# The position of what is not there: before all windows.
NOWHERE = -(2**40)


@dataclass
class WindowState(State):
    """The last rows that were read: keys (B, H, R, D), values (B, H, R, E) and their positions, (B, R).

    Before R rows were read, zeros fill it.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor


@register("abc-window", SLOTS, EMPTY_SLOTS)
class Window(BoundedMechanism):
    """Sliding window: K~_t = U K~_{t-1} + e_n k_t^T with the shift U, so a query sees the last n tokens, its own too.

    The oldest leaves when a token comes. (Peng et al., 2022, arXiv:2110.02488, section 3.2.)
    """

    blocks = ("decoder-self",)
    undefined = "it keeps the tokens just before a query, an order that only a causal block has"
    state_class = WindowState
    #: which tokens of the past are seen: every one, every second
    dilation: ClassVar[int] = 1

    def _empty(self, rows: int, value_dim: int, like: Tensor) -> tuple[Tensor, ...]:
        reach = self.slots * self.dilation
        zeros = (accumulated(like).new_zeros(rows, self.num_heads, reach, d) for d in (self.head_dim, value_dim))
        # Taken literally, what is not there yet is zeros at the positions before the first.
        positions = torch.arange(1 - reach, 1, device=like.device) + (0 if self.literal else NOWHERE)
        return *zeros, positions.expand(rows, -1)

    def _update(self, memory: Sequence[Tensor], k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, ...]:
        return self._latest(_joined(memory, k, v, rows))

    def _attend(self, memory: Sequence[Tensor], q: Tensor, rows: Rows) -> Tensor:
        keys, values, positions = memory
        return self._seen(q, keys, rows.positions, positions, self.dropping()) @ values

    def _extend(
        self, memory: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, rows: Rows, chunk: int | None
    ) -> tuple[Tensor, ...]:
        keys, values, positions = window = _joined(memory, k, v, rows)
        weights = self._seen(q, keys, rows.positions, positions, self.dropping())
        return weights @ values, *self._latest(window)

    def _seen(self, q: Tensor, k: Tensor, query: Tensor, key: Tensor, dropout: float) -> Tensor:
        """Weights of the keys at positions (B, S) for queries at positions (B or 1, T)."""
        distance = (query.unsqueeze(-1) - key.unsqueeze(1)).unsqueeze(1)
        hidden = (distance < 0) | (distance >= self.slots * self.dilation) | (distance % self.dilation > 0)
        weights = read(self._scaled(q) @ k.mT, hidden, dropout)
        return weights.masked_fill(hidden, 0)  # padding before the first token sees nothing at all

    def _latest(self, window: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the next query may see of keys, values and positions."""
        keys, values, positions = window
        positions, columns = positions.topk(self.slots * self.dilation, 1, sorted=False)
        columns = columns[:, None, :, None]
        return *(x.gather(2, columns.expand(*x.shape[:2], -1, x.shape[3])) for x in (keys, values)), positions

    def _weights(self, q: Tensor, k: Tensor, query: Rows, key: Rows, visible: Visible | None, dropout: float) -> Tensor:
        memory = self._empty(len(k), k.shape[3], k)
        keys, _, positions = _joined(memory, k, k, key)
        return self._seen(q, keys, query.positions, positions, dropout)[..., memory[0].shape[2] :]

    def _stretch(self, q: Tensor, chunk: int | None) -> int:
        return chunk or max(64, self.slots * self.dilation)


@register("abc-dilated", SLOTS, EMPTY_SLOTS)
class Dilated(Window):
    """Dilated window: a token is pushed to that of two queues which has its parity, and a query reads the same queue.

    So it sees n tokens, its own and every second one before it; both queues together hold 2 n. (Peng et al., 2022,
    arXiv:2110.02488, section 3.2.)
    """

    dilation = 2


def _joined(memory: Sequence[Tensor], k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and positions of a memory and of more rows; padding stands nowhere."""
    keys, values, positions = memory
    new = rows.positions if rows.keep is None else rows.positions.where(rows.keep, NOWHERE)
    new = new.expand(len(k), -1)
    return torch.cat([keys, k], 2), torch.cat([values, v], 2), torch.cat([positions, new], 1)
