"""LeaPformer's proportion network, and how a block's layers are applied.

Users may have replaced or hooked these layers: adapters, pruned or quantised layers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ops import dispatch
from .ops.precision import right_angle


class ProportionNetwork(nn.Module):
    """The LeaP module: one proportion in (0, 1) per token, (B, H, T, D) to (B, H, T, 1).

    Linear(D, D / factor), ReLU, Linear(D / factor, 1), sigmoid; with factor = D there is no hidden layer. All heads
    share one network unless `heads` is given. Initialised like nn.Linear. (LeaPformer, arXiv:2405.13046, section 3.3.)
    """

    def __init__(self, head_dim: int, factor: int, heads: int | None = None) -> None:
        super().__init__()
        widths = [head_dim, 1] if factor == head_dim else [head_dim, head_dim // factor, 1]
        lead = () if heads is None else (heads,)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for n_in, n_out in pairwise(widths):
            bound = n_in**-0.5
            self.weights.append(torch.empty(*lead, n_in, n_out).uniform_(-bound, bound))
            self.biases.append(torch.empty(*lead, 1, n_out).uniform_(-bound, bound))
        self.shared = heads is None

    def forward(self, x: Tensor) -> Tensor:
        # Tokens become columns: with so few outputs the matrix product is then more than twice as fast and, if the
        # weight is contiguous, so is the product of its gradient.
        columns = x.flatten(0, 2).t() if self.shared else x.mT
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            columns = (weight.to(x.dtype).mT.contiguous() @ columns).add_(bias.to(x.dtype).mT)
            columns = columns.relu_() if i + 1 < len(self.weights) else columns.sigmoid()
        return columns.view(*x.shape[:3], 1)

    @property
    def hidden(self) -> int:
        """The width of the hidden layer; 0: none."""
        return self.weights[0].shape[-1] if len(self.weights) > 1 else 0

    def packed(self) -> Tensor:
        """All parameters as one row per network, (1 or H, numbers): weight (D, hidden), bias, and the last layer's."""
        sides = (part._parameters.values() for part in (self.weights, self.biases))  # indexing a list is slower
        layers = [part for pair in zip(*sides, strict=True) for part in pair if part is not None]
        return torch.cat([part.reshape(1 if self.shared else len(part), -1) for part in layers], 1)

    def halves(self, x: Tensor) -> Tensor:
        """cos(pi/2 p) and sin(pi/2 p), (B, H, T, 2), for a graph: few operators on rows, one of them a cosine.

        sin(pi/2 p) = cos(pi/2 (1 - p)), and 1 - sigmoid(z) = sigmoid(-z).
        """
        batch, heads, count, _ = x.shape
        alone = dispatch.is_one(count)
        # One product for all heads; between networks of heads are zeros.
        rows = x if self.shared or alone else x.transpose(1, 2)
        rows = rows.reshape(-1, x.shape[3] if self.shared else heads * x.shape[3])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            last = i + 1 == len(self.weights)
            if last:
                weight, bias = torch.cat([weight, -weight], -1), torch.cat([bias, -bias], -1)
            weight = weight if self.shared else torch.block_diag(*weight)
            rows = torch.addmm(bias.reshape(1, -1), rows, weight)
            rows = rows.sigmoid() if last else rows.relu()
        rows = (rows * right_angle(x.dtype)).cos()
        if self.shared or alone:
            return rows.view(-1, heads, count, 2)
        return rows.view(batch, count, heads, 2).transpose(1, 2)


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling the layer runs hooks besides its `forward`."""
    return bool(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )  # fmt: skip


def within(layer: nn.Module) -> list[nn.Module]:
    """The layer and all that it consists of. `modules()` makes a name for each, which takes longer than a step does."""
    found = [layer]
    for module in found:
        found += [child for child in module._modules.values() if child is not None]
    return found


def is_plain(layer: nn.Module) -> bool:
    """Whether the layer is a Linear without hooks, so that its weight and bias can be used without calling it."""
    return type(layer) is nn.Linear and not is_hooked(layer)


def projected(layer: nn.Module, x: Tensor) -> Tensor:
    """The output of a Linear, or of a replacement, for x; it has the dtype of x.

    A Linear without hooks is computed in that precision, even if its parameters have a lower one; any other layer in
    its own.
    """
    if is_plain(layer):
        linear = cast(nn.Linear, layer)
        return F.linear(x, linear.weight.to(x.dtype), None if linear.bias is None else linear.bias.to(x.dtype))
    return _called(layer, x)


def normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """`projected` for a LayerNorm."""
    if type(layer) is nn.LayerNorm and not is_hooked(layer):
        return F.layer_norm(x, layer.normalized_shape, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)
    return _called(layer, x)


def _called(layer: nn.Module, x: Tensor) -> Tensor:
    """Call the layer in the precision of its parameters; the output has the dtype of x."""
    dtype = next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
    return cast(Tensor, layer(x.to(dtype))).to(x.dtype)


def by_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, S, H n) to (B, H, S, n)."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)
