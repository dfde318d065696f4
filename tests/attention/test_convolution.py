"""Short convolutions against a plain loop, and where they apply; the tests of all mechanisms run with them, too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from leapformer_fairseq.attention import (
    BLOCKS,
    CAUSAL,
    MECHANISMS,
    ChunkMask,
    PrefixMask,
    Projections,
    TokenInfo,
    step_of,
)
from leapformer_fairseq.attention.ops import reference
from leapformer_fairseq.attention.recurrent.convolution import ShortConvolution
from leapformer_fairseq.support.errors import LeapformerError

from .cases import (
    DIM,
    HEADS,
    build,
    difference,
    written,
)

DECLARED = sorted(name for name, cls in MECHANISMS.items() if "short_conv" in {option.name for option in cls.options})
CHANNELS = 3


def qkv(count: int, batch: int = 2) -> list[Tensor]:
    return [torch.randn(batch, HEADS, count, DIM, dtype=torch.float64) for _ in range(3)]


# ------------------------------------------------------------------------------------------------------- the operation
@st.composite
def convolutions(draw):
    """A convolution, whose masks may be None only in one piece; tokens, padding anywhere, and where they are cut."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    mask = draw(st.one_of(st.none(), st.just(CAUSAL), st.builds(ChunkMask, st.integers(2, 5), st.integers(0, 3))))
    count, before, ahead = draw(st.integers(1, 30)), draw(st.integers(1, 4)), draw(st.integers(0, 2))
    unit = mask.tokens if isinstance(mask, ChunkMask) else 1
    cuts = [] if mask is None else sorted({unit * cut for cut in draw(st.lists(st.integers(1, 20), max_size=4))})
    keep = torch.rand(2, count) < draw(st.sampled_from([0.3, 0.8])) if draw(st.booleans()) else None
    convolution = ShortConvolution(CHANNELS, before, ahead).double()
    return convolution, torch.randn(2, count, CHANNELS, dtype=torch.float64), keep, mask, [c for c in cuts if c < count]


def looped(convolution, x, keep, mask) -> tuple[Tensor, Tensor]:
    """Chunk by chunk: the last real tokens of earlier chunks, without their copies of what is ahead, then its own."""
    before, weight = convolution.before, convolution.weight
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if keep is None else keep
    size, tokens = (mask.size, mask.tokens) if isinstance(mask, ChunkMask) else (x.shape[1],) * 2
    out, tails = torch.zeros_like(x), []
    for entry, (row, real) in enumerate(zip(x, keep, strict=True)):
        past = x.new_zeros(before, x.shape[2])
        for start in range(0, len(row), tokens):
            columns = [t for t in range(start, min(start + tokens, len(row))) if real[t]]
            text = torch.cat([past, row[columns]])
            ends = range(1, len(text) + 1) if mask == CAUSAL else None
            out[entry, columns] = reference.convolution(text, weight, before, ends)[before:]
            past = torch.cat([past, row[[t for t in columns if t < start + size]]])[-before:]
        tails.append(past)
    return out, torch.stack(tails)


@settings(deadline=None, max_examples=150)
@given(convolutions())
def test_it_is_the_loop_in_one_piece_and_in_parts(given_):
    convolution, x, keep, mask, cuts = given_
    real = torch.ones_like(x) if keep is None else keep.unsqueeze(2).expand_as(x).double()
    x = x * real

    def in_parts(x, marks):
        tail, outputs = x.new_zeros(2, convolution.before, CHANNELS), []
        for start, stop in zip(marks, marks[1:], strict=False):
            part = None if keep is None else keep[:, start:stop]
            out, tail = convolution(x[:, start:stop], tail, part, mask)
            outputs.append(out)
        return torch.cat(outputs, 1), tail

    def differentiated(function):
        leaf = x.clone().requires_grad_()
        convolution.zero_grad()
        out, tail = function(leaf)
        ((out * real).sin().sum() + tail.cos().sum()).backward()
        return [out * real, tail, leaf.grad * real, convolution.weight.grad]

    expected = differentiated(lambda x: looped(convolution, x, keep, mask))
    for marks in ([0, len(x[0])], [0, *cuts, len(x[0])]):
        assert difference(differentiated(lambda x, marks=marks: in_parts(x, marks)), expected) < 1e-12, marks


@torch.no_grad()
def test_its_step_is_one_more_token():
    convolution, x = ShortConvolution(CHANNELS, 3).double(), torch.randn(2, 9, CHANNELS).double()
    tail = torch.zeros(2, 3, CHANNELS).double()
    expected, last = convolution(x, tail)
    got = torch.stack([convolution.step(x[:, t], tail) for t in range(9)], 1)
    assert difference([got, tail], [expected, last]) < 1e-12


# ------------------------------------------------------------------------------------------------------ of mechanisms
def test_those_that_are_published_with_one_declare_it():
    assert DECLARED == ["delta", "gated-delta", "kda", "simple-gla"]


@pytest.mark.parametrize("block", ["decoder-self", "encoder-self"])
@pytest.mark.parametrize("name", DECLARED)
def test_one_that_passes_tokens_on_is_silu(name, block):
    """A delta rule has SiLU of queries and keys without it, too."""
    mechanism, plain, mask = *(build(name, DIM, HEADS, block=block, short_conv=n).double() for n in (4, 0)), None
    plain.load_state_dict({key: x for key, x in mechanism.state_dict().items() if "convolution" not in key})
    with torch.no_grad():
        mechanism.convolution.weight.zero_()[mechanism.convolution.before] = 1
    mask = CAUSAL if block == "decoder-self" else None
    (q, k, v), inputs = qkv(15), torch.randn(2, 15, HEADS * DIM).double()
    tokens = TokenInfo(torch.arange(1, 16).unsqueeze(0), inputs=inputs)
    mapped = (F.silu(x) for x in (q, k)) if name == "simple-gla" else (q, k)
    expected = plain(*mapped, F.silu(v), query=tokens, key=tokens, mask=mask)
    assert difference([mechanism(q, k, v, query=tokens, key=tokens, mask=mask)], [expected]) < 1e-12


@pytest.mark.parametrize(
    ("block", "given", "before", "ahead"),
    [("decoder-self", 4, 3, 0), (None, 2, 1, 0), ("encoder-self", 4, 1, 1), ("encoder-self", 5, 2, 2)]
    + [("encoder-self", 2, 1, 1)],
)
def test_taps_by_block(block, given, before, ahead):
    found = build("delta", DIM, HEADS, block=block, short_conv=given).convolution
    assert (found.before, found.ahead, len(found.weight)) == (before, ahead, before + 1 + ahead)


@pytest.mark.parametrize("name", DECLARED)
def test_cross_attention_has_none(name):
    mechanism = build(name, DIM, HEADS, block="decoder-cross", short_conv=4)
    plain = build(name, DIM, HEADS, block="decoder-cross")
    assert mechanism.convolution is None
    plain.load_state_dict(mechanism.state_dict())
    q, k, v = (x.float() for x in qkv(7))
    for mask in (None, PrefixMask(2, 1)):
        assert torch.equal(mechanism(q, k, v, mask=mask), plain(q, k, v, mask=mask))
    assert mechanism.recurrence().features == plain.recurrence().features


@pytest.mark.parametrize("name", DECLARED)
def test_without_it_nothing_is_there(name):
    for block in (None, *BLOCKS):
        mechanism = build(name, DIM, HEADS, block=block)
        state = mechanism.init_state(1, DIM, torch.zeros(1), mask=CAUSAL)
        assert list(state.tensors()) == ["kv"] and not any("convolution" in key for key in mechanism.state_dict())


def unknown(count: int) -> TokenInfo:
    return TokenInfo.whole(count)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: build("delta", DIM, HEADS, short_conv=1), "short_conv 1: give at least 2 taps, or 0"),
        (lambda m: build("kda", DIM, HEADS, short_conv=-4), "short_conv -4: give at least 2 taps, or 0"),
        (lambda m: build("gla", DIM, HEADS, short_conv=4), "'gla' has no option 'short_conv'"),
        (lambda m: m(*qkv(5)), "short_conv.* is a decoder's; build it with block='encoder-self'"),
        (lambda m: m(*qkv(5), mask=PrefixMask(2)), "build it with block='decoder-cross'"),
        (lambda m: m(*qkv(5)[:2], qkv(5)[2], mask=ChunkMask(2)), "build it with block='encoder-self'"),
        (lambda m: m(qkv(5)[0], *qkv(4)[1:], mask=CAUSAL), "of self-attention.*; here are 5 queries and 4 keys"),
        (lambda m: written(m, *qkv(5)[1:], unknown(5)), "call `scan`, not `write` and `read`"),
        (lambda m: m.read(m.init_state(2, DIM, qkv(1)[0]), qkv(1)[0], unknown(1)), "call `scan`"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(LeapformerError, match=message) as error:
        call(build("delta", DIM, HEADS, short_conv=4).double())
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_a_step_of_cross_attention_is_refused_without_a_block(language):
    mechanism = build("delta", DIM, HEADS, short_conv=4)
    linear = torch.nn.Linear(HEADS * DIM, HEADS * DIM)
    state = mechanism.init_state(2, DIM, torch.zeros(1))
    with pytest.raises(LeapformerError, match="call `scan`"):
        step_of(mechanism, Projections(linear, linear))(torch.randn(2, HEADS * DIM), state, 1)


def test_weights_are_those_of_convolved_queries_and_keys():
    """Also where keys follow that no query sees."""
    mechanism, (q, k, v) = build("gated-delta", DIM, HEADS, short_conv=4, output_gate="none").double(), qkv(9)
    found = mechanism.weights(q[:, :, :6], k, mask=CAUSAL)
    assert found.shape == (2, HEADS, 6, 9) and not found[..., 6:].any()
    values = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], 2)
    values, _ = mechanism.convolution(values, values.new_zeros(2, 3, values.shape[2]))
    values = values[..., 2 * HEADS * DIM :].unflatten(2, (HEADS, DIM)).transpose(1, 2)
    expected = mechanism(q[:, :, :6], k, v, mask=CAUSAL)
    assert difference([mechanism.polish(found @ values, q, unknown(6))], [expected]) < 1e-12
