"""The executions against the plain loops of `ops.reference`, written from the papers: outputs and gradients in float64.

The other tests compare the executions with each other, which share the feature maps and the controls; here the maps are
written once more, as formulas, and autograd differentiates the loops. `test_a_wrong_formula_is_noticed` changes each
formula a little, and the same comparison must fail.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from leapformer_fairseq.attention import CAUSAL, PrefixMask, TokenInfo
from leapformer_fairseq.attention.ops import reference

from .cases import DIM, HEADS, WAYS, Case, attend, difference, inputs, make

CASES = (
    Case(1, 1, CAUSAL),
    Case(19, 19, CAUSAL),
    Case(7, 13, None),
    Case(9, 25, PrefixMask(2, 3)),
    Case(12, 10, PrefixMask(1, 1)),  # the keys end before the queries
    Case(6, 11, PrefixMask(7, 2)),
)
CAUSAL_CASES = (Case(1, 1, CAUSAL), Case(19, 19, CAUSAL))


def counts(case: Case) -> list[int]:
    """How many keys each query sees."""
    return [case.keys if case.mask is None else case.mask.count(t, case.keys) for t in range(case.queries)]


def places(count: int) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.float64)


# ------------------------------------------------------------------------------------- features, (T, D) -> (T, F)


def network(layers, x: Tensor, head: int) -> Tensor:
    """sigmoid(W2 relu(W1 x + b1) + b2), (T,)."""
    for i, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
        weight, bias = (y if layers.shared else y[head] for y in (weight, bias))
        x = x @ weight + bias
        x = x.relu() if i + 1 < len(layers.weights) else x.sigmoid()
    return x.squeeze(1)


def weighted(q, k, v, p, r, seen, floor):
    """cos(pi/2 (p - r)) relu(q) relu(k), normalised."""
    weights, outputs = reference.cosine_weights(q, k, p, r), []
    for row, count in zip(weights, seen, strict=True):
        outputs.append(row[:count] @ v[:count] / row[:count].sum().clamp_min(floor))
    return torch.stack(outputs)


def leap(m, q, k, v, case, head, wrong=False):
    """Proportions of features as released, or of queries and keys as projected (Agostinelli et al., 2024, eq. 10)."""
    read = (q, k) if m.chosen.leap_input == "raw" else (q.relu(), k.relu())
    p, r = network(m.query_proportion, read[0], head), network(m.key_proportion, read[1], head)
    return weighted(q, k, v, p, 0.9 * r if wrong else r, counts(case), m.normalizer_floor)


def cosformer(m, q, k, v, case, head, wrong=False):
    p, r = places(len(q)) / len(q), places(len(k)) / len(k)
    return weighted(q, k, v, p, r + 0.1 if wrong else r, counts(case), m.normalizer_floor)


def relu_linear(m, q, k, v, case, head, wrong=False):
    q, k = (x.clamp_min(0.1 if wrong else 0) for x in (q, k))
    return reference.linear(q, k, v, counts(case), m.normalizer_floor)


def elu_linear(m, q, k, v, case, head, wrong=False):
    q, k = (F.elu(x) + (1.1 if wrong else 1) for x in (q, k))
    return reference.linear(q, k, v, counts(case), m.normalizer_floor)


def turned(x: Tensor, dims: int, theta: float, shift: float = 0.0) -> Tensor:
    """Every pair of the first `dims` turned as a complex number (Su et al., 2021, eq. 14-16)."""
    angle = (places(len(x)) + shift).unsqueeze(1) * theta ** (-2 * torch.arange(dims // 2) / dims).double()
    pairs = torch.view_as_complex(x[:, :dims].unflatten(1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(1)
    return torch.cat([turned, x[:, dims:]], 1)


def rope(m, q, k, v, case, head, wrong=False):
    """phi(q_i) and phi(k_j) turned in the numerator; the normalizer as it was (eq. 19)."""
    q, k, outputs = F.elu(q) + 1, F.elu(k) + 1, []
    scores = turned(q, m.dims, m.theta, 1.0 if wrong else 0.0) @ turned(k, m.dims, m.theta).T
    for t, count in enumerate(counts(case)):
        outputs.append(scores[t, :count] @ v[:count] / (q[t] @ k[:count].sum(0)).clamp_min(m.normalizer_floor))
    return torch.stack(outputs)


def t2r(m, q, k, v, case, head, wrong=False):
    q, k = ((x @ m.map_weight[head].T + m.map_bias[head] * (1.1 if wrong else 1)).relu() for x in (q, k))
    return reference.linear(q, k, v, counts(case), m.normalizer_floor)


def hedgehog(m, q, k, v, case, head, wrong=False):
    """Of a key that says how much it matters, if it does."""

    def pointed(x, weight):
        e = torch.exp(x @ weight[head].T)
        return torch.cat([e / e.sum(1, keepdim=True), (1 / e) / (1 / e).sum(1, keepdim=True)], 1)

    matters = 1.0
    if m.importance is not None:
        matters = (k @ m.importance[head] + m.importance_bias[head]).sigmoid()
    q, keys = pointed(q * (1.1 if wrong else 1), m.query_map), pointed(k, m.key_map) * matters
    return reference.linear(q, keys, v, counts(case), m.normalizer_floor)


def taylor(m, q, k, v, case, head, wrong=False):
    z = (q @ m.query_map[head].T) @ (k @ m.key_map[head].T).T / m.dim**0.5
    scores, outputs = 1 + z + z * z * (0.6 if wrong else 0.5), []
    for row, count in zip(scores, counts(case), strict=True):
        outputs.append(row[:count] @ v[:count] / row[:count].sum().clamp_min(m.normalizer_floor))
    return torch.stack(outputs)


def fourier(m, x: Tensor, head: int, scale: float = 1.0) -> Tensor:
    """sqrt(1/D) [sin(w_i . x), cos(w_i . x)] of x of length one (Peng et al., 2021, section 3.1)."""
    angles = [(m.sigma[head, 0] * w) @ (scale * x / x.norm(dim=1, keepdim=True)).T for w in m.projection[head]]
    return torch.stack([f(a) for f in (torch.sin, torch.cos) for a in angles], 1) / len(angles) ** 0.5


def rfa(m, q, k, v, case, head, wrong=False):
    q, k = (fourier(m, x, head, 1.1 if wrong else 1.0) for x in (q, k))
    return reference.linear(q, k, v, counts(case), m.normalizer_floor)


LINEAR = [
    ("t2r", {}, t2r),
    ("hedgehog", {}, hedgehog),
    ("hedgehog", {"hedgehog_importance": True}, hedgehog),
    ("taylor", {"taylor_dim": 3}, taylor),
    ("rfa", {}, rfa),
    ("relu", {}, relu_linear),
    ("elu", {}, elu_linear),
    ("cosformer", {"cosformer_length": 0}, cosformer),
    ("leap", {}, leap),
    ("leap", {"leap_per_head": True, "leap_factor": 2}, leap),
    ("leap", {"leap_factor": DIM}, leap),
    ("leap", {"leap_input": "raw"}, leap),
    ("rope", {}, rope),
    ("rope", {"rope_dims": -1, "rope_theta": 50.0}, rope),
]


# --------------------------------------------------------------------------- controls, what a token writes, (S, n)
def all_keys(m, k: Tensor) -> Tensor:
    """What a control reads as a library, (S, C): the keys of all heads."""
    return k.transpose(0, 1).flatten(1)


def mlp(m, k, head):
    logits = (all_keys(m, k) @ m.control_weight.T).unflatten(1, (HEADS, -1))[:, head]
    return m.activation(logits)


def linformer(m, k, head):
    return m.control_table.T[: k.shape[1]]


def pool(m, k, head):
    size = m.segment or -(-k.shape[1] // m.slots)
    return F.one_hot(torch.arange(k.shape[1]) // size, m.slots).double() / size


def globals_(m, k, head):
    every = m.segment or -(-k.shape[1] // m.slots)
    control = torch.zeros(k.shape[1], m.slots, dtype=torch.float64)
    for j in range(m.slots):
        if j * every < k.shape[1]:
            control[j * every, j] = 1
    return control


def random(m, k, head):
    """One slot for every token; which one is drawn, so it is only asked for."""
    found = m.places(TokenInfo.whole(k.shape[1]))[0, head]
    assert found.min() >= 0 and found.max() < m.slots
    return F.one_hot(found, m.slots).double()


def cluster(m, k, head):
    """k-means with centres that start from tokens spread evenly."""
    x, n = all_keys(m, k).detach(), k.shape[1]
    centres = x[[j * n // m.slots for j in range(m.slots)]]
    for _ in range(m.rounds + 1):
        found = torch.cdist(x, centres).argmin(1)
        centres = torch.stack([x[found == j].mean(0) if (found == j).any() else centres[j] for j in range(m.slots)])
    return F.one_hot(found, m.slots).double()


LITERAL = {"abc_empty_slots": "literal"}
SLOTS = [  # whose slots are never empty, or taken literally: that is the formula of `reference.slots`
    ("abc-mlp", {}, mlp, True),
    ("abc-mlp", {"abc_activation": "sigmoid"}, mlp, True),
    ("abc-linformer", {}, linformer, False),
    ("abc-pool", {"abc_pool_size": 5, **LITERAL}, pool, False),
    ("abc-pool", {"abc_pool_size": 0, **LITERAL}, pool, False),
    ("abc-global", {"abc_global_every": 2, **LITERAL}, globals_, False),
    ("abc-global", {"abc_global_every": 0, **LITERAL}, globals_, False),
    ("abc-random", LITERAL, random, False),
    ("abc-cluster", {"abc_slots": 2}, cluster, True),
]


# -------------------------------------------------------------------------------------------------------------- tests
def compared(mechanism, case, truth) -> dict[str, float]:
    """How far output and gradients of every way are from those of `truth`, which gets q, k, v (B, H, T, D)."""
    qkv = inputs(case.queries, case.keys)
    grad = torch.randn(2, HEADS, case.queries, qkv[2].shape[3], dtype=torch.float64)
    parameters = list(mechanism.parameters())

    def differentiated(function) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in qkv]
        out = function(*leaves)
        grads = torch.autograd.grad(out, [*leaves, *parameters], grad, allow_unused=True)
        return [out.detach(), *(torch.zeros(()) if x is None else x for x in grads)]

    expected = differentiated(truth)
    assert expected[0].abs().max() > 0.01
    found = {}
    for way in WAYS:
        got = differentiated(
            lambda q, k, v, way=way: attend(
                mechanism, q, k, v, key=TokenInfo.whole(case.keys), mask=case.mask, way=way, chunk=4
            )
        )
        found[way] = difference([x.expand(y.shape) for x, y in zip(got, expected, strict=True)], expected)
    return found


def by_heads(function):
    """(B, H, ., .) by a function of one sequence and head, its number, and the keys of all heads."""

    def run(q, k, v):
        rows = [[function(q[b, h], k[b, h], v[b, h], h, k[b]) for h in range(HEADS)] for b in range(len(q))]
        return torch.stack([torch.stack(row) for row in rows])

    return run


def served(name, options, case) -> bool:
    return make(name, **options).capabilities.unsupported_reason(None, case.mask) is None


def linear_cases(cases=CASES):
    for name, options, truth in LINEAR:
        for case in cases:
            # cosFormer's lengths are those of whole sequences, which a library call under a causal mask has, too
            if served(name, options, case):
                label = "-".join(map(str, (name, *options.values(), case)))
                yield pytest.param(name, options, truth, case, id=label)


@pytest.mark.parametrize(("name", "options", "truth", "case"), list(linear_cases()))
def test_linear_attention_is_the_loop(name, options, truth, case):
    mechanism = make(name, **options)
    found = compared(mechanism, case, by_heads(lambda q, k, v, h, _: truth(mechanism, q, k, v, case, h)))
    assert max(found.values()) < 1e-11, found


def slot_cases():
    for name, options, control, normalized in SLOTS:
        for case in CASES:
            if served(name, options, case) and case.queries <= case.keys:
                label = "-".join(map(str, (name, *options.values(), case)))
                yield pytest.param(name, options, control, normalized, case, id=label)


@pytest.mark.parametrize(("name", "options", "control", "normalized", "case"), list(slot_cases()))
def test_slots_are_the_loop(name, options, control, normalized, case):
    mechanism = make(name, **options)

    def one(q, k, v, h, whole):
        return reference.slots(q, k, v, control(mechanism, whole, h), counts(case), normalized)

    found = compared(mechanism, case, by_heads(one))
    assert max(found.values()) < 1e-11, found


@pytest.mark.parametrize("case", CAUSAL_CASES, ids=str)
@pytest.mark.parametrize(("name", "dilation"), [("abc-window", 1), ("abc-dilated", 2)])
@pytest.mark.parametrize("slots", [1, 4, 30])
def test_windows_are_the_loop(name, dilation, slots, case):
    mechanism = make(name, abc_slots=slots)
    found = compared(mechanism, case, by_heads(lambda q, k, v, h, _: reference.window(q, k, v, slots, dilation)))
    assert max(found.values()) < 1e-11, found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_softmax_is_a_window_of_everything(case):
    def one(q, k, v, h, _):
        rows = [F.softmax(k[:n] @ query / math.sqrt(DIM), 0) @ v[:n] for query, n in zip(q, counts(case), strict=True)]
        return torch.stack(rows)

    found = compared(make("softmax"), case, by_heads(one))
    assert max(found.values()) < 1e-11, found


class TestAWrongFormulaIsNoticed:
    """The same comparisons with something changed."""

    @pytest.mark.parametrize(("name", "options", "truth", "case"), list(linear_cases(CASES[1:2])))
    def test_of_features(self, name, options, truth, case):
        mechanism = make(name, **options)
        wrong = by_heads(lambda q, k, v, h, _: truth(mechanism, q, k, v, case, h, wrong=True))
        assert min(compared(mechanism, case, wrong).values()) > 1e-6

    def test_of_what_is_seen(self):
        mechanism, case = make("relu"), CASES[3]
        late = Case(case.queries, case.keys, PrefixMask(case.mask.lagging + 1, case.mask.ratio))
        wrong = by_heads(lambda q, k, v, h, _: relu_linear(mechanism, q, k, v, late, h))
        assert min(compared(mechanism, case, wrong).values()) > 1e-6

    def test_of_slots(self):
        mechanism, case = make("abc-mlp"), CASES[1]

        def one(q, k, v, h, whole):
            return reference.slots(q, k, v, mlp(mechanism, whole, h), counts(case), normalized=False)

        assert min(compared(mechanism, case, by_heads(one)).values()) > 1e-6

    def test_of_windows(self):
        wrong = by_heads(lambda q, k, v, h, _: reference.window(q, k, v, 6))
        assert min(compared(make("abc-window"), CASES[1], wrong).values()) > 1e-6
