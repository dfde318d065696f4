"""What training allocates, counted and not timed: nothing of size T x S or S x D x D per head."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leapformer_fairseq.attention import CAUSAL, MECHANISMS, Visible, build

LINEAR = sorted(name for name in MECHANISMS if name != "softmax")
HEADS, DIM = 2, 16


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


def largest(name: str, queries: int, keys: int, visible: Visible, form: str = "auto") -> int:
    options = {"cosformer_length": 4000} if name == "cosformer" else {}
    mechanism = build(name, DIM, HEADS, **options)
    q = torch.randn(1, HEADS, queries, DIM, requires_grad=True)
    k, v = (torch.randn(1, HEADS, keys, DIM, requires_grad=True) for _ in range(2))
    with LargestTensor() as made:
        mechanism(q, k, v, visible=visible, form=form).sum().backward()
    return made.elements


CASES = [(2048, 2048, CAUSAL), (400, 3200, Visible(3, 8))]


@pytest.mark.parametrize(("queries", "keys", "visible"), CASES)
@pytest.mark.parametrize("name", LINEAR)
def test_training_makes_no_quadratic_tensor_and_no_outer_product_per_row(name, queries, keys, visible):
    made = largest(name, queries, keys, visible)
    assert made < HEADS * queries * keys / 4
    assert made < HEADS * keys * DIM * DIM / 2


@pytest.mark.parametrize("name", LINEAR)
def test_the_largest_tensor_grows_linearly(name):
    small, large = (largest(name, n, n, CAUSAL) for n in (2048, 8192))
    assert large <= 4 * small


def test_the_count_notices_a_quadratic_form():
    """Inverted control: the parallel form does make a T x S tensor."""
    assert largest("leap", 2048, 2048, CAUSAL, "parallel") >= HEADS * 2048 * 2048
