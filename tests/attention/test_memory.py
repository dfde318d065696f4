"""What training allocates, counted and not timed: nothing of size T x S or S x D x D per head."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leapformer_fairseq.attention import CAUSAL, ChunkMask, PrefixMask

from .cases import CONSTANT, Case, attend, build, pairs

HEADS, DIM = 2, 16
# room for the longest sequence here
OPTIONS = {
    "cosformer": {"cosformer_length": 4000},
    "abc-linformer": {"abc_max_length": 8192},
    "abc-pool": {"abc_pool_size": 256},
    "abc-global": {"abc_global_every": 64},
    "performer": {"performer_features": 2 * DIM},
    "rfa": {"rfa_features": 2 * DIM},
    "rfa-gate": {"rfa_features": 2 * DIM},
    "taylor": {"taylor_dim": 5},  # 21 features
}


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def largest(name: str, queries: int, keys: int, visible: PrefixMask | ChunkMask | None, way: str = "auto") -> int:
    mechanism = build(name, DIM, HEADS, **OPTIONS.get(name, {}))
    q = torch.randn(1, HEADS, queries, DIM, requires_grad=True)
    k, v = (torch.randn(1, HEADS, keys, DIM, requires_grad=True) for _ in range(2))
    with LargestTensor() as made:
        attend(mechanism, q, k, v, mask=visible, way=way).sum().backward()
    return made.elements


CASES = [Case(2048, 2048, CAUSAL), Case(2048, 2048, None), Case(400, 3200, PrefixMask(3, 8))]


@pytest.mark.parametrize(("name", "case"), pairs(CONSTANT, CASES))
def test_training_makes_no_quadratic_tensor_and_no_outer_product_per_row(name, case):
    made = largest(name, *case)
    assert made < HEADS * case.queries * case.keys / 4
    assert made < HEADS * case.keys * DIM * DIM / 2


@pytest.mark.parametrize(("name", "visible"), pairs(CONSTANT, (CAUSAL, None)))
def test_the_largest_tensor_grows_linearly(name, visible):
    small, large = (largest(name, n, n, visible) for n in (1024, 4096))
    assert large <= 4 * small


def test_the_count_notices_a_quadratic_form():
    """Inverted control: the parallel way does make a T x S tensor."""
    assert largest("leap", 2048, 2048, CAUSAL, "reference") >= HEADS * 2048 * 2048


@pytest.mark.parametrize("name", ["relu", "leap", "rope", "abc-mlp"])
def test_a_long_chunk_of_a_streaming_encoder_is_linear_inside(name):
    """Nothing of chunk x chunk, nor of tokens x chunk."""
    chunk = 1024
    assert largest(name, 4 * chunk, 4 * chunk, ChunkMask(chunk)) < HEADS * chunk * chunk / 2
    assert largest("softmax", 2 * chunk, 2 * chunk, ChunkMask(chunk)) >= chunk * chunk  # inverted control
