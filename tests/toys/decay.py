"""A decayed sum."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import Mask, Mechanism, State, TokenInfo, Written, register, shown
from leapformer_fairseq.attention.ops import accumulated, append_ones, in_float32, sums


@dataclass
class DecayedState(State):
    """sum_i g^(t - i) phi(k_i) [v_i, 1]^T, (B, H, D, E + 1)."""

    kv: Tensor


@register("toy-decay")
class Decay(Mechanism):
    """Retention, normalised: S_t = g_h S_(t-1) + phi(k_t) v_t^T with a decay g_h for each head (Sun et al., 2023)."""

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> DecayedState:
        return DecayedState(accumulated(like).new_zeros(batch, self.num_heads, self.head_dim, value_dim + 1))

    @in_float32
    def write(self, state: DecayedState, k: Tensor, v: Tensor, key: TokenInfo) -> DecayedState:
        keep = k.new_ones(len(k), k.shape[2]) if key.keep is None else key.keep.to(k.dtype)
        after = keep.flip(1).cumsum(1).flip(1) - keep  # real tokens that follow in this part
        decay = self._decay(k)
        weights = keep[:, None] * decay ** after[:, None]  # (B, H, S)
        faded = decay ** keep.sum(1)[:, None, None]  # (B, H, 1), of what was written before
        features = F.softplus(k) * weights.unsqueeze(-1)
        return DecayedState(faded.unsqueeze(-1) * state.kv + features.mT @ append_ones(v))

    @in_float32
    def read(self, state: DecayedState, q: Tensor, query: TokenInfo) -> Tensor:
        return self._mean(F.softplus(q) @ state.kv)

    @in_float32
    def scan_(
        self,
        state: DecayedState,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query: TokenInfo,
        key: TokenInfo,
        mask: Mask = None,
    ) -> tuple[Tensor, DecayedState]:
        x = shown(q, k, v, query, key, mask)  # without keys that no query sees
        log_decay = self._decay(k).log().unsqueeze(-1).expand(*x.k.shape[:3], 1)
        keys = Written(F.softplus(x.k), append_ones(x.v), log_decay)
        keys = keys if x.key.keep is None else keys.kept(x.key.keep[:, None, :, None])
        read, kv = sums(F.softplus(x.q), keys, state.kv, x.mask)
        return self._mean(read), DecayedState(kv)

    def _decay(self, like: Tensor) -> Tensor:
        """The decay of each head, (H, 1)."""
        return (1 - 2.0 ** -torch.arange(3, 3 + self.num_heads, device=like.device, dtype=like.dtype)).unsqueeze(1)

    def _mean(self, read: Tensor) -> Tensor:
        return read[..., :-1] / read[..., -1:].clamp_min(1e-12)
