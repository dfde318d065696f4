"""A decayed sum."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import Mask, Mechanism, State, TokenInfo, register
from leapformer_fairseq.attention.ops import accumulated, append_ones, in_float32


@dataclass
class DecayedState(State):
    """sum_i g^(t - i) k_i [v_i, 1]^T, (B, H, D, E + 1)."""

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
        decay = 1 - 2.0 ** -torch.arange(3, 3 + self.num_heads, device=k.device, dtype=k.dtype)
        weights = keep[:, None] * decay[:, None] ** after[:, None]  # (B, H, S)
        faded = decay[:, None] ** keep.sum(1)[:, None, None]  # (B, H, 1), of what was written before
        features = F.softplus(k) * weights.unsqueeze(-1)
        return DecayedState(faded.unsqueeze(-1) * state.kv + features.mT @ append_ones(v))

    @in_float32
    def read(self, state: DecayedState, q: Tensor, query: TokenInfo) -> Tensor:
        sums = F.softplus(q) @ state.kv
        return sums[..., :-1] / sums[..., -1:].clamp_min(1e-12)
