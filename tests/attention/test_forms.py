"""Every way of every mechanism is the same function: parallel, chunkwise, recompute, and recurrent."""

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.attention import CAUSAL, ChunkMask, PrefixMask, TokenInfo, build
from leapformer_fairseq.attention.linear.reweighting import CosReweighted
from leapformer_fairseq.attention.ops import dispatch, linear
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import covering, shared_out
from .cases import (
    CASES,
    CONSTANT,
    DIM,
    HEADS,
    LINEAR,
    NAMES,
    SIDES,
    VALUE_DIM,
    WAYS,
    Case,
    attend,
    difference,
    gradients,
    in_turn,
    inputs,
    make,
    padding,
    run,
    scanned,
    serves,
    serving,
    steps,
    written,
)

# what is compared with the reference: a chunk's size changes nothing where there are none
FORMS = [
    ("auto", None),
    ("pairs", None),
    *((way, chunk) for way in ("kept", "again") for chunk in (None, 1, 16, 64)),
]


@covering(
    lambda name, case, **_: serves(name, case.mask),
    lambda x: "-".join(map(str, x)) if x in FORMS else str(x),
    name=NAMES,
    case=CASES,
    side=SIDES,
    form=FORMS,
)
def test_training_forms_agree(name, case, side, form):
    mechanism, qkv = make(name), inputs(case.queries, case.keys)
    call = {"key": TokenInfo.whole(case.keys, padding(case.keys, side)), "mask": case.mask}
    grad = torch.randn(2, HEADS, case.queries, VALUE_DIM, dtype=torch.float64)
    expected = run(mechanism, qkv, grad, way="reference", **call)
    assert all(torch.isfinite(x).all() for x in expected)
    way, chunk = form
    assert difference(run(mechanism, qkv, grad, way=way, chunk=chunk, **call), expected) < 1e-12


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from([n for n in LINEAR if n in serving(PrefixMask(2))]),
    queries=st.integers(1, 40),
    keys=st.integers(1, 90),
    lagging=st.integers(1, 12),
    ratio=st.integers(1, 9),
    chunk=st.integers(1, 20),
)
def test_training_forms_agree_for_any_wait_k(name, queries, keys, lagging, ratio, chunk):
    mechanism, qkv = make(name), inputs(queries, keys)
    grad = torch.randn(2, HEADS, queries, VALUE_DIM, dtype=torch.float64)
    visible = PrefixMask(lagging, ratio)
    expected = run(mechanism, qkv, grad, way="reference", mask=visible)
    for way in ("kept", "again"):
        assert difference(run(mechanism, qkv, grad, way=way, mask=visible, chunk=chunk), expected) < 1e-12


@pytest.mark.parametrize(
    "options", [{"leap_per_head": True}, {"leap_factor": 8}, {"leap_factor": 1, "leap_input": "raw"}]
)
def test_variants_of_the_proportion_network_agree(options):
    mechanism, qkv = make("leap", **options), inputs(70, 70)
    grad = torch.randn(2, HEADS, 70, VALUE_DIM, dtype=torch.float64)
    expected = run(mechanism, qkv, grad, way="reference", mask=CAUSAL)
    for way in ("kept", "again"):
        assert difference(run(mechanism, qkv, grad, way=way, mask=CAUSAL), expected) < 1e-12


def test_layout_of_the_rows_does_not_matter():
    """The projections of a model come as (T, B, H, D) in memory."""
    mechanism, qkv = make("leap"), inputs(70, 70)
    permuted = tuple(x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in qkv)
    for way in WAYS:
        grad = torch.randn(2, HEADS, 70, VALUE_DIM, dtype=torch.float64)
        got = run(mechanism, permuted, grad, way=way, mask=CAUSAL)
        assert difference(got, run(mechanism, qkv, grad, way=way, mask=CAUSAL)) < 1e-12


@pytest.mark.parametrize(("name", "visible", "ways"), in_turn(CONSTANT, (CAUSAL, None)))
def test_float32_is_close_to_float64(name, visible, ways):
    mechanism, qkv = make(name), inputs(150, 150)
    grad = torch.randn(2, HEADS, 150, VALUE_DIM, dtype=torch.float64)
    expected = run(mechanism, qkv, grad, way="reference", mask=visible)
    single = mechanism.float()
    for way in ways:
        got = run(single, tuple(x.float() for x in qkv), grad.float(), way=way, mask=visible)
        assert difference([x.double() for x in got], expected) < 1e-5, way


@covering(
    lambda name, visible, **_: serves(name, visible),
    str,
    name=CONSTANT,
    visible=(CAUSAL, None),
    dtype=[torch.bfloat16, torch.float16],
)
def test_half_precision_rounds_inputs_and_output_only(name, visible, dtype):
    mechanism, qkv = make(name).to(dtype), inputs(150, 150, dtype=dtype)
    rounding = torch.finfo(dtype).eps
    outputs = {way: run(mechanism, qkv, way=way, mask=visible)[0] for way in WAYS}
    exact = run(mechanism.double(), tuple(x.double() for x in qkv), way="reference", mask=visible)
    for way, out in outputs.items():
        assert out.dtype == dtype
        assert difference([out.double()], exact) < 2 * rounding, way


@pytest.mark.parametrize("mask", [CAUSAL, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_trains_in_float32_on_a_cpu(dtype, mask, monkeypatch):
    """There the backward pass of PyTorch's attention is slow in half precision; generation keeps the cache as it is."""
    seen, kernel = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v, **options: seen.append(q.dtype) or kernel(q, k, v, **options)
    )
    mechanism, qkv = make("softmax").to(dtype), inputs(30, 30, dtype=dtype)
    out, *grads = run(mechanism, qkv, mask=mask)
    exact = run(mechanism.double(), tuple(x.double() for x in qkv), way="reference", mask=mask)
    assert {out.dtype, *(grad.dtype for grad in grads)} == {dtype}
    assert difference([x.double() for x in (out, *grads)], exact) < 2 * torch.finfo(dtype).eps
    with torch.no_grad():
        mechanism.to(dtype)(*qkv, mask=mask)
    assert seen == [torch.float32, dtype]


@pytest.mark.parametrize(("name", "visible", "ways"), in_turn(CONSTANT, (CAUSAL, None)))
def test_autocast_does_not_reach_the_sums(name, visible, ways):
    mechanism, qkv = make(name).float(), inputs(70, 70, dtype=torch.float32)
    for way in ways:
        plain = run(mechanism, qkv, way=way, mask=visible)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert difference(run(mechanism, qkv, way=way, mask=visible), plain) == 0


@pytest.mark.parametrize(("name", "visible", "ways"), in_turn(CONSTANT, (CAUSAL, None)))
def test_a_backward_pass_inside_of_autocast(name, visible, ways):
    """PyTorch advises against it, and rounds the matrix products of its own; ours must go on."""
    mechanism, qkv = make(name).float(), inputs(70, 70, dtype=torch.float32)
    grad = torch.randn(2, HEADS, 70, VALUE_DIM)
    for way in ways:
        plain = run(mechanism, qkv, grad, way=way, mask=visible)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = run(mechanism, qkv, grad, way=way, mask=visible)
        assert difference(got, plain) < 0.1, way


@pytest.mark.parametrize(("name", "visible", "ways"), in_turn(CONSTANT, (CAUSAL, None)))
def test_dead_rows_give_numbers(name, visible, ways):
    """TokenInfo that match no key give 0 or an average, but never NaN; neither does their gradient."""
    nothing_to_see = TokenInfo.whole(40, torch.zeros(2, 40, dtype=torch.bool))
    fills = shared_out((0.0, -1.0), NAMES.index(name) % 2, 2)  # what ReLU maps to nothing
    for fill, way, key in product(fills, ways, (None, nothing_to_see)):
        mechanism, qkv = make(name), tuple(torch.full_like(x, fill) for x in inputs(40, 40))
        got = run(mechanism, qkv, torch.ones(2, HEADS, 40, VALUE_DIM), way=way, mask=visible, key=key)
        assert all(torch.isfinite(x).all() for x in got)


@pytest.mark.parametrize("case", [Case(9, 9, CAUSAL), Case(5, 7, None), Case(6, 19, PrefixMask(2, 3))], ids=str)
def test_gradcheck_of_the_custom_functions(case):
    mechanism = build("leap", 4, 1).double()
    counts = (case.queries, case.keys, case.keys)
    q, k, v = (torch.randn(1, 1, count, 4, dtype=torch.float64, requires_grad=True) for count in counts)
    for way in ("kept", "again"):

        def call(q, k, v, *parameters, way=way):
            return attend(mechanism, q, k, v, mask=case.mask, way=way, chunk=2)

        assert torch.autograd.gradcheck(call, (q, k, v, *mechanism.parameters()))


def test_gradcheck_of_reweighted_rows():
    def rows(x, proportion):
        return CosReweighted(x, proportion=proportion).expanded()

    x = torch.rand(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    for shape in ((2, 2, 3, 1), (1, 1, 3, 1)):
        proportion = torch.rand(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(rows, (x, proportion))


def test_frozen_parameters_get_no_gradient():
    mechanism = make("leap").requires_grad_(False)
    q, k, v = (x.requires_grad_() for x in inputs(20, 20))
    attend(mechanism, q, k, v, mask=CAUSAL, way="again").sum().backward()
    assert q.grad is not None and all(p.grad is None for p in mechanism.parameters())


def second_derivative(mechanism, visible, way, power):
    torch.manual_seed(0)
    q, k, v = (x.requires_grad_() for x in inputs(20, 20))
    out = attend(mechanism, q, k, v, mask=visible, way=way)
    (grad,) = torch.autograd.grad(out.pow(power).sum(), k, create_graph=True)
    return torch.autograd.grad(grad.square().sum(), k)[0]


READING_KEYS = [name for name in NAMES if "k_proj" not in make(name).capabilities.unused_projections]


@pytest.mark.parametrize(
    ("name", "visible", "ways"),
    in_turn([n for n in READING_KEYS if n != "softmax"], (CAUSAL, None), ("kept", "again")),
)
def test_second_derivatives_of_a_scan_are_right_or_refused_in_one_line(name, visible, ways):
    """By `autograd.grad`, too, where the gradient of a sum of outputs does not seem to depend on anything."""
    mechanism, refused = make(name), []
    for way, power in product(ways, (1, 2)):
        expected = second_derivative(mechanism, visible, "reference", power)
        try:
            assert difference([second_derivative(mechanism, visible, way, power)], [expected]) < 1e-9
        except LeapformerError as error:
            assert str(error).startswith("second derivatives need execution='reference'")
            refused.append(power)
    assert name not in LINEAR or refused == [1, 2] * len(ways)


@covering(name=serving(CAUSAL, state=True), prompt=[0, 1, 9, 23], side=[None, "left"], few=[True, False])
@torch.no_grad()
def test_generation_equals_training(name, prompt, side, few):
    """Step by step, and a prompt, read in either way, followed by steps; padded queries may be anything."""
    mechanism, qkv, keep = make(name), inputs(23, 23), padding(23, side)
    rows = TokenInfo.whole(23, keep).without_lengths()
    expected = attend(mechanism, *qkv, query=rows, key=rows, mask=CAUSAL, way="reference")
    with dispatch.override(pairs=10**9 if few else 0):
        got, _ = steps(mechanism, qkv, rows, prompt)
    real = 1.0 if keep is None else keep[:, None, :, None]
    assert difference([got * real], [expected * real]) < 1e-12


@pytest.mark.parametrize("name", serving(CAUSAL, state=True))
def test_gradients_of_steps_are_those_of_training(name):
    """A state may be trained through: nothing that a gradient needs is written over."""
    mechanism, qkv, tokens = make(name), inputs(9, 9), TokenInfo.whole(9).without_lengths()
    grad = torch.randn(2, HEADS, 9, VALUE_DIM, dtype=torch.float64)
    expected = run(mechanism, qkv, grad, query=tokens, key=tokens, mask=CAUSAL, way="reference")
    leaves = [x.clone().requires_grad_() for x in qkv]
    mechanism.zero_grad(set_to_none=True)
    out, _ = steps(mechanism, leaves, tokens, prompt=3)
    out.backward(grad)
    assert difference([out, *gradients([*leaves, *mechanism.parameters()])], expected) < 1e-12


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", serving(None, state=True))
@torch.no_grad()
def test_a_state_of_all_keys_equals_bidirectional(name, side):
    mechanism, qkv = make(name), inputs(7, 30)
    q, k, v = qkv
    query, key = TokenInfo.whole(7).without_lengths(), TokenInfo.whole(30, padding(30, side))
    expected = attend(mechanism, *qkv, query=query, key=key, way="reference")
    assert difference([mechanism.read(written(mechanism, k, v, key), q, query)], [expected]) < 1e-12
    if not mechanism.capabilities.append:
        return
    state = mechanism.init_state(len(k), v.shape[3], k, key)
    for start, stop in ((0, 11), (11, 12), (12, 30)):
        state = mechanism.write(state, k[:, :, start:stop], v[:, :, start:stop], key.narrow(start, stop))
    assert difference([mechanism.read(state, q, query)], [expected]) < 1e-12


@pytest.mark.parametrize("name", serving(CAUSAL, CONSTANT))
@torch.no_grad()
def test_state_has_constant_size_and_is_float32(name):
    mechanism, qkv = make(name).bfloat16(), inputs(40, 40, dtype=torch.bfloat16)
    rows = TokenInfo.whole(40).without_lengths()
    sizes = set()
    for count in (1, 5, 40):
        _, state = steps(mechanism, tuple(x[:, :, :count] for x in qkv), rows.narrow(0, count))
        sizes.add(state.nbytes())
        floats = [tensor for tensor in state.tensors().values() if tensor.is_floating_point()]
        assert floats and all(tensor.dtype == torch.float32 for tensor in floats)
    assert len(sizes) == 1


@pytest.mark.parametrize("name", serving(CAUSAL, state=True))
@torch.no_grad()
def test_states_reorder_fork_and_rebuild(name):
    """A beam search repeats and drops rows; what it goes on with must be as if it had been so from the start."""
    mechanism, qkv, order = make(name), inputs(12, 12, batch=3), torch.tensor([2, 0, 2])
    rows = TokenInfo.whole(12).without_lengths()
    _, state = steps(mechanism, tuple(x[:, :, :8] for x in qkv), rows.narrow(0, 8))
    saved = type(state)(**{key: tensor.clone() for key, tensor in state.tensors().items()})
    last = tuple(x[order, :, 8:] for x in qkv)
    reordered = tuple(torch.cat([x[order, :, :8], x[order, :, 8:]], 2) for x in qkv)
    expected, _ = steps(mechanism, reordered, rows)
    forked = state.fork()
    for start in (state.reorder(order), saved.reorder(order), forked.reorder(order)):
        got, _ = scanned(mechanism, start, *last, rows.narrow(8, 12))
        assert difference([got], [expected[:, :, 8:]]) < 1e-12
    scanned(mechanism, forked, *(x[:, :, 8:] for x in qkv), rows.narrow(8, 12))
    for key, tensor in saved.tensors().items():
        assert torch.equal(state.tensors()[key], tensor), "a fork shares memory with its origin"


@torch.no_grad()
def test_kv_cache_grows_in_steps_and_holds_what_it_was_given():
    mechanism, (q, k, v) = make("softmax"), inputs(20, 20)
    rows = TokenInfo.whole(20).without_lengths()
    _, cache = steps(mechanism, (q, k, v), rows)
    assert cache.count == 20 and cache.k.shape[2] < 40 and cache.k.shape[3] == DIM
    assert torch.equal(cache.k[:, :, :20], k) and torch.equal(cache.v[:, :, :20], v)


@pytest.mark.parametrize("kind", ["none", "one factor", "factors", "matrix"])
@pytest.mark.parametrize("blocks", [1, 2, 5, 17])
@pytest.mark.parametrize("backward", [False, True])
def test_states_in_groups(kind: str, blocks: int, backward: bool) -> None:
    """The states of a plain loop, in a number of calls that grows with the root of the number of blocks."""
    own, first = torch.randn(3, blocks, 4, 5, dtype=torch.float64), torch.randn(3, 4, 5, dtype=torch.float64)
    shapes = {"one factor": (1, 1), "factors": (4, 1), "matrix": (4, 4)}
    transition = None if kind == "none" else torch.randn(3, blocks, *shapes[kind], dtype=torch.float64) / 2
    state, before = first, [torch.empty(0)] * blocks
    for i in reversed(range(blocks)) if backward else range(blocks):
        before[i] = state
        step = 1 if transition is None else transition[:, i]
        state = (step @ state if kind == "matrix" else step * state) + own[:, i]
    with dispatch.override(states_in_turn=0):
        arrived, after = linear.states(transition, own, first, backward)
    assert difference([arrived, after], [torch.stack(before, 1), state]) < 1e-12


@pytest.mark.parametrize("count", [1, 8, 9, 23])
def test_running_sums_in_parts(count: int) -> None:
    x = torch.randn(2, 3, count, 4, dtype=torch.float64)
    with dispatch.override(states_in_turn=1, chunk=4):
        assert difference([linear.running_sums(x)], [x.cumsum(2)]) < 1e-12


LOOPED = [
    (1, 2, CAUSAL),
    (2, 5, CAUSAL),
    (2, 2, ChunkMask(1, past=0)),
    (6, 6, ChunkMask(2, past=2)),
    (1, 9, PrefixMask(2, 2)),
]


@pytest.mark.parametrize("name", NAMES)
def test_loops_of_few_queries(name: str) -> None:
    """A loop sees what the mask shows, of keys with inputs of their own, where the cases are smallest."""
    for queries, keys, mask in LOOPED:
        if not serves(name, mask):
            continue
        q, k, v = inputs(queries, keys)
        key = replace(TokenInfo.whole(keys), inputs=torch.randn(2, keys, HEADS * DIM, dtype=torch.float64))
        query = key if queries == keys else TokenInfo.whole(queries)
        mechanism, call = make(name).double(), {"query": query, "key": key, "mask": mask}
        if mechanism.capabilities.carry_is_given:
            continue
        expected = mechanism(q, k, v, execution="reference", **call)
        assert difference([mechanism(q, k, v, execution="loop", **call)], [expected]) < 1e-11, mask
