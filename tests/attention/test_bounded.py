"""ABC: every member against the paper's recursion written out, its gradients, and what training keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import CAUSAL, TokenInfo
from leapformer_fairseq.attention.bounded import cluster as abc_cluster
from leapformer_fairseq.attention.bounded.mlp import MLP

from ..covering import covering
from .cases import (
    BOUNDED,
    DIM,
    HEADS,
    SIDES,
    VALUE_DIM,
    WAYS,
    attend,
    build,
    difference,
    informed,
    inputs,
    make,
    padding,
    run,
    serves,
    serving,
    steps,
)

N, COUNT = 5, 23  # slots, tokens
INPUT_DIM = 11
ACTIVATIONS = {"exp": torch.exp, "relu": torch.relu, "sigmoid": torch.sigmoid}
LEARNED = [("abc-mlp", {"abc_activation": activation}) for activation in ACTIVATIONS]
VARIANTS = [*LEARNED, *((name, {}) for name in BOUNDED if name != "abc-mlp")]


def abc(name, options=None, **more):
    """A member with parameters that matter, for inputs of a width of their own."""
    mechanism = make(name, **(options or {}), input_dim=INPUT_DIM, **more)
    for parameter in mechanism.parameters():
        nn.init.normal_(parameter)
    return mechanism


def rows(count, keep=None, batch=2):
    return replace(TokenInfo.whole(count, keep), inputs=torch.randn(batch, count, INPUT_DIM, dtype=torch.float64))


# ---------------------------------------------------------------------------------------------- the paper, written out
def written_by(mechanism, b, h, i, positions, x, labels):
    """alpha_i of sequence b and head h as the paper defines it, (n,), for token i of all tokens of the sequence."""
    slot, position = torch.zeros(N, dtype=torch.float64), int(positions[i])
    match mechanism.name:
        case "abc-mlp":
            weight = mechanism.control_weight[h * N : (h + 1) * N]
            return mechanism.activation(weight @ x[i])
        case "abc-linformer":
            return mechanism.control_table[:, position - 1]
        case "abc-random":
            slot[drawn(mechanism.chosen.abc_seed, h, position)] = 1
        case "abc-global":  # every third token
            if (position - 1) % 3 == 0 and (position - 1) // 3 < N:
                slot[(position - 1) // 3] = 1
        case "abc-pool":
            slot[math.ceil(position / 100) - 1] = 1 / 100
        case "abc-cluster":
            slot[labels[i]] = 1
    return slot


def drawn(seed, head, position, slots=N):
    """The slot of abc-random with Python's own integers."""

    def scrambled(x):
        x %= 2**32
        x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
        x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
        return x ^ (x >> 16)

    return scrambled(scrambled(head + (seed << 16)) + position) % slots


def slots_of(mechanism, k, v, alphas, seen):
    """K~ (n, d), V~ (n, e) and which slots hold something, after the tokens before `seen`."""
    if mechanism.name in ("abc-window", "abc-dilated"):
        step = 1 if mechanism.name == "abc-window" else 2
        last = list(range(seen - 1, -1, -step))[:N]
        filled = torch.arange(N) < len(last)
        memory = [torch.cat([x[last], x.new_zeros(N - len(last), x.shape[1])]) for x in (k, v)]
        return *memory, filled
    keys, values = torch.zeros(N, k.shape[1]).double(), torch.zeros(N, v.shape[1]).double()
    total = torch.zeros(N).double()
    for i in range(seen):
        total = total + alphas[i]
    for i in range(seen):
        phi = alphas[i]
        if mechanism.name in ("abc-mlp", "abc-cluster"):
            phi = torch.where(total > 0, alphas[i] / total, 0)
        keys, values = keys + torch.outer(phi, k[i]), values + torch.outer(phi, v[i])
    filled = torch.ones(N, dtype=torch.bool) if mechanism.name == "abc-linformer" else total > 0
    return keys, values, filled


def reference(mechanism, q, k, v, key, causal, literal):
    """o_t = V~^T softmax(K~ q_t / sqrt(d)), token by token."""
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    labels = abc_cluster.clusters(key.inputs, key.keep, N, 10) if mechanism.name == "abc-cluster" else None
    positions = key.positions.expand(len(k), -1)
    for b in range(len(k)):
        real = torch.arange(k.shape[2]) if key.keep is None else key.keep[b].nonzero()[:, 0]
        own = None if labels is None else labels[b, real]
        for h in range(HEADS):
            alphas = [
                written_by(mechanism, b, h, i, positions[b, real], key.inputs[b, real], own) for i in range(len(real))
            ]
            for i, t in enumerate(real.tolist() if causal else range(q.shape[2])):
                seen = i + 1 if causal else len(real)
                keys, values, filled = slots_of(mechanism, k[b, h, real], v[b, h, real], alphas, seen)
                logits = keys @ q[b, h, t] / math.sqrt(DIM)
                if not literal:
                    logits = logits.masked_fill(~filled, -math.inf)
                out[b, h, t] = values.T @ logits.softmax(0).nan_to_num(0)
    return out


@covering(
    lambda variant, visible, **_: serves(variant[0], visible),
    lambda x: "".join([x[0], *x[1].values()]) if x in VARIANTS else str(x),
    variant=VARIANTS,
    visible=[CAUSAL, None],
    side=SIDES,
    empty=["mask", "literal"],
)
@torch.no_grad()
def test_every_form_is_the_papers_recursion(variant, visible, side, empty):
    name, options = variant
    # Linformer's slots are never empty, so it has no such option, and both formulas are the same.
    chosen = {} if name == "abc-linformer" else {"abc_empty_slots": empty}
    mechanism, qkv = abc(name, options, **chosen), inputs(COUNT, COUNT)
    key = rows(COUNT, padding(COUNT, side))
    expected = reference(mechanism, *qkv, key, visible is not None, empty == "literal")
    query = key if visible else TokenInfo.whole(COUNT)
    real = 1.0 if key.keep is None or visible is None else key.keep[:, None, :, None]
    for way in WAYS:
        out = attend(mechanism, *qkv, query=query, key=key, mask=visible, way=way, chunk=4)
        assert difference([out * real], [expected * real]) < 1e-12, way
    if visible is not None:
        for prompt in (0, 9):
            out, _ = steps(mechanism, qkv, key.without_lengths(), prompt)
            assert difference([out * real], [expected * real]) < 1e-12, prompt


def current_token_only(mechanism, q, k, v):
    """What another implementation computes as causal ABC: the memory is written from scratch by every token."""
    alpha = mechanism.control(k, informed(TokenInfo.whole(k.shape[2]), k))
    phi = alpha / alpha.cumsum(2)
    weights = (phi * (q * k).sum(-1, keepdim=True) / math.sqrt(DIM)).softmax(-1)
    return (weights * phi).sum(-1, keepdim=True) * v


def normalized_over_all(mechanism, q, k, v):
    """The other mistake that is close at hand: a control that is divided by its sum over the whole text."""
    alpha = mechanism.control(k, informed(TokenInfo.whole(k.shape[2]), k))
    phi = alpha / alpha.sum(2, keepdim=True)
    weights = ((q @ k.mT / math.sqrt(DIM)).tril() @ phi).softmax(-1)
    return (weights @ phi.mT).tril() @ v


def seen_by_last(attend):
    """Which values an output depends on."""
    q, k, v = (x.requires_grad_() for x in inputs(COUNT, COUNT))
    attend(q, k, v)[:, :, -1].sum().backward()
    return v.grad.abs().amax((0, 1, 3)) > 0


def reached_by_future(attend):
    """Whether changing the last key changes an earlier output."""
    q, k, v = inputs(COUNT, COUNT)
    other = k.clone()
    other[:, :, -1] += 1
    return not torch.allclose(attend(q, k, v)[:, :, :-1], attend(q, other, v)[:, :, :-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", ["reference", "kept"])
def test_a_query_reads_all_of_the_past_and_nothing_else(way):
    mechanism = make("abc-mlp")

    def output(q, k, v):
        return attend(mechanism, q, k, v, mask=CAUSAL, way=way)

    assert seen_by_last(output).all() and not reached_by_future(output)


def test_these_checks_find_wrong_causal_forms():
    """Inverted controls."""
    mechanism = make("abc-mlp")
    assert seen_by_last(lambda *qkv: current_token_only(mechanism, *qkv)).tolist() == [False] * (COUNT - 1) + [True]
    assert reached_by_future(lambda *qkv: normalized_over_all(mechanism, *qkv))
    q, k, v = inputs(COUNT, COUNT)
    right = mechanism(q, k, v, mask=CAUSAL)
    assert difference([current_token_only(mechanism, q, k, v)], [right]) > 0.1
    assert difference([normalized_over_all(mechanism, q, k, v)], [right]) > 1e-3


@pytest.mark.parametrize(("name", "seen"), [("abc-window", range(18, 23)), ("abc-dilated", range(14, 23, 2))])
def test_a_window_sees_what_it_says(name, seen):
    found = seen_by_last(lambda q, k, v: make(name)(q, k, v, mask=CAUSAL))
    assert found.nonzero()[:, 0].tolist() == list(seen)


# ----------------------------------------------------------------------------------------------------------- gradients
@pytest.mark.parametrize(
    ("name", "options", "visible"),
    [
        *((*learned, visible) for learned in (*LEARNED, ("abc-linformer", {})) for visible in (CAUSAL, None)),
        ("abc-window", {}, CAUSAL),
    ],
)
def test_gradcheck(name, options, visible):
    """An odd number of rows in stretches and chunks that do not divide it, with inputs and parameters."""
    size = {"abc_max_length": 7} if name == "abc-linformer" else {}
    mechanism = build(name, 3, 1, input_dim=4, abc_slots=2, **options, **size).double()
    q, k, v = (torch.randn(1, 1, 7, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    x = torch.randn(1, 7, 4, dtype=torch.float64, requires_grad=True)
    keep = torch.tensor([[False] + [True] * 6])

    def call(q, k, v, x, *parameters):
        key = replace(TokenInfo.whole(7, keep), inputs=x)
        return attend(mechanism, q, k, v, key=key, mask=visible, way="again", chunk=2) + 0 * x.sum()

    assert torch.autograd.gradcheck(call, (q, k, v, x, *mechanism.parameters()))


def test_the_comparison_finds_a_lost_memory(monkeypatch):
    """Inverted control: segments that all begin with an empty memory."""
    mechanism, qkv = make("abc-mlp"), inputs(COUNT, COUNT)
    expected = attend(mechanism, *qkv, mask=CAUSAL, way="reference")
    assert difference([attend(mechanism, *qkv, mask=CAUSAL, way="again", chunk=4)], [expected]) < 1e-12
    segment = MLP._segment

    def forgetful(self, state, x, *others):
        return segment(self, self.init_state(len(x.k), x.v.shape[3], x.k), x, *others)

    monkeypatch.setattr(MLP, "_segment", forgetful)
    assert difference([attend(mechanism, *qkv, mask=CAUSAL, way="again", chunk=4)], [expected]) > 0.01


def test_dropout_falls_on_the_read_and_is_repeated_in_the_backward_pass():
    """The gradient in stretches is that of one forward pass, whose random numbers a reseeded pass repeats."""
    mechanism, qkv = abc("abc-mlp", dropout=0.4).train(), tuple(x.requires_grad_() for x in inputs(COUNT, COUNT))
    key = rows(COUNT)

    def call(*qkv):
        torch.manual_seed(3)
        return attend(mechanism, *qkv, key=key, mask=CAUSAL, way="again", chunk=4)

    assert torch.autograd.gradcheck(call, qkv, fast_mode=True)
    out = call(*qkv)
    drawn_after = torch.rand(())
    call(*qkv)
    out.sum().backward()
    assert torch.rand(()) == drawn_after, "a backward pass must not draw numbers of its own"
    mechanism.eval()
    assert torch.equal(call(*qkv), call(*qkv)) and not torch.equal(call(*qkv), out)


def test_dropout_keeps_the_expectation():
    mechanism, qkv = abc("abc-mlp", dropout=0.5).train(), inputs(4, 9)
    key = rows(9)
    with torch.no_grad():
        mean = torch.stack([mechanism(*qkv, key=key) for _ in range(4000)]).mean(0)
        torch.testing.assert_close(mean, mechanism.eval()(*qkv, key=key), rtol=0, atol=0.1)


def kept(name, count, slots):
    """Numbers that autograd keeps for the backward pass besides q, k, v and the parameters."""
    mechanism = build(name, DIM, HEADS, abc_slots=slots)
    given = {x.untyped_storage().data_ptr() for x in mechanism.parameters()}
    qkv = [torch.randn(1, HEADS, count, DIM, requires_grad=True) for _ in range(3)]
    key = informed(TokenInfo.whole(count), qkv[1].detach())
    given |= {x.untyped_storage().data_ptr() for x in (*qkv, key.inputs)}
    found = {}

    def pack(x):
        found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        mechanism(*qkv, query=key, key=key, mask=CAUSAL)
        return sum(size for pointer, size in found.items() if pointer not in given)


@pytest.mark.parametrize("name", ["abc-mlp", "abc-random"])
def test_training_keeps_less_than_one_input_whatever_the_slots(name):
    """Not even the control of all tokens, N x n, let alone memories of N x n x d."""
    count = 32_768
    assert kept(name, count, 32) < HEADS * count * DIM / 2
    assert kept(name, 2 * count, 32) <= 2.1 * kept(name, count, 32)
    assert HEADS * count * 32 > 4 * kept(name, count, 32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("std", [1, 30, 200])
def test_large_logits_of_the_control_stay_exact_in_float32(activation, std):
    """They are bounded, so that no running maximum is needed; gradients included."""
    mechanism = build("abc-mlp", DIM, HEADS, input_dim=INPUT_DIM, abc_slots=6, abc_activation=activation)
    nn.init.normal_(mechanism.control_weight, std=std / INPUT_DIM**0.5)
    qkv, key = inputs(700, 700, dtype=torch.float32), rows(700)
    grad = torch.randn(2, HEADS, 700, VALUE_DIM)
    got = run(mechanism, qkv, grad, key=key, mask=CAUSAL, way="kept")
    exact = mechanism.double()
    expected = run(exact, tuple(x.double() for x in qkv), grad.double(), key=key, mask=CAUSAL, way="reference")
    assert all(torch.isfinite(x).all() for x in got)
    # the logits themselves are rounded
    assert difference([x.double() for x in got], expected) < (1e-5 if std < 200 else 1e-4)


@pytest.mark.parametrize("name", serving(CAUSAL, BOUNDED))
@torch.no_grad()
def test_a_long_prompt_and_steps_in_float32(name):
    # Sums of hundreds of keys would make the softmax of abc-random all or nothing, and sensitive to all rounding.
    wanted = {"abc_slots": 500 if name == "abc-random" else 5, "abc_pool_size": 400, "abc_global_every": 50}
    options = {option.name: wanted[option.name] for option in make(name).options if option.name in wanted}
    mechanism = build(name, DIM, HEADS, **options)
    qkv, count = inputs(1000, 1000, dtype=torch.float32), 1000
    whole = TokenInfo.whole(count).without_lengths()
    out, state = steps(mechanism, qkv, whole, prompt=900)
    expected = attend(
        mechanism.double(), *(x.double() for x in qkv), query=whole, key=whole, mask=CAUSAL, way="reference"
    )
    assert difference([out.double()], [expected]) < 1e-5
