"""Exact softmax attention: the baseline of every comparison."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .kv_cache import CachedMechanism, visible_keys
from .masks import CAUSAL, Mask
from .mechanism import Inputs
from .ops.dispatch import operand
from .registry import register
from .tokens import TokenInfo


@register("softmax")
class Softmax(CachedMechanism):
    """Scaled dot-product attention, softmax(q . k / sqrt(D)) v (Vaswani et al., 2017, arXiv:1706.03762, eq. 1)."""

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        return _sdpa(q, k, v, attn_mask=_somewhere(visible), dropout_p=dropout)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        scores = q @ k.mT * self.head_dim**-0.5
        visible = _somewhere(visible_keys(q, k, key.keep, mask))
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return F.dropout(scores.softmax(-1), dropout)

    def _in_segments(self, x: Inputs) -> Tensor:
        if x.key.keep is None and x.mask == CAUSAL and x.q.shape[2] == x.k.shape[2]:  # a kernel of its own
            return _sdpa(x.q, x.k, x.v, dropout_p=self.dropping(), is_causal=True)
        return super()._in_segments(x)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """PyTorch's attention, in float32 where a CPU trains in half precision: its backward pass is 7 times as fast."""
    if not (torch.is_grad_enabled() and q.requires_grad):
        return F.scaled_dot_product_attention(q, k, v, **options)
    dtype = q.dtype
    q, k, v = (operand(x, dtype) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, **options).to(dtype)


def _somewhere(visible: Tensor | None) -> Tensor | None:
    """A query that may look nowhere (a padded token) is let look everywhere: softmax over nothing is NaN."""
    if visible is None:
        return None
    return visible | ~visible.any(-1, keepdim=True)
