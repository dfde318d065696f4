"""Linear attention with decay. The normalizer decays, too, so outputs remain weighted means."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..capabilities import DECODER_CROSS, Capabilities
from ..kernels import LinearKernel
from ..linear.base import NORMALIZER_FLOOR, Features, checked_features, scan_map, still_described
from ..linear.leap import LeaP, leap_features, leap_kernel, proportion_networks
from ..linear.rfa import FEATURES, FLOOR, add_random_features, random_features
from ..mechanism import Inputs
from ..ops.recurrent import Written
from ..ops.scan import Map
from ..options import Option
from ..registry import register
from ..tokens import TokenInfo
from .base import RecurrentMechanism
from .gates import Gate, logit, spread_half_lives

GATE_ORDER = Option(
    "gate_order",
    "importance",
    "gated-*, in cross-attention: gates weigh each source token alone (importance), or what came before it in the "
    "source fades (recency), which fits wait-k",
    ("importance", "recency"),
)
SHORTEST_LIFE, LONGEST_LIFE = 11.0, 700.0  # initial half-lives of the first and the last head, in tokens
WIDE_OPEN = 9.0  # initial logit of gates added to a trained mechanism, a half-life of 5,600 tokens
IMPORTANT = 4.0  # initial logit of the importance of a source token
OPEN = 3.0  # initial logit of RFA's gates, a half-life of 14 tokens


class Averaging(RecurrentMechanism):
    """Sums of mapped tokens that decay, and a normalizer that decays with them.

    A subclass defines the feature maps, as for a `LinearMechanism`, and the decay.
    """

    averages = True

    @abstractmethod
    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        """Features of queries (B, H, T, D)."""

    @abstractmethod
    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        """Features of keys (B, H, S, D)."""

    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        return checked_features("map_queries", self.map_queries(q, tokens), self.features, q).expanded()


class ForgetGate(Averaging):
    """A state that decays by e^{g_s} at each token, g_s = logsigmoid(W x_s + b), one gate per head.

    In cross-attention, where the age of a source token may be irrelevant, the gate multiplies the features of its key
    instead, unless `--gate-order recency` is given. A subclass sets `gate = forget_gate()` after creating the
    parameters of its feature map: optimizers save their state in the order of parameters.
    """

    capabilities = Capabilities(needs_inputs=True)
    gate: Gate

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.weighs = self.block == DECODER_CROSS and self.chosen.gate_order == "importance"

    def forget_gate(self) -> Gate:
        begin = logit(spread_half_lives(self.num_heads, SHORTEST_LIFE, LONGEST_LIFE))
        return Gate(self.input_dim, self.num_heads, begin.fill_(IMPORTANT) if self.weighs else begin, quiet=True)

    def continued(self) -> dict[str, Tensor]:
        """Open gates, so that training continues from a trained `leap` as `gated-leap`, or `relu` as `gated-relu`."""
        return {
            "gate.outer.weight": torch.zeros_like(self.gate.outer.weight),
            "gate.outer.bias": torch.zeros_like(self.gate.outer.bias),
            "gate.begin": torch.full_like(self.gate.begin, WIDE_OPEN),
        }

    @abstractmethod
    def feature_map(self) -> LinearKernel:
        """The description of the feature map, without the gate."""

    def _is_described(self) -> bool:
        return still_described(type(self), "feature_map", "map_queries", "map_keys", "queries", "written")

    def kernel(self) -> LinearKernel | None:
        return replace(self.feature_map(), gate=self.gate.affine()) if self._is_described() else None

    def scan_map(self, x: Inputs) -> Map | None:
        # features times a factor of each token are beyond the kernel
        return scan_map(self.feature_map(), x) if self._is_described() and not self.weighs else None

    def log_decay(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        return F.logsigmoid(self.gate(k, tokens))

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        x = self.map_keys(k, tokens).expanded()
        return (
            Written(x * self.gate(k, tokens).sigmoid(), v) if self.weighs else Written(x, v, self.log_decay(k, tokens))
        )


@register("gated-relu", NORMALIZER_FLOOR, GATE_ORDER)
class GatedReLU(ForgetGate):
    """ReLU linear attention with one forget gate per head."""

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.gate = self.forget_gate()

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(F.relu(x))

    map_keys = map_queries

    def feature_map(self) -> LinearKernel:
        return LinearKernel("relu", self.normalizer_floor)


@register("gated-leap", NORMALIZER_FLOOR, GATE_ORDER, *LeaP.options[1:])  # options[0] is NORMALIZER_FLOOR
class GatedLeaP(ForgetGate):
    """LeaPformer with one forget gate per head: weights combine content, learned proportion and age."""

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.features = 2 * head_dim
        self.query_proportion, self.key_proportion = proportion_networks(head_dim, num_heads, self.chosen)
        self.gate = self.forget_gate()

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return leap_features(x, self.query_proportion, self.chosen)

    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        return leap_features(x, self.key_proportion, self.chosen)

    def feature_map(self) -> LinearKernel:
        return leap_kernel(self)


@register("rfa-gate", FEATURES, FLOOR)
class GatedRFA(Averaging):
    """RFA-Gate: S_t = g_t S_(t-1) + (1 - g_t) phi(k_t) v_t^T, g_t = sigmoid(w . x_t + b), and likewise the normalizer.

    One gate per head, computed from the block's input x_t. Peng et al., 2021, arXiv:2103.02143, section 3.2 and
    equation 7.
    """

    capabilities = Capabilities(normalized=False, needs_inputs=True)
    projection: Tensor
    sigma: nn.Parameter

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        add_random_features(self)
        self.gate = Gate(self.input_dim, num_heads, torch.full((num_heads,), OPEN))

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return random_features(x, self.sigma * self.projection)

    map_keys = map_queries

    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        gate = self.gate(k, tokens)
        return Written(self.map_keys(k, tokens).expanded() * torch.sigmoid(-gate), v, F.logsigmoid(gate))
