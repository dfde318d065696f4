"""ABC: what the controls write, what can be chosen, and every refusal."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from leapformer_fairseq.attention import BLOCKS, CAUSAL, MECHANISMS, PrefixMask, TokenInfo, build
from leapformer_fairseq.attention.bounded import cluster as abc_cluster
from leapformer_fairseq.support.errors import LeapformerError

from .cases import BOUNDED, DIM, HEADS, WAYS, attend, difference, inputs, make, padding, written

N = 5  # slots


@torch.no_grad()
def test_empty_slots_take_no_weight_unless_literally():
    """One token is written: what is read is its value, or a share of it and zeros."""
    q, k, v = inputs(1, 1)
    for name in ("abc-random", "abc-global", "abc-window"):
        assert difference([make(name)(q, k, v, mask=CAUSAL)], [v]) < 1e-12
        logit = (q * k).sum(-1, keepdim=True) / math.sqrt(DIM)
        share = logit.exp() / (logit.exp() + N - 1)
        assert difference([make(name, abc_empty_slots="literal")(q, k, v, mask=CAUSAL)], [share * v]) < 1e-12


@torch.no_grad()
def test_a_relu_control_that_writes_nothing_reads_nothing():
    mechanism, qkv = make("abc-mlp", abc_activation="relu"), inputs(6, 6)
    mechanism.control_weight.copy_(-mechanism.control_weight.abs())
    key = replace(TokenInfo.whole(6), inputs=torch.rand(2, 6, DIM * HEADS, dtype=torch.float64))
    for way in WAYS:
        assert not attend(mechanism, *qkv, key=key, mask=CAUSAL, way=way).any()


def test_random_slots_are_the_same_everywhere_and_used_alike():
    many = TokenInfo.whole(20_000)
    first, again, other = (make("abc-random", abc_slots=8, abc_seed=seed) for seed in (7, 7, 8))
    places = first.places(many)
    assert places.shape == (1, HEADS, 20_000) and torch.equal(places, again.places(many))
    assert (places != other.places(many)).float().mean() > 0.8
    assert (places[0, 0] != places[0, 1]).float().mean() > 0.8
    counts = torch.bincount(places.flatten(), minlength=8) / places.numel()
    assert (counts - 1 / 8).abs().max() < 0.01
    pairs_of_slots = torch.bincount((places[0, 0, 1:] * 8 + places[0, 0, :-1]), minlength=64) / 19_999
    assert (pairs_of_slots - 1 / 64).abs().max() < 0.005, "neighbours have nothing to do with each other"
    assert not first.state_dict()


@torch.no_grad()
def test_the_control_reads_inputs():
    mechanism, (q, k, v) = make("abc-mlp"), inputs(9, 9)
    side_by_side = replace(TokenInfo.whole(9), inputs=torch.cat([k[:, 0], k[:, 1]], -1))
    other = replace(side_by_side, inputs=side_by_side.inputs.flip(1))
    assert not torch.allclose(mechanism(q, k, v), mechanism(q, k, v, key=other))
    with pytest.raises(
        LeapformerError, match="inputs of keys are 11 wide, and abc-mlp was built for 16; .*input_dim=11"
    ):
        mechanism(q, k, v, key=replace(side_by_side, inputs=side_by_side.inputs[..., :11]))


@torch.no_grad()
def test_segments_are_spread_over_every_sentence():
    """Without a fixed size, each sentence of a batch has its own, padding or not."""
    keep = padding(13, "right")
    for name in ("abc-pool", "abc-global"):
        mechanism = build(name, DIM, HEADS, abc_slots="4/8/4", block="encoder-self").double()
        q, k, v = inputs(13, 13)
        together = mechanism(q, k, v, key=TokenInfo.whole(13, keep))
        for b, length in enumerate(keep.sum(1).tolist()):
            one = tuple(x[b : b + 1, :, :length] for x in (k, v))
            assert difference([together[b : b + 1]], [mechanism(q[b : b + 1], *one)]) < 1e-12
    pooled, spread = (
        build(name, DIM, HEADS, abc_slots=4).places(TokenInfo.whole(10)) for name in ("abc-pool", "abc-global")
    )
    assert pooled.flatten().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert spread.flatten().tolist() == [0, -1, -1, 1, -1, -1, 2, -1, -1, 3]


@torch.no_grad()
def test_pooling_a_whole_sentence_is_softmax_attention_to_means():
    q, k, v = inputs(3, 12)
    means = [x.unflatten(2, (4, 3)).mean(3) for x in (k, v)]
    expected = (q @ means[0].mT / math.sqrt(DIM)).softmax(-1) @ means[1]
    for size in (0, 3):
        assert difference([make("abc-pool", abc_slots=4, abc_pool_size=size)(q, k, v)], [expected]) < 1e-12


def test_clusters_are_those_of_scikit_learn():
    """The same start and the same number of rounds give the same clusters; padding has no part in them."""
    cluster = pytest.importorskip("sklearn.cluster")
    centres = 4 * torch.randn(6, 7, dtype=torch.float64)
    x = centres.repeat(9, 1) + torch.randn(54, 7, dtype=torch.float64)
    start = x[torch.arange(6) * 54 // 6].numpy()
    theirs = cluster.KMeans(6, init=start, n_init=1, max_iter=10, tol=0, algorithm="lloyd").fit(x.numpy())
    wide = torch.stack([torch.cat([x, 100 * torch.randn(8, 7).double()]), torch.randn(62, 7).double()])
    keep = torch.ones(2, 62, dtype=torch.bool)
    keep[0, 54:] = False
    found = abc_cluster.clusters(wide, keep, 6, 10)[0, :54]
    assert found.tolist() == theirs.labels_.tolist() and len(set(found.tolist())) == 6
    assert abc_cluster.clusters(wide, keep, 6, 1)[0, :54].tolist() != found.tolist(), "one round is not enough here"


def test_clusters_of_fewer_tokens_than_slots():
    """Each is one of its own, and what is left is softmax attention."""
    q, k, v = inputs(2, 3)
    scores = q @ k.mT / math.sqrt(DIM)
    assert difference([make("abc-cluster", abc_slots=8)(q, k, v)], [scores.softmax(-1) @ v]) < 1e-12


def test_clusters_are_of_whole_sequences():
    mechanism, (_, k, v) = make("abc-cluster"), inputs(6, 6)
    state = written(mechanism, k, v, TokenInfo.whole(6))
    with pytest.raises(LeapformerError, match="give all tokens of a sequence at once"):
        mechanism.write(state, k, v, TokenInfo.whole(6))
    with pytest.raises(LeapformerError, match="abc-cluster attention cannot be used like this: clusters are made of"):
        mechanism(*inputs(6, 6), mask=CAUSAL)


# ---------------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("value", "numbers"), [("32/8/16", (32, 8, 16)), ("7", (7, 7, 7)), (7, (7, 7, 7)), ("1/2/3", (1, 2, 3))]
)
def test_slots_by_block(value, numbers):
    assert tuple(build("abc-mlp", 8, 2, abc_slots=value, block=block).slots for block in BLOCKS) == numbers
    assert build("abc-mlp", 8, 2, abc_slots=value).slots == numbers[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("abc-mlp", 8, 2, abc_slots="0"), "abc_slots '0': give a whole number of at least 1"),
        (lambda: build("abc-mlp", 8, 2, abc_slots="8/8"), "abc_slots '8/8': .*encoder-self/decoder"),
        (lambda: build("abc-window", 8, 2, abc_slots="8/x/8"), "abc_slots '8/x/8': give a whole number"),
        (lambda: build("abc-random", 8, 2, abc_slots="8/-1/8"), "abc_slots '8/-1/8': give a whole number"),
        (lambda: build("abc-pool", 8, 2, abc_pool_size="-1"), "abc_pool_size '-1': .* of at least 0"),
        (lambda: build("abc-cluster", 8, 2, abc_cluster_rounds=0), "abc_cluster_rounds 0: give at least 1"),
        (lambda: build("abc-linformer", 8, 2, abc_slots=9, abc_max_length=8), "9 slots for at most 8 tokens; give"),
        (lambda: build("abc-mlp", 8, 2, abc_activation="tanh"), "abc_activation 'tanh': choose from: exp, relu"),
        (lambda: build("abc-mlp", 8, 2, abc_empty_slots="no"), "abc_empty_slots 'no': choose from: mask, literal"),
        (
            lambda: build("abc-linformer", DIM, HEADS, abc_max_length=40)(*(x.float() for x in inputs(41, 41))),
            r"abc-linformer can read 40 tokens and got 41; cut the text, or give more room \(abc_max_length\)",
        ),
        (
            lambda: build("abc-pool", DIM, HEADS, abc_slots=4, abc_pool_size=3)(*(x.float() for x in inputs(2, 13))),
            r"abc-pool can read 12 tokens and got 13; cut the text, or give more room \(abc_pool_size, abc_slots\)",
        ),
        (
            lambda: build("abc-pool", DIM, HEADS)(*(x.float() for x in inputs(4, 4)), mask=CAUSAL),
            "abc-pool attention cannot be used like this: abc_pool_size 0 needs the length of the whole sequence",
        ),
        (
            lambda: written(build("abc-pool", DIM, HEADS), *(x.float() for x in inputs(4, 4)[1:]), unknown(4)),
            "abc-pool was asked for tokens of unknown length; give abc_pool_size a number",
        ),
        (
            lambda: make("abc-mlp")(*inputs(6, 4), mask=CAUSAL),
            "abc-mlp attention of 6 causal queries over 4 keys; give as many of both",
        ),
    ],
)  # fmt: skip
def test_errors_name_value_reason_and_remedy(call, message):
    with pytest.raises(LeapformerError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def unknown(count):
    return TokenInfo.whole(count).without_lengths()


@pytest.mark.parametrize(
    ("name", "block", "reason"),
    [
        ("abc-cluster", "decoder-self", "clusters are made of all tokens.*allowed: encoder-self, decoder-cross"),
        *((name, block, "tokens just before a query.*allowed: decoder-self") for name in ("abc-window", "abc-dilated")
          for block in ("encoder-self", "decoder-cross")),
        ("abc-pool", "decoder-self", "--abc-pool-size 0 needs the length of the whole sequence; give --abc-pool-size"),
    ],
)  # fmt: skip
def test_blocks_that_are_refused(name, block, reason):
    mechanism = build(name, 8, 2, block=block)
    assert re.search(reason, mechanism.capabilities.unsupported_reason(block))


@pytest.mark.parametrize("name", BOUNDED)
def test_wait_k_is_refused(name):
    mechanism = make(name)
    assert not mechanism.capabilities.prefixes
    with pytest.raises(
        LeapformerError, match="cannot be used like this: .*(over the prefixes of wait-k|only a causal block has)"
    ):
        mechanism(*inputs(6, 9), mask=PrefixMask(2, 1))


def test_blocks_that_are_served():
    for name in BOUNDED:
        options = {"abc_pool_size": "0/16/0"} if name == "abc-pool" else {}
        served = [
            block
            for block in BLOCKS
            if build(name, 8, 2, block=block, **options).capabilities.unsupported_reason(block) is None
        ]
        assert served == list(MECHANISMS[name].capabilities.blocks)


def test_the_longest_target():
    assert build("abc-linformer", 8, 2, block="decoder-self", abc_max_length=50).capabilities.max_target == 50
    assert (
        build("abc-pool", 8, 2, block="decoder-self", abc_slots="9/4/9", abc_pool_size="0/16/0").capabilities.max_target
        == 64
    )
    for block in ("encoder-self", "decoder-cross"):  # there it is the source that is limited
        assert build("abc-linformer", 8, 2, block=block).capabilities.max_target is None
        assert build("abc-pool", 8, 2, block=block, abc_pool_size=16).capabilities.max_target is None
    assert build("abc-mlp", 8, 2, block="decoder-self").capabilities.max_target is None
