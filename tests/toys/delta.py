"""A delta rule."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import Capabilities, Mask, Mechanism, State, TokenInfo, register
from leapformer_fairseq.attention.ops import accumulated, in_float32


@dataclass
class FastWeights(State):
    """What keys are mapped to, (B, H, D, E)."""

    kv: Tensor


@register("toy-delta")
class Delta(Mechanism):
    """The delta rule: S_t = S_(t-1) + k_t (v_t - S_(t-1)^T k_t)^T / 2 with |k_t| = 1 (Schlag et al., 2021)."""

    capabilities = Capabilities(normalized=False)

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> FastWeights:
        return FastWeights(accumulated(like).new_zeros(batch, self.num_heads, self.head_dim, value_dim))

    @in_float32
    def write(self, state: FastWeights, k: Tensor, v: Tensor, key: TokenInfo) -> FastWeights:
        kv, k = state.kv, F.normalize(k, dim=-1, eps=1e-6)
        if key.keep is not None:
            k = k * key.keep[:, None, :, None].to(k.dtype)  # a key of zeros writes nothing
        for one_k, one_v in zip(k.split(1, 2), v.split(1, 2), strict=True):
            kv = kv + 0.5 * one_k.mT @ (one_v - one_k @ kv)
        return FastWeights(kv)

    @in_float32
    def read(self, state: FastWeights, q: Tensor, query: TokenInfo) -> Tensor:
        return F.normalize(q, dim=-1, eps=1e-6) @ state.kv
