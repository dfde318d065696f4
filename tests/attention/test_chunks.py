"""Self-attention in blocks: training, arriving rows, and a quadratic mask are the same function."""

from __future__ import annotations

import pytest
import torch

from leapformer_fairseq.attention import ChunkMask, TokenInfo
from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import covering
from .cases import (
    DIM,
    ENCODERS,
    HEADS,
    LINEAR,
    NAMES,
    VALUE_DIM,
    difference,
    inputs,
    make,
    padding,
    reason,
    scanned,
    serves,
)

BLOCKS = (ChunkMask(), ChunkMask(4), ChunkMask(5, 2), ChunkMask(3, 4), ChunkMask(1, 1), ChunkMask(40))
STREAMING = [name for name in (*NAMES, *ENCODERS) if serves(name, ChunkMask(4))]
EXACTLY = [name for name in ("softmax", *LINEAR, *ENCODERS) if name in STREAMING]
PAST = {
    ChunkMask(4, 2, past=6): ("softmax", "relu"),
    ChunkMask(1, 0, past=3): ("softmax",),
    ChunkMask(4, past=6): ("rope",),
}
COUNT = 23
WAYS = ("pairs", "chunks", "again", "long chunks")


def taking(way):
    """Linear mechanisms choose by size how they go through chunks; here they must go every way."""
    pairs = 10**9 if way == "pairs" else 0
    again = {"kept_numbers": 0, "segment_tokens": 40, "least_segment": 1} if way == "again" else {}
    tokens = 2 if way == "long chunks" else 20
    return dispatch.override(pairs=pairs, pairs_per_token=pairs, chunk=tokens, **again)


def laid_out(blocks, count=COUNT, keep=None):
    """`count` tokens in chunks with copies of what comes: which token stands where, their positions and padding."""
    starts = range(0, count, blocks.size)
    places = torch.cat([torch.arange(start, start + blocks.tokens) for start in starts])
    there = places < count
    places = places.clamp_max(count - 1)
    keep = torch.ones(2, count, dtype=torch.bool) if keep is None else keep
    positions = keep.long().cumsum(1)[:, places]
    return places, TokenInfo(positions, keep.sum(1), keep[:, places] & there)


def own(blocks, count=COUNT):
    """Columns of the rows themselves, without the copies."""
    columns = torch.arange(-(-count // blocks.size) * blocks.tokens)
    return columns[columns % blocks.tokens < blocks.size][:count]


def arriving(mechanism, qkv, rows, blocks, at_once=1):
    """So many blocks at once."""
    state, outputs = None, []
    for start in range(0, qkv[0].shape[2], at_once * blocks.tokens):
        q, k, v = (x[:, :, start : start + at_once * blocks.tokens] for x in qkv)
        here = rows.narrow(start, start + at_once * blocks.tokens)
        out, state = scanned(mechanism, state, q, k, v, here, blocks)
        outputs.append(out)
    return torch.cat(outputs, 2), state


def label(x):
    return f"{x.size}+{x.ahead}" if isinstance(x, ChunkMask) else str(x)


@covering(None, label, name=STREAMING, blocks=BLOCKS, side=[None, "right"], way=WAYS, at_once=[1, 3])
def test_training_equals_arriving_rows(name, blocks, side, way, at_once):
    mechanism, qkv = make(name), inputs(COUNT, COUNT)
    places, rows = laid_out(blocks, keep=padding(COUNT, side))
    laid = tuple(x[:, :, places] for x in qkv)
    real = rows.keep[:, None, :, None]
    with taking(way):
        out = mechanism(*laid, query=rows, key=rows, mask=blocks)
        with torch.no_grad():
            got, _ = arriving(mechanism, laid, rows, blocks, at_once)
    assert difference([got * real], [out * real]) < 1e-12


@covering(
    lambda name, blocks, **_: name in PAST.get(blocks, EXACTLY),
    label,
    name=EXACTLY,
    blocks=(*BLOCKS, *PAST),
    side=[None, "right"],
    way=WAYS,
)
def test_training_equals_the_mask_with_gradients(name, blocks, side, way):
    mechanism = make(name)
    places, rows = laid_out(blocks, keep=padding(COUNT, side))
    grad = torch.randn(2, HEADS, len(places), VALUE_DIM).double() * rows.keep[:, None, :, None]
    results = []
    for expected in (False, True):
        torch.manual_seed(0)
        q, k, v = (x.requires_grad_() for x in inputs(COUNT, COUNT))
        laid = tuple(x[:, :, places] for x in (q, k, v))
        with taking(way):
            out = mechanism(*laid, query=rows, key=rows, mask=blocks, execution="reference" if expected else "auto")
            out.backward(grad)
        results.append([out * rows.keep[:, None, :, None], q.grad, k.grad, v.grad])
    assert difference(*results) < 1e-12


@covering(
    None,
    label,
    name=STREAMING,
    blocks=[ChunkMask(4), ChunkMask(5, 2), ChunkMask(3, 4), ChunkMask(4, 2, past=6)],
    way=WAYS,
)
@torch.no_grad()
def test_a_row_sees_what_its_block_sees_and_nothing_else(name, blocks, way):
    """The rows that change when one input row does are those of blocks that may see it."""
    mechanism, qkv = make(name), inputs(COUNT, COUNT)
    places, rows = laid_out(blocks)
    columns = own(blocks)

    def output(q, k, v):
        with taking(way):
            return mechanism(*(x[:, :, places] for x in (q, k, v)), query=rows, key=rows, mask=blocks)[:, :, columns]

    before = output(*qkv)
    for row in range(0, COUNT, 4):
        k, v = (x.clone() for x in qkv[1:])
        k[:, :, row] += 1
        v[:, :, row] += 1
        changed = (output(qkv[0], k, v) - before).abs().amax((0, 1, 3)) > 1e-9
        starts = torch.arange(COUNT) // blocks.size * blocks.size
        seen = starts + blocks.tokens > row
        if blocks.past is not None and name == "softmax":
            seen &= starts - row <= blocks.past
        assert not changed[~seen].any()
        if name == "softmax" or name in LINEAR:
            assert changed[seen].float().mean() > 0.9


@torch.no_grad()
def test_a_window_of_softmax_bounds_its_cache():
    mechanism, qkv, blocks = make("softmax"), inputs(60, 60), ChunkMask(4, 2, past=6)
    places, rows = laid_out(blocks, 60)
    _, state = arriving(mechanism, tuple(x[:, :, places] for x in qkv), rows, blocks)
    assert state.k.shape == (2, HEADS, 6, DIM)
    whole = mechanism(*(x[:, :, places] for x in qkv), query=rows, key=rows, mask=blocks)
    for at_once in (1, 2, 5):
        got, _ = arriving(mechanism, tuple(x[:, :, places] for x in qkv), rows, blocks, at_once)
        real = rows.keep[:, None, :, None]
        assert difference([got * real], [whole * real]) < 1e-12


def test_what_needs_the_whole_sequence_is_refused():
    assert set(NAMES) - set(STREAMING) >= {"cosformer", "luna", "abc-cluster"}
    for name in ("cosformer", "luna"):
        assert "a streaming encoder does not have yet" in reason(make(name), ChunkMask(4))


@pytest.mark.parametrize("numbers", [(0,), (2, -1), (2, 0, -1)])
def test_impossible_blocks_are_named(numbers):
    with pytest.raises(LeapformerError, match="give whole numbers, at least 1, and none below 0"):
        ChunkMask(*numbers)
