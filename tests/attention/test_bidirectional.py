"""Mechanisms of encoders that need the whole sequence, against naive loops over their formulas."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from leapformer_fairseq.attention import BLOCKS, MECHANISMS, TokenInfo, build
from leapformer_fairseq.attention.bidirectional.base import Bidirectional
from leapformer_fairseq.attention.linear.performer import orthogonal_rows
from leapformer_fairseq.support.errors import LeapformerError

from .cases import DIM, HEADS, SIDES, difference, inputs, make, padding

NAMES = sorted(name for name, mechanism in MECHANISMS.items() if issubclass(mechanism, Bidirectional))
CHOSEN = ("bigbird", "local", "longformer", "sparse-transformer")
COUNTS = (1, 2, 5, 6, 17, 40)


def of_softmax(q: Tensor, k: Tensor, v: Tensor, edges: Tensor) -> Tensor:
    """Softmax over the edges (B or 1, H or 1, T, T)."""
    scores = (q @ k.mT / DIM**0.5).masked_fill(~edges, -math.inf)
    return scores.softmax(-1) @ v


def naive_edges(name: str, count: int) -> Tensor:
    """By token, from what the papers say; of BigBird what is not random."""
    found = torch.zeros(count, count, dtype=torch.bool)
    last = (count - 1) // 3
    for i, j in product(range(count), range(count)):
        if name == "local":
            found[i, j] = i // 5 == j // 5
        elif name == "longformer":
            found[i, j] = abs(i - j) <= 3 or i == 0 or j == 0
        elif name == "sparse-transformer":
            found[i, j] = i // 6 == j // 6 or j % 6 >= 4
        else:
            found[i, j] = abs(i // 3 - j // 3) <= 1 or bool({i // 3, j // 3} & {0, last})
    return found


class TestChosenKeys:
    @pytest.mark.parametrize("count", COUNTS)
    @pytest.mark.parametrize("name", CHOSEN)
    def test_edges_are_those_of_the_paper(self, name, count):
        mechanism = make(name, **({"bigbird_random_blocks": 0} if name == "bigbird" else {}))
        expected = naive_edges(name, count)
        edges = mechanism.edges(torch.tensor([count]), count)
        assert (edges == expected).all()
        qkv = inputs(count, count)
        assert difference([mechanism(*qkv)], [of_softmax(*qkv, expected)]) < 1e-12

    def test_random_blocks(self):
        """As many as asked for, none of them near or global, another draw in each head, and none at padding."""
        mechanism = make("bigbird", bigbird_random_blocks=2)
        lengths = torch.tensor([60, 31])
        drawn = mechanism.edges(lengths, 60) & ~make("bigbird", bigbird_random_blocks=0).edges(lengths, 60)
        assert drawn.shape == (2, HEADS, 60, 60)
        blocks = drawn.unflatten(3, (-1, 3)).any(-1)
        rows = blocks[0, :, 3:-3].sum(-1)  # without the ends, which see all
        assert (rows == 2).all() and not torch.equal(drawn[0, 0], drawn[0, 1])
        assert not drawn[1, :, :, 31:].any() and drawn[1].any()

    def test_with_enough_random_blocks_it_is_softmax(self):
        mechanism, qkv = make("bigbird", bigbird_random_blocks=20), inputs(40, 40)
        assert difference([mechanism(*qkv)], [make("softmax")(*qkv)]) < 1e-12
        fewer = make("bigbird", bigbird_random_blocks=1)
        assert difference([fewer(*qkv)], [make("softmax")(*qkv)]) > 1e-3

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("local", {"local_block_size": 64}),
            ("longformer", {"longformer_window": 80}),
            ("sparse-transformer", {"sparse_transformer_block_size": 7, "sparse_transformer_summary": 7}),
        ],
    )
    def test_where_they_cover_all_they_are_softmax(self, name, options):
        qkv = inputs(40, 40)
        assert difference([make(name, **options)(*qkv)], [make("softmax")(*qkv)]) < 1e-12


@pytest.mark.parametrize("side", SIDES[1:])
@pytest.mark.parametrize("name", [*NAMES, "performer"])
def test_a_sequence_gives_the_same_in_any_batch(name, side):
    mechanism, (q, k, v) = make(name), inputs(37, 37)
    keep = padding(37, side)
    together = mechanism(q, k, v, key=TokenInfo.whole(37, keep))
    real = keep[1].nonzero().flatten()
    alone = mechanism(*(x[1:, :, real] for x in (q, k, v)))
    assert difference([together[1:, :, real]], [alone]) < 1e-12


class TestReformer:
    @pytest.mark.parametrize("hashes", [1, 3])
    @pytest.mark.parametrize("count", COUNTS)
    def test_against_loops(self, count, hashes):
        """The same bucket in some round, in the same chunk in order of buckets, or in the one before."""
        mechanism = make("reformer", lsh_hashes=hashes)
        _, k, v = inputs(count, count, batch=1)
        out = mechanism(torch.full_like(k, math.nan), k, v)
        for head in range(HEADS):
            rounds = []
            for rotation in mechanism.rotation[:, head]:
                turned = k[0, head] @ rotation
                bucket = torch.cat([turned, -turned], -1).argmax(-1).tolist()
                order = sorted(range(count), key=lambda i, bucket=bucket: (bucket[i], i))
                rounds.append((bucket, [order.index(i) // 5 for i in range(count)]))
            for i in range(count):
                seen = [
                    j
                    for j in range(count)
                    if any(b[i] == b[j] and chunk[i] - chunk[j] in (0, 1) for b, chunk in rounds)
                ]
                scores = [float(k[0, head, i] @ k[0, head, j] / k[0, head, j].norm()) - 1e5 * (i == j) for j in seen]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                expected = weights @ v[0, head, seen]
                assert torch.allclose(out[0, head, i], expected, atol=1e-10)

    def test_with_one_bucket_and_chunk_it_sees_all_but_itself(self):
        mechanism = make("reformer", lsh_buckets=2, lsh_chunk=50)
        _, k, v = inputs(20, 20)
        k = k.abs()
        mechanism.rotation.abs_()
        scores = k @ torch.nn.functional.normalize(k, dim=-1).mT - 1e5 * torch.eye(20)
        assert difference([mechanism(k, k, v)], [scores.softmax(-1) @ v]) < 1e-12

    def test_more_rounds_find_more(self):
        _, k, v = inputs(60, 60)
        found = [(make("reformer", lsh_hashes=n).weights(k, k) > 0).double().mean() for n in (1, 2, 4)]
        assert found[0] < found[1] < found[2]


class TestSinkhorn:
    def test_rows_and_columns_sum_to_one(self):
        mechanism, (_, k, _) = make("sinkhorn"), inputs(40, 40)
        sorting = mechanism._sorting(k.unflatten(2, (-1, 5)), torch.ones(1, 1, 8, 5).double())
        assert torch.allclose(sorting.sum(-1), torch.ones(()).double(), atol=1e-12)
        assert torch.allclose(sorting.sum(-2), torch.ones(()).double(), atol=1e-3)

    def test_a_sharp_sorting_shows_one_more_block(self):
        """With logits that name a permutation, block n attends to itself and to the block that was named."""
        mechanism, (q, k, v) = make("sinkhorn"), inputs(20, 20)
        named = [2, 0, 3, 1]
        k = k.clone()
        k[..., 0] = 0
        for block in range(4):
            k[:, :, 5 * block : 5 * block + 5, :4] = torch.eye(4).double()[block]
        with torch.no_grad():
            mechanism.sorting.zero_()
            for block, other in enumerate(named):
                mechanism.sorting[:, block, other] = 1000.0
        edges = torch.zeros(20, 20, dtype=torch.bool)
        for i, j in product(range(20), range(20)):
            edges[i, j] = j // 5 in (i // 5, named[i // 5])
        assert difference([mechanism(q, k, v)], [of_softmax(q, k, v, edges)]) < 1e-9


class TestSkyformer:
    def error(self, **options: float) -> float:
        """Of the matrix against the Gaussian kernel of all queries and keys."""
        torch.manual_seed(3)
        q, k, _ = inputs(40, 40)
        exact = torch.cdist(q, k).square().div(-2 * DIM**0.5).exp()
        got = make("skyformer", **options).weights(q, k)
        return float((got - exact).norm() / exact.norm())

    def test_with_all_tokens_it_is_the_kernel(self):
        assert self.error(skyformer_landmarks=80, skyformer_ridge=1e-10) < 1e-6
        assert self.error(skyformer_landmarks=500, skyformer_ridge=1e-10) < 1e-6
        assert self.error(skyformer_landmarks=80, skyformer_ridge=1.0) > 0.01

    def test_the_error_falls_with_landmarks(self):
        errors = [self.error(skyformer_landmarks=n, skyformer_ridge=1e-6) for n in (5, 20, 40, 70)]
        assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0] / 5


class TestPerformer:
    def error(self, features: int) -> float:
        torch.manual_seed(3)
        q, k = (0.5 * x for x in inputs(30, 30)[:2])
        exact = (q @ k.mT / DIM**0.5).softmax(-1)
        return float((make("performer", performer_features=features).weights(q, k) - exact).abs().mean() / exact.mean())

    def test_the_error_falls_with_features(self):
        errors = [self.error(features) for features in (8, 64, 512, 4096)]
        assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0] / 12

    def test_rows_are_orthogonal_in_groups_and_of_the_right_length(self):
        rows = orthogonal_rows(4000, 8).double()
        products = rows[:8] @ rows[:8].T
        assert (products - products.diag().diag()).abs().max() < 1e-4
        assert abs(float(rows.square().sum(1).mean()) - 8) < 0.2

    def test_large_inputs_stay_finite(self):
        q, k, v = (30 * x for x in inputs(20, 20, dtype=torch.float32))
        assert torch.isfinite(build("performer", DIM, HEADS)(q, k, v)).all()

    def test_the_features_are_saved(self):
        assert "projection" in build("performer", DIM, HEADS).state_dict()


def test_synthesizer_looks_at_no_token():
    mechanism, (q, k, v) = make("synthesizer"), inputs(13, 13)
    expected = (mechanism.row_factor[:, :13] @ mechanism.column_factor[:, :13].mT).softmax(-1) @ v
    assert difference([mechanism(torch.full_like(q, math.nan), k, v)], [expected]) < 1e-12


def test_s4d_is_the_recurrence():
    """h_i = e^(dA) h_(i-1) + (e^(dA) - 1) / A v_i, y_i = 2 Re C h_i + v_i; and backwards with the other C."""
    mechanism, (_, _, v) = make("s4d"), inputs(23, 23, batch=1)
    a = torch.complex(-mechanism.log_decay.exp(), mechanism.frequency)
    step, c = mechanism.log_step.exp()[:, None], torch.view_as_complex(mechanism.readout)
    expected = torch.zeros_like(v)
    for head, channel in product(range(HEADS), range(v.shape[3])):
        x, decay = v[0, head, :, channel], torch.exp(step * a)[head]
        gain = ((torch.exp(step * a) - 1) / a)[head]
        state = torch.zeros_like(gain)
        for i in range(23):
            state = decay * state + gain * x[i]
            expected[0, head, i, channel] += 2 * (c[0, head] * state).sum().real + mechanism.skip[head] * x[i]
        state = torch.zeros_like(gain)
        for i in reversed(range(22)):
            state = decay * state + gain * x[i + 1]
            expected[0, head, i, channel] += 2 * (c[1, head] * state).sum().real
    assert difference([mechanism(v, v, v)], [expected]) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_only_encoders(name):
    mechanism, (q, k, v) = make(name), inputs(9, 9)
    assert mechanism.capabilities.blocks == BLOCKS[:1]
    with pytest.raises(LeapformerError, match="cannot decode token by token"):
        mechanism.init_state(1, DIM, q)
    with pytest.raises(LeapformerError, match="9 queries for 5 keys"):
        mechanism(q, k[:, :, :5], v[:, :, :5])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local", {"local_block_size": 0}, "local_block_size 0: give at least 1"),
        ("longformer", {"longformer_window": 5}, "longformer_window 5: give an even number"),
        ("bigbird", {"bigbird_block_size": 0}, "bigbird_block_size 0: give at least 1"),
        ("bigbird", {"bigbird_random_blocks": -1}, "bigbird_random_blocks -1: give at least 0"),
        ("sparse-transformer", {"sparse_transformer_summary": 200}, "a block has only 128 tokens"),
        ("reformer", {"lsh_buckets": 3}, "lsh_buckets 3: give an even number"),
        ("reformer", {"lsh_chunk": 0}, "lsh_chunk 0: give at least 1"),
        ("skyformer", {"skyformer_ridge": 0.0}, "skyformer_ridge 0.0: give a number above 0"),
        ("performer", {"performer_features": 0}, "performer_features 0: give at least 1"),
        ("s4d", {"s4d_state": 0}, "s4d_state 0: give at least 1"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(LeapformerError, match=message):
        build(name, DIM, HEADS, **options)


@pytest.mark.parametrize("name", ["sinkhorn", "synthesizer"])
def test_longer_than_its_table(name):
    mechanism = build(name, DIM, HEADS, **{f"{name}_max_length": 8})
    with pytest.raises(LeapformerError, match=f"{name} can read 8 tokens and got 9.*larger {name}_max_length"):
        mechanism(*inputs(9, 9, dtype=torch.float32))
