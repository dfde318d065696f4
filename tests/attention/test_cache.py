"""The preallocated cache of softmax attention."""

from __future__ import annotations

import pytest
import torch

from leapformer_fairseq.attention import TokenInfo, build
from leapformer_fairseq.attention import softmax as cache

from .cases import DIM, HEADS, written

B, T = 3, 9


def filled(rows=T):
    """A cache with `rows` columns in use and room for more."""
    torch.manual_seed(0)
    softmax = build("softmax", DIM, HEADS)
    state = softmax.init_state(B, DIM, torch.zeros(0))
    for start, stop in ((0, rows - 1), (rows - 1, rows)):
        k, v = (torch.randn(B, HEADS, stop - start, DIM) for _ in range(2))
        state = softmax.write(state, k, v, TokenInfo.whole(stop - start))
    assert state.k.shape[2] > rows
    return softmax, state


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 1, 1], [0, 2], [2, 2, 0, 0, 1]], ids=str)
@torch.no_grad()
def test_hypotheses_follow_the_beam(order):
    softmax, state = filled()
    order = torch.tensor(order)
    q = torch.randn(B, HEADS, 1, DIM)
    expected = softmax.read(state, q, TokenInfo.whole(1))[order]
    state.k[:, :, T:] = state.v[:, :, T:] = torch.nan  # what is not in use is not read
    moved = state.reorder(order)
    assert torch.equal(softmax.read(moved, q[order], TokenInfo.whole(1)), expected)
    held, row = moved.k.data_ptr(), torch.zeros(len(order), HEADS, 1, DIM)
    out = softmax.read(softmax.write(moved, row, row, TokenInfo.whole(1)), q[order], TokenInfo.whole(1))
    assert moved.k.data_ptr() == held and moved.count == T + 1, "there was room for one more"
    assert out.isfinite().all()


@torch.no_grad()
def test_only_columns_in_use_are_copied(monkeypatch):
    _, state = filled()
    monkeypatch.setattr(cache, "_SMALL", 0)  # a small one is copied as it is
    copied, real = [], torch.index_select
    monkeypatch.setattr(
        torch, "index_select", lambda x, *args, **more: (copied.append(x.shape[2]), real(x, *args, **more))
    )
    state.reorder(torch.tensor([1, 0, 2]))
    assert copied == [T, T]


def test_gradients_pass_through_the_beam():
    softmax, q = build("softmax", DIM, HEADS), torch.randn(B, HEADS, 1, DIM)
    k = torch.randn(B, HEADS, T, DIM, requires_grad=True)
    state = written(softmax, k, k, TokenInfo.whole(T)).reorder(torch.tensor([1, 1, 0]))
    softmax.read(state, q, TokenInfo.whole(1)).sum().backward()
    assert k.grad[:2].abs().sum() > 0 and not k.grad[2].any()
