"""ABC that keeps the last tokens: sliding and dilated windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..capabilities import DECODER_CROSS, ENCODER_SELF, Capabilities
from ..masks import Mask
from ..mechanism import State
from ..ops import dispatch
from ..ops.precision import accumulated, in_float32
from ..registry import register
from ..tokens import TokenInfo
from .base import EMPTY_SLOTS, SLOTS, BoundedMechanism, slot_weights

# The position of padding and of missing tokens: before any window.
NOWHERE = -(2**40)
_REASON = "it keeps the tokens just before a query, an order that only a causal block has"


@dataclass
class WindowState(State):
    """The last R tokens read: keys (B, H, R, D), values (B, H, R, E) and positions (B, R).

    Until R tokens were read, it is filled with zeros.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor


@register("abc-window", SLOTS, EMPTY_SLOTS)
class Window(BoundedMechanism):
    """Sliding window: K~_t = U K~_{t-1} + e_n k_t^T with the shift U. A query sees the last n tokens, its own too.

    Each token replaces the oldest. (Peng et al., 2022, arXiv:2110.02488, section 3.3.)
    """

    capabilities = Capabilities({ENCODER_SELF: _REASON, DECODER_CROSS: _REASON}, prefixes=False)
    state_class = WindowState
    #: distance between the tokens that a query sees
    dilation: ClassVar[int] = 1

    @property
    def reach(self) -> int:
        """The number of tokens that a window spans."""
        return self.slots * self.dilation

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> WindowState:
        like = accumulated(like)
        keys, values = (like.new_zeros(batch, self.num_heads, self.reach, d) for d in (self.head_dim, value_dim))
        # With literal empty slots, missing tokens are visible zeros at the positions before the first.
        positions = torch.arange(1 - self.reach, 1, device=like.device) + (0 if self.literal else NOWHERE)
        return WindowState(keys, values, positions.expand(batch, -1))

    @in_float32
    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> WindowState:
        return self._latest(self._joined(state, k, v, key), key)

    @in_float32
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        keys, values, positions = self._tensors(state)
        return self._window_weights(q, keys, query.positions, positions, self.dropping()) @ values

    def _causal(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, State]:
        # All pairs of a block are compared. On a CPU it is about one window.
        outputs, size = [], max(dispatch.bounds(q.device).window, self.reach)
        parts = zip(*(x.split(size, 2) for x in (q, k, v)), strict=True)
        for i, (some_q, some_k, some_v) in enumerate(parts):
            here = tokens.narrow(i * size, (i + 1) * size)
            joined = self._joined(state, some_k, some_v, here)
            weights = self._window_weights(some_q, joined.keys, here.positions, joined.positions, self.dropping())
            outputs.append(weights @ joined.values)
            state = self._latest(joined, here)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2), state

    def _window_weights(self, q: Tensor, k: Tensor, query: Tensor, key: Tensor, dropout: float) -> Tensor:
        """Weights (B, H, T, S) of keys at positions `key` (B, S) for queries at positions `query` (B or 1, T)."""
        distance = (query.unsqueeze(-1) - key.unsqueeze(1)).unsqueeze(1)
        hidden = (distance < 0) | (distance >= self.reach) | (distance % self.dilation > 0)
        weights = slot_weights(self._scaled(q) @ k.mT, hidden, dropout)
        return weights.masked_fill(hidden, 0)  # left padding sees no token at all

    def _joined(self, state: State, k: Tensor, v: Tensor, tokens: TokenInfo) -> WindowState:
        """The window followed by these tokens; padding gets the position NOWHERE."""
        keys, values, positions = self._tensors(state)
        new = tokens.positions if tokens.keep is None else tokens.positions.where(tokens.keep, NOWHERE)
        positions = torch.cat([positions, new.expand(k.shape[0], -1)], 1)
        return WindowState(torch.cat([keys, k], 2), torch.cat([values, v], 2), positions)

    def _latest(self, joined: WindowState, last: TokenInfo) -> WindowState:
        """The part of `joined` that later queries may see; `last` are the tokens that were joined."""
        if last.keep is None and last.positions.shape[1] >= self.reach:  # without padding: the last columns
            return WindowState(*(x.narrow(x.dim() // 2, -self.reach, self.reach) for x in joined.tensors().values()))
        positions, columns = joined.positions.topk(self.reach, 1, sorted=False)
        columns = columns[:, None, :, None]
        keys, values = (x.gather(2, columns.expand(*x.shape[:2], -1, x.shape[3])) for x in (joined.keys, joined.values))
        return WindowState(keys, values, positions)

    def _composed(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        joined = self._joined(self.init_state(len(k), k.shape[3], k), k, k, key)
        return self._window_weights(q, joined.keys, query.positions, joined.positions, dropout)[..., self.reach :]


@register("abc-dilated", SLOTS, EMPTY_SLOTS)
class Dilated(Window):
    """Dilated window: tokens at odd and even positions form two queues, and a query reads the one of its own parity.

    It therefore sees n tokens: itself and every second one before it. The two queues together hold 2 n tokens. (Peng
    et al., 2022, arXiv:2110.02488, appendix A.4.)
    """

    dilation = 2
