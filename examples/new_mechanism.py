"""A mechanism of your own: one class, that trains in linear time and generates from a constant state, in every block.

python examples/new_mechanism.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import CAUSAL, Features, LinearMechanism, Option, TokenInfo, build, register


@register("example-power", Option("example_exponent", 2.0, "example-power: exponent of the features"))
class Power(LinearMechanism):
    """Similarity relu(q)^p . relu(k)^p."""

    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        return Features(F.relu(x).pow(self.chosen.example_exponent))

    map_keys = map_queries


if __name__ == "__main__":
    power = build("example-power", head_dim=16, num_heads=4, example_exponent=3.0).double()
    q, k, v = (torch.randn(2, 4, 300, 16, dtype=torch.float64) for _ in range(3))
    scan = power(q, k, v, mask=CAUSAL)
    reference = power(q, k, v, mask=CAUSAL, execution="reference")
    print(f"scan and reference differ by {float((scan - reference).abs().max()):.1e}")
