"""Entmax attention: an alternative to softmax that gives low scores a weight of exactly zero.

Shapes: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..masks import Mask
from ..ops.entmax import entmax_weights
from ..ops.precision import accumulated, without_autocast
from ..ops.segments import first_order
from ..options import Option
from ..registry import register
from ..softmax import CachedMechanism, visible_keys
from ..tokens import TokenInfo

LEARNED = "learned"
ALPHA = Option(
    "entmax_alpha",
    "1.5",
    "entmax: how sparse the weights are, a number above 1 (towards 1: softmax; 1.5; 2: sparsemax), or learned per head",
)
BISECTIONS = 60  # reduce an interval of width 1 to the precision of float64


@register("entmax", ALPHA)
class Entmax(CachedMechanism):
    """alpha-entmax attention: p_j = [(alpha - 1) z_j - tau]_+^(1 / (alpha - 1)) with z = q . k / sqrt(D).

    tau is such that the weights of a query sum to one; the output of a query that sees no key is 0. A learned alpha is
    1 + sigmoid(a) with one parameter a per head, 1.5 at first. (Peters et al., 2019, arXiv:1905.05702, eq. 10-12;
    Correia et al., 2019, arXiv:1909.00015.)
    """

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        given = str(self.chosen.entmax_alpha)
        self.alpha_logit = nn.Parameter(torch.zeros(num_heads)) if given == LEARNED else None
        self.fixed_alpha = 1.5 if given == LEARNED else _number(given)

    @property
    def alpha(self) -> Tensor | float:
        """A number, or one per head, (H, 1, 1)."""
        return self.fixed_alpha if self.alpha_logit is None else 1 + self.alpha_logit.sigmoid()[:, None, None]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        with without_autocast(q.device):
            return (F.dropout(self._fast_weights(q, k, visible), dropout) @ accumulated(v)).to(v.dtype)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        with without_autocast(q.device):
            visible = self._allowed(q, self._cached(k), visible_keys(q, k, key.keep, mask))
            scores = self._shifted(self._scores(q, k), visible)
            return F.dropout(_cleared(entmax(scores, self.alpha), visible), dropout)

    def _allowed(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor | None:
        """The part of `visible` over which entmax is computed, for keys as `_cached` returns them; None: all pairs."""
        return visible

    @torch.no_grad()
    def graph(
        self, q: Tensor, k: Tensor, *, query: TokenInfo | None = None, key: TokenInfo | None = None, mask: Mask = None
    ) -> Tensor:
        """The graph of attention, (B, H, T, S): an edge is a weight above 0 (Treviso et al., 2022, section 4)."""
        visible = visible_keys(q, k, None if key is None else key.keep, mask)
        with without_autocast(q.device):
            return self._fast_weights(q, self._cached(k), visible) > 0

    def _fast_weights(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
        """Weights (B, H, T, S) by the fast algorithm, in float32 or float64, for keys as `_cached` returns them."""
        visible = self._allowed(q, k, visible)
        return self._of_scores(self._scores(accumulated(q), accumulated(k[..., : self.head_dim])), visible)

    def _of_scores(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """Weights (B, H, T, S) for scores (B, H, T, S), by the fast algorithm."""
        return _cleared(_Entmax.apply(self._shifted(scores, visible), self.alpha), visible)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """z = q . k / sqrt(D), (.., T, S)."""
        return q @ k.mT * self.head_dim**-0.5

    def _shifted(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """Scores minus the highest of each query; those of hidden keys are low enough for a weight of 0."""
        if visible is None:
            return scores - scores.detach().amax(-1, keepdim=True)
        seen = scores.detach().masked_fill(~visible, torch.finfo(scores.dtype).min)
        return torch.where(visible, scores - seen.amax(-1, keepdim=True), -2 / (self.alpha - 1))


def entmax(scores: Tensor, alpha: Tensor | float) -> Tensor:
    """alpha-entmax of scores (.., S) over the last dimension, by its definition; alpha is a number or broadcasts.

    tau lies within 1 below the highest (alpha - 1) z. Bisection finds it; then two Newton steps make it a function of
    scores and alpha with correct first and second derivatives. Most accurate for scores of at most 0.
    """
    z, power = scores * (alpha - 1), 1 / (alpha - 1)

    def weights(z: Tensor, tau: Tensor, power: Tensor | float) -> Tensor:
        above = z > tau
        return (z - tau).where(above, 1) ** power * above

    with torch.no_grad():
        tau = z.amax(-1, keepdim=True) - 1
        for i in range(1, BISECTIONS + 1):
            middle = tau + 0.5**i
            tau = middle.where(weights(z, middle, power).sum(-1, keepdim=True) >= 1, tau)
    for _ in range(2):
        excess = weights(z, tau, power).sum(-1, keepdim=True) - 1
        tau = tau + excess / (power * weights(z, tau, power - 1).sum(-1, keepdim=True))
    return weights(z, tau, power)


class _Entmax(torch.autograd.Function):
    """`entmax` by Newton's method for alpha up to 2, where that is known to converge; otherwise by bisection."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Tensor | float) -> Tensor:
        safe = isinstance(alpha, Tensor) or alpha <= 2  # a learned alpha is below 2
        out = entmax_weights(scores, alpha) if safe else entmax(scores, alpha)
        ctx.save_for_backward(out, alpha if isinstance(alpha, Tensor) else None)
        ctx.alpha = alpha if isinstance(alpha, float) else None
        return out

    @staticmethod
    @first_order
    def backward(ctx: Any, saved: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients: Peters et al., 2019, eq. 14; with respect to alpha, Correia et al., 2019, proposition 1."""
        out, alpha = saved[0], ctx.alpha if saved[1] is None else saved[1]
        slope = (out ** (2 - alpha)).where(out > 0, 0)
        share = slope / slope.sum(-1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)  # 0 if no key is seen
        grad_scores = slope * (grad - (grad * share).sum(-1, keepdim=True))
        if saved[1] is None:
            return grad_scores, None
        entropy = torch.special.xlogy(out, out)
        by_alpha = (out - share) / (alpha - 1) ** 2 - (entropy - share * entropy.sum(-1, keepdim=True)) / (alpha - 1)
        return grad_scores, (grad * by_alpha).sum_to_size(alpha.shape)


def _cleared(weights: Tensor, visible: Tensor | None) -> Tensor:
    """Set the weights of hidden keys to 0, also for queries that see no key."""
    return weights if visible is None else weights * visible


def _number(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = 0.0
    if not 1 < alpha < float("inf"):
        raise LeapformerError(f"{ALPHA.flag} {text}: give a number above 1 (1 itself is softmax), or {LEARNED}")
    return alpha
