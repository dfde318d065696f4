"""The step of an exported graph for LeaPformer's self-attention: queries and keys are mapped together.

A graph's step is as slow as it has operators. Here queries and keys come from one product, and one network computes all
proportions: between what belongs to queries and what to keys its weights are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import LinearKernel, Projections
from ..layers import ProportionNetwork
from ..linear.base import SeparateState
from ..mechanism import Mechanism, State
from ..ops.precision import right_angle
from ..ops.recurrent import Written
from .step import affine

Layer = tuple[Tensor, Tensor]  # weight (inputs, outputs) and bias (outputs,)


class RowsStep:
    """Self-attention with proportion networks, for one token of each batch entry.

    Weights are read when it is made. Shapes: B batch entries, C width, H heads, D head dimension; 2 H heads of queries
    and keys together.
    """

    @staticmethod
    def of(mechanism: Mechanism, projections: Projections) -> RowsStep | None:
        """The step of a mechanism; None if it has no proportion networks, or in cross-attention."""
        kernel = mechanism.kernel()
        if projections.k is None or not isinstance(kernel, LinearKernel) or not kernel.networks:
            return None
        return RowsStep(mechanism.num_heads, projections, kernel)

    def __init__(self, heads: int, projections: Projections, kernel: LinearKernel) -> None:
        q, _, k, v = projections
        assert k is not None and v is not None
        self.kernel, self.heads, self.dim, self.value = kernel, heads, q.out_features // heads, v
        weights, biases = zip(*map(affine, (q, k)), strict=True)
        self.project = torch.cat(weights).t(), torch.cat(biases)
        self.layers = _joined(kernel.networks, heads)

    def __call__(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """What the heads read, (B, H, 1, E), and the new state, for tokens x (B, C)."""
        projected = torch.addmm(self.project[1], x, self.project[0])
        active = projected.relu()
        rows = projected if self.kernel.raw else active
        for weight, bias in self.layers:
            rows = rows.view(-1, len(weight))
            rows = torch.addmm(bias, rows, weight)
            rows = rows.sigmoid() if weight is self.layers[-1][0] else rows.relu()
        halves = (rows * right_angle(x.dtype)).cos().view(-1, 2 * self.heads, 2, 1)
        features = active.view(-1, 2 * self.heads, 1, self.dim) * halves
        sides = features.view(-1, 1, self.heads * 4 * self.dim).chunk(2, -1)
        fq, fk = (side.view(-1, self.heads, 1, 2 * self.dim) for side in sides)
        v, decay = self.value(x).view(-1, self.heads, 1, self.value.out_features // self.heads), None
        if self.kernel.gate is not None:
            weight, bias = self.kernel.gate
            decay = F.logsigmoid(torch.addmm(bias, x, weight.t())).view(-1, self.heads, 1, 1)
        return state.of(SeparateState).followed(Written(fk, v, decay), fq, self.kernel.floor)


def _joined(networks: Sequence[ProportionNetwork], heads: int) -> list[Layer]:
    """One network for all heads of queries and of keys, whose last layer gives z and -z of each, (4 H).

    Networks that the heads share read one head at a time and are side by side in the first of two layers.
    """
    count, layers, outside = len(networks[0].weights), list[Layer](), (0, 0)
    for i in range(count):
        sides: list[Layer] = [(network.weights[i], network.biases[i]) for network in networks]
        if i + 1 == count:
            sides = [(torch.cat([w, -w], -1), torch.cat([b, -b], -1)) for w, b in sides]
        elif networks[0].shared:
            layers.append((torch.cat([w for w, _ in sides], -1), torch.cat([b for _, b in sides], -1).flatten()))
            outside = (0, sides[0][0].shape[-1])
            continue
        blocks, biases = list[Tensor](), list[Tensor]()
        for (weight, bias), (above, below) in zip(sides, (outside, outside[::-1]), strict=True):
            shape = (heads, *weight.shape[-2:])
            blocks += F.pad(weight.expand(shape), (0, 0, above, below))
            biases.append(bias.expand(heads, 1, -1).flatten())
        layers.append((torch.block_diag(*blocks), torch.cat(biases)))
    return layers
