"""Mechanisms for encoder self-attention that need the whole sequence, among them the baselines of Long Range Arena.

Shapes: B batch, H heads, T tokens, D head dimension, E value dimension.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import DECODER_CROSS, DECODER_SELF, Capabilities
from ..masks import Mask
from ..mechanism import Inputs, Mechanism, State
from ..ops.blocks import in_order, real_first
from ..ops.precision import accumulated, without_autocast
from ..tokens import TokenInfo

WHOLE = "it reads the whole sequence at once, so that nothing can be decoded with it; take another mechanism there"


class Bidirectional(Mechanism):
    """Attention without a state: a subclass implements `_ordered_weights`, and `_attended` for speed.

    Both get the real tokens in order and padding last, so a sequence's output does not depend on its batch. Queries are
    all tokens, or the first ones.
    """

    capabilities = Capabilities(
        append=False,
        prefixes=False,
        incremental=False,
        constant_state=False,
        unsupported={DECODER_SELF: WHOLE, DECODER_CROSS: WHOLE},
    )

    @abstractmethod
    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        """Weights (B, H, T, T) of all keys for all queries, in sequences of `lengths` (B or 1,) real tokens."""

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        """The output (B, H, T, E)."""
        return self._ordered_weights(q, k, lengths, self.dropping()) @ v

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> State:
        raise LeapformerError(f"{self.name} attention cannot decode token by token: {WHOLE}")

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> State:
        raise TypeError(f"{self.name} attention has no state")

    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        raise TypeError(f"{self.name} attention has no state")

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        queries, (q, lengths) = q.shape[2], self._self_attention(q, k, key)
        if key.keep is None:
            return self._ordered_weights(q, k, lengths, dropout)[:, :, :queries]
        order = real_first(key.keep)
        weights = self._ordered_weights(in_order(q, order), in_order(k, order), lengths, dropout)
        back = order.argsort(dim=1)
        return in_order(in_order(weights, back).mT, back).mT[:, :, :queries]

    def _in_segments(self, x: Inputs) -> Tensor:
        with without_autocast(x.q.device):
            k, v = accumulated(x.k), accumulated(x.v)
            q, lengths = self._self_attention(accumulated(x.q), k, x.key)
            if x.key.keep is None:
                out = self._attended(q, k, v, lengths)
            else:
                order = real_first(x.key.keep)
                q, k, v = (in_order(part, order) for part in (q, k, v))
                out = in_order(self._attended(q, k, v, lengths), order.argsort(dim=1))
            return out[:, :, : x.q.shape[2]].to(x.v.dtype)

    def _self_attention(self, q: Tensor, k: Tensor, key: TokenInfo) -> tuple[Tensor, Tensor]:
        """Queries, padded with zeros to one for each key, and the number of real tokens of each sequence, (B or 1,)."""
        queries, keys = q.shape[2], k.shape[2]
        if queries > keys:
            raise LeapformerError(
                f"{self.name} is self-attention and got {queries} queries for {keys} keys; give as many of both"
            )
        lengths = torch.full((1,), keys, device=k.device) if key.keep is None else key.keep.sum(1)
        return (q if queries == keys else F.pad(q, (0, 0, 0, keys - queries))), lengths


def real(lengths: Tensor, count: int) -> Tensor:
    """True at the first `lengths` (B or 1,) of `count` tokens, (B or 1, T)."""
    return torch.arange(count, device=lengths.device) < lengths.unsqueeze(1)
