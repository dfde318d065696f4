"""Luna: packing, unpacking and the causal memory against the paper's formulas, with a block's projections."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from leapformer_fairseq.attention import CAUSAL, Carry, Projections, TokenInfo, build
from leapformer_fairseq.support.errors import LeapformerError

from .cases import DIM, HEADS, SIDES, WAYS, attend, difference, padding, run, steps, written

L, COUNT, WIDTH = 5, 23, DIM * HEADS
PROJECTIONS = ("tied", "raw", "untied", "standard")
BLOCKS = ("encoder-self", "decoder-self", "decoder-cross")
WRITTEN = {"elu1": lambda x: x + 1 if x > 0 else math.exp(x), "softplus2": lambda x: math.log2(1 + 2**x)}


def luna(block, projections="tied", adopt=True, **options):
    """A mechanism in float64 whose numbers all matter, in a block with projections, and these."""
    mechanism = build("luna", DIM, HEADS, block=block, luna_length=L, luna_projections=projections, **options).double()
    stock = Projections(*(nn.Linear(WIDTH, WIDTH).double() for _ in range(4)))
    for parameter in (*mechanism.parameters(), *(x for layer in stock for x in layer.parameters())):
        nn.init.normal_(parameter, std=0.4)
    if adopt:
        mechanism.receive(stock)
    return mechanism, stock


def packed_rows(keep=True):
    return Carry(torch.randn(2, L, WIDTH).double(), torch.arange(L) < torch.tensor([[L], [3]]) if keep else None)


def projected(mechanism, stock, x, queries=COUNT):
    """q, k, v (B, H, ., D) of inputs x (B, S, C), as the block makes them."""
    heads = [layer(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for layer in (stock.q, stock.k, stock.v)]
    q, k, v = heads
    return q[:, :, :queries], v if mechanism.capabilities.keys_are_values else k, v


def vectors(layer, x, h, dim=DIM):
    """One row through a projection, and of that one head."""
    return (x if layer is None else layer(x))[h * dim : (h + 1) * dim]


def layers(mechanism, stock, projections):
    """What projects P, writes (causal), and unpacks keys and values, as the paper and its code have it."""
    own = mechanism.own
    if projections == "tied":
        return own["query"], stock.k, stock.k, stock.k
    if projections == "raw":
        return own["query"], None, None, stock.k
    if projections == "standard":
        return stock.q, stock.k, stock.k, stock.v
    return (own["query"], *(dict(own.items()).get(name) for name in ("write", "unpack_key", "unpack_value")))


def keys_of(projections, k, key):
    """Those that attention is to: of raw ones the block's input, whatever the mechanism is given."""
    return key.inputs.unflatten(-1, (HEADS, DIM)).transpose(1, 2) if projections == "raw" else k


def normalised(mechanism, row):
    norm = mechanism.packed_norm
    return (row - row.mean()) / (row.var(unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias


def softmax(logits):
    top = max(logits)
    powers = [math.exp(x - top) for x in logits]
    return [x / sum(powers) for x in powers]


def attention_of_one(query, keys, values):
    """softmax(K q / sqrt(D)) V for one query, with lists of vectors."""
    weights = softmax([float(key @ query) / math.sqrt(len(query)) for key in keys])
    return sum(w * value for w, value in zip(weights, values, strict=True))


def bidirectional(mechanism, stock, projections, q, k, v, key):
    """Outputs and the packed sequence for the next layer: P reads the keys, queries read what it found."""
    _, _, unpack_key, unpack_value = layers(mechanism, stock, projections)
    query, k = layers(mechanism, stock, projections)[0], keys_of(projections, k, key)
    out, after = torch.zeros(*q.shape[:3], DIM).double(), torch.zeros(len(q), L, WIDTH).double()
    for b in range(len(q)):
        real = [i for i in range(k.shape[2]) if key.keep is None or key.keep[b, i]]
        used = L if mechanism.chosen.luna_fixed_length else min(L, len(real))
        rows = [normalised(mechanism, key.carry.values[b, j]) for j in range(L)]
        wide, heads = WIDTH // mechanism.pack_heads, range(mechanism.pack_heads)
        keys, values = ([[vectors(None, x[b, :, i].flatten(), h, wide) for i in real] for h in heads] for x in (k, v))
        found = [
            torch.cat([attention_of_one(vectors(query, row, h, wide), keys[h], values[h]) for h in heads])
            for row in rows
        ]
        for h in range(HEADS):
            keys, values = ([vectors(x, y, h) for y in found[:used]] for x in (unpack_key, unpack_value))
            for t in range(q.shape[2]):
                out[b, h, t] = attention_of_one(q[b, h, t], keys, values)
        after[b] = torch.stack(rows) + torch.stack(found)
    return out, after


def causal(mechanism, stock, projections, activation, q, k, v, key):
    """Outputs of queries that read what tokens up to their own have written, (1/t) sum k_i a_i^T and a_i v_i^T."""
    query, write, _, _ = layers(mechanism, stock, projections)
    k = keys_of(projections, k, key)
    out = torch.zeros_like(q)
    for b in range(len(q)):
        used = [j for j in range(L) if key.carry.keep is None or key.carry.keep[b, j]]
        rows = [normalised(mechanism, key.carry.values[b, j]) for j in used]
        for h in range(HEADS):
            pseudo, keys, values, seen = [vectors(query, row, h) for row in rows], 0, 0, 0
            for t in range(q.shape[2]):
                if key.keep is not None and not key.keep[b, t]:
                    continue
                token = vectors(write, key.inputs[b, t], h)
                a = [WRITTEN[activation](float(token @ p) / math.sqrt(DIM)) for p in pseudo]
                a = torch.tensor(a, dtype=torch.float64)
                keys, values, seen = keys + torch.outer(a, k[b, h, t]), values + torch.outer(a, v[b, h, t]), seen + 1
                logits = (keys / seen) @ q[b, h, t] / math.sqrt(DIM)
                out[b, h, t] = torch.tensor(softmax(logits.tolist()), dtype=torch.float64) @ values / seen
    return out


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("projections", PROJECTIONS)
@pytest.mark.parametrize(
    ("block", "count", "heads"),
    [
        ("encoder-self", COUNT, 0),
        ("decoder-cross", COUNT, 0),
        ("decoder-cross", 4, 0),
        ("encoder-self", COUNT, 1),
        ("decoder-cross", COUNT, 2 * HEADS),
    ],
)
@torch.no_grad()
def test_pack_and_unpack_are_the_papers(block, count, heads, projections, side, fixed):
    mechanism, stock = luna(block, projections, luna_fixed_length=fixed, luna_pack_heads=heads)
    x = torch.randn(2, count, WIDTH).double()
    key = replace(TokenInfo.whole(count, padding(count, side)), inputs=x, carry=packed_rows(keep=False))
    q, k, v = projected(mechanism, stock, x, queries=4)
    expected, after = bidirectional(mechanism, stock, projections, q, k, v, key)
    for way in WAYS:
        assert difference([attend(mechanism, q, k, v, key=key, way=way)], [expected]) < 1e-12
    state = written(mechanism, k, v, key)
    assert difference([mechanism.read(state, q, TokenInfo.whole(4))], [expected]) < 1e-12
    handed = mechanism.carry(state)
    assert difference([handed.values], [after]) < 1e-12
    real = count if key.keep is None else int(key.keep[1].sum())
    assert handed.keep.sum(1).tolist() == [L if fixed else min(L, count), L if fixed else min(L, real)]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("activation", WRITTEN)
@pytest.mark.parametrize("projections", PROJECTIONS)
@torch.no_grad()
def test_causal_attention_is_the_papers(projections, activation, side):
    mechanism, stock = luna("decoder-self", projections, luna_activation=activation)
    x = torch.randn(2, COUNT, WIDTH).double()
    key = replace(TokenInfo.whole(COUNT, padding(COUNT, side)), inputs=x, carry=packed_rows())
    q, k, v = projected(mechanism, stock, x)
    expected = causal(mechanism, stock, projections, activation, q, k, v, key)
    real = 1.0 if key.keep is None else key.keep[:, None, :, None]
    for way in WAYS:
        out = attend(mechanism, q, k, v, query=key, key=key, mask=CAUSAL, way=way, chunk=4)
        assert difference([out * real], [expected * real]) < 1e-12, way
    for prompt in (0, 1, 9):
        out, _ = steps(mechanism, (q, k, v), key.without_lengths(), prompt)
        assert difference([out * real], [expected * real]) < 1e-12, prompt


@pytest.mark.parametrize("projections", PROJECTIONS)
def test_gradients_reach_the_packed_sequence_and_the_block_through_stretches(projections):
    mechanism, stock = luna("decoder-self", projections)
    x, grad = torch.randn(2, COUNT, WIDTH).double(), torch.randn(2, HEADS, COUNT, DIM).double()
    qkv, packed, found = projected(mechanism, stock, x), packed_rows(), {}
    of_the_block = [parameter for layer in stock for parameter in layer.parameters()]
    for way in ("reference", "kept", "again"):
        for parameter in of_the_block:
            parameter.grad = torch.zeros_like(parameter)
        start, inputs = packed.values.clone().requires_grad_(), x.clone().requires_grad_()
        # The packed sequence comes out of other layers: it is no leaf.
        key = replace(TokenInfo.whole(COUNT), inputs=inputs * 1, carry=Carry(start * 1, packed.keep))
        found[way] = run(mechanism, qkv, grad, key=key, mask=CAUSAL, way=way, chunk=4)
        found[way] += [start.grad, torch.zeros_like(x) if inputs.grad is None else inputs.grad]
        found[way] += [parameter.grad for parameter in of_the_block]
        assert start.grad.abs().max() > 1e-3
    # Tied, tokens are written by the block's projection of keys; else by keys as they are, or a projection of its own.
    assert (stock.k.weight.grad.abs().max() > 1e-3) == (projections == "tied")
    assert difference(found["kept"], found["reference"]) < 1e-12
    assert difference(found["again"], found["reference"]) < 1e-12


@pytest.mark.parametrize("projections", PROJECTIONS)
@pytest.mark.parametrize("block", ["encoder-self", "decoder-cross"])
@torch.no_grad()
def test_weights_compose_both_matrices(block, projections):
    """The weights of a token are those of the packed rows that a query reads, times theirs of the token."""
    mechanism, stock = luna(block, projections)
    x, keep = torch.randn(2, COUNT, WIDTH).double(), padding(COUNT, "right")
    key = replace(TokenInfo.whole(COUNT, keep), inputs=x, carry=packed_rows(keep=False))
    q, k, v = projected(mechanism, stock, x, queries=4)
    weights = mechanism.weights(q, k, key=key)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 4).double())
    assert weights[1, :, :, ~keep[1]].abs().max() == 0
    state = written(mechanism, k, v, key)
    unpack = ((q @ state.keys) / math.sqrt(DIM)).masked_fill(~state.keep[:, None, None], -math.inf).softmax(-1)
    query = layers(mechanism, stock, projections)[0]
    pseudo = query(mechanism.packed_norm(key.carry.values)).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
    pack = (
        (pseudo @ keys_of(projections, k, key).mT / math.sqrt(DIM))
        .masked_fill(~keep[:, None, None], -math.inf)
        .softmax(-1)
    )
    torch.testing.assert_close(weights, unpack @ pack)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_non_contextual_encoder_packs_with_its_own_sequence_and_hands_none_on(positions):
    mechanism, stock = luna("encoder-self", luna_packed="non-contextual", luna_positions=positions)
    assert mechanism.capabilities.carry_width is None and mechanism.tied == ()
    x = torch.randn(2, COUNT, WIDTH).double()
    qkv = projected(mechanism, stock, x)
    plain, given = (
        mechanism(*qkv, key=replace(TokenInfo.whole(COUNT), inputs=x, carry=carry)) for carry in (None, packed_rows())
    )
    assert difference([plain], [given]) == 0
    rows = mechanism.packed * WIDTH**0.5 + mechanism.places
    own = replace(TokenInfo.whole(COUNT), inputs=x, carry=Carry(rows.expand(2, -1, -1)))
    assert difference([plain], [bidirectional(mechanism, stock, "tied", *qkv, own)[0]]) < 1e-12
    contextual, _ = luna("encoder-self", luna_positions=positions)
    learned = ("packed", "places") if positions == "learned" else ("packed",)
    assert contextual.capabilities.carry_width == WIDTH and contextual.tied == learned
    names = {name for name, _ in contextual.named_parameters()}
    assert {"packed", "places"} & names == set(learned)


def test_the_number_of_matrices_is_the_papers():
    """5 tied or raw (causal 4), 7 untied (causal 6), 4 standard: those of the block that train, and the mechanism's."""
    for projections, count in (("tied", (5, 5)), ("raw", (5, 4)), ("untied", (7, 6)), ("standard", (4, 4))):
        for block in BLOCKS:
            mechanism = build("luna", DIM, HEADS, block=block, luna_projections=projections)
            frozen = mechanism.capabilities.unused_projections
            assert 4 - len(frozen) + len(mechanism.own) == count[block == "decoder-self"], (projections, block)


def test_nothing_of_the_block_is_registered_twice():
    mechanism, stock = luna("encoder-self")
    own = {id(parameter) for parameter in mechanism.parameters()}
    assert not own & {id(parameter) for layer in stock for parameter in layer.parameters()}


def test_dropout_falls_on_training_alone():
    torch.manual_seed(0)
    mechanism, stock = luna("encoder-self", dropout=0.5)
    x = torch.randn(2, COUNT, WIDTH).double()
    key = replace(TokenInfo.whole(COUNT), inputs=x, carry=packed_rows(keep=False))
    qkv = projected(mechanism, stock, x)
    first, second = (mechanism.train()(*qkv, key=key) for _ in range(2))
    assert difference([first], [second]) > 1e-3
    assert difference([mechanism.weights(*qkv[:2], key=key)], [mechanism.weights(*qkv[:2], key=key)]) == 0
    assert difference([mechanism.eval()(*qkv, key=key)], [mechanism(*qkv, key=key)]) == 0


def test_bad_input_is_said_in_one_line():
    with pytest.raises(LeapformerError, match="luna_length 0: give at least 1"):
        build("luna", DIM, HEADS, luna_length=0)
    with pytest.raises(LeapformerError, match="luna_projections 'five': choose from: tied, raw, untied, standard"):
        build("luna", DIM, HEADS, luna_projections="five")
    with pytest.raises(LeapformerError, match="luna_pack_heads 3 does not divide the width 16 of the block"):
        build("luna", DIM, HEADS, luna_pack_heads=3)
    assert "source 9; make them equal" in build("luna", DIM, HEADS, input_dim=9).capabilities.unsupported_reason(
        "decoder-cross"
    )
    needy, stock = luna("decoder-self")
    x = torch.randn(2, COUNT, WIDTH).double()
    with pytest.raises(LeapformerError, match="given no packed sequence; .*luna_packed learned"):
        needy(*projected(needy, stock, x), key=replace(TokenInfo.whole(COUNT), inputs=x), mask=CAUSAL)
    mechanism, _ = luna("encoder-self", adopt=False)
    q, k, v = (torch.randn(1, HEADS, 3, DIM).double() for _ in range(3))
    state = written(mechanism, k, v, TokenInfo.whole(3))
    with pytest.raises(LeapformerError, match="packs all keys at once"):
        mechanism.write(state, k, v, TokenInfo.whole(3))
