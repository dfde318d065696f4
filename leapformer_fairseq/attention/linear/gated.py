"""Linear attention that forgets: sums that decay by a gate before every key is added."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ..capabilities import DECODER_CROSS, ENCODER_SELF, Capabilities
from ..masks import CAUSAL, Mask, seen, with_state
from ..mechanism import Inputs, Mechanism, State
from ..ops import dispatch, gated, linear
from ..ops.precision import accumulated, without_autocast
from ..ops.segments import Kept
from ..tokens import TokenInfo
from .base import LinearMechanism, LinearState

_ONLY_CAUSAL = "a gate forgets what came before, which needs an order of reading; take the mechanism without a gate"


class GatedMechanism(LinearMechanism):
    """S_t = exp(g_t) S_(t-1) + phi(k_t) [v_t, 1]^T, read as phi(q_t) S_t over its last column; g_t <= 0 for each head.

    A subclass says what g_t is; to be written before the class of its feature map.
    """

    capabilities = Capabilities(
        unsupported={ENCODER_SELF: _ONLY_CAUSAL, DECODER_CROSS: _ONLY_CAUSAL},
        prefixes=False,
        append=False,
        needs_inputs=True,
    )

    @abstractmethod
    def log_decay(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """g, (B, H, S), of keys (B, H, S, D). The caller masks padding."""

    def _decay(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        """g with zeros at padding, which neither writes nor forgets."""
        decay = self.log_decay(accumulated(k), tokens)
        return decay if tokens.keep is None else decay * tokens.keep.unsqueeze(1).to(decay.dtype)

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> LinearState:
        with without_autocast(k.device):
            kv, v = state.of(LinearState).kv, linear.append_ones(accumulated(v))
            return LinearState(gated.state_after(self._keys(k, key).x, v, self._decay(k, key), kv))

    def _segment(self, state: State, x: Inputs, kept: Kept | None = None) -> tuple[Tensor | None, LinearState]:
        q, k, v, query, key, mask = x
        if not q.shape[2]:
            return None, self.write(state, k, v, key)
        if not k.shape[2]:
            return self.read(state, q, query), state.of(LinearState)
        if mask != CAUSAL:
            return Mechanism.scan(self, state, *x)  # type: ignore[return-value]
        with without_autocast(q.device):
            fq = dispatch.operand(self.map_queries(accumulated(q), query).x, v.dtype)
            fk = dispatch.operand(self._keys(k, key).x, v.dtype)
            values = dispatch.operand(linear.append_ones(v), v.dtype)
            chunk = dispatch.chunk_of(q.device, 1)
            sums, kv = gated.causal_sums(fq, fk, values, self._decay(k, key), state.of(LinearState).kv, chunk)
            return linear.normalize(sums, self.normalizer_floor).to(v.dtype), LinearState(kv)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        visible, keys = with_state(mask), seen(mask, q.shape[2], k.shape[2])
        total = self._decay(k, key).cumsum(2)
        at = total[:, :, torch.arange(q.shape[2], device=q.device).clamp(max=keys - 1)]
        hidden = ~visible.mask(q.shape[2], k.shape[2], q.device) if visible is not None else None
        age = at.unsqueeze(3) - total.unsqueeze(2)
        age = age if hidden is None else age.masked_fill(hidden, -torch.inf)
        scores = linear.scores(self.map_queries(q, query).x, self._keys(k, key).x) * age.exp()
        return scores / scores.sum(-1, keepdim=True).clamp_min(self.normalizer_floor)
