"""What is drawn at random by position, without a generator.

So it does not depend on how long a text becomes, on the batch, or on the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def hashed(seed: int, *numbers: Tensor) -> Tensor:
    """A pseudo-random number for each combination of whole numbers, the same wherever they meet again.

    So whether an edge is drawn does not depend on how long a text becomes.
    """
    x = torch.full((), seed, dtype=torch.long, device=numbers[0].device)
    for number in numbers:
        x = (x ^ (number + 1)) * 0x9E3779B97F4A7C1  # 60 bits, odd: the product wraps around
        x = x ^ (x >> 29)
    x = x * 0x3F58476D1CE4E5B9
    return (x ^ (x >> 32)) & 0xFFFFFFFF
