"""Kimi delta attention: the delta rule with a gate for each feature."""

from __future__ import annotations

from ..registry import register
from .convolution import SHORT_CONV
from .delta import NEGATIVE, GatedDelta
from .gates import GATE_INIT
from .normed import OUTPUT_GATE


@register("kda", OUTPUT_GATE, NEGATIVE, GATE_INIT, SHORT_CONV)
class KDA(GatedDelta):
    """KDA: S_s = (I - b_s k_s k_s^T) diag(e^{g_s}) S_(s-1) + b_s k_s v_s^T, g_s = -e^a softplus(W2 W1 x_s + t).

    Kimi Team, 2025, arXiv:2510.26692, section 3, whose short convolutions are `--short-conv 4`; the output gate is of
    full rank.
    """

    published_gate = "sigmoid"
    by_feature = True
    least_rate = 1.0
