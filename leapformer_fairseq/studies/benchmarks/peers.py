"""Other implementations of the same attention on a GPU: FlashAttention, and flash-linear-attention's kernels."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...attention import CAUSAL, LinearMechanism, Mechanism, TokenInfo
from .measure import Place, described

logger = logging.getLogger(__name__)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
KERNEL_MODULE = (
    "fla.ops.linear_attn"  # of the package flash-linear-attention, an extra: pip install "leapformer-fairseq[fla]"
)
# Their kernels compute in half precision or TF32; a larger relative difference from our reference is an error.
TOLERANCE = 3e-2


def find(mechanisms: Mapping[str, Mechanism], kind: str, place: Place) -> dict[str, Attend]:
    """Other implementations of this kind of attention at this place, by name."""
    ways: dict[str, Attend] = {}
    if place.device.type != "cuda":
        return ways
    if kind != "wait-k" and place.dtype != torch.float32:  # FlashAttention supports no masks and no float32
        ways["FlashAttention"] = partial(flash, kind == "causal")
    if kind == "causal" and (kernel := linear_kernel()) is not None:
        for name, mechanism in mechanisms.items():
            if isinstance(mechanism, LinearMechanism):
                way = partial(by_kernel, kernel, mechanism)
                if (error := difference(mechanism, way, place)) < TOLERANCE:
                    ways[f"{name} (fla)"] = way
                else:
                    logger.warning("%s is not measured with the kernels of fla: they differ by %.1e", name, error)
    return ways


def flash(causal: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """SDPA with FlashAttention only."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def linear_kernel() -> Callable[..., tuple[Tensor, object]] | None:
    """`chunk_linear_attn` of flash-linear-attention; None if it is not installed."""
    try:
        return importlib.import_module(KERNEL_MODULE).chunk_linear_attn
    except ImportError:
        return None


def by_kernel(
    kernel: Callable[..., tuple[Tensor, object]], mechanism: LinearMechanism, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Causal linear attention of our features by a kernel, which takes (B, T, H, D) and normalises."""
    tokens = TokenInfo.whole(q.shape[2], device=q.device)
    features = mechanism.map_queries(q, tokens), mechanism.map_keys(k, tokens)
    inputs = (x.expanded().to(v.dtype).transpose(1, 2) for x in features)
    out, _ = kernel(*inputs, v.transpose(1, 2), scale=1.0, normalize=True)
    return out.transpose(1, 2)


def difference(mechanism: Mechanism, way: Attend, place: Place) -> float:
    """The largest difference of an implementation from the mechanism's reference, relative to the largest number."""
    torch.manual_seed(0)
    shape = (2, mechanism.num_heads, 100, mechanism.head_dim)
    q, k, v = (torch.randn(shape, device=place.device, dtype=place.dtype) for _ in range(3))
    with torch.no_grad():
        expected = mechanism(q, k, v, **described(q, k), mask=CAUSAL, execution="reference")
        return float((way(q, k, v) - expected).abs().max() / expected.abs().max())
