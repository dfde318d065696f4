"""What a query must not see does not change it. Checks are checked: a leak and a wrong gradient must fail them."""

import pytest
import torch

from leapformer_fairseq.attention import CAUSAL, PrefixMask, TokenInfo
from leapformer_fairseq.attention.linear.relu import ReLULinear
from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.attention.ops import linear as forms

from .cases import (
    DIM,
    HEADS,
    LINEAR,
    MECHANISMS,
    NAMES,
    VALUE_DIM,
    WAYS,
    attend,
    difference,
    in_turn,
    inputs,
    make,
    run,
    serving,
)

CAUSAL_NAMES = [name for name in NAMES if MECHANISMS[name].capabilities.incremental]  # the others: test_patterns.py
PATTERNS = [CAUSAL, PrefixMask(1, 3), PrefixMask(3, 2)]
QUERIES, KEYS, AT_ONCE = 24, 40, 4


def leaks(mechanism, visible, way="auto"):
    """True if some query changes when keys and values behind its visible prefix change."""
    q, k, v = inputs(QUERIES, QUERIES if visible == CAUSAL else KEYS, batch=1)
    length = TokenInfo.whole(k.shape[2])
    before = run(mechanism, (q, k, v), mask=visible, way=way, key=length)[0]
    seen = visible.mask(QUERIES, k.shape[2])
    for some in torch.arange(QUERIES).split(AT_ONCE):  # a batch of prefixes
        hidden = ~seen[some, None, :, None]
        after = run(
            mechanism,
            (q.expand(AT_ONCE, -1, -1, -1), k.masked_fill(hidden, 9.0), v.masked_fill(hidden, -9.0)),
            mask=visible,
            way=way,
            key=length,
        )[0]
        for t, one in zip(some.tolist(), after, strict=True):
            if not torch.allclose(before[0, :, : t + 1], one[:, : t + 1], rtol=1e-12, atol=1e-12):
                return True
    return False


def gradient_leaks(mechanism, visible, way="auto"):
    """True if an early query sends a gradient to a key or value behind its visible prefix."""
    q, k, v = (x.requires_grad_() for x in inputs(QUERIES, KEYS, batch=1))
    t = QUERIES // 4
    seen = visible.count(t, KEYS)
    attend(mechanism, q, k, v, mask=visible, way=way)[:, :, : t + 1].sum().backward()
    return bool(k.grad[:, :, seen:].any() or v.grad[:, :, seen:].any())


def gradients_agree(mechanism, way):
    """True if outputs and gradients of `way` are those of the parallel way."""
    qkv, grad = inputs(QUERIES, KEYS), torch.randn(2, HEADS, QUERIES, VALUE_DIM, dtype=torch.float64)
    call = {"mask": PrefixMask(2, 2), "chunk": 4}
    expected = run(mechanism, qkv, grad, way="reference", **call)
    return difference(run(mechanism, qkv, grad, way=way, **call), expected) < 1e-12


@pytest.mark.parametrize(("name", "visible", "ways"), in_turn(CAUSAL_NAMES, PATTERNS))
def test_nothing_is_seen_too_early(name, visible, ways):
    mechanism = make(name)
    for way in ways:
        assert not leaks(mechanism, visible, way), way
        assert not gradient_leaks(mechanism, visible, way), way


class SeesEverything(ReLULinear):
    """Bidirectional sums under a causal name."""

    def forward(self, q, k, v, *, mask=None, **call):
        return super().forward(q, k, v, mask=None, **call)


class SeesOneStepTooFar(ReLULinear):
    """Wait-(k + 1) under the name of wait-k."""

    def forward(self, q, k, v, *, mask=None, **call):
        return super().forward(q, k, v, mask=PrefixMask(mask.lagging + 1, mask.ratio), **call)


@pytest.mark.parametrize("visible", PATTERNS, ids=str)
@pytest.mark.parametrize("leaky", [SeesEverything, SeesOneStepTooFar])
def test_the_check_finds_leaks(leaky, visible):
    mechanism = leaky(DIM, HEADS).double()
    for way in WAYS:
        assert leaks(mechanism, visible, way), way
        assert gradient_leaks(mechanism, visible, way), way


def test_the_check_finds_a_leak_in_the_sums(monkeypatch):
    monkeypatch.setattr(forms._Chunks, "_hide_future", lambda self, scores: scores)
    for way in ("kept", "again"):
        assert leaks(make("leap"), CAUSAL, way), way


@pytest.mark.parametrize("way", ["kept", "again"])
def test_the_check_finds_wrong_gradients(way, monkeypatch):
    monkeypatch.setenv(dispatch.VARIABLE, "kernels=False")  # in the backward pass, too
    assert all(gradients_agree(make(name), way) for name in serving(PrefixMask(2), LINEAR))
    right = forms._Chunks.gradients

    def one_wrong(index):
        def gradients(self, grad, grad_after):
            found = list(right(self, grad, grad_after))
            found[index] = found[index] * (1 + 1e-6)
            return tuple(found)

        return gradients

    for index in range(4):  # of queries, keys, values, and of the state before
        monkeypatch.setattr(forms._Chunks, "gradients", one_wrong(index))
        assert not gradients_agree(make("leap"), way), index


def test_the_check_finds_a_lost_state(monkeypatch):
    """Chunks that forget what earlier stretches have summed."""
    right = forms._Chunks.cut

    def forgetful(q, k, v, first, *others):
        return right(q, k, v, torch.zeros_like(first), *others)

    monkeypatch.setattr(forms._Chunks, "cut", forgetful)
    assert not gradients_agree(make("leap"), "again")
