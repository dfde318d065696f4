"""Identities between mechanisms, and every mechanism against its formula written out."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.attention import CAUSAL, PrefixMask, TokenInfo
from leapformer_fairseq.attention.sparse.pattern import Pattern

from .cases import (
    LINEAR,
    NAMES,
    OURS,
    PATTERNS,
    RECURRENT,
    UNNORMALIZED,
    VARIANTS,
    WAYS,
    difference,
    inputs,
    make,
    pairs,
    polished,
    run,
    serving,
)

FEW = settings(deadline=None, max_examples=30)


def written_out(similarity, v, floor=1e-4):
    """o_t = sum_s sim(t, s) v_s / max(sum_s sim(t, s), floor)."""
    return similarity @ v / similarity.sum(-1, keepdim=True).clamp_min(floor)


@pytest.mark.parametrize("name, phi", [("relu", F.relu), ("elu", lambda x: F.elu(x) + 1)])
def test_feature_map_formula(name, phi):
    q, k, v = inputs(20, 20)
    similarity = (phi(q) @ phi(k).mT).tril()
    assert difference(run(make(name), (q, k, v), mask=CAUSAL), [written_out(similarity, v)]) < 1e-12


def test_leap_formula():
    mechanism, (q, k, v) = make("leap"), inputs(20, 30)
    q_proportion, k_proportion = mechanism.query_proportion(q.relu()), mechanism.key_proportion(k.relu())
    similarity = (q.relu() @ k.relu().mT) * torch.cos(math.pi / 2 * (q_proportion - k_proportion.mT))
    assert difference(run(mechanism, (q, k, v)), [written_out(similarity, v)]) < 1e-12


def test_proportion_network_is_linear_relu_linear_sigmoid():
    for per_head in (False, True):
        network, x = make("leap", leap_per_head=per_head).query_proportion, inputs(6, 6)[0]
        (w1, w2), (b1, b2) = network.weights, network.biases
        proportion = (F.relu(x @ w1 + b1) @ w2 + b2).sigmoid()
        assert proportion.shape == (2, 2, 6, 1)
        assert difference([network(x)], [proportion]) < 1e-12


def test_cosformer_formula():
    q, k, v = inputs(20, 30)
    i, j = torch.arange(1, 21).unsqueeze(1) / 20, torch.arange(1, 31) / 30
    similarity = (q.relu() @ k.relu().mT) * torch.cos(math.pi / 2 * (i - j))
    assert difference(run(make("cosformer"), (q, k, v)), [written_out(similarity, v)]) < 1e-6  # proportions in float32


def test_softmax_formula_and_torch():
    q, k, v = inputs(20, 30)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    causal = scores[..., :20].masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
    mechanism = make("softmax")
    assert difference(run(mechanism, (q, k, v)), [scores.softmax(-1) @ v]) < 1e-12
    assert difference(run(mechanism, (q, k, v)), [F.scaled_dot_product_attention(q, k, v)]) < 1e-12
    first = (q, k[:, :, :20], v[:, :, :20])
    assert difference(run(mechanism, first, mask=CAUSAL), [causal @ first[2]]) < 1e-12


@pytest.mark.parametrize("visible", [CAUSAL, None, PrefixMask(2, 3)])
def test_leap_with_constant_proportions_is_relu(visible):
    leap, qkv = make("leap"), inputs(20, 20)
    with torch.no_grad():
        for parameter in leap.parameters():
            parameter.zero_()
    assert difference(run(leap, qkv, mask=visible), run(make("relu"), qkv, mask=visible)) < 1e-12


def test_cosformer_with_a_huge_length_is_relu():
    cosformer, qkv = make("cosformer", cosformer_length=10**12), inputs(20, 20)
    rows = TokenInfo.whole(20).without_lengths()
    got = run(cosformer, qkv, query=rows, key=rows, mask=CAUSAL)
    assert difference(got, run(make("relu"), qkv, mask=CAUSAL)) < 1e-10


@pytest.mark.parametrize("name", serving(None))
def test_masking_a_key_is_removing_it(name):
    mechanism = make(name)
    itself = "decoder-cross" not in mechanism.capabilities.blocks  # the queries are the keys' tokens
    q, k, v = inputs(12 if itself else 9, 12)
    keep = torch.ones(2, 12, dtype=torch.bool)
    keep[:, [0, 5, 11]] = False
    k[~keep[:, None].expand(2, 2, 12)] = 1e3  # what stands in a masked row must not matter
    removed = tuple(x[:, :, keep[0]] for x in ((q, k, v) if itself else (k, v)))
    (masked,) = run(mechanism, (q, k, v), key=TokenInfo.whole(12, keep))
    alone = run(mechanism, removed if itself else (q, *removed), key=TokenInfo.whole(9))
    assert difference([masked[:, :, keep[0]] if itself else masked], alone) < 1e-12


@pytest.mark.parametrize("name", serving(CAUSAL))
def test_padding_on_either_side_changes_nothing(name):
    mechanism, (q, k, v) = make(name), inputs(15, 15)
    alone = run(mechanism, (q[:, :, :10], k[:, :, :10], v[:, :, :10]), key=TokenInfo.whole(10), mask=CAUSAL)
    for before, after in ((0, 5), (5, 0), (2, 3)):
        wide = tuple(F.pad(x[:, :, :10], (0, 0, before, after), value=7.0) for x in (q, k, v))
        keep = torch.zeros(2, 15, dtype=torch.bool)
        keep[:, before : before + 10] = True
        rows = TokenInfo.whole(15, keep)
        padded = run(mechanism, wide, query=rows, key=rows, mask=CAUSAL)[0]
        assert difference([padded[:, :, before : before + 10]], alone) < 1e-12


@FEW
@given(shift=st.integers(0, 5000), mask=st.sampled_from([CAUSAL, None]))
def test_rope_sees_differences_of_positions_only(shift, mask):
    mechanism, qkv = make("rope"), inputs(12, 12)
    rows = TokenInfo.whole(12)
    shifted = TokenInfo(rows.positions + shift, rows.lengths)
    expected = run(mechanism, qkv, query=rows, key=rows, mask=mask)
    assert difference(run(mechanism, qkv, query=shifted, key=shifted, mask=mask), expected) < 1e-9


# those of convolved values are in test_convolution.py
@pytest.mark.parametrize(("name", "visible"), pairs([name for name in NAMES if name not in VARIANTS], PATTERNS))
def test_weights_times_values_is_the_output(name, visible):
    mechanism, (q, k, v) = make(name), inputs(14, 14)
    weights = mechanism.weights(q, k, mask=visible)
    assert difference([polished(mechanism, weights @ v, q)], run(mechanism, (q, k, v), mask=visible)) < 1e-12
    if visible is not None:
        assert not weights[:, :, ~visible.mask(14, 14)].any()


@pytest.mark.parametrize(("name", "visible"), pairs(sorted(OURS.difference(UNNORMALIZED)), (CAUSAL, None)))
def test_weights_of_a_query_sum_to_one_above_the_floor(name, visible):
    q, k, _ = inputs(14, 14)
    q[:, :, 3] = -1.0  # a dead query for ReLU maps
    floor = 0.5
    mechanism = make(name, normalizer_floor=floor) if name in LINEAR else make(name)
    sums = mechanism.weights(q, k, key=TokenInfo.whole(14), mask=visible).sum(-1)
    if name in RECURRENT:
        assert (sums < 1 + 1e-12).all() and (sums > 0.5).any()
        return
    if name in LINEAR:
        low = make(name, normalizer_floor=1e-30)
        low.load_state_dict(mechanism.state_dict())
        fq, fk = low.map_queries(q, TokenInfo.whole(14)).expanded(), low.map_keys(k, TokenInfo.whole(14)).expanded()
        scores = fq @ fk.mT
        normalizer = (scores if visible is None else scores.tril()).sum(-1)
        expected = normalizer / normalizer.clamp_min(floor)
    elif isinstance(mechanism, Pattern):
        expected = mechanism.graph(q, k, mask=visible).any(-1).double()  # there may be nothing to look at
    else:
        expected = torch.ones_like(sums)
    assert difference([sums], [expected]) < 1e-12
    assert (sums[expected >= 1] - 1).abs().max() < 1e-12


@FEW
@given(lagging=st.integers(1, 30), ratio=st.integers(1, 20), queries=st.integers(1, 40), keys=st.integers(0, 300))
def test_visible_counts_by_brute_force(lagging, ratio, queries, keys):
    visible = PrefixMask(lagging, ratio)
    counts = [min(keys, ratio * (t + lagging)) for t in range(queries)]
    assert [visible.count(t, keys) for t in range(queries)] == counts
    assert visible.mask(queries, keys).sum(1).tolist() == counts
    assert all(row.tolist() == sorted(row.tolist(), reverse=True) for row in visible.mask(queries, keys).int())


@FEW
@given(
    name=st.sampled_from(serving(PrefixMask(2))),
    lagging=st.integers(1, 12),
    ratio=st.integers(1, 5),
    queries=st.integers(1, 9),
)
def test_wait_k_that_waits_for_everything_is_bidirectional(name, lagging, ratio, queries):
    mechanism, qkv = make(name), inputs(queries, lagging * ratio)
    expected = run(mechanism, qkv)
    for way in WAYS:
        assert difference(run(mechanism, qkv, mask=PrefixMask(lagging, ratio), way=way), expected) < 1e-12
