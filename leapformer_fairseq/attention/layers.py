"""Layers as they were made, and layers that users put in their place: adapters, pruned, watched or quantised ones."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_hooked(layer: nn.Module) -> bool:
    """Whether calling the layer does more than its `forward`."""
    return bool(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )  # fmt: skip


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer is its weight and bias and nothing else, so that these may be used without calling it."""
    return type(layer) is nn.Linear and not is_hooked(layer)


def projected(layer: nn.Module, x: Tensor) -> Tensor:
    """What a Linear, or what stands in its place, makes of x, in the precision of x, which the model's may be below."""
    if is_plain(layer):
        linear = cast(nn.Linear, layer)
        return F.linear(x, linear.weight.to(x.dtype), None if linear.bias is None else linear.bias.to(x.dtype))
    return _called(layer, x)


def normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """The same of a LayerNorm."""
    if type(layer) is nn.LayerNorm and not is_hooked(layer):
        return F.layer_norm(x, layer.normalized_shape, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)
    return _called(layer, x)


def _called(layer: nn.Module, x: Tensor) -> Tensor:
    """By calling it in its own precision."""
    own = next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
    return cast(Tensor, layer(x.to(own))).to(x.dtype)
