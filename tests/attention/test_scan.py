"""The kernel in C for whole sequences against its definition: token by token, in float64, differentiated by autograd.

`check` draws a case from a seed: masks, lengths around the limits of blocks and segments, padding that holds NaN,
layouts in memory, feature maps, decays, states, and what wants a gradient. A case that fails names its seed.
"""

from __future__ import annotations

import itertools
import math
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.attention import TokenInfo
from leapformer_fairseq.attention.masks import CAUSAL, ChunkMask, Mask, PrefixMask, seen
from leapformer_fairseq.attention.ops import cpu, recurrent, scan
from leapformer_fairseq.attention.ops.scan import Map
from leapformer_fairseq.attention.recurrent.delta import SHORTEST
from leapformer_fairseq.support.errors import LeapformerError

from .. import covering
from ..compiler import COMPILER, needs_compiler
from .cases import DIM, HEADS, build
from .test_defects import WIDTH, NaNInNewMemory

pytestmark = needs_compiler
CASES = 48  # of the default tier
TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
LIMIT = {torch.float64: 1e-8, torch.float32: 2e-4}
INPUTS = ("q", "k", "v", "query_network", "key_network", "decay", "strength", "first")


# --------------------------------------------------------------------------------------------------------- definition
def activated(x: Tensor, activation: str) -> Tensor:
    if activation == "direction":
        x = x * x.sigmoid()
        return x / (x.square().sum(-1, keepdim=True) + SHORTEST**2).sqrt()
    if activation == "none":
        return x
    return x.relu() if activation == "relu" else torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def proportion(x: Tensor, network: Tensor, hidden: int) -> Tensor:
    """sigmoid(last . relu(weight^T x + bias) + last_bias), (B, H, T), of a packed network (1 or H, numbers)."""
    dim = x.shape[-1]
    if hidden:
        weight, bias, last, last_bias = network.split([dim * hidden, hidden, hidden, 1], 1)
        x = (x @ weight.unflatten(1, (dim, hidden)) + bias.unsqueeze(1)).relu()
    else:
        last, last_bias = network.split([dim, 1], 1)
    return ((x * last.unsqueeze(1)).sum(-1) + last_bias).sigmoid()


def mapped(x: Tensor, turns: Tensor | None, network: Tensor | None, how: Map, scale: float = 1.0) -> Tensor:
    active = activated(x, how.activation) * scale
    if network is not None:
        angle = proportion(x if how.raw else active, network, how.hidden) * (math.pi / 2)
        turns = torch.stack([angle.cos(), angle.sin()], -1)
    return active if turns is None else torch.cat([active * turns[..., :1], active * turns[..., 1:]], -1)


def visits(mask: Mask, queries: int, keys: int) -> list[tuple[range, range, range]]:
    """Queries that see the same, the keys that are written before, and copies that only these queries see."""
    if mask is None:
        return [(range(queries), range(keys), range(0))]
    if isinstance(mask, PrefixMask):
        counts = [0, *(min(keys, mask.ratio * (t + mask.lagging)) for t in range(queries))]
        return [(range(t, t + 1), range(*span), range(0)) for t, span in enumerate(itertools.pairwise(counts))]
    found = []
    for start in range(0, queries, mask.size + mask.ahead):
        middle, stop = (min(start + count, queries) for count in (mask.size, mask.size + mask.ahead))
        found.append((range(start, stop), range(start, middle), range(middle, stop)))
    return found


def defined(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    features: Map,
    *,
    floor: float | None = None,
    decay: Tensor | None = None,
    strength: Tensor | None = None,
    keep: Tensor | None = None,
    first: Tensor | None = None,
    lasts: bool = True,
) -> tuple[Tensor, Tensor]:
    """What `scan.scan` computes, token by token."""
    if keep is not None:
        k, v = (x.where(keep[:, None, :, None], 0) for x in (k, v))
    query_turns, key_turns = features.turns or (None, None)
    query_network, key_network = features.networks or (None, None)
    fq = mapped(q, query_turns, query_network, features, features.query_scale)
    fk = mapped(k, key_turns, key_network, features)
    if keep is not None:
        fk = fk.where(keep[:, None, :, None], 0)
    if floor is not None:
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    state = q.new_zeros(*q.shape[:2], fq.shape[3], v.shape[3]) if first is None else first

    def written(state: Tensor, s: int) -> Tensor:
        state = state if decay is None else state * decay[:, :, s, :, None].exp()  # one, or one for each feature
        key, value = fk[:, :, s, None], v[:, :, s, None]
        value = value if strength is None else strength[:, :, s, None] * (value - key @ state)
        return state + key.mT * value

    outputs = []
    for reading, writing, ahead in visits(mask, q.shape[2], k.shape[2]):
        for s in writing:
            state = written(state, s)
        view = state
        for s in ahead:
            view = written(view, s)
        outputs.append(fq[:, :, reading.start : reading.stop] @ view)
    sums = torch.cat(outputs, 2)
    out = sums if floor is None else sums[..., :-1] / sums[..., -1:].clamp_min(floor)
    return out, state if lasts else state[:, :, :0, :0]


# -------------------------------------------------------------------------------------------------------------- cases
LAYOUTS = {
    "contiguous": lambda B, H, T, D: ((B, H, T, D), lambda x: x),
    "heads inside": lambda B, H, T, D: ((B, T, H, D), lambda x: x.transpose(1, 2)),
    "tokens first": lambda B, H, T, D: ((T, B, H, D), lambda x: x.permute(1, 2, 0, 3)),
    "part of a projection": lambda B, H, T, D: ((B, T, H, D + 3), lambda x: x[..., 1 : D + 1].transpose(1, 2)),
    "columns": lambda B, H, T, D: ((B, H, D, T), lambda x: x.mT),
    "every second": lambda B, H, T, D: ((B, H, 2 * T, D), lambda x: x[:, :, 1::2]),
    "one for all heads": lambda B, H, T, D: ((B, 1, T, D), lambda x: x.expand(-1, H, -1, -1)),
    "one for the batch": lambda B, H, T, D: ((1, H, T, D), lambda x: x.expand(B, -1, -1, -1)),
}
WANTED = ("both", "output", "output summed", "state")
PADDING = ("none", "left", "right", "inside", "all")


class Case(NamedTuple):
    batch: int
    heads: int
    queries: int
    keys: int
    dim: int
    values: int
    mask: Mask
    activation: str
    turned: str  # "", "turns" or "networks"
    hidden: int
    raw: bool
    per_head: bool
    normalizes: bool
    decays: str  # "", "mild", "some", "strong" or "extreme"
    gates: bool  # each feature has a decay
    delta: bool
    starts: bool
    padding: str
    layouts: tuple[str, str, str]
    wanted: str
    lasts: bool  # the last state is computed
    leaves: tuple[str, ...]
    dtype: torch.dtype
    threads: int


def drawn(seed: int, longest: int = 300) -> Case:
    r = random.Random(seed)
    mask = r.choice(
        [
            None,
            CAUSAL,
            CAUSAL,
            PrefixMask(r.randint(1, 9), r.randint(1, 9)),
            PrefixMask(r.randint(1, 90), 1),
            PrefixMask(1, r.choice([64, 100, 1000])),
            ChunkMask(r.randint(1, 20)),
            ChunkMask(r.randint(60, 150)),
            ChunkMask(r.randint(1, 90), r.randint(1, 20)),
        ]
    )
    lengths = [n for n in (1, 2, 7, 16, 17, 31, 63, 64, 65, 130, 300, 511, 513, 1023, 1024, 1025, 1100) if n <= longest]
    queries, keys = r.choice(lengths), r.choice(lengths)
    if mask == CAUSAL or isinstance(mask, ChunkMask):
        keys = queries
    delta, wanted = r.random() < 0.3, r.choice(WANTED)
    turned = "" if delta else r.choice(["", "turns", "networks", "networks"])
    normalizes = not delta and r.random() < 0.6
    # A normalizer of features that may be negative is near 0: nothing to compare.
    activations = ["none", "direction"] if delta else ["relu", "elu", *(["none", "direction"] * (not normalizes))]
    case = Case(
        batch=r.randint(1, 3),
        heads=r.randint(1, 3),
        queries=queries,
        keys=seen(mask, queries, keys),
        dim=r.choice([3 if normalizes else 1, 3, 4, 8, 16, 17, 32, 33]),  # means of one feature do not depend on it
        values=r.choice([1, 3, 5, 8, 16, 17, 32, 33]),
        mask=mask,
        activation=r.choice(activations),
        turned=turned,
        hidden=r.choice([1, 3, 5, 16, 20]),
        raw=r.random() < 0.5,
        per_head=r.random() < 0.5,
        normalizes=normalizes,
        decays=r.choice(["", "mild", "some", "strong", "extreme"]),
        gates=not turned and not normalizes and r.random() < 0.6,
        delta=delta,
        starts=r.random() < 0.5,
        padding=r.choice(PADDING),
        layouts=tuple(r.choice([*LAYOUTS]) for _ in range(3)),
        wanted=wanted,
        lasts=not wanted.startswith("output") or r.random() < 0.3,
        leaves=tuple(name for name in INPUTS if r.random() < 0.7) or ("v",),
        dtype=r.choice([torch.float32, torch.float64]),
        threads=r.choice([1, 1, 2, 5]),
    )
    # A direction of one feature is 1 or -1: its gradient is a rounded rest.
    return case._replace(dim=3) if case.activation == "direction" and case.dim == 1 else case


def padded(case: Case) -> Tensor | None:
    keep = torch.ones(case.batch, case.keys, dtype=torch.bool)
    if case.padding == "left":
        keep[-1, : case.keys // 3] = False
    elif case.padding == "right":
        keep[-1, case.keys - case.keys // 3 :] = False
    elif case.padding == "inside":
        keep = torch.rand(keep.shape) < 0.8
    elif case.padding == "all":
        keep[-1] = False
    return None if case.padding == "none" else keep


DECAYS = {"mild": 0.1, "some": 3.0, "strong": 60.0, "extreme": 1e4}


def made(case: Case) -> tuple[dict[str, Tensor], Any]:
    """Leaves in float64, and a function that makes a call's inputs of leaves."""
    real = {"dtype": torch.float64}
    lead = (case.batch, case.heads)
    shapes = {"q": (case.queries, case.dim), "k": (case.keys, case.dim), "v": (case.keys, case.values)}
    leaves, views = {}, {}
    for (name, shape), layout in zip(shapes.items(), case.layouts, strict=True):
        whole, views[name] = LAYOUTS[layout](*lead, *shape)
        leaves[name] = torch.randn(whole, **real)
    if case.turned == "networks":
        numbers = case.dim * case.hidden + case.hidden + (case.hidden or case.dim) + 1
        for name in ("query_network", "key_network"):
            leaves[name] = torch.randn(case.heads if case.per_head else 1, numbers, **real) * 0.5
    if case.decays:
        decay = -torch.rand(*lead, case.keys, case.dim if case.gates else 1, **real) * DECAYS[case.decays]
        leaves["decay"] = decay * (torch.rand(decay.shape) < 0.5)
        if not scan.knows(case.mask, leaves["decay"]):
            leaves["decay"] *= scan.LITTLE / DECAYS[case.decays] / case.mask.tokens
    if case.delta:
        leaves["strength"] = torch.rand(*lead, case.keys, 1, **real)
        if case.activation == "none":
            leaves["k"] *= 0.3 * case.dim**-0.5
    if case.starts:
        features = case.dim * (2 if case.turned else 1)
        leaves["first"] = torch.rand(*lead, features, case.values + case.normalizes, **real)
    keep = padded(case)
    padding = None if keep is None else ~keep[:, None, :, None]
    for name, layout in zip("kv", case.layouts[1:], strict=True):
        if padding is not None and "one for" not in layout:
            views[name](leaves[name]).masked_fill_(padding, torch.nan)
    turns = None
    if case.turned == "turns":
        wide = [(1, 1), (case.batch, 1), (1, case.heads), lead]
        turns = tuple(
            torch.rand(*random.Random(case.keys + case.queries).choice(wide), count, 1, **real) * (math.pi / 2)
            for count in (case.queries, case.keys)
        )
        turns = tuple(torch.cat([angle.cos(), angle.sin()], -1) for angle in turns)

    def call(leaves: dict[str, Tensor]) -> dict[str, Any]:
        dtype = leaves["q"].dtype
        inputs = {name: views[name](leaves[name]) for name in shapes}
        of_keys = {name: leaves.get(name) for name in ("decay", "strength")}
        if padding is not None:
            of_keys = {name: x if x is None else x.masked_fill(padding, 0) for name, x in of_keys.items()}
        networks = (leaves["query_network"], leaves["key_network"]) if case.turned == "networks" else None
        how = Map(
            case.activation,
            None if turns is None else tuple(x.to(dtype) for x in turns),
            networks,
            case.hidden,
            case.raw,
            0.25 if case.activation == "direction" else 1.0,
        )
        floor = 1e-4 if case.normalizes else None
        return {
            **inputs,
            "mask": case.mask,
            "features": how,
            "floor": floor,
            **of_keys,
            "keep": keep,
            "first": leaves.get("first"),
            "lasts": case.lasts,
        }

    return leaves, call


def results(run: Any, call: Any, leaves: dict[str, Tensor], case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """The output, the last state, and the gradients of the leaves that want one."""
    wanting = [name for name in leaves if name in case.leaves] or ["v"]
    inputs = {name: x.detach().to(dtype).requires_grad_(name in wanting) for name, x in leaves.items()}
    given = call(inputs)
    out, last = run(**given)
    numbers = torch.Generator().manual_seed(1)
    to_out = torch.randn(*out.shape[:2], out.shape[3], out.shape[2], generator=numbers, dtype=torch.float64).mT
    to_last = torch.randn(last.shape, generator=numbers, dtype=torch.float64) * 0.1
    terms = {"output": (out * to_out.to(dtype)).sum(), "output summed": out.sum()}
    terms["state"] = (last * to_last.to(dtype)).sum()
    total = terms["output"] + terms["state"] if case.wanted == "both" else terms[case.wanted]
    grads = [None] * len(wanting)
    if total.requires_grad:
        grads = torch.autograd.grad(total, [inputs[name] for name in wanting], allow_unused=True)
    zero = torch.zeros(())
    named = {f"to {name}": zero if x is None else x for name, x in zip(wanting, grads, strict=True)}
    return {"output": out.detach(), "state": last.detach(), **named}


def errors(got: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each tensor, relative to the largest number expected in it; NaN is inf."""
    assert got.keys() == expected.keys()
    found = {}
    for name, x in expected.items():
        difference = (got[name].double() - x.double()).abs()
        error = float(difference.max() / x.abs().max().clamp_min(1e-2)) if x.numel() else 0.0
        found[name] = math.inf if math.isnan(error) else error
    return found


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Several threads of the kernel and none of PyTorch, whose threads a fork of this process would lack."""
    with patch.object(scan, "FEW", 0), patch.object(torch, "get_num_threads", lambda: count):
        yield


def check(case: Case, seed: int = 0) -> None:
    torch.manual_seed(seed)
    leaves, call = made(case)
    with in_threads(case.threads):
        got = results(scan.scan, call, leaves, case, case.dtype)
    expected = results(defined, call, leaves, case, torch.float64)
    limit = LIMIT[case.dtype]
    bad = {name: error for name, error in errors(got, expected).items() if not error < limit}
    if bad and case.dtype == torch.float32:  # a gradient may be the rounded rest of what cancels
        plain = errors(results(defined, call, leaves, case, case.dtype), expected)
        bad = {name: (error, plain[name]) for name, error in bad.items() if not error < 10 * plain[name]}
    assert not bad, f"seed {seed}: {bad} in {case}"


@pytest.mark.parametrize("block", covering.kept(range(60), 0))
def test_drawn_cases(block):
    for seed in range(block * CASES * TIMES, (block + 1) * CASES * TIMES):
        check(drawn(seed, 1100 if block else 130), seed)


PLAIN = drawn(0)._replace(
    batch=1,
    heads=2,
    dim=3,
    values=2,
    activation="relu",
    normalizes=True,
    padding="none",
    layouts=("contiguous",) * 3,
    wanted="both",
    lasts=True,
    leaves=INPUTS,
    turned="",
    decays="",
    gates=False,
    delta=False,
    starts=False,
    dtype=torch.float64,
    threads=1,
)


NUMBERS = (1e20, 1e-30, math.inf, -math.inf, math.nan)
MAPS = {
    "relu": {},
    "elu": {"activation": "elu"},
    "networks": {"turned": "networks", "hidden": 3},
    "decays": {"decays": "some"},
    "delta": {"delta": True, "activation": "direction", "normalizes": False},
    "gates": {"decays": "some", "gates": True, "normalizes": False},
    "delta with gates": {
        "delta": True,
        "activation": "direction",
        "decays": "some",
        "gates": True,
        "normalizes": False,
    },
}


@pytest.mark.parametrize("shared", covering.kept([511, 512, 513], 512))
@pytest.mark.parametrize("change", [MAPS["decays"], MAPS["delta"]])
def test_where_a_segment_ends(shared, change):
    """Saved states: of keys that every query sees, and of blocks on either side of 1,024 queries and keys."""
    mask = PrefixMask(shared + 1, 1)
    check(PLAIN._replace(queries=520, keys=shared + 520, mask=mask, **change))


def test_a_query_that_sees_a_thousand_keys_more():
    """In one block the gradient of what these keys replaced would be a rounded rest."""
    case = PLAIN._replace(queries=2, keys=1025, mask=PrefixMask(1, 1000), dim=33, starts=True, **MAPS["delta"])
    case = case._replace(heads=1, wanted="output", leaves=("first",))
    leaves, call = made(case)
    got, expected = (
        results(run, call, leaves, case, dtype)["to first"]
        for run, dtype in ((scan.scan, torch.float32), (defined, torch.float64))
    )
    assert float((got - expected).abs().max() / expected.abs().max()) < 1e-3


@pytest.mark.parametrize("mask", [None, PrefixMask(1, 20)])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decays", ["strong", "extreme"])
def test_strong_decays_among_keys_that_are_seen_at_once(decays, delta, mask):
    """Compared in pairs, they would leave a rounded rest, or a factor that overflows."""
    changes = MAPS["delta" if delta else "decays"] | {"decays": decays, "normalizes": False}
    for dtype in (torch.float32, torch.float64):
        check(
            PLAIN._replace(queries=2, keys=40, dim=32, mask=mask, starts=True, dtype=dtype, wanted="output", **changes)
        )


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("gates", [1, 5])
def test_strong_decays_of_chunks_with_look_ahead_are_left_to_pytorch(gates, delta):
    """No block of the kernel ends inside of a chunk, and what is ahead can decay by more than a float holds."""
    mask, real = ChunkMask(4, 3), {"dtype": torch.float64}
    q, k, v = (torch.randn(2, 3, 20, 5, **real) for _ in range(3))
    decay = torch.full((2, 3, 20, gates), -0.1, **real)
    strength = torch.rand(2, 3, 20, 1, **real) if delta else None
    for strong, known in ((-0.1, True), (-1e4, False)):
        decay[1, 2, 5, -1] = strong
        assert scan.knows(mask, decay) is known
        got = recurrent.sums(q, recurrent.Written(k, v, decay, strength), torch.zeros(2, 3, 5, 5, **real), mask)
        expected = defined(q, k, v, mask, Map(), decay=decay, strength=strength)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_segment_of_blocks_of_one_token(dtype):
    """As many states as a segment can have: every token forgets what was before."""
    check(PLAIN._replace(queries=600, keys=600, mask=CAUSAL, decays="extreme", dtype=dtype))


@pytest.mark.parametrize("name", ["gated-leap", "gated-relu", "delta", "gated-delta", "kda"])
def test_both_directions_of_an_encoder_are_mapped_by_the_kernel(name):
    """Features in PyTorch would be written to memory and, of short texts, saved for the backward pass."""
    attention = build(name, DIM, HEADS, block="encoder-self")
    with patch.object(scan, "scan", wraps=scan.scan) as run:
        attention(*qkv(5))
    assert len(run.mock_calls) == 2 and all(call.args[4].activation != "none" for call in run.mock_calls)


@pytest.mark.parametrize("mask", [None, CAUSAL])
@pytest.mark.parametrize("name", ["leap", "gated-leap", "gated-delta", "kda"])
def test_a_text_of_a_few_tokens_keeps_no_states(name, mask):
    """A state has hundreds of times the numbers of a token, and a batch has hundreds of short texts."""
    attention = build(name, DIM, HEADS, block="encoder-self" if mask is None else "decoder-self")
    state = attention.features * DIM
    q, k, v = (x.requires_grad_() for x in qkv(5, batch=3))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = attention(q, k, v, mask=mask)
    assert out.requires_grad and kept
    assert not [x.shape for x in kept if x.numel() >= 3 * HEADS * state]


# ------------------------------------------------------------------------------------------------- where it is called
@pytest.fixture
def calls(monkeypatch):
    """Whether each call of the kernel was a backward pass."""
    found, real = [], scan._call

    def counted(sizes, tensors, backward):
        found.append(backward)
        return real(sizes, tensors, backward)

    monkeypatch.setattr(scan, "_call", counted)
    return found


def qkv(count: int = 20, batch: int = 2, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(batch, HEADS, count, DIM, dtype=dtype) for _ in range(3))


def both(run: Any) -> tuple[Any, Any]:
    """By the kernel, and by PyTorch."""
    with cpu.turned_off():
        expected = run()
    return run(), expected


@torch.no_grad()
def close(run: Any, limit: float = 1e-5) -> None:
    got, expected = both(run)
    assert float((got - expected).abs().max() / expected.abs().max()) < limit


@pytest.mark.parametrize("name", ["leap", "gated-leap", "delta"])
def test_results_do_not_depend_on_threads(name, calls):
    mechanism, inputs = build(name, DIM, HEADS), qkv(150, batch=5)
    found = []
    for threads in (1, 2, 3):
        with in_threads(threads):
            found.append(run_with_gradients(mechanism, inputs))
    assert calls == [False, True] * 3
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def run_with_gradients(mechanism: Any, inputs: tuple[Tensor, ...], mask: Mask = CAUSAL) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    mechanism.zero_grad(set_to_none=True)
    out = mechanism(*leaves, mask=mask)
    (out * torch.linspace(-1, 1, out.shape[2])[:, None].to(out.dtype)).sum().backward()
    return [out.detach(), *(x.grad for x in (*leaves, *mechanism.parameters()) if x.grad is not None)]


@pytest.mark.parametrize("seed", range(10))
def test_no_result_comes_out_of_new_memory(seed):
    case = drawn(seed, 100)._replace(leaves=INPUTS, dtype=torch.float64)
    leaves, call = made(case)
    expected = results(scan.scan, call, leaves, case, case.dtype)
    with NaNInNewMemory() as mode:
        got = results(scan.scan, call, leaves, case, case.dtype)
    assert mode.filled and errors(got, expected) == dict.fromkeys(expected, 0.0)


@pytest.mark.parametrize("name", ["leap", "gated-leap", "delta", "kda"])
def test_a_batch_of_nobody(name, calls):
    mechanism, (q, k, v) = build(name, DIM, HEADS), qkv(batch=0)
    tokens = replace(TokenInfo.whole(20), inputs=torch.randn(0, 20, WIDTH))
    out, after = mechanism.scan(mechanism.init_state(0, DIM, q), q, k, v, tokens, tokens, CAUSAL)
    assert calls == [False] and out.shape == q.shape and after.batch_size == 0


@pytest.mark.parametrize("columns", [1, DIM])
@pytest.mark.parametrize("tokens", [1, 150])
def test_the_first_decay_of_an_empty_state_has_no_gradient(tokens, columns):
    """It reaches nothing: a rounded rest of sums that cancel would be all of the gradient."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, tokens, DIM) for _ in range(3))
    decay = torch.full((2, 3, tokens, columns), -0.01, requires_grad=True)
    out, last = scan.scan(q, k, v, CAUSAL, decay=decay)
    (out.sum() + last.sum()).backward()
    assert decay.grad is not None and not decay.grad[:, :, 0].any() and decay.grad[:, :, 1:].all()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAPS)
def test_extreme_numbers_in_live_tokens(name, number, dtype):
    """Where the definition gives no finite number, neither does the kernel, and other heads are as without it.

    Queries before it, of the same head, may be touched: see `Mechanism.forward`.
    """
    case = PLAIN._replace(queries=20, keys=20, mask=CAUSAL, dtype=dtype, **MAPS[name])
    leaves, call = made(case)
    for which, wanted in itertools.product("qkv", ("output", "state")):
        touched = {key: x.clone() for key, x in leaves.items()}
        touched[which][0, 0, 5, 1] = number
        touched[which][0, 0, 9, 0] = -number
        one = case._replace(wanted=wanted)
        got, expected = (results(run, call, touched, one, dtype) for run in (scan.scan, defined))
        clean = results(scan.scan, call, leaves, one, dtype)
        for key, x in expected.items():
            assert not got[key][~x.isfinite()].isfinite().any(), key
            if x.dim() == 4:
                assert torch.equal(got[key][0, 1], clean[key][0, 1])
        alike = got["output"].isfinite() & expected["output"].isfinite()
        scale = expected["output"][alike].abs().max().clamp_min(1)
        assert float((got["output"] - expected["output"])[alike].abs().max() / scale) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e3, 1e6, 1e30])
def test_proportions_of_0_and_1(dtype, scale):
    """A sigmoid whose exponential would overflow."""
    mechanism = build("leap", DIM, HEADS).to(dtype)
    inputs = qkv(dtype=dtype)
    got, expected = both(lambda: run_with_gradients(mechanism, (inputs[0] * scale, *inputs[1:])))
    assert all(torch.isfinite(x).all() for x in (*got, *expected))
    assert errors(dict(enumerate(got)), dict(enumerate(expected)))[0] < 1e-5


@pytest.mark.parametrize(
    "mask",
    [
        PrefixMask(1, 10**6),
        PrefixMask(1, 10**18),
        PrefixMask(10**18, 10**18),
        ChunkMask(10**9),
        ChunkMask(10**18, 10**18),
        ChunkMask(10, 10**18),
    ],
)
@pytest.mark.parametrize("change", [MAPS["relu"], MAPS["delta"]])
def test_masks_that_are_larger_than_the_text(change, mask):
    case = PLAIN._replace(queries=20, keys=20, mask=mask, wanted="output", **change)
    leaves, call = made(case)
    got = results(scan.scan, call, leaves, case, case.dtype)
    expected = results(defined, lambda leaves: {**call(leaves), "mask": None}, leaves, case, case.dtype)
    assert max(errors(got, {**expected, "state": got["state"]}).values()) < 1e-10


# --------------------------------------------------------------------------------------------------- what does not fit
def wrong(**changes: Any) -> Any:
    """A call of a mechanism with one input of another shape, after a state."""
    mechanism = build("leap", DIM, HEADS, leap_per_head=True)
    (q, k, v), tokens = qkv(), TokenInfo.whole(20)
    given = {"state": 2, "q": q, "k": k, "v": v, "keep": None, **changes}
    state = mechanism.init_state(given["state"], DIM, q)
    key = TokenInfo.whole(20, given["keep"])
    return lambda: mechanism.scan(state, given["q"], given["k"], given["v"], tokens, key)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"v": torch.ones(2, HEADS, 15, DIM)},
        {"k": torch.ones(2, HEADS, 20, DIM // 2)},
        {"k": torch.ones(3, HEADS, 20, DIM)},
        {"v": torch.ones(2, HEADS + 1, 20, DIM)},
        {"v": torch.ones(2, HEADS, 20, DIM - 1)},
        {"state": 3},
        {"keep": torch.ones(3, 20, dtype=torch.bool)},
        {name: torch.ones(2, HEADS + 1, 20, DIM) for name in "qkv"},
    ],
    ids=lambda changes: "-".join(f"{name} {[*getattr(x, 'shape', [x])]}" for name, x in changes.items()),
)
def test_nothing_outside_of_a_tensor_is_read(changes, calls):
    run = wrong(**changes)
    with cpu.turned_off(), pytest.raises((RuntimeError, ValueError)):
        run()
    with pytest.raises((RuntimeError, ValueError)):
        run()
    assert calls == []


@pytest.mark.parametrize(
    "changes",
    [
        {"k": torch.rand(1, HEADS, 20, DIM)},
        {"v": torch.rand(2, 1, 20, DIM)},
        {"keep": torch.arange(20).unsqueeze(0) < 15},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_is_broadcast_is_read_as_such(changes, calls):
    close(wrong(**changes))
    assert calls == [False]


BROADCAST = [("k", 0), ("k", 1), ("k", 3), ("v", 0), ("v", 1), ("v", 2), *(("first", axis) for axis in range(4))]


@pytest.mark.parametrize(("which", "axis"), BROADCAST)
def test_every_dimension_may_be_broadcast(which, axis):
    inputs = {"q": (2, 3, 5, 8), "k": (2, 3, 5, 8), "v": (2, 3, 5, 6), "first": (2, 3, 8, 6)}
    given = {name: torch.randn(shape) for name, shape in inputs.items()}
    one = given[which].narrow(axis, 0, 1).contiguous()
    whole = one.expand(inputs[which]).contiguous()
    got, expected = (scan.scan(**{**given, which: x}, mask=CAUSAL) for x in (one, whole))
    assert all(torch.allclose(a, b) for a, b in zip(got, expected, strict=True))


def test_imaginary_parts_are_negated_where_they_say_so():
    """Of a conjugate PyTorch does not compute the imaginary part, but remembers its sign."""
    mechanism, (q, k, v) = build("leap", DIM, HEADS), qkv()
    z = torch.complex(k, q).conj()
    assert z.imag.is_neg()
    assert torch.equal(mechanism(z.imag, k, v, mask=CAUSAL), mechanism(-q, k, v, mask=CAUSAL))


# ------------------------------------------------------------------------------------------ where it must not be called
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_what_is_recorded_is_no_kernel(calls):
    from torch.fx.experimental.proxy_tensor import make_fx  # takes half a second

    mechanism, (q, k, v) = build("leap", DIM, HEADS).requires_grad_(False), qkv()

    def run(x):
        return mechanism(x, k, v, mask=CAUSAL)

    traced = [torch.jit.trace(run, q, check_trace=False), make_fx(run)(q)]
    assert calls == []
    for other in traced:
        assert torch.allclose(other(2 * q + 1), run(2 * q + 1), atol=1e-6)


@torch.no_grad()
def test_tensors_without_numbers(calls):
    mechanism = build("leap", DIM, HEADS)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert mechanism(*qkv(), mask=CAUSAL).shape == (2, HEADS, 20, DIM)
    assert calls == []


@pytest.mark.parametrize("name", ["leap", "gated-leap"])
def test_transformed(name, calls):
    """By torch.func, and by forward-mode differentiation: both are no kernel's, and agree with the backward pass."""
    mechanism, (q, k, v) = build(name, DIM, HEADS).double(), qkv(dtype=torch.float64)
    tokens = replace(TokenInfo.whole(20), inputs=torch.randn(2, 20, WIDTH, dtype=torch.float64))

    def run(x):
        return mechanism(x, k, v, mask=CAUSAL, query=tokens, key=tokens)

    by_func = torch.func.grad(lambda x: run(x).square().sum())(q)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(run(forward_ad.make_dual(q, q.sin()))).tangent
    assert calls == []
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(run(leaf).square().sum(), leaf)
    assert calls == [False, True]
    assert torch.allclose(by_func, expected)
    assert torch.allclose((2 * run(q) * tangent).sum(), (expected * q.sin()).sum())


@pytest.mark.full
def test_compiled(calls):
    mechanism, inputs = build("leap", DIM, HEADS), qkv()
    expected = mechanism(*inputs, mask=CAUSAL)
    calls.clear()
    assert torch.allclose(torch.compile(mechanism)(*inputs, mask=CAUSAL), expected, atol=1e-6)
    assert calls == []


# ------------------------------------------------------------------------------------------------- as autograd calls it
def test_second_derivatives_are_refused():
    mechanism, (q, k, v) = build("leap", DIM, HEADS), qkv()
    (gradient,) = torch.autograd.grad(mechanism(q.requires_grad_(), k, v).square().sum(), q, create_graph=True)
    with pytest.raises(LeapformerError) as refused:
        torch.autograd.grad(gradient.sum(), q)
    assert "\n" not in str(refused.value)


def test_a_graph_that_is_kept_gives_the_same_gradients_again(calls):
    mechanism, (q, k, v) = build("gated-leap", DIM, HEADS), qkv()
    out = mechanism(q.requires_grad_(), k, v, mask=CAUSAL)
    first, second = (torch.autograd.grad(out.sum(), q, retain_graph=True)[0] for _ in range(2))
    with cpu.turned_off():  # since the forward pass
        (third,) = torch.autograd.grad(out.sum(), q)
    assert torch.equal(first, second) and torch.equal(first, third) and calls == [False, True, True, True]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(reentrant, calls):
    mechanism, inputs = build("leap", DIM, HEADS), qkv()
    leaves = [x.requires_grad_() for x in inputs]
    expected = torch.autograd.grad(mechanism(*leaves).sum(), leaves)
    calls.clear()
    checkpoint(mechanism, *leaves, use_reentrant=reentrant).sum().backward()
    assert calls == [False, False, True]
    assert all(torch.equal(x.grad, y) for x, y in zip(leaves, expected, strict=True))


@pytest.mark.parametrize("count", [9, 150])
def test_lengths_have_gradients(count):
    """Those of a predictor, through the angles of cosFormer."""
    mechanism, (q, k, v) = build("cosformer", DIM, HEADS, block="encoder-self"), qkv(count)
    lengths = torch.tensor([count + 1.0, count + 2.5], requires_grad=True)
    tokens = TokenInfo.whole(count).of_length(lengths)

    def run() -> Tensor:
        return torch.autograd.grad(mechanism(q, k, v, query=tokens, key=tokens).square().sum(), lengths)[0]

    got, expected = both(run)
    assert expected.all() and torch.allclose(got, expected, rtol=1e-3)


def test_an_input_that_changes_before_the_backward_pass_is_an_error():
    mechanism, (q, k, v) = build("leap", DIM, HEADS), qkv()
    out = mechanism(q.requires_grad_(), k, v)
    k += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["leap", "gated-leap", "delta"])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(name, dtype, autocast, calls):
    """Inputs may be rounded, sums are not; gradients come in the precision of their inputs."""
    mechanism, inputs = build(name, DIM, HEADS), [x.to(dtype) for x in qkv(70)]
    mechanism = mechanism if autocast else mechanism.to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = run_with_gradients(mechanism, inputs)
    assert calls == [False, True] and got[0].dtype == dtype and got[1].dtype == dtype
    expected = run_with_gradients(mechanism.float(), [x.float() for x in inputs])
    share = torch.finfo(torch.bfloat16 if autocast else dtype).eps * 4 + 1e-6
    for a, b in zip(got, expected, strict=True):
        assert float((a.float() - b).abs().max()) <= share * float(b.abs().max().clamp_min(1))


def test_eight_threads_at_once():
    mechanism, inputs = build("leap", DIM, HEADS), [qkv(150) for _ in range(8)]
    expected = [run_with_gradients(mechanism, one)[:4] for one in inputs]

    def run(one: tuple[Tensor, ...]) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in one]
        out = mechanism(*leaves, mask=CAUSAL)
        ends = (out * torch.linspace(-1, 1, out.shape[2])[:, None]).sum()
        return [out.detach(), *torch.autograd.grad(ends, leaves)]

    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for got, wanted in zip(pool.map(run, inputs), expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


# ------------------------------------------------------------------------------------------------- as it is compiled
CHECKS = "address,undefined,float-cast-overflow"
X86 = platform.machine() == "x86_64"
SANITIZERS = ("-g", "-O1", "-march=native", f"-fsanitize={CHECKS}", "-fno-sanitize-recover=undefined")
# What the sanitizers do not see by themselves: a buffer of the arena that is left, and one that is used before it is
# filled. Between buffers comes memory that must not be touched, and all of them begin with NaN.
HARDENED = {
    "    w->used += padded(numbers);\n": """
    w->used += padded(numbers) + 64 / (int64_t)sizeof(REAL);
    if (w->arena) __asan_poison_memory_region(w->arena + w->used - 64 / (int64_t)sizeof(REAL), 64);
""",
    "    if (!w->failed) lay_out(w);\n": """
    if (!w->failed) memset(w->arena, 255, w->used * sizeof(REAL)), lay_out(w);
""",
}


def test_the_compiler_has_no_warnings():
    command = [COMPILER, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-std=gnu99", *cpu.SOURCES]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache without libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpu._loaded.cache_clear()
    yield tmp_path
    cpu._loaded.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize(
    "flags", ["-O3 -march=haswell", "-O3 -march=x86-64", "-O0 -march=native", "-O2 -march=native -fno-tree-vectorize"]
)
def test_compiled_otherwise(flags, fresh, monkeypatch):
    """With vectors of 32 and of 16 bytes, and without optimization."""
    if "native" not in flags and not X86:
        pytest.skip("these are processors of another kind")
    kept = [flag for flag in cpu.FLAGS if not flag.startswith(("-O", "-march"))]
    monkeypatch.setattr(cpu, "FLAGS", ("-Wall", "-Wextra", "-Werror", "-Wno-psabi", *flags.split(), *kept))
    assert cpu.load() is not None
    for seed in range(400):
        check(drawn(seed, 130), seed)


@pytest.mark.full
def test_sanitizers_find_nothing(tmp_path):
    """Of addresses and of undefined behaviour, in another process, into which their libraries are loaded first."""
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    done = subprocess.run([COMPILER, *SANITIZERS, probe, "-o", tmp_path / "probe"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the compiler has no sanitizers: {done.stderr.partition(chr(10))[0]}")
    find = [COMPILER, "-print-file-name=libasan.so"]
    library = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
    body = "void __asan_poison_memory_region(void const volatile *, unsigned long);\n"
    body += (cpu.FOLDER / "scan.c").read_text()
    for old, new in HARDENED.items():
        assert body.count(old) == 1, "the arena has changed: adapt HARDENED"
        body = body.replace(old, new)
    (tmp_path / "scan.c").write_text(body)
    (tmp_path / "scan_double.c").write_text((cpu.FOLDER / "scan_double.c").read_text())
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(PLUGIN_DIR.parent),
    }
    program = f"from {__name__} import sanitized; sanitized()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=PLUGIN_DIR.parent)
    assert done.returncode == 0 and "nothing found" in done.stdout, done.stdout[-500:] + done.stderr[:4000]


def sanitized(count: int = 300) -> None:
    """What runs in the process with the sanitizers."""
    folder = Path(os.environ["XDG_CACHE_HOME"])
    cpu.FLAGS = (*SANITIZERS, "-shared", "-fPIC", "-std=gnu99", "-pthread")
    own = ("scan.c", "scan_double.c")
    cpu.SOURCES = (*(x for x in cpu.SOURCES if x.name not in own), *(folder / name for name in own))
    assert cpu.load() is not None
    for seed in range(count):
        check(drawn(seed, 1100 if seed % 20 == 0 else 130), seed)
    for name, number, dtype in itertools.product(MAPS, NUMBERS, (torch.float32, torch.float64)):
        test_extreme_numbers_in_live_tokens(name, number, dtype)
    print("nothing found")
