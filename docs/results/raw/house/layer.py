"""Times `Attention("softmax")` and PyTorch's attention with the same projections, interleaved, in one process.

python docs/results/raw/house/layer.py FILE.json
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leapformer_fairseq.attention import Attention
from leapformer_fairseq.support.signature import signature

DIM, HEADS, ROUNDS = 256, 8, 31


def of_pytorch(layer: Attention) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        sides = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
        out = F.scaled_dot_product_attention(*sides, is_causal=True)
        return layer.out_proj(out.transpose(1, 2).flatten(2))

    return run


def seconds(run: Callable[[Tensor], Tensor], x: Tensor, times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        run(x).sum().backward()
    return (time.thread_time() - start) / times


def main(out: Path) -> None:
    torch.set_num_threads(1)
    layer, rows = Attention("softmax", DIM, HEADS), []
    for batch, tokens in ((32, 32), (8, 128), (4, 512), (1, 2_048)):
        x = torch.randn(batch, tokens, DIM, requires_grad=True)
        ways = {"pytorch": of_pytorch(layer), "layer": layer}
        times = max(1, round(0.1 / seconds(layer, x, 1)))
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                found[name].append(seconds(ways[name], x, times))
        medians = {f"{name}_ms": statistics.median(each) * 1e3 for name, each in found.items()}
        rows.append({"batch": batch, "tokens": tokens, **medians, "ratio": medians["layer_ms"] / medians["pytorch_ms"]})
    out.write_text(json.dumps({"signature": signature(threads=1), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
