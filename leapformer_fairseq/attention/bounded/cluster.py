"""ABC whose slots are clusters of tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import DECODER_SELF, Capabilities
from ..mechanism import State
from ..ops import dispatch
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import EMPTY_SLOTS, SLOTS
from .sums import SlotState, SlotSums


@register(
    "abc-cluster",
    SLOTS,
    EMPTY_SLOTS,
    Option("abc_cluster_rounds", 10, "abc-cluster: rounds of k-means, at most", least=1),
)
class Cluster(SlotSums):
    """Clustered attention: slot j is the mean of cluster j, phi_i = sum_j M_ij / (sum_l M_lj) e_j, M_ij in {0, 1}.

    k-means over the block's inputs computes the clusters of each sentence, which all heads share; a query therefore
    depends on all tokens. (Vyas et al., 2020, arXiv:2007.04825; Peng et al., 2022, arXiv:2110.02488, section 3.2.)

    k-means is implemented here because it must run for a whole batch at once, on the device of the model: libraries
    cluster one set of points at a time, on the CPU.
    """

    capabilities = Capabilities(
        {DECODER_SELF: "clusters are made of all tokens, also of those still to come"},
        prefixes=False,
        append=False,  # more tokens change the clusters
        needs_inputs=True,
    )
    normalized = True

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.rounds: int = self.chosen.abc_cluster_rounds

    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        cluster = clusters(tokens.required_inputs(k.dtype), tokens.keep, self.slots, self.rounds)
        return F.one_hot(cluster, self.slots).to(k.dtype).unsqueeze(1)

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> SlotState:
        mass = self._tensors(state)[2]
        # Not checked on a GPU, which would have to be waited for, nor in a graph, which has no values.
        if mass.is_cpu and not dispatch.is_traced() and mass.any():
            raise LeapformerError("abc-cluster: more tokens make other clusters; give all tokens of a sequence at once")
        return super().write(state, k, v, key)


@torch.no_grad()
def clusters(x: Tensor, keep: Tensor | None, count: int, rounds: int) -> Tensor:
    """The number, from 0, of each token's cluster, (B, S), by k-means over x (B, S, C) with `count` clusters.

    Initial centres are tokens, spread evenly over those to `keep` (B, S). It stops after `rounds`, on a CPU earlier if
    no token changes its cluster. A cluster that becomes empty keeps its centre.
    """
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if keep is None else keep
    ranks = torch.arange(count, device=x.device) * real.sum(1, keepdim=True) // count + 1
    start = (real.long().cumsum(1).unsqueeze(1) < ranks.unsqueeze(2)).sum(2).clamp_max(x.shape[1] - 1)
    centres = x.gather(1, start.unsqueeze(-1).expand(-1, -1, x.shape[2]))
    cluster = _nearest(x, centres)
    for _ in range(rounds):
        member = F.one_hot(cluster, count).to(x.dtype) * real.unsqueeze(-1).to(x.dtype)
        size = member.sum(1).unsqueeze(-1)
        centres = torch.where(size > 0, member.mT @ x / size.clamp_min(1), centres)
        before, cluster = cluster, _nearest(x, centres)
        if cluster.is_cpu and not dispatch.is_traced() and torch.equal(cluster, before):
            break
    return cluster


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    """The index of the centre nearest to each token, (B, S)."""
    return (centres.square().sum(-1).unsqueeze(1) - 2 * x @ centres.mT).argmin(-1)
