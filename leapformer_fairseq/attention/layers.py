"""Applying a block's layers, which users may have replaced or hooked: adapters, pruned or quantised layers."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
