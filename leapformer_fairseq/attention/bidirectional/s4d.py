"""S4D: a convolution with the impulse response of a diagonal state space, in both directions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..options import Option
from ..registry import register
from .base import Bidirectional, real

STATE = Option("s4d_state", 64, "s4d: dimensions of the state of a head, in conjugate pairs", least=1)
STEPS = 1e-3, 1e-1  # initial steps d are drawn between these, uniformly in the logarithm


@register("s4d", STATE)
class S4D(Bidirectional):
    """y_i = sum_(j <= i) K_(i - j) v_j + sum_(j > i) K'_(j - i - 1) v_j, and a skip connection from v_i.

    K_l = 2 Re sum_n C_n (e^(d A_n) - 1) / A_n e^(l d A_n), with A, C and the step d learned for each head; K' has
    another C. The channels of a head share a kernel; for one kernel per channel, as in the paper, use as many heads as
    the model is wide. Queries and keys are not used. Residual, norm and output projection are the layer's. (Gu et al.,
    2022, arXiv:2206.11893, S4D-Lin, eq. 2, 5 and 9.)
    """

    capabilities = replace(Bidirectional.capabilities, normalized=False, unused_projections=("q_proj", "k_proj"))

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        pairs = self.chosen.s4d_state // 2 or 1
        low, high = (math.log(step) for step in STEPS)
        self.log_step = nn.Parameter(torch.rand(num_heads) * (high - low) + low)
        self.log_decay = nn.Parameter(torch.full((num_heads, pairs), math.log(0.5)))
        self.frequency = nn.Parameter(math.pi * torch.arange(pairs).repeat(num_heads, 1))
        self.readout = nn.Parameter(
            torch.randn(2, num_heads, pairs, 2) * 0.5**0.5
        )  # C of K and C of K', real and imaginary parts
        self.skip = nn.Parameter(torch.ones(num_heads))

    def kernels(self, count: int, like: Tensor) -> Tensor:
        """K and K', (2, H, T); K_0 includes the skip connection."""
        decay, frequency, readout, log_step = (
            x.to(like.dtype) for x in (self.log_decay.exp(), self.frequency, self.readout, self.log_step)
        )
        a = torch.complex(-decay, frequency)
        stepped = a * log_step.exp().unsqueeze(-1)
        c = torch.view_as_complex(readout.contiguous()) * torch.expm1(stepped) / a  # (2, H, n)
        at = torch.arange(count, device=like.device)
        response = 2 * torch.einsum("khn,hnt->kht", c, (stepped.unsqueeze(-1) * at).exp()).real
        skip = torch.zeros_like(response)
        skip[0, :, 0] = self.skip.to(like.dtype)
        return response + skip

    def _ordered_weights(self, q: Tensor, k: Tensor, lengths: Tensor, dropout: float) -> Tensor:
        count = k.shape[2]
        kernels = self.kernels(count, k)
        at = torch.arange(count, device=k.device)
        after = at.unsqueeze(1) - at
        weights = torch.where(after >= 0, kernels[0][:, after.clamp_min(0)], kernels[1][:, (-after - 1).clamp_min(0)])
        return weights * real(lengths, count)[:, None, None]

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        count = v.shape[2]
        forward, backward = self.kernels(count, v)
        both = torch.cat([forward, torch.zeros_like(forward[:, :1]), backward[:, : count - 1].flip(-1)], -1)
        spectrum = torch.fft.rfft(both).unsqueeze(-1) * torch.fft.rfft(v, n=2 * count, dim=2)
        return torch.fft.irfft(spectrum, n=2 * count, dim=2)[:, :, :count]
