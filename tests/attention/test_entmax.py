"""Entmax attention against the package of that name, its definition, and what makes it useful: sparse consistency."""

from __future__ import annotations

import entmax as package
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.attention import CAUSAL, TokenInfo, build
from leapformer_fairseq.attention.ops import entmax as ops
from leapformer_fairseq.attention.ops.entmax import entmax_weights
from leapformer_fairseq.attention.sparse.entmax import _Entmax, entmax
from leapformer_fairseq.support.errors import LeapformerError

from .cases import DIM, HEADS, NAMES, inputs, make, reason, steps

ALPHAS = [1.05, 1.2, 1.5, 1.7, 2.0, 2.5, 4.0]


def scores(count: int = 9, scale: float = 2.0) -> torch.Tensor:
    torch.manual_seed(0)
    return (scale * torch.randn(2, HEADS, 7, count, dtype=torch.float64)).requires_grad_()


def by_package(x: torch.Tensor, alpha: float | torch.Tensor) -> torch.Tensor:
    exact = {1.5: package.entmax15, 2.0: package.sparsemax}
    return exact[alpha](x, -1) if alpha in ALPHAS and alpha in exact else package.entmax_bisect(x, alpha, n_iter=100)


def fast(x: torch.Tensor, alpha: float | torch.Tensor) -> torch.Tensor:
    return _Entmax.apply(x - x.detach().amax(-1, keepdim=True), alpha)


@pytest.mark.parametrize("mapping", [entmax, fast], ids=["definition", "fast"])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("count", [1, 2, 9, 300])
def test_values_and_gradients_are_those_of_the_package(mapping, alpha, count):
    x = scores(count)
    weight = torch.randn_like(x)
    found, expected = mapping(x, alpha), by_package(x, alpha)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[..., 0]))
    (mine,) = torch.autograd.grad((found * weight).sum(), x)
    (theirs,) = torch.autograd.grad((expected * weight).sum(), x)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mapping", [entmax, fast], ids=["definition", "fast"])
def test_gradients_of_a_learned_alpha(mapping):
    x = scores()
    alpha = torch.linspace(1.1, 1.9, HEADS, dtype=torch.float64)[:, None, None].requires_grad_()
    weight = torch.randn_like(x)
    found, expected = mapping(x, alpha), package.entmax_bisect(x, alpha, n_iter=100)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    mine = torch.autograd.grad((found * weight).sum(), (x, alpha))
    theirs = torch.autograd.grad((expected * weight).sum(), (x, alpha))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    assert torch.autograd.gradcheck(mapping, (x, alpha), atol=1e-5)


@pytest.mark.parametrize("alpha", [1.02, 1.3, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    count=st.sampled_from([1, 2, 3, 17, 400, 5000]),
    shape=st.sampled_from([0.0, 0.05, 0.3, 1.0, 3.0, 20.0]),
    scale=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 3.0, 100.0]),
    seed=st.integers(0, 1000),
)
def test_newton_reaches_the_definition_in_its_steps(alpha, dtype, count, shape, scale, seed):
    """Scores that are spread evenly, crowd at the highest, or lie far apart."""
    torch.manual_seed(seed)
    x = (-scale * torch.rand(3, count, dtype=torch.float64) ** shape).to(dtype)
    x = x - x.amax(-1, keepdim=True)
    found, expected = entmax_weights(x, alpha), entmax(x.double(), alpha)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-12)


def test_too_few_steps_are_noticed(monkeypatch):
    monkeypatch.setattr(ops, "STEPS", 3)
    x = scores(300).detach()
    x = x - x.amax(-1, keepdim=True)
    assert (entmax_weights(x, 1.5) - entmax(x, 1.5)).abs().max() > 1e-6


def test_towards_one_it_is_softmax():
    x = scores()
    torch.testing.assert_close(entmax(x, 1.0001), x.softmax(-1), rtol=0, atol=2e-4)


@pytest.mark.parametrize("way", ["reference", "scan"])
@pytest.mark.parametrize("alpha", ["1.5", "2", "1.3", "learned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_queries_that_see_nothing_give_zero(way, alpha, dtype):
    mechanism = build("entmax", DIM, HEADS, entmax_alpha=alpha).to(dtype)
    q, k, v = (1e4 * x.to(dtype) for x in inputs(6, 6))
    q.requires_grad_()
    keep = torch.arange(6) >= torch.tensor([[0], [3]])
    out = mechanism(q, k, v, key=TokenInfo.whole(6, keep[: len(q)]), mask=CAUSAL, execution=way)
    assert out.isfinite().all()
    assert (out[1, :, :3] == 0).all() and (out[1, :, 3:] != 0).any()
    out.sum().backward()
    assert q.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in mechanism.parameters())
    assert (mechanism.weights(q, k, key=TokenInfo.whole(6, torch.zeros(len(q), 6, dtype=torch.bool))) == 0).all()


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
def test_sparse_consistency(alpha):
    """Any superset of the support gives the same weights and gradients; without one key of it they differ."""
    x = scores(40).detach()
    full = entmax(x, alpha)
    support = full > 0
    assert 0.02 < float(support.double().mean()) < 0.9, "some weights are 0, not all"
    superset = support | (torch.rand_like(x) < 0.3)
    low = x.amax(-1, keepdim=True) - 2 / (alpha - 1)
    for mapping in (entmax, _Entmax.apply):
        torch.testing.assert_close(mapping(torch.where(superset, x, low), alpha), full, rtol=0, atol=1e-12)
        without = support.scatter(-1, full.argmax(-1, keepdim=True), False)
        assert not torch.allclose(mapping(torch.where(without, x, low), alpha), full, atol=1e-3)


@pytest.mark.parametrize("alpha", ["1", "0.5", "-2", "inf", "nan", "sparse", ""])
def test_wrong_alphas_are_refused_in_one_line(alpha):
    with pytest.raises(LeapformerError, match=r"^entmax_alpha .*: give a number above 1 .*, or learned$"):
        build("entmax", DIM, HEADS, entmax_alpha=alpha)


def test_a_learned_alpha_starts_at_one_and_a_half():
    torch.manual_seed(0)
    learned, fixed = (build("entmax", DIM, HEADS, entmax_alpha=alpha) for alpha in ("learned", "1.5"))
    q, k, v = inputs(9, 9)
    torch.testing.assert_close(learned.double()(q, k, v), fixed.double()(q, k, v), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(make(name), "graph")])
@torch.no_grad()
def test_autocast_changes_no_edge(name):
    """Queries and keys that are compared are projected in the same precision, also where keys are kept."""
    mechanism, tokens = make(name).float(), TokenInfo.whole(40)
    qkv = tuple(8 * x.float() for x in inputs(40, 40))
    mask = CAUSAL if reason(mechanism, None) else None

    def found():
        yield mechanism.graph(*qkv[:2], query=tokens, key=tokens, mask=mask)
        yield mechanism(*qkv, query=tokens, key=tokens, mask=mask)
        yield mechanism(*qkv, query=tokens, key=tokens, mask=mask, execution="reference")
        if mechanism.capabilities.incremental:
            yield steps(mechanism, qkv, tokens.without_lengths())[0]

    expected = list(found())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for one, of in zip(found(), expected, strict=True):
            torch.testing.assert_close(one, of, rtol=0, atol=0.02 * (of.dtype != torch.bool))
