"""No hidden synchronisation, and the dtypes that products see: what a GPU asks of the code, checked without one.

On PyTorch's `meta` device nothing can be read back, and whatever is made on the CPU by mistake shows. The operations
themselves are watched too: none may be one that waits. `TestTheWatchItself` has the controls.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from leapformer_fairseq.attention import CAUSAL, Carry, ChunkMask, PrefixMask, Projections, TokenInfo, step_of
from leapformer_fairseq.attention.linear import base as linear_base
from leapformer_fairseq.attention.ops import entmax
from leapformer_fairseq.attention.sparse.fitted import Fitted

from .. import covering
from .cases import (
    BY_KERNEL,
    CONSTANT,
    DIM,
    HEADS,
    NAMES,
    OPTIONS,
    RECURRENT,
    VARIANTS,
    WAYS,
    attend,
    build,
    inputs,
    make,
)

BATCH, COUNT, WIDTH = 2, 8, HEADS * DIM  # chunks: two of four tokens
META = torch.device("meta")
MASKS = {"all": None, "causal": CAUSAL, "wait-k": PrefixMask(2, 3), "k1r1": PrefixMask(1, 1), "chunks": ChunkMask(4, 2)}
BLOCKS = {
    "encoder-self": ("all", "chunks"),
    "decoder-self": ("causal",),
    "decoder-cross": ("all", "wait-k"),
}
LIBRARY = ("all", "causal", "wait-k", "chunks")  # masks without a block: each mechanism has one of those it serves
# ways, and whether keys are padded: all of them with padding, and without it what a training takes
PASSES = [*((way, True) for way in WAYS if way != "auto"), ("auto", False), ("kept", False)]
WAITING = ("_local_scalar_dense", "equal", "nonzero", "masked_select", "is_nonzero", "unique", "item")


@pytest.fixture(autouse=True)
def few_steps_of_newton(monkeypatch):
    """Each is like the next, and operations on the meta device take long."""
    monkeypatch.setattr(entmax, "STEPS", 2)


class Watch(TorchDispatchMode):
    """Refuses operations that wait for a device, and tensors of any other device.

    `counts`: the numbers of tokens in a KV cache, which are on the CPU on purpose, int64 and never copied.
    """

    def __init__(self, device: torch.device = META, counts: bool = False) -> None:
        super().__init__()
        self.device, self.counts, self.operations = device, counts, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        name = func.name().split("::")[1].split(".")[0]
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        others = [x for x in tensors if x.device.type != self.device.type]
        if self.counts:
            others = [x for x in others if x.dtype != torch.long or x.dim() > 1]
            if not others and all(x.device.type == "cpu" for x in tensors):
                return out
        assert not others, f"{name} of a tensor on {others[0].device}"
        assert name not in WAITING, f"{name} waits for the device"
        return out


def combinations():
    for i, name in enumerate(NAMES):
        for block, masks in {**BLOCKS, None: LIBRARY}.items():
            capabilities = build(name, DIM, HEADS, block=block, **OPTIONS.get(name, {})).capabilities
            served = [mask for mask in masks if capabilities.unsupported_reason(block, MASKS[mask]) is None]
            for mask in served if block else [served[i // 3 % len(served)]]:
                # as a library and with the same mask, mechanisms do what they do in a block
                again = (
                    i % 3 > 0 if block is None else mask == "all" and block == ("encoder-self", "decoder-cross")[i % 2]
                )
                marks = [pytest.mark.full] if again and len(capabilities.blocks) > 1 else []
                yield pytest.param(name, block, mask, id=f"{name}-{block}-{mask}", marks=marks)


COMBINATIONS = list(combinations())


def with_state():
    found = [x for x in COMBINATIONS if build(x.values[0], DIM, HEADS, block=x.values[1]).capabilities.incremental]
    return [x for x in found if not (x.values[0] in VARIANTS and x.values[1:] == ("encoder-self", "all"))]


def built(name, block, dtype=torch.float32, **options):
    """A mechanism and its block's projections; what is fitted to a trained model refuses to train."""
    mechanism = build(name, DIM, HEADS, block=block, **{**OPTIONS.get(name, {}), **options}).to(META, dtype)
    stock = Projections(*(nn.Linear(WIDTH, WIDTH).to(META, dtype) for _ in range(4)))
    mechanism.receive(stock)
    return mechanism.train(not isinstance(mechanism, Fitted)), stock


def described(mechanism, count, dtype=torch.float32, padded=True):
    keep = torch.ones(BATCH, count, dtype=torch.bool, device=META) if padded else None
    key = TokenInfo.whole(count, keep, META)
    if mechanism.capabilities.needs_inputs:
        key = replace(key, inputs=torch.randn(BATCH, count, WIDTH, device=META, dtype=dtype, requires_grad=True))
    if getattr(mechanism, "given", False):
        carry = Carry(torch.randn(BATCH, mechanism.slots, WIDTH, device=META, dtype=dtype, requires_grad=True))
        key = replace(key, carry=carry)
    return key


def qkv(queries, keys, dtype=torch.float32):
    shapes = ((queries, DIM), (keys, DIM), (keys, DIM))
    return [torch.randn(BATCH, HEADS, *x, device=META, dtype=dtype, requires_grad=True) for x in shapes]


def sides(mechanism, block, mask, padded=True):
    """Queries' and keys' numbers and tokens."""
    itself = block != "decoder-cross" and mask in ("causal", "chunks")
    itself = itself or (block == "encoder-self" and bool(getattr(mechanism, "convolution", None)))
    keys = COUNT if itself else COUNT + 7
    key = described(mechanism, keys, padded=padded)
    return COUNT, keys, key if itself else TokenInfo.whole(COUNT, device=META), key


def in_turn(combinations, ways):
    """Each combination takes one of the ways, in turn; all with --all."""
    for_all = covering.whole_products
    return [
        pytest.param(
            *one.values,
            ways if for_all else [ways[(i + NAMES.index(one.values[0])) % len(ways)]],
            id=one.id,
            marks=one.marks,
        )
        for i, one in enumerate(combinations)
    ]


@pytest.mark.parametrize(("name", "block", "mask", "passes"), in_turn(COMBINATIONS, PASSES))
def test_passes_wait_for_nothing(name, block, mask, passes):
    mechanism, _ = built(name, block)
    for way, padded in passes:
        check_pass(mechanism, name, block, mask, way, padded)


def check_pass(mechanism, name, block, mask, way, padded):
    queries, keys, query, key = sides(mechanism, block, mask, padded)
    leaves = qkv(queries, keys)
    with Watch(counts=name not in CONSTANT) as watch:
        out = attend(mechanism, *leaves, query=query, key=key, mask=MASKS[mask], way=way, chunk=4)
        assert out.shape == (BATCH, HEADS, queries, DIM)
        out.backward(torch.empty_like(out))
    unused = {"qkv".index(name[0]) for name in mechanism.capabilities.unused_projections}
    assert watch.operations > 3
    assert all(i in unused if x.grad is None else x.grad.is_meta for i, x in enumerate(leaves))


@pytest.mark.parametrize(("name", "block", "mask"), with_state())
@torch.no_grad()
def test_states_wait_for_nothing(name, block, mask):
    """A prompt, then token by token; or a source, and queries."""
    mechanism, _ = built(name, block)
    queries, keys, query, key = sides(mechanism, block, mask, padded=False)
    if mask == "causal":
        key = query = key.without_lengths()
    q, k, v = qkv(queries, keys)
    visible = MASKS[mask]
    with Watch(counts=name not in CONSTANT):
        state = mechanism.init_state(BATCH, DIM, k, key, visible)
        if mask == "wait-k":
            for start, stop in ((0, 4), (4, keys)):
                state = mechanism.write(state, k[:, :, start:stop], v[:, :, start:stop], key.narrow(start, stop))
            out = mechanism.read(state, q, query)
        elif mask == "all":
            state = mechanism.write(state, k, v, key)
            out = mechanism.read(state, q, query)
        else:
            prompt, more, outputs = *((6, 2) if mask == "chunks" else (5, 1)), []
            for start in (0, *range(prompt, queries, more)):
                stop = start + more if start else prompt
                parts, here = (x[:, :, start:stop] for x in (q, k, v)), key.narrow(start, stop)
                one, state = mechanism.scan(state, *parts, here, here, visible)
                outputs.append(one)
            out = torch.cat(outputs, 2)
            state = state.fork().reorder(torch.tensor([1, 0], device=META))
        assert out.shape == (BATCH, HEADS, queries, DIM)


STEPS = [
    *((name, {}) for name in NAMES),
    ("abc-pool", {"abc_pool_size": 9}),
    ("abc-mlp", {"abc_activation": "relu"}),
    ("leap", {"leap_per_head": True}),
    *(("luna", {"luna_packed": "learned", "luna_projections": x}) for x in ("tied", "raw", "untied", "standard")),
]


def labelled(name, options):
    return pytest.param(name, options, id="-".join(map(str, (name, *options.values()))))


@pytest.mark.parametrize(
    ("block", "shared"),
    [("decoder-self", 1), pytest.param("decoder-cross", 1, marks=pytest.mark.full), ("decoder-cross", 2)],
)
@pytest.mark.parametrize(("name", "options"), [labelled(*x) for x in STEPS])
@torch.no_grad()
def test_fused_steps_wait_for_nothing(name, options, block, shared):
    cross = block == "decoder-cross"
    mask = None if cross else CAUSAL
    whole = build(name, DIM, HEADS, block=block, **{**OPTIONS.get(name, {}), **options})
    if whole.capabilities.unsupported_reason(block, mask) is not None or not whole.capabilities.incremental:
        return
    mechanism, stock = built(name, block, **options)
    with Watch(counts=name not in CONSTANT):
        step = step_of(mechanism, stock._replace(k=None, v=None) if cross else stock)
        key = described(mechanism, COUNT, padded=False)
        _, k, v = qkv(COUNT, COUNT)
        state = mechanism.init_state(BATCH, DIM, k, key if cross else key.without_lengths(), mask)
        state = mechanism.write(state, k, v, key) if cross else state
        for position in (1, 2, 3):
            x = torch.randn(BATCH * shared, WIDTH, device=META)
            assert step(x, state, position).shape == (BATCH * shared, WIDTH)


# ------------------------------------------------------------------------------------------------- dtypes of products
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "baddbmm_", "matmul", "linear", "_scaled_dot_product_attention")


class Products(TorchDispatchMode):
    """The dtypes of operands of every product, and of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, set[torch.dtype], torch.dtype]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.name().split("::")[1].split(".")[0]
        if name in PRODUCTS:
            operands = [x for x in args if isinstance(x, Tensor) and x.dim() > 1]
            if not all(x.numel() for x in operands):
                return out
            self.seen.append((name, {x.dtype for x in operands}, out.dtype))
        return out


def products(mechanism, dtype, mask, way, autocast=None):
    torch.manual_seed(1)
    queries, keys = (24, 24) if mask == CAUSAL or isinstance(mask, ChunkMask) else (24, 40)
    leaves = [x.requires_grad_() for x in inputs(queries, keys, dtype=dtype)]
    with Products() as found:
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            out = attend(mechanism, *leaves, mask=mask, way=way, chunk=4)
        out.backward(torch.ones_like(out))
    return found.seen


SERVED = [
    pytest.param(name, mask, id=f"{name}-{mask}")
    for name in CONSTANT
    for mask in MASKS
    if make(name).capabilities.unsupported_reason(None, MASKS[mask]) is None
]


HALVES = list(product((torch.bfloat16, torch.float16), WAYS))


@pytest.mark.parametrize(("name", "mask", "passes"), in_turn(SERVED, HALVES))
def test_sums_are_float32_whatever_the_inputs(name, mask, passes):
    for dtype, way in passes:
        seen = products(make(name).to(dtype), dtype, MASKS[mask], way)
        assert (seen or way in BY_KERNEL) and all(out in summed(name, way) for *_, out in seen), (dtype, way, seen)


def summed(name, way):
    """The precisions of sums: a recurrence's reference is in float64."""
    exact = {torch.float64} if name in RECURRENT and way == "reference" else set()
    return {torch.float32} | exact


@pytest.mark.parametrize(("name", "mask", "passes"), in_turn(SERVED, HALVES))
def test_autocast_changes_no_product(name, mask, passes):
    for autocast, way in passes:
        mechanism = make(name).float()
        plain = products(mechanism, torch.float32, MASKS[mask], way)
        assert products(mechanism, torch.float32, MASKS[mask], way, autocast) == plain, way
        assert all(len(dtypes) == 1 and dtypes <= summed(name, way) for _, dtypes, _ in plain), way


class TestTheWatchItself:
    @pytest.mark.parametrize(
        "mistake",
        [
            lambda x: x + torch.ones(3),
            lambda x: x.sum().item(),
            lambda x: bool((x > 0).any()),
            lambda x: torch.equal(x, x),
            lambda x: x.cpu(),
            lambda x: x[x > 0],
            lambda x: torch.arange(3),
        ],
    )
    def test_a_mistake_is_noticed(self, mistake):
        x = torch.empty(2, 3, device=META)
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), Watch():
            mistake(x)

    def test_a_synchronisation_inside_is_noticed(self, monkeypatch):
        from leapformer_fairseq.attention.linear.relu import ReLULinear

        real = ReLULinear.map_keys
        monkeypatch.setattr(ReLULinear, "map_keys", lambda self, x, t: real(self, x.clamp_max(float(x.max())), t))
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
            check_pass(built("relu", None)[0], "relu", None, "causal", "kept", False)

    def test_a_product_in_half_precision_is_noticed(self, monkeypatch):
        monkeypatch.setattr(linear_base, "accumulated", lambda x: x)
        monkeypatch.setattr(
            linear_base.Features, "expanded", lambda self, real=linear_base.Features.expanded: real(self).bfloat16()
        )
        with pytest.raises((AssertionError, RuntimeError)):
            test_sums_are_float32_whatever_the_inputs("relu", "causal", [(torch.bfloat16, "kept")])
