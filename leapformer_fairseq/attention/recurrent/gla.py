"""Gated linear attention: a gate for each feature."""

from __future__ import annotations

from ..registry import register
from .gates import GATE_INIT
from .normed import OUTPUT_GATE
from .simple_gla import SimpleGLA


@register("gla", OUTPUT_GATE, GATE_INIT)
class GLA(SimpleGLA):
    """GLA: S_s = diag(e^{g_s}) S_(s-1) + k_s v_s^T, g_s = logsigmoid(W2 W1 x_s + b) / 16, W1 of rank 16.

    Yang et al., 2023, arXiv:2312.06635, equation 3 and section 4.4, which halves the width of queries and keys; here
    they are as wide as values. Without a short convolution, as in the paper.
    """

    by_feature = True
    block_queries = 32
