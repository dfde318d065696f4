"""What a query must not see does not change it. Checks are checked: a leak and a wrong gradient must fail them."""

import pytest
import torch

from leapformer_fairseq.attention import CAUSAL, Rows, Visible, bounded, forms, recompute
from leapformer_fairseq.attention.relu import ReLULinear

from .cases import DIM, HEADS, NAMES, RECOMPUTING, VALUE_DIM, difference, inputs, make, pairs, run

PATTERNS = [CAUSAL, Visible(1, 3), Visible(3, 2)]
QUERIES, KEYS = 24, 40


def leaks(mechanism, visible, form="auto"):
    """True if some query changes when keys and values behind its visible prefix change."""
    q, k, v = inputs(QUERIES, QUERIES if visible == CAUSAL else KEYS, batch=1)
    length = Rows.whole(k.shape[2])
    before = run(mechanism, (q, k, v), visible=visible, form=form, key=length)[0]
    for t, seen in enumerate(visible.counts(QUERIES, k.shape[2]).tolist()):
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, seen:] = 9.0
        other_v[:, :, seen:] = -9.0
        after = run(mechanism, (q, other_k, other_v), visible=visible, form=form, key=length)[0]
        if not torch.allclose(before[:, :, : t + 1], after[:, :, : t + 1], rtol=1e-12, atol=1e-12):
            return True
    return False


def gradient_leaks(mechanism, visible, form="auto"):
    """True if an early query sends a gradient to a key or value behind its visible prefix."""
    q, k, v = (x.requires_grad_() for x in inputs(QUERIES, KEYS, batch=1))
    t = QUERIES // 4
    seen = int(visible.counts(QUERIES, KEYS)[t])
    mechanism(q, k, v, visible=visible, form=form)[:, :, : t + 1].sum().backward()
    return bool(k.grad[:, :, seen:].any() or v.grad[:, :, seen:].any())


def gradients_agree(mechanism, form):
    """True if outputs and gradients of `form` are those of the parallel form."""
    qkv, grad = inputs(QUERIES, KEYS), torch.randn(2, HEADS, QUERIES, VALUE_DIM, dtype=torch.float64)
    call = {"visible": Visible(2, 2), "chunk": 4}
    expected = run(mechanism, qkv, grad, form="parallel", **call)
    return difference(run(mechanism, qkv, grad, form=form, **call), expected) < 1e-12


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(recompute, "ROWS", 16)
    monkeypatch.setattr(bounded, "ROWS", 16)


@pytest.mark.parametrize(("name", "visible"), pairs(NAMES, PATTERNS))
def test_nothing_is_seen_too_early(name, visible):
    mechanism = make(name)
    for form in mechanism.forms:
        assert not leaks(mechanism, visible, form), form
        assert not gradient_leaks(mechanism, visible, form), form


class SeesEverything(ReLULinear):
    """Bidirectional sums under a causal name."""

    def forward(self, q, k, v, *, visible=None, **call):
        return super().forward(q, k, v, visible=None, **call)


class SeesOneStepTooFar(ReLULinear):
    """Wait-(k + 1) under the name of wait-k."""

    def forward(self, q, k, v, *, visible=None, **call):
        return super().forward(q, k, v, visible=Visible(visible.lagging + 1, visible.ratio), **call)


@pytest.mark.parametrize("visible", PATTERNS, ids=str)
@pytest.mark.parametrize("leaky", [SeesEverything, SeesOneStepTooFar])
def test_the_check_finds_leaks(leaky, visible):
    mechanism = leaky(DIM, HEADS).double()
    for form in mechanism.forms:
        assert leaks(mechanism, visible, form), form
        assert gradient_leaks(mechanism, visible, form), form


def test_the_check_finds_a_leak_in_the_sums(monkeypatch):
    monkeypatch.setattr(forms.Chunks, "_hide_future", lambda self, scores: scores)
    for form in ("chunkwise", "recompute"):
        assert leaks(make("leap"), CAUSAL, form), form


@pytest.mark.parametrize("form", ["chunkwise", "recompute"])
def test_the_check_finds_wrong_gradients(form, monkeypatch):
    assert all(gradients_agree(make(name), form) for name in RECOMPUTING)
    right = forms.Chunks.gradients

    def one_wrong(index):
        def gradients(self, grad, grad_after):
            found = list(right(self, grad, grad_after))
            found[index] = found[index] * (1 + 1e-6)
            return tuple(found)

        return gradients

    for index in range(4):  # of queries, keys, values, and of the state before
        monkeypatch.setattr(forms.Chunks, "gradients", one_wrong(index))
        assert not gradients_agree(make("leap"), form), index


def test_the_check_finds_a_lost_state(monkeypatch):
    """Chunks that forget what earlier stretches have summed."""
    right = forms.Chunks.cut

    def forgetful(q, k, v, first, ratio, chunk):
        return right(q, k, v, torch.zeros_like(first), ratio, chunk)

    monkeypatch.setattr(forms.Chunks, "cut", forgetful)
    assert not gradients_agree(make("leap"), "recompute")
