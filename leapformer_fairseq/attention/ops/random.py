"""Random choices that depend only on a seed and positions, not on a generator.

They are therefore the same for every length of the text, in every batch and on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def hashed(seed: int, *numbers: Tensor) -> Tensor:
    """A pseudo-random number in [0, 2^32) for each combination of `numbers`, integer tensors that broadcast.

    Whether an edge is drawn then does not depend on the length of the text.
    """
    x = torch.full((), seed, dtype=torch.long, device=numbers[0].device)
    for number in numbers:
        x = (x ^ (number + 1)) * 0x9E3779B97F4A7C1  # 60 bits, odd: the product wraps around
        x = x ^ (x >> 29)
    x = x * 0x3F58476D1CE4E5B9
    return (x ^ (x >> 32)) & 0xFFFFFFFF
