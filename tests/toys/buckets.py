"""A sparsity pattern."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import Capabilities, Mask, Mechanism, State, TokenInfo, register
from leapformer_fairseq.attention.ops import accumulated, in_float32


@dataclass
class Kept(State):
    """All keys (B, H, S, D), values (B, H, S, E), and which are real, (B, S)."""

    k: Tensor
    v: Tensor
    keep: Tensor

    @classmethod
    def cat(cls, states: "Sequence[Kept]") -> "Kept":
        """Texts of different lengths: the shorter ones begin with keys that are not real."""
        longest = max(state.keep.shape[1] for state in states)
        each = [(x, longest - x.keep.shape[1]) for x in states]
        k, v = (torch.cat([F.pad(getattr(x, name), (0, 0, n, 0)) for x, n in each]) for name in "kv")
        return cls(k, v, torch.cat([F.pad(x.keep, (n, 0)) for x, n in each]))


@register("toy-buckets")
class Buckets(Mechanism):
    """Softmax over the keys in the query's bucket: those whose first number has the same sign."""

    capabilities = Capabilities(normalized=False, constant_state=False)

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> Kept:
        k, v = (accumulated(like).new_zeros(batch, self.num_heads, 0, dim) for dim in (self.head_dim, value_dim))
        return Kept(k, v, torch.zeros(batch, 0, dtype=torch.bool, device=like.device))

    @in_float32
    def write(self, state: Kept, k: Tensor, v: Tensor, key: TokenInfo) -> Kept:
        keep = torch.ones(len(k), k.shape[2], dtype=torch.bool, device=k.device) if key.keep is None else key.keep
        return Kept(torch.cat([state.k, k], 2), torch.cat([state.v, v], 2), torch.cat([state.keep, keep], 1))

    @in_float32
    def read(self, state: Kept, q: Tensor, query: TokenInfo) -> Tensor:
        same = (q[..., :1] > 0) == (state.k[..., :1] > 0).mT
        seen = same & state.keep[:, None, None]
        scores = (q @ state.k.mT * self.head_dim**-0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
        return (scores.softmax(-1) * seen) @ state.v  # nothing, where the bucket is empty
