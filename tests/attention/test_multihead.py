"""`Attention` and `Cache`: steps, prompts, sessions, shapes, and what PyTorch does with a layer."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leapformer_fairseq.attention import (
    CAUSAL,
    MECHANISMS,
    Attention,
    Cache,
    ChunkMask,
    Mask,
    PrefixMask,
    State,
    TokenInfo,
    build,
)
from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import each_with_one, kept
from ..forks import apart

DIM, HEADS, T, S, SOURCE = 32, 4, 12, 20, 16
OPTIONS: dict[str, dict[str, Any]] = {
    "cosformer": {"cosformer_length": 400},  # of the longest text here
    "abc-pool": {"abc_pool_size": 40},
    "sparsefinder-distance": {},
}
FEATURES = ({}, {"kv_heads": 2}, {"rotary": 10_000.0, "normalise": True})


def made(name: str, block: str, **more: Any) -> Attention | None:
    """A layer in float64; None if the mechanism is not supported there."""
    try:
        attention = Attention(name, DIM, HEADS, block=block, **OPTIONS.get(name, {}), **more)
    except LeapformerError:
        return None
    return attention.double().eval()


def supported(block: str) -> list[str]:
    return [name for name in sorted(MECHANISMS) if made(name, block) is not None]


DECODERS, CROSSING, ENCODERS = (supported(block) for block in ("decoder-self", "decoder-cross", "encoder-self"))
BLOCKS = {"decoder-self": DECODERS, "encoder-self": ENCODERS, "decoder-cross": CROSSING}


class Model(nn.Module):
    """Two layers of self-attention."""

    def __init__(self, name: str, **more: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(made(name, "decoder-self", **more) for _ in range(2))

    def forward(self, x: Tensor, keep: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, keep=keep, cache=cache)
        return x


def padding(*padded: int) -> Tensor:
    """A keep mask (B, T) with so many padded tokens on the left of each sequence."""
    return torch.arange(T) >= torch.tensor(padded).unsqueeze(1)


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())


def test_there_is_a_layer_of_most_mechanisms():
    assert len(DECODERS) >= 28 and len(CROSSING) >= 24 and len(ENCODERS) >= 36


# ------------------------------------------------------------------------------------ generation
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "-".join(features) or "plain")
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_a_prompt_and_steps_are_the_whole_sequence(name, features):
    model = Model(name, **features)
    x, keep = torch.randn(3, T, DIM).double(), padding(0, 3, 5)
    whole, cache = model(x), Cache(model)
    parts = [model(x[:, :5], cache=cache), *(model(x[:, t : t + 1], cache=cache) for t in range(5, T))]
    assert far(torch.cat(parts, 1), whole) < 1e-10

    whole, cache = model(x, keep), Cache(model)
    parts = [model(x[:, :7], keep[:, :7], cache), *(model(x[:, t : t + 1], cache=cache) for t in range(7, T))]
    assert far(torch.cat(parts, 1)[keep], whole[keep]) < 1e-10
    assert far(whole[2, 5:], model(x[2:, 5:])[0]) < 1e-10, "padding on the left shifts nothing"
    if name not in ("abc-dilated", "abc-window", "entmax-window"):
        assert far(whole[2, 5:], model(x[2:])[0, 5:]) > 1e-6, "what the padding holds would be seen"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@torch.no_grad()
def test_a_copy_of_a_model_and_its_cache_goes_on(copied):
    model, x = Model("leap"), torch.randn(2, 6, DIM).double()
    cache = Cache(model)
    model(x[:, :5], cache=cache)
    other, of_other = copied((model, cache))
    assert torch.equal(other(x[:, 5:], cache=of_other), model(x[:, 5:], cache=cache))
    with pytest.raises(LeapformerError, match="not a layer of the cache's model"):
        model(x[:, 5:], cache=of_other)


@pytest.mark.parametrize("features", FEATURES[:2], ids=lambda features: "-".join(features) or "plain")
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_sessions_join_leave_and_are_restored(name, features):
    model, x = Model(name, **features), torch.randn(3, T, DIM).double()
    alone = [model(x[:1])[0], model(x[1:2, 3:])[0]]
    short, long = Cache(model), Cache(model)
    model(x[:1, :4], cache=short)
    model(x[1:2, 3:10], cache=long)
    both = Cache.cat([short, long])
    assert both.batch_size == 2
    out = model(torch.cat([x[:1, 4:5], x[1:2, 10:11]]), cache=both)
    assert far(out[0, 0], alone[0][4]) < 1e-10 and far(out[1, 0], alone[1][7]) < 1e-10
    rest = both.select([1])
    again = Cache(model).load({key: tensor.clone() for key, tensor in rest.tensors().items()})
    forked = rest.fork()
    expected = alone[1][8]
    for cache in (rest, again.to("cpu"), forked):
        assert far(model(x[1:2, 11:12], cache=cache)[0, 0], expected) < 1e-10


MODES = (torch.inference_mode, torch.no_grad, torch.enable_grad)


STEPS = [
    *((name, "decoder-self", {}) for name in DECODERS),
    *((name, "decoder-cross", {}) for name in CROSSING),
    ("kda", "decoder-self", {"short_conv": 4}),
    ("leap", "decoder-self", {"rotary": 10_000.0}),
]


@pytest.mark.parametrize(("case", "first"), each_with_one(STEPS, MODES), ids=str)
def test_a_cache_serves_whatever_the_mode_of_gradients(case, first):
    """What a cache keeps in inference mode cannot be changed in place in another mode, nor take part in gradients."""
    name, block, more = case
    attention, x = made(name, block, **more), torch.randn(2, T, DIM).double()
    mask = PrefixMask(2, 1) if block == "decoder-cross" else "block"
    if mask != "block" and attention.mechanism.capabilities.unsupported_reason(block, mask):
        mask = None
    source = {} if block == "decoder-self" else {"source": torch.randn(2, S, DIM).double()}
    with torch.no_grad():
        whole = attention(x, **source, mask=mask)
    start, (second, third) = 0, (mode for mode in MODES if mode is not first)
    cache, parts = Cache(attention), []
    for count, mode in zip((3, 1, 2, 1, 1, 1), (first, second, third, first, third, second), strict=True):
        with mode():
            parts.append(attention(x[:, start : start + count], **source, mask=mask, cache=cache).detach())
            cache = cache.select([0, 1])
        start += count
    assert far(torch.cat(parts, 1), whole[:, :start]) < 1e-10


@pytest.mark.parametrize("mask", [None, PrefixMask(2, 3)], ids=["all", "wait-k"])
@pytest.mark.parametrize("name", CROSSING)
@torch.no_grad()
def test_steps_of_cross_attention_are_the_whole_target(name, mask):
    attention = made(name, "decoder-cross", source_dim=SOURCE, kv_heads=2)
    if attention is None or attention.mechanism.capabilities.unsupported_reason("decoder-cross", mask):
        pytest.skip("not supported")
    x, source, keep = torch.randn(3, 6, DIM).double(), torch.randn(3, S, SOURCE).double(), torch.ones(3, S).bool()
    keep[1, 15:] = False
    whole = attention(x, source, mask=mask, keep=keep)

    def call(start: int, stop: int, cache: Cache) -> Tensor:
        return attention(x[:, start:stop], source, mask=mask, keep=keep, cache=cache)

    cache = Cache(attention)
    assert far(torch.cat([call(t, t + 1, cache) for t in range(6)], 1), whole) < 1e-10
    cache = Cache(attention)
    assert far(torch.cat([call(0, 4, cache), call(4, 6, cache)], 1), whole) < 1e-10
    assert far(whole[1], attention(x[1:2], source[1:2, :15], mask=mask)[0]) < 1e-10 or name == "cosformer"


@pytest.mark.parametrize("name", CROSSING)
@torch.no_grad()
def test_targets_padded_on_the_left_are_those_without_padding(name):
    """Their positions, which `rope` reads, begin at the first real token; also in parts."""
    attention = made(name, "decoder-cross")
    x, source = torch.randn(2, 6, DIM).double(), torch.randn(2, S, DIM).double()
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    whole, (alone, weights) = attention(x, source, target_keep=keep), attention(x[1:, 2:], source[1:], weights=True)
    assert far(whole[1, 2:], alone[0]) < 1e-10 and far(whole[0], attention(x[:1], source[:1])[0]) < 1e-10
    cache = Cache(attention)
    out, parts = attention(x[:, :4], source, target_keep=keep[:, :4], cache=cache, weights=True)
    steps = [attention(x[:, t : t + 1], source, cache=cache) for t in (4, 5)]
    assert far(torch.cat([out, *steps], 1)[keep], whole[keep]) < 1e-10
    assert far(parts[1, :, 2:], weights[0, :, :2]) < 1e-10


@pytest.mark.parametrize("name", ["leap", "rope", "softmax"])
@torch.no_grad()
def test_under_wait_k_targets_are_padded_on_the_right(name):
    attention, mask, keep = made(name, "decoder-cross"), PrefixMask(2, 1), torch.ones(2, 6).bool()
    x, source = torch.randn(2, 6, DIM).double(), torch.randn(2, S, DIM).double()
    keep[1, 4:] = False
    out = attention(x, source, mask=mask, target_keep=keep)
    assert far(out[1, :4], attention(x[1:, :4], source[1:], mask=mask)[0]) < 1e-10
    with pytest.raises(LeapformerError, match="target_keep has padding before real tokens, .* counts columns; pad on"):
        attention(x, source, mask=mask, target_keep=keep.flip(1))
    with pytest.raises(LeapformerError, match="target_keep has padding, .* under wait-k"):
        attention(x, source, mask=mask, target_keep=keep, cache=Cache(attention))
    all_real = attention(x, source, mask=mask, target_keep=keep | True, cache=Cache(attention))
    assert far(all_real, attention(x, source, mask=mask)) < 1e-10


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_encoders_see_all_real_tokens_and_no_padding(name):
    attention, x = made(name, "encoder-self"), torch.randn(2, T, DIM).double()
    keep = torch.arange(T) < torch.tensor([[T], [8]])
    torch.manual_seed(3)
    out = attention(x, keep=keep)
    torch.manual_seed(3)
    if name != "skyformer":  # samples tokens
        assert far(out[1, :8], attention(x[1:, :8])[0]) < 1e-9


STREAMS = (CAUSAL, ChunkMask(1), ChunkMask(4), ChunkMask(3, 1), ChunkMask(1, past=2), ChunkMask(2, 1, past=3))


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_a_stream_in_parts_is_the_whole_or_refused(name):
    """One chunk at a time, and several; the last may be shorter. Later calls leave the mask out."""
    attention, x = made(name, "encoder-self"), torch.randn(2, 13, DIM).double()
    for mask in STREAMS:
        count = getattr(mask, "tokens", 1)
        for first, more in ((count, count), (3 * count, 2 * count)):
            cache = Cache(attention)
            try:
                parts = [attention(x[:, :first], mask=mask, cache=cache)]
            except LeapformerError:
                continue
            parts += [attention(x[:, t : t + more], cache=cache) for t in range(first, 13, more)]
            assert far(torch.cat(parts, 1), attention(x, mask=mask)) < 1e-10, mask


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_an_encoder_sees_no_later_token_under_a_mask(name):
    attention, x = made(name, "encoder-self"), torch.randn(2, T, DIM).double()
    other = torch.cat([x[:, :8], x[:, 8:] + 1], 1)
    for mask in (CAUSAL, ChunkMask(4)):
        if attention.mechanism.capabilities.unsupported_reason("encoder-self", mask) is None:
            assert far(attention(x, mask=mask)[:, :8], attention(other, mask=mask)[:, :8]) < 1e-10
        else:
            with pytest.raises(LeapformerError, match=f"{name} attention cannot be used like this"):
                attention(x, mask=mask)


@torch.no_grad()
def begun(mask: Mask, count: int = 4, attention: Any = None) -> tuple[Attention, Tensor, Cache]:
    """A streaming encoder, three streams, and a cache that has read the first tokens."""
    attention = made("leap", "encoder-self") if attention is None else attention
    x, cache = torch.randn(3, T, DIM).double(), Cache(attention)
    attention(x[:, :count], mask=mask, cache=cache)
    return attention, x, cache


@torch.no_grad()
def test_a_cache_keeps_the_mask_that_it_was_begun_with():
    """Also a copy, one of some sequences, of several caches, and one that was saved."""
    for mask in (ChunkMask(4), ChunkMask(2, 2), ChunkMask(4, past=9), CAUSAL):
        attention, x, cache = begun(mask)
        whole, tensors = attention(x, mask=mask), cache.tensors()
        copies = [cache.fork(), cache.select([0, 1, 2]), Cache(attention).load(tensors), cache.to("cpu")]
        joined = Cache.cat([cache.select([0]), cache.select([1, 2])])
        for each in (*copies, joined, cache):
            assert far(attention(x[:, 4:8], cache=each), whole[:, 4:8]) < 1e-10
            assert far(attention(x[:, 8:], mask=mask, cache=each), whole[:, 8:]) < 1e-10


@torch.no_grad()
def test_under_wait_k_a_cache_keeps_its_mask():
    attention, x, source = (made("leap", "decoder-cross"), *(torch.randn(2, T, DIM).double() for _ in range(2)))
    whole, cache = attention(x, source, mask=PrefixMask(2, 1)), Cache(attention)
    attention(x[:, :3], source, mask=PrefixMask(2, 1), cache=cache)
    for mask in (None, PrefixMask(3, 1)):
        with pytest.raises(LeapformerError, match=r"mask=.*: the cache was begun with mask=PrefixMask\(lagging=2, rat"):
            attention(x[:, 3:], source, mask=mask, cache=cache)
    assert far(attention(x[:, 3:], source, cache=cache), whole[:, 3:]) < 1e-10


@torch.no_grad()
def test_streams_that_pause_for_whole_chunks_go_on_and_those_that_ended_inside_one_do_not():
    attention, x, cache = begun(ChunkMask(4))
    paused, real = torch.ones(3, 4).bool(), torch.ones(3, 4).bool()
    paused[1] = False
    attention(x[:, 4:8], keep=paused, cache=cache)
    further = attention(x[:, 4:8], cache=cache)
    assert far(further[1], attention(x[1:2, :8], mask=ChunkMask(4))[0, 4:]) < 1e-10
    real[2, 3:] = False
    attention(x[:, 8:], keep=real, cache=cache)
    for keep in (None, paused):
        with pytest.raises(LeapformerError, match="sequence 2 of the cache ended inside a chunk of 4"):
            attention(x[:, :4], keep=keep, cache=cache)
    over = real.clone()
    over[2] = False
    attention(x[:, :4], keep=over, cache=cache)
    attention(x[:2, :4], cache=cache.select([0, 1]))


@torch.no_grad()
def test_a_call_that_failed_leaves_nothing_to_join_or_save():
    attention, x = made("leap", "encoder-self"), torch.randn(2, T, DIM).double()
    cache = Cache(attention)
    with pytest.raises(LeapformerError, match="give the first call mask=ChunkMask"):
        attention(x, cache=cache)
    assert cache.tensors() == {}
    with pytest.raises(LeapformerError, match="before its first token"):
        Cache.cat([cache, cache])
    attention(x[:, :4], mask=ChunkMask(4), cache=cache)


@torch.no_grad()
def test_positions_go_on_where_the_cache_stopped():
    model, x, keep = Model("leap"), torch.randn(2, T, DIM).double(), padding(0, 3)[:2]
    cache, whole = Cache(model), TokenInfo.whole(T, keep).positions
    for start, stop in ((0, 7), (7, 8), (8, T)):
        part = keep[:, start:stop] if start < 7 else None
        assert torch.equal(cache.positions(stop - start, part).expand(2, -1), whole[:, start:stop])
        model(x[:, start:stop], part, cache)
    assert cache.select([1]).positions(2).tolist() == [[T - 2, T - 1]]
    assert Cache(model).load(cache.tensors()).positions(1).tolist() == [[T + 1], [T - 2]]


@torch.no_grad()
def test_sequences_one_after_another():
    attention, x = made("leap", "decoder-self"), torch.randn(9, DIM).double()
    out = attention(x, cu_seqlens=torch.tensor([0, 4, 9]))
    assert far(out, torch.cat([attention(x[None, :4])[0], attention(x[None, 4:])[0]])) < 1e-12
    for places in ([0, 4, 4, 9], [0, 0, 4, 9, 9]):  # some may have no tokens
        assert far(out, attention(x, cu_seqlens=torch.tensor(places, dtype=torch.int32))) < 1e-12


@torch.no_grad()
def test_saved_and_moved_caches_are_copies():
    for name in ("leap", "gated-delta", "softmax"):
        model, x = Model(name), torch.randn(1, T, DIM).double()
        cache = Cache(model)
        model(x[:, :5], cache=cache)
        saved = cache.tensors()
        copies = [Cache(model).load(saved), Cache(model).load(saved), cache.to("cpu"), cache]
        outs = [model(x[:, 5:6], cache=copy) for copy in copies]
        assert all(torch.equal(out, outs[0]) for out in outs), name


@pytest.mark.parametrize("device", ["cpu", "meta"])
@torch.no_grad()
def test_a_moved_cache_is_copied_once(device, monkeypatch):
    for name in ("leap", "softmax"):
        model, x = Model(name), torch.randn(2, T, DIM).double()
        cache = Cache(model)
        model(x, cache=cache)
        monkeypatch.setattr(State, "fork", lambda state: pytest.fail("a copy before the one that moves"))
        moved = cache.to(device)._memories["layers.0"].state
        monkeypatch.undo()
        assert next(iter(moved.tensors().values())).device.type == device


@torch.no_grad()
def test_the_cache_of_a_linear_mechanism_does_not_grow():
    sizes = {}
    for name in ("leap", "softmax"):
        model, x = Model(name), torch.randn(1, 200, DIM).double()
        cache = Cache(model)
        sizes[name] = [(model(x[:, t : t + 50], cache=cache), cache.nbytes())[1] for t in range(0, 200, 50)]
    assert len(set(sizes["leap"])) == 1 and sizes["softmax"][-1] > 3 * sizes["softmax"][0]


# ------------------------------------------------------------------------------------ the layer
def test_softmax_is_multi_head_attention():
    attention, x = made("softmax", "decoder-self"), torch.randn(2, T, DIM).double()
    q, k, v = (F.linear(x, p.weight, p.bias).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in projections(attention))
    expected = attention.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    assert far(attention(x), expected) < 1e-12


def projections(attention: Attention) -> tuple[nn.Linear, ...]:
    return attention.q_proj, attention.k_proj, attention.v_proj


@pytest.mark.parametrize("name", ["leap", "gated-leap", "gated-delta", "kda", "abc-mlp", "softmax", "retention"])
def test_outputs_and_gradients_are_those_of_the_mechanism_by_all_pairs(name):
    attention, keep = made(name, "decoder-self", rotary=100.0), padding(0, 2)
    results = []
    for execution in ("auto", "reference"):
        attention.execution = lambda execution=execution: execution
        x = torch.randn(2, T, DIM, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
        out = attention(x, keep=keep)
        parameters = [p for p in attention.parameters() if p.requires_grad]
        results.append([out[keep], *torch.autograd.grad(out[keep].square().sum(), [x, *parameters])])
    assert max(far(a, b) for a, b in zip(*results, strict=True)) < 1e-9


def test_grouped_heads_are_repeated_heads():
    grouped, whole = made("leap", "decoder-self", kv_heads=2), made("leap", "decoder-self")
    state = grouped.state_dict()
    for name in ("k_proj", "v_proj"):
        for part in ("weight", "bias"):
            x = state[f"{name}.{part}"].unflatten(0, (2, -1))
            state[f"{name}.{part}"] = x.repeat_interleave(2, 0).flatten(0, 1)
    whole.load_state_dict(state)
    x = torch.randn(2, T, DIM).double()
    assert far(grouped(x), whole(x)) < 1e-12


def test_rotary_scores_depend_on_distances_alone():
    attention, x = made("softmax", "decoder-self", rotary=100.0, normalise=True), torch.randn(1, 1, DIM).double()
    weights = attention(x.expand(1, T, DIM), weights=True)[1][0]
    ratios = weights / weights.diagonal(dim1=1, dim2=2).unsqueeze(2)
    for lag in range(1, 6):
        each = ratios.diagonal(-lag, 1, 2)
        assert far(each, each[:, :1].expand_as(each)) < 1e-12
    assert far(ratios[:, -1, :-1], torch.ones(HEADS, T - 1).double()) > 1e-3


def test_weights_are_those_of_the_output():
    attention, x = made("leap", "decoder-self"), torch.randn(2, T, DIM).double()
    out, weights = attention(x, weights=True)
    v = attention._heads(attention.v_proj(x))
    assert far(out, attention.project_out(weights @ v)) < 1e-12


@torch.no_grad()
def test_no_step_is_prepared_from_projections_that_are_not_all():
    for features, fused in ((FEATURES[0], True), *((features, False) for features in FEATURES[1:])):
        assert (made("leap", "decoder-self", **features).decoding_step() is not None) == fused


# ------------------------------------------------------------------------------------ what is wrong is told
def wrong_calls() -> list[Any]:
    q = torch.randn(2, HEADS, T, 8)
    x, source = torch.randn(2, T, DIM), torch.randn(2, S, SOURCE)
    leap, gated = build("leap", 8, HEADS), build("gated-delta", 8, HEADS)
    inputs = TokenInfo(*vars(TokenInfo.whole(T)).values())
    cross = Attention("leap", DIM, HEADS, block="decoder-cross", source_dim=SOURCE)
    decoder = Attention("leap", DIM, HEADS)
    encoder, cosformer = (Attention(name, DIM, HEADS, block="encoder-self") for name in ("leap", "cosformer"))

    ended, x6 = begun(ChunkMask(4), 6), torch.randn(3, 6, DIM).double()
    few, gated_leap = Attention("leap", DIM, 2), Attention("gated-leap", DIM, HEADS)

    @torch.no_grad()
    def read(layer: Attention, *inputs: Tensor) -> Cache:
        cache = Cache(layer)
        layer(*inputs, cache=cache)
        return cache

    def cut(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: x[..., :-1] if name.endswith("kv") else x for name, x in tensors.items()}

    def without_numbers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: x for name, x in tensors.items() if not name.endswith("queries")}

    def of_inputs(width: int) -> TokenInfo:
        return TokenInfo(inputs.positions, inputs.lengths, inputs=torch.randn(2, T, width))

    return [
        (lambda: leap(q, q, q, mask="causal"), "mask is a str; give CAUSAL"),
        (lambda: leap(q, q, q, mask=torch.ones(T, T).tril().bool()), "mask is a Tensor; give CAUSAL"),
        (lambda: leap(q, q, q, key=torch.ones(2, T).bool()), "key is a Tensor; give TokenInfo.whole"),
        (lambda: leap(q[0], q[0], q[0]), r"q is \(4, 12, 8\); leap was built for \(batch, 4 heads, tokens, 8\)"),
        (lambda: leap(q, q[:, :2], q), r"k is \(2, 2, 12, 8\); .* 4 heads"),
        (lambda: leap(q, q[..., :4], q), r"k is \(2, 4, 12, 4\); .* 8\)"),
        (lambda: leap(q, q[:1], q[:1]), "with a batch of 2 as in q"),
        (lambda: leap(q, q, q[:, :, :5]), "12 keys and 5 values"),
        (lambda: leap(q, q, q, key=TokenInfo.whole(5)), "key describes 5 tokens and there are 12"),
        (lambda: leap(q, q, q, key=TokenInfo.whole(T, torch.ones(2, 1, 1, T).bool())), "keep is torch.bool"),
        (lambda: gated(q, q, q, mask=CAUSAL), "the block's input, which this mechanism reads, is missing"),
        (lambda: gated(q, q, q[..., :4], mask=CAUSAL, key=of_inputs(DIM)), r"v is \(2, 4, 12, 4\); gated-delta"),
        (lambda: gated(q, q, q, mask=CAUSAL, key=of_inputs(7)), "inputs of keys are 7 wide.* input_dim=7"),
        (lambda: build("gla", 8, HEADS, gate_init="shut"), "gate_init 'shut': choose from"),
        (lambda: build("cosformer", 8, HEADS, cosformer_step=-1), "cosformer_step -1"),
        (lambda: Attention("cosformer", DIM, HEADS), "needs the target's length.* cosformer_length"),
        (lambda: Attention("leap", 30, 4), "dim=30 is no multiple of 4 heads"),
        (lambda: Attention("leap", DIM, 4, kv_heads=3), "kv_heads=3 does not divide heads=4; choose from: 1, 2, 4"),
        (lambda: Attention("leap", DIM, 4, head_dim=8), "built without head_dim; heads are dim / heads wide"),
        (lambda: Attention("leap", embed_dim=DIM, num_heads=4), "built without embed_dim; give dim"),
        (lambda: Attention("leap", DIM, num_heads=4), "built without num_heads; give heads"),
        (lambda: Attention("leap", DIM, 4, causal=True), "built without causal; a decoder-self block is causal"),
        (lambda: Attention("leap", DIM, 4, batch_first=True), "built without batch_first; leave it out"),
        (lambda: Attention("leap", DIM, 4, device="cpu"), "built without device; build it, then call .to"),
        (lambda: Attention("leap", DIM, 4, vdim=3), "built without vdim; give source_dim"),
        (lambda: Attention("leap", DIM, 4, source_dim=3), "decoder-self attention has no source"),
        (lambda: Attention("leap", DIM, 4, block="decoder"), "block 'decoder' is unknown"),
        (lambda: Attention("luna", DIM, 4), "cannot be used as decoder-self"),
        (lambda: Attention("softmax", 12, 4, rotary=100.0), "rotary=100.0 .* an even width"),
        (lambda: decoder(x, mask=None), "must not see later tokens"),
        (lambda: decoder(x, mask=PrefixMask(2, 1)), "must not see later tokens"),
        (lambda: decoder(x, mask="causal"), "mask is a str; give CAUSAL"),
        (lambda: encoder(x, mask=PrefixMask(3, 8)), "none of encoder-self attention; give a ChunkMask"),
        (lambda: encoder(x, cache=Cache(encoder)), "cannot read a sequence in parts: every token sees all others"),
        (lambda: cosformer(x, mask=ChunkMask(4), cache=Cache(cosformer)), "depends on the whole sequence"),
        (lambda: cross(x, source, mask=ChunkMask(4)), "none of decoder-cross attention; give a PrefixMask"),
        (lambda: decoder(x, x), "has no source"),
        (lambda: cross(x), "needs a source"),
        (lambda: cross(x, source[..., :5]), r"source is \(2, 20, 5\); give \(batch 2, tokens, width 16\)"),
        (lambda: decoder(x[0]), r"x is \(12, 32\); give \(batch, tokens, 32\), as by x.unsqueeze\(0\)"),
        (lambda: decoder(x.sum()), r"x is \(\); give \(batch, tokens, 32\)"),
        (lambda: decoder(x, keep=torch.ones(2, T)), "keep is torch.float32"),
        (lambda: decoder(x[0], cu_seqlens=torch.tensor([0, 5])), r"cu_seqlens \[0, 5\] .* from 0 to 12"),
        (lambda: decoder(x[0], cu_seqlens=torch.tensor([0, 7, 5, 12])), r"\[0, 7, 5, 12\] .* do not decrease"),
        (lambda: decoder(x[0], cu_seqlens=torch.tensor([1, 12])), r"cu_seqlens \[1, 12\] .* from 0 to 12"),
        (lambda: decoder(x[0], cu_seqlens=torch.tensor([0.0, 12.0])), r"torch.float32, \(2,\)\): give whole numbers"),
        (lambda: decoder(x[0], cu_seqlens=torch.tensor([0])), r"\(1,\)\): give whole numbers"),
        (lambda: decoder(x, cu_seqlens=torch.tensor([0, 12])), r"cu_seqlens with x \(2, 12, 32\): give \(N, 32\)"),
        (lambda: decoder(x, cache=Cache(cross)), "not a layer of the cache's model"),
        (lambda: decoder(x, cache=Cache(decoder), weights=True), "call without the cache"),
        (lambda: Cache(nn.Linear(2, 2)), "Linear has no Attention layers"),
        (lambda: Cache(decoder).select([0]), "the cache's sequences"),
        (lambda: read(decoder, x).select(torch.tensor([True, False])), r"mask.nonzero\(\).flatten\(\)"),
        (lambda: read(decoder, x).select([0.5]), "give at least one whole number"),
        (lambda: read(decoder, x).select([]), "give at least one whole number"),
        (lambda: Cache(decoder).load({"layer/queries": torch.tensor(1)}), "no layer 'layer'"),
        (lambda: Cache(decoder).load({"/queries": torch.tensor(1)}), "is damaged or of another layer than leap"),
        (lambda: Cache(decoder).load({}), "nothing of layer ''"),
        (lambda: Cache(decoder).load(read(few, x).tensors()), "is damaged or of another layer than leap"),
        (lambda: Cache(decoder).load(read(gated_leap, x).tensors()), "is damaged or of another layer than leap"),
        (lambda: Cache(decoder).load(cut(read(decoder, x).tensors())), "is damaged or of another layer than leap"),
        (lambda: Cache.cat([]), "give a list of caches, at least one"),
        (lambda: Cache.cat([read(decoder, x), read(few, x)]), "caches of different models"),
        (lambda: Cache.cat([read(decoder, x), Cache(decoder)]), "before its first token"),
        (lambda: decoder(x[:1, :1], cache=read(decoder, x)), "holds 2 sequences and x 1"),
        (lambda: cross(x[:, :1], source[:, :9], cache=read(cross, x, source)), "20 tokens and this one has 9"),
        (lambda: decoder(x, cache={}), "cache is a dict; give Cache"),
        (lambda: decoder(x.double()), "x is torch.float64 on cpu, and the layer torch.float32"),
        (lambda: decoder(x.to("meta")), "x is torch.float32 on meta, and the layer torch.float32 on cpu"),
        (lambda: decoder([1.0]), "x is a list; give a tensor"),
        (lambda: encoder(x, mask=ChunkMask(2), keep=padding(0, 3)), "padding before real tokens"),
        (lambda: Attention("leap", DIM, 4, block=None), "block None is unknown; choose from"),
        (lambda: decoder(x, target_keep=padding(0, 3)), "target_keep is of cross-attention; .* give keep"),
        (lambda: cross(x, source, target_keep=torch.ones(2, 3).bool()), r"target_keep is torch.bool \(2, 3\); give"),
        (lambda: decoder(x, keep=[[True] * T] * 2), r"keep is a list; give torch.bool \(2, 12\), True at real tokens"),
        (lambda: decoder(x, keep=T), "keep is a int; give torch.bool"),
        (lambda: decoder(x[0], cu_seqlens=[0, 5, T]), r"cu_seqlens a list; give tensors, x \(N, C\)"),
        (lambda: decoder(x[0].tolist(), cu_seqlens=torch.tensor([0, T])), r"x is a list .* give tensors, x \(N, C\)"),
        (lambda: decoder(x, weights=torch.ones(2)), "weights is a Tensor; give True or False"),
        (lambda: leap(q, q.tolist(), q), r"k is a list; give a tensor \(batch, heads, tokens, width\)"),
        (lambda: leap(q, q, 1.0), "v is a float; give a tensor"),
        (lambda: TokenInfo.whole(T, [[True] * T]), r"keep is a list; give torch.bool \(batch, 12\)"),
        (lambda: decoder(x, x, x), "takes x and a source, all else by name: .*mask, keep"),
        (lambda: decoder(x, key_padding_mask=None), "no argument key_padding_mask; give keep=~key_padding_mask, "),
        (lambda: decoder(x, attn_mask=torch.ones(T, T)), "no argument attn_mask; give mask: CAUSAL"),
        (lambda: decoder(x, is_causal=True), "no argument is_causal; give mask: CAUSAL"),
        (lambda: cross(x, key=source, value=source), "no argument key; give source, .* of keys and values"),
        (lambda: decoder(x, need_weights=False), "no argument need_weights; give weights=True"),
        (lambda: decoder(x, kep=None), "no argument kep; its arguments: x, source, mask, keep, target_keep"),
        (lambda: Attention("leap", "32", 4), "dim='32' is no multiple of 4 heads"),
        (lambda: Attention("leap", DIM, 4.0), "dim=32 is no multiple of 4.0 heads"),
        (lambda: Attention("leap", DIM, 4, kv_heads="2"), "kv_heads='2' does not divide heads=4"),
        (lambda: Attention("leap", DIM, 4, rotary="10_000"), "rotary='10_000' .* a positive base"),
        (lambda: Attention("leap", DIM, 4, rotary=True), "rotary=True .* a positive base"),
        (lambda: Attention("softmax", DIM, 4, dropout=2), "dropout=2: give a probability, from 0 to 1"),
        (lambda: Attention("leap", DIM, 4, block="decoder-cross", source_dim="8"), "source_dim='8': give a whole"),
        (lambda: PrefixMask("3"), "lagging k is '3'; .*choose k >= 1"),
        (lambda: PrefixMask(1, 2.5), "pre-decision ratio is 2.5; choose at least 1"),
        (lambda: ChunkMask(2.5), "chunks of 2.5 tokens"),
        (lambda: Cache("leap"), "str has no Attention layers"),
        (lambda: ended[0](x6, mask=ChunkMask(3), cache=ended[2]), "mask=ChunkMask.size=3, .*begun with .*Mask.size=4"),
        (lambda: ended[0](x6, mask=None, cache=ended[2]), "mask=None: the cache was begun with .* leave mask out"),
        (lambda: ended[0](x6, cache=ended[2]), "has read 6 tokens and ends inside a chunk of 4.* give whole chunks"),
        (lambda: Cache.cat([ended[2], begun(CAUSAL, attention=ended[0])[2]]), "caches with mask=.* cannot be joined"),
        (lambda: Cache(ended[0]).load({**ended[2].tensors(), "/mask": torch.tensor([4])}), "is damaged or of another"),
        (lambda: Cache(ended[0]).load({**ended[2].tensors(), "/mask": torch.tensor([3, 8])}), "is damaged or of"),
        (lambda: Cache(ended[0]).load({**ended[2].tensors(), "/mask": torch.tensor([0, 0, 0])}), "is damaged or of"),
        (lambda: read(decoder, x).select(1), "give at least one whole number"),
        (lambda: read(decoder, x).select("a"), "give at least one whole number"),
        (lambda: decoder(x[:0], cache=Cache(decoder)), "x has no sequences, but a cache has at least one"),
        (lambda: decoder(x[:0], cache=read(decoder, x)), "x has no sequences, but a cache has at least one"),
        (lambda: Cache.cat(read(decoder, x)), "give a list of caches"),
        (lambda: Cache.cat([x]), "give a list of caches"),
        (lambda: Cache(decoder).load([x]), "give what tensors.. returned"),
        (lambda: Cache(decoder).load({"/queries": 1}), "give what tensors.. returned"),
        (lambda: Cache(decoder).load(without_numbers(read(decoder, x).tensors())), "is damaged or of another layer"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(MECHANISMS))
@torch.no_grad()
def test_what_a_layer_does_not_support_is_told_without_flags(name):
    x, q, refused = torch.randn(1, T, DIM), torch.randn(1, HEADS, T, 8), []
    masks = ("block", None, CAUSAL, PrefixMask(3), ChunkMask(4))
    calls = [partial(build(name, 8, HEADS), q, q, q, mask=mask) for mask in masks[1:]]
    for block in BLOCKS:
        source = [x] if block == "decoder-cross" else []
        try:
            attention = Attention(name, DIM, HEADS, block=block).eval()
        except LeapformerError as error:
            refused.append(str(error))
            continue
        calls += [partial(attention, x, *source, mask=mask) for mask in masks]
        calls += [partial(attention, x, *source, mask=mask, cache=Cache(attention)) for mask in masks]
    for call in calls:
        try:
            call()
        except LeapformerError as error:
            refused.append(str(error))
    assert not [text for text in refused if "--" in text]


LIMITED = {
    "cosformer": {"cosformer_length": 8},
    "abc-linformer": {"abc_max_length": 8},
    "abc-pool": {"abc_pool_size": 2, "abc_slots": 4},
}


@pytest.mark.parametrize(("name", "options"), LIMITED.items())
@torch.no_grad()
def test_a_target_beyond_the_limit_of_a_mechanism_is_refused(name, options):
    """Padding does not count, also in a cache that has read some."""
    blocks = ("decoder-self", "decoder-cross") if name == "cosformer" else ("decoder-self",)
    for block in blocks:
        attention, x = Attention(name, DIM, HEADS, block=block, **options).eval(), torch.randn(2, T, DIM)
        source, padded = ({}, "keep") if block == "decoder-self" else ({"source": x}, "target_keep")

        def call(start: int, stop: int, source=source, attention=attention, x=x, **more: Any) -> Tensor:
            return attention(x[:, start:stop], **source, **more)

        told = (
            rf"^{name} in {block} can read 8 tokens and got %s; cut the text, or give more room \({next(iter(options))}"
        )
        with pytest.raises(LeapformerError, match=told % 12):
            call(0, T)
        call(0, T, **{padded: padding(4, 5)})
        with pytest.raises(LeapformerError, match=told % 9):
            call(0, T, **{padded: padding(3, 5)})
        cache = Cache(attention)
        call(0, 7, cache=cache)
        call(7, 8, cache=cache)
        for stop in (9, 12):
            with pytest.raises(LeapformerError, match=told % stop):
                call(8, stop, cache=cache)
        cache = Cache(attention)
        call(0, 9, **{padded: padding(2, 3)[:, :9]}, cache=cache)
        call(9, 10, cache=cache)
        with pytest.raises(LeapformerError, match=told % 9):
            call(10, 11, cache=cache)


def test_a_text_beyond_a_table_is_counted_whole():
    """Not only up to the segment that is beyond it."""
    mechanism, q = build("abc-linformer", 8, HEADS, abc_max_length=40), torch.randn(1, HEADS, 700, 8)
    with (
        dispatch.override(segment_slot_tokens=64, kept_slot_tokens=0),
        pytest.raises(LeapformerError, match="got 700;"),
    ):
        mechanism(q, q, q, mask=CAUSAL)


@pytest.mark.parametrize(("call", "message"), wrong_calls())
def test_what_is_wrong_is_told_in_one_line(call, message):
    with pytest.raises(LeapformerError) as caught:
        call()
    text = str(caught.value)
    assert re.search(message, text) and "\n" not in text and "--" not in text


def test_inputs_that_are_not_declared_are_not_given():
    """A mechanism that reads inputs without saying so would find them in training, and none in generation."""
    leap, q = build("leap", 8, HEADS), torch.randn(1, HEADS, 3, 8)
    key = TokenInfo(*vars(TokenInfo.whole(3)).values())
    found = leap._described(q, q, None, TokenInfo(key.positions, key.lengths, inputs=torch.randn(1, 3, DIM)), CAUSAL)
    assert found[0].inputs is None and found[1].inputs is None


@torch.no_grad()
def test_a_prefix_is_that_of_the_whole_text_whatever_the_mechanism():
    """In a call without tokens, too: nobody knows the length of a text that is being written."""
    q, k, v = (torch.randn(1, HEADS, T, 8).double() for _ in range(3))
    with pytest.raises(LeapformerError, match="tokens of unknown length"):
        build("cosformer", 8, HEADS, block="decoder-self").double()(q, k, v, mask=CAUSAL)
    for block in ("decoder-self", None):
        cosformer = build("cosformer", 8, HEADS, block=block, cosformer_length=50).double()
        whole, prefix = cosformer(q, k, v, mask=CAUSAL), cosformer(*(x[:, :, :5] for x in (q, k, v)), mask=CAUSAL)
        assert far(whole[:, :, :5], prefix) < 1e-12


def test_a_scan_leaves_its_state_alone():
    for name in ("leap", "gated-leap", "softmax", "abc-window"):
        mechanism, x = build(name, 8, HEADS), torch.randn(1, HEADS, 1, 8)
        tokens = TokenInfo(torch.ones(1, 1).long(), inputs=torch.randn(1, 1, DIM))
        with torch.no_grad():
            state = mechanism.init_state(1, 8, x, tokens, CAUSAL)
            before = {key: value.clone() for key, value in state.tensors().items()}
            _, after = mechanism.scan(state, x, x, x, tokens, tokens, CAUSAL)
        assert all(torch.equal(value, before[key]) for key, value in state.tensors().items()), name
        assert any(not torch.equal(value, after.tensors()[key]) for key, value in before.items()), name


# ------------------------------------------------------------------------------------ PyTorch
EACH = [(name, block) for block, names in BLOCKS.items() for name in names]
FEW = [("relu", "decoder-self")]
ALL = pytest.mark.parametrize(("name", "block"), kept(EACH, *FEW))


def with_gradients(attention: Attention, block: str, run: Callable[..., Tensor], count: int) -> list[Tensor]:
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(5), dtype=next(attention.parameters()).dtype)
    x = draw(2, count, DIM).requires_grad_()
    source = [draw(2, count + 3, DIM)] if block == "decoder-cross" else []
    keep = torch.arange(count + 3 * len(source)) < torch.tensor([[count + 3], [count - 3]])
    torch.manual_seed(7)
    out = run(x, *source, keep=keep)[:, : count - 3]
    parameters = [p for p in attention.parameters() if p.requires_grad]
    grads = torch.autograd.grad(out.square().sum(), [x, *parameters], allow_unused=True)
    return [out, *(torch.zeros(()) if grad is None else grad for grad in grads)]


def agree(one: list[Tensor], other: list[Tensor], tolerance: float) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape and far(a, b) <= tolerance * max(1e-3, float(b.detach().abs().max()))


@ALL
@pytest.mark.filterwarnings("ignore")
def test_a_layer_is_one_graph_for_the_compiler(name, block):
    attention = Attention(name, DIM, HEADS, block=block, **OPTIONS.get(name, {})).double()
    torch._dynamo.reset()
    # As inductor decomposes: without it, PyTorch 2.13 mistakes the strides of the gradient of a transposed softplus.
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager_decomp_partition")
    agree(*(with_gradients(attention, block, run, 70) for run in (compiled, attention)), tolerance=1e-9)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_models_are_compiled_without_a_pass_before():
    """Such a pass would set what is kept for each thread, which the compiler guards."""
    outs = []

    def run() -> None:
        for _ in range(2):
            torch._dynamo.reset()
            compiled = torch.compile(nn.Sequential(Attention("relu", DIM, HEADS)), fullgraph=True, backend="eager")
            outs.append(compiled(torch.randn(1, 70, DIM)))

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert len(outs) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_long_sequence_is_one_graph_of_few_operations():
    attention = Attention("relu", DIM, HEADS)
    sizes = {}
    for count in (1_000, 4_000):
        torch._dynamo.reset()
        explained = torch._dynamo.explain(attention)(torch.randn(1, count, DIM))
        sizes[count] = explained.op_count
        assert explained.graph_count == 1
    assert sizes[4_000] < 2.5 * sizes[1_000]


@ALL
@pytest.mark.parametrize("again", [False, True], ids=["saved", "again"])
@pytest.mark.filterwarnings("ignore")
def test_copies_and_checkpoints_change_nothing(name, block, again):
    attention = Attention(name, DIM, HEADS, block=block, **OPTIONS.get(name, {})).double()
    bounds = {"kept_numbers": 0, "kept_slot_tokens": 0, "segment_tokens": 256, "segment_slot_tokens": 256}
    with dispatch.override(**bounds if again else {}):
        expected = with_gradients(attention, block, attention, 300)

        def checkpointed(reentrant: bool) -> Callable[..., Tensor]:
            return lambda *x, keep: checkpoint(lambda *x: attention(*x, keep=keep), *x, use_reentrant=reentrant)

        agree(with_gradients(attention, block, checkpointed(False), 300), expected, 1e-9)
        x, keep = torch.randn(2, 300, DIM, dtype=torch.double, requires_grad=True), torch.ones(2, 300).bool()
        source = [torch.randn(2, 300, DIM).double()] if block == "decoder-cross" else []
        outs = []
        for run in (checkpointed(True), attention):
            torch.manual_seed(7)
            attention.zero_grad()
            run(x, *source, keep=keep).square().sum().backward()
            outs.append([p.grad.clone() for p in attention.parameters() if p.grad is not None])
        agree(*outs, tolerance=1e-9)
        for same in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
            agree(with_gradients(same, block, same, 300), expected, 1e-9)


@pytest.mark.parametrize(("name", "block"), kept(EACH, *FEW, ("gated-delta", "decoder-self")))
@pytest.mark.filterwarnings("ignore")
def test_export(name, block):
    attention = Attention(name, DIM, HEADS, block=block, **OPTIONS.get(name, {})).eval()
    inputs = (torch.randn(2, 70, DIM), *([torch.randn(2, 73, DIM)] if block == "decoder-cross" else []))
    torch.manual_seed(7)
    expected = attention(*inputs)
    program = torch.export.export(attention, inputs)
    torch.manual_seed(7)
    agree([program.module()(*inputs)], [expected], 1e-4)


@ALL
def test_processes(name, block):
    apart(_trained_by_processes, name, block)


def _trained_by_processes(name, block):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    attention = Attention(name, DIM, HEADS, block=block, **OPTIONS.get(name, {}))
    expected = with_gradients(attention, block, attention, 40)
    agree(with_gradients(attention, block, DistributedDataParallel(attention), 40), expected, 1e-6)
    sharded = fully_shard(copy.deepcopy(attention), mesh=init_device_mesh("cpu", (1,)))
    found = with_gradients(sharded, block, sharded, 40)
    agree([getattr(x, "full_tensor", lambda x=x: x)() for x in found], expected, 1e-6)
