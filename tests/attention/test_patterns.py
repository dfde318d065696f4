"""Sparsity patterns: each against its formula in loops, what an edge may depend on, and entmax over their edges."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from leapformer_fairseq.attention import CAUSAL, MECHANISMS, PrefixMask, Projections, TokenInfo, build
from leapformer_fairseq.attention.ops.random import hashed
from leapformer_fairseq.attention.sparse.blocks import Blocked
from leapformer_fairseq.attention.sparse.fitted import FORMAT, Fitted, Projected, fingerprint
from leapformer_fairseq.attention.sparse.pattern import Pattern
from leapformer_fairseq.support.errors import LeapformerError

from . import cases

PATTERNS = sorted(name for name, cls in MECHANISMS.items() if issubclass(cls, Pattern))
LATER_CHANGES = {
    "sparsefinder-quantize",
    "sparsefinder-block1",
    "sparsefinder-block2",
    "entmax-longformer",
    "entmax-routing",
    "entmax-bigbird-blocks",
}
MASKS = {"all": None, "causal": CAUSAL}
SERVED = [
    (name, mask)
    for name in PATTERNS
    for mask in MASKS
    if MECHANISMS[name].capabilities.unsupported_reason(None, MASKS[mask]) is None
]


def far_apart(*x):
    """Queries and keys of which not all are near each other."""
    return tuple(3 * part for part in x)


# ----------------------------------------------------------------------------------------- the formulas, pair by pair
def loop(mechanism, q, k, mask):
    """The graph (H, T, S) of one sentence by the formulas, one pair after the other."""
    queries, keys = q.shape[1], k.shape[1]
    rule = RULES[mechanism.name]
    found = torch.zeros(len(q), queries, keys, dtype=torch.bool)
    for h in range(len(q)):
        low = None
        if isinstance(mechanism, Projected):
            low = (
                [project(mechanism, "q", h, x) for x in q[h]],
                [project(mechanism, "k", h, x) for x in k[h]],
            )
        for i in range(queries):
            for j in range(keys):
                if mask is None or j <= i:
                    found[h, i, j] = rule(mechanism, h, i, j, (q[h], k[h]) if low is None else low, mask)
    return found


def project(mechanism, side, head, x):
    weight, bias = getattr(mechanism, f"{side}_weight")[head], getattr(mechanism, f"{side}_bias")[head]
    return torch.stack([(x * weight[:, d]).sum() + bias[d] for d in range(mechanism.dims)])


def distance(mechanism, h, i, j, low, mask):
    return math.dist(low[0][i], low[1][j]) <= mechanism.chosen.sparsefinder_threshold


def squared(mechanism, h, i, j, low, mask):
    return math.dist(low[0][i], low[1][j]) ** 2 <= mechanism.chosen.sparsefinder_threshold


def nearest(centroids, x, count):
    order = sorted(range(len(centroids)), key=lambda c: math.dist(centroids[c], x))
    return set(order[:count])


def kmeans(mechanism, h, i, j, low, mask):
    centroids, count = mechanism.centroids[h], mechanism.chosen.sparsefinder_nearest
    return bool(nearest(centroids, low[0][i], count) & nearest(centroids, low[1][j], count))


def quantize(mechanism, h, i, j, low, mask):
    for d in range(mechanism.dims):
        if mechanism.ranked:
            size = math.ceil(len(low[0]) / mechanism.chosen.sparsefinder_bins)
            size = mechanism.chosen.sparsefinder_bin_tokens or size
            ranks = [sorted(range(len(side)), key=lambda t: side[t][d]) for side in low]
            same = ranks[0].index(i) // size == ranks[1].index(j) // size
        else:
            bins = [
                min(int((math.tanh(x[d]) + 1) / 2 * mechanism.chosen.sparsefinder_bins), 10**9)
                for x in (low[0][i], low[1][j])
            ]
            same = bins[0] == bins[1]
        if same:
            return True
    return False


def window(mechanism, h, i, j, x, mask):
    return abs(i - j) <= 2


def longformer(mechanism, h, i, j, x, mask):
    count = len(x[1])
    drawn = sorted(range(count), key=lambda t: int(hashed(1, torch.tensor(h), torch.tensor(t + 1))))
    return bool({i, j} & set(drawn[: mechanism.chosen.longformer_globals]))


def bigbird(mechanism, h, i, j, x, mask):
    seen = range(len(x[1]) if mask is None else i + 1)
    drawn = sorted(seen, key=lambda t: int(hashed(1, torch.tensor(h), torch.tensor(i + 1), torch.tensor(t + 1))))
    return abs(i - j) <= 1 or 0 in (i, j) or j in drawn[: mechanism.chosen.bigbird_random]


def reformer(mechanism, h, i, j, low, mask):
    buckets = []
    for x in (low[0][i], low[1][j]):
        turned = [float((x * column).sum()) for column in mechanism.rotation[h].T]
        turned += [-one for one in turned]
        buckets.append(turned.index(max(turned)))
    return buckets[0] == buckets[1]


def routing(mechanism, h, i, j, x, mask):
    count = math.ceil(len(x[0]) / mechanism.chosen.routing_centroids)
    for centroid in mechanism.centroids[h]:
        taken = [
            sorted(range(len(side)), key=lambda t: -float(F.cosine_similarity(side[t], centroid, dim=0)))[:count]
            for side in x
        ]
        if i in taken[0] and j in taken[1]:
            return True
    return False


def blocks_of(mechanism, low):
    """Blocks of queries and keys, each the projections of its tokens one after the other, filled up with zeros."""
    size, made = mechanism.size, []
    for side in low:
        side = list(side) + [torch.zeros_like(side[0])] * (-len(side) % size)
        made.append([torch.cat(side[start : start + size]) for start in range(0, len(side), size)])
    return made


def in_every_block_pattern(mechanism, i, j, last):
    a, b = i // mechanism.size, j // mechanism.size
    return abs(a - b) <= 1 or {a, b} & {0, last}


def block1(mechanism, h, i, j, low, mask):
    q, k = blocks_of(mechanism, low)
    if in_every_block_pattern(mechanism, i, j, len(k) - 1):
        return True
    scores = [float((q[i // mechanism.size] * one).sum()) for one in k]
    return j // mechanism.size in sorted(range(len(k)), key=lambda b: -scores[b])[: mechanism.attended]


def released(mechanism, h, i, j, low, mask):
    q, k = blocks_of(mechanism, low)
    if in_every_block_pattern(mechanism, i, j, len(k) - 1):
        return True
    centroids, own = mechanism.centroids[h], q[i // mechanism.size]
    scores: list[tuple[bool, float]] = []
    for one in k:
        z = sum(math.dist(own, c) * math.dist(one, c) for c in centroids)
        shared = nearest(centroids, own, 2) & nearest(centroids, one, 2)
        scores.append((bool(shared), -z))  # in the order of bool + sigmoid(-z)
    return j // mechanism.size in sorted(range(len(k)), key=lambda b: scores[b], reverse=True)[: mechanism.attended]


def bigbird_blocks(mechanism, h, i, j, x, mask):
    size = mechanism.size
    last = (len(x[1]) - 1) // size
    if in_every_block_pattern(mechanism, i, j, last):
        return True
    drawn = sorted(range(last + 1), key=lambda b: int(hashed(1, *map(torch.tensor, (h, i // size, b)))))
    return j // size in drawn[: mechanism.attended]


def block2(mechanism, h, i, j, low, mask):
    q, k = blocks_of(mechanism, low)
    if in_every_block_pattern(mechanism, i, j, len(k) - 1):
        return True
    for centroid in mechanism.centroids[h]:
        near = [sorted(range(len(x)), key=lambda b: math.dist(x[b], centroid))[: mechanism.attended] for x in (q, k)]
        if i // mechanism.size in near[0]:
            return j // mechanism.size in near[1]
    return j // mechanism.size == 0


RULES = {
    "sparsefinder-distance": distance,
    "sparsefinder-kmeans": kmeans,
    "sparsefinder-quantize": quantize,
    "sparsefinder-block1": block1,
    "sparsefinder-block2": block2,
    "entmax-window": window,
    "entmax-bigbird-blocks": bigbird_blocks,
    "entmax-longformer": longformer,
    "entmax-bigbird": bigbird,
    "entmax-reformer": reformer,
    "entmax-routing": routing,
}


@pytest.mark.parametrize(("name", "mask"), SERVED)
@pytest.mark.parametrize("count", [1, 13])
def test_a_pattern_is_its_formula(name, mask, count):
    mechanism = cases.make(name)
    q, k, _ = far_apart(*cases.inputs(count, count))
    found = mechanism.graph(q, k, mask=MASKS[mask])
    for b in range(len(q)):
        assert torch.equal(found[b], loop(mechanism, q[b], k[b], MASKS[mask]))
    if count == 13:
        assert 0 < found.float().mean() < (1 if mask == "all" else 0.53)  # neither nothing nor everything


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("sparsefinder-distance", {"sparsefinder_distance": "squared"}, squared),
        ("sparsefinder-quantize", {"sparsefinder_binning": "dynamic"}, quantize),
        ("sparsefinder-quantize", {"sparsefinder_bin_tokens": 3}, quantize),
        ("sparsefinder-block1", {"sparsefinder_block_score": "released", "sparsefinder_centroids": 5}, released),
    ],
)
def test_other_options_are_their_formulas(name, options, rule, monkeypatch):
    monkeypatch.setitem(RULES, name, rule)
    mechanism = cases.make(name, **options)
    q, k, _ = far_apart(*cases.inputs(13, 13))
    found = mechanism.graph(q, k)
    assert torch.equal(found[1], loop(mechanism, q[1], k[1], None))
    assert not torch.equal(found, cases.make(name).graph(q, k))


@pytest.mark.parametrize("ends", ["first", "both"])
@pytest.mark.parametrize("mask", MASKS)
def test_window_and_global_tokens_are_added(ends, mask):
    q, k, _ = far_apart(*cases.inputs(11, 11))
    options = {"sparsefinder_threshold": 0.5}
    without = cases.make("sparsefinder-distance", **options).graph(q, k, mask=MASKS[mask])
    found = cases.make("sparsefinder-distance", sparse_window=3, sparse_global=ends, **options).graph(
        q, k, mask=MASKS[mask]
    )
    for i in range(11):
        for j in range(11):
            extra = abs(i - j) <= 1 or 0 in (i, j) or (ends == "both" and 10 in (i, j))
            expected = (without[:, :, i, j] | extra) & (mask == "all" or j <= i)
            assert torch.equal(found[:, :, i, j], expected)


# -------------------------------------------------------------------------------------- what an edge may depend on
@pytest.mark.parametrize("name", [name for name in PATTERNS if "decoder-self" in MECHANISMS[name].capabilities.blocks])
def test_later_tokens_change_earlier_edges_only_where_there_is_no_state(name):
    mechanism = cases.make(name)
    q, k, v = far_apart(*cases.inputs(30, 30))
    short = mechanism.graph(q[:, :, :20], k[:, :, :20], mask=CAUSAL)
    whole = mechanism.graph(q, k, mask=CAUSAL)[:, :, :20, :20]
    assert mechanism.capabilities.incremental == (name not in LATER_CHANGES)
    assert torch.equal(short, whole) == mechanism.capabilities.incremental


@pytest.mark.parametrize("name", sorted(LATER_CHANGES))
def test_without_a_state_decoding_is_refused(name):
    q, k, v = cases.inputs(4, 4)
    with pytest.raises(LeapformerError, match="may change with later tokens.*sparsefinder evaluate"):
        cases.make(name).init_state(2, cases.VALUE_DIM, q, mask=CAUSAL)


@pytest.mark.parametrize("name", [name for name in PATTERNS if MECHANISMS[name].capabilities.incremental])
def test_a_last_global_token_is_refused_in_decoding(name):
    with pytest.raises(LeapformerError, match="may change with later tokens"):
        cases.make(name, sparse_global="both").init_state(2, cases.VALUE_DIM, torch.zeros(2, cases.HEADS, 1, cases.DIM))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "mask"), SERVED)
def test_padding_changes_no_edge(name, mask, side):
    mechanism = cases.make(
        name, **({} if issubclass(MECHANISMS[name], Blocked) else {"sparse_window": 3, "sparse_global": "first"})
    )
    q, k, _ = far_apart(*cases.inputs(12, 12))
    keep = cases.padding(12, side)
    found = mechanism.graph(q, k, key=TokenInfo.whole(12, keep), mask=MASKS[mask])
    real = keep[1]
    alone = mechanism.graph(q[1:, :, real], k[1:, :, real], mask=MASKS[mask])
    assert torch.equal(found[1][:, real][:, :, real], alone[0])
    assert not found[1][:, :, ~real].any()


# ----------------------------------------------------------------------------------------------- entmax over the edges
class Given(Pattern):
    """Edges that a test gives."""

    name, options, given = "given", build("entmax-window", 8, 2).options, None

    def edges(self, q, k, seen):
        return self.given


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_oracle_gives_full_entmax_and_its_gradients(dtype):
    full, within = build("entmax", cases.DIM, cases.HEADS), Given(cases.DIM, cases.HEADS)
    q, k, v = far_apart(*cases.inputs(40, 40, dtype=dtype))
    grad = torch.randn(2, cases.HEADS, 40, cases.VALUE_DIM, dtype=dtype)
    gold = full.graph(q, k)
    assert gold.float().mean() < 0.7
    bound = 1e-12 if dtype == torch.float64 else 1e-6
    expected = cases.run(full, (q, k, v), grad)
    for superset in (gold, gold | (torch.rand(gold.shape) < 0.3)):
        within.given = superset
        assert cases.difference(cases.run(within, (q, k, v), grad), expected) < bound
    head, query, key = gold[0].nonzero()[0].tolist()  # inverted control: an edge less
    within.given = gold.clone()
    within.given[0, head, query, key] = False
    assert cases.difference(cases.run(within, (q, k, v)), expected[:1]) > 1e-4


@pytest.mark.parametrize("side", cases.SIDES)
@pytest.mark.parametrize("name", ["sparsefinder-block1", "sparsefinder-block2", "entmax-bigbird-blocks"])
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_gathered_blocks_equal_the_masked_matrix(name, count, side):
    mechanism = cases.make(name)
    qkv = far_apart(*cases.inputs(count, count))
    key = TokenInfo.whole(count, cases.padding(count, side))
    real = torch.ones(2, count, dtype=torch.bool) if key.keep is None else key.keep
    grad = torch.randn(2, cases.HEADS, count, cases.VALUE_DIM, dtype=torch.float64) * real[:, None, :, None]
    found = cases.run(mechanism, qkv, grad, key=key)
    expected = cases.run(mechanism, qkv, grad, key=key, way="reference")
    for one in (found, expected):
        one[0] = one[0] * real[:, None, :, None]
    assert cases.difference(found, expected) < 1e-12
    if count == 40:
        assert mechanism.graph(*qkv[:2], key=key).float().mean() < 0.6


def test_only_the_scores_of_chosen_blocks_are_computed(monkeypatch):
    mechanism = cases.make("sparsefinder-block1", sparsefinder_block_size=8, sparsefinder_blocks=2)
    counted = []
    real = type(mechanism)._of_scores

    def counting(self, scores, visible):
        counted.append(scores[0, 0].numel())
        return real(self, scores, visible)

    monkeypatch.setattr(type(mechanism), "_of_scores", counting)
    q, k, v = cases.inputs(256, 256)
    mechanism(q, k, v)
    assert sum(counted) == 256 * 7 * 8 + 2 * 8 * 256 < 256**2 / 3  # chosen, window and ends; and the ends' own rows


# --------------------------------------------------------------------------------------------------- what was fitted
@pytest.fixture
def file(tmp_path):
    """A block's projections and the file that was fitted to them."""
    layers = Projections(*(torch.nn.Linear(16, 16) for _ in range(4)))
    entry = {
        name: torch.randn_like(getattr(cases.make("sparsefinder-kmeans"), own)).float()
        for own, name in cases.make("sparsefinder-kmeans").parts().items()
    }
    path = tmp_path / "seed1.pt"
    torch.save({"format": FORMAT, "teacher": "teacher.pt", "entries": {fingerprint(layers): entry}}, path)
    return layers, entry, path


def loaded(layers, path, **options):
    """A mechanism in a block whose checkpoint was loaded."""
    mechanism = cases.make("sparsefinder-kmeans", sparsefinder_file=str(path), **options)
    mechanism.receive(layers)
    mechanism.load_state_dict({})
    return mechanism


def test_a_mechanism_finds_its_own_part_of_the_file(file):
    layers, entry, path = file
    mechanism = loaded(layers, path)
    assert mechanism.adopted and torch.equal(mechanism.centroids.float(), entry["centroids.4"])
    assert not mechanism.state_dict()  # nothing of it is in a checkpoint


def test_what_was_fitted_to_other_weights_is_refused(file):
    layers, _, path = file
    with torch.no_grad():
        layers.k.bias[3] += 1e-6
    with pytest.raises(LeapformerError, match=r"seed1.pt was fitted to teacher.pt, which has other weights"):
        loaded(layers, path)


def test_without_a_checkpoint_the_file_is_not_used(file):
    layers, _, path = file
    mechanism = cases.make("sparsefinder-kmeans", sparsefinder_file=str(path))
    mechanism.receive(layers)
    q, k, v = cases.inputs(5, 5)
    with pytest.raises(LeapformerError, match="changes in training; train with entmax, and put it in the place"):
        mechanism.train()(q, k, v)
    with pytest.raises(LeapformerError, match="none were loaded; load a trained entmax model"):
        mechanism.eval()(q, k, v)


def test_outside_a_layer_no_entry_is_found(file):
    _, entry, path = file
    mechanism = cases.make("sparsefinder-kmeans", sparsefinder_file=str(path))
    with pytest.raises(LeapformerError, match=r"seed1.pt: .* sparsefinder-kmeans is in no layer; give the entry to"):
        mechanism.adopt_from_file()
    mechanism.adopt(entry)
    assert mechanism.adopted


def test_files_that_do_not_serve_are_one_line(file, tmp_path):
    layers, _, path = file
    with pytest.raises(LeapformerError, match="there is no such file"):
        loaded(layers, tmp_path / "moved.pt")
    other = tmp_path / "other.pt"
    other.write_bytes(b"no checkpoint")
    with pytest.raises(LeapformerError, match="is not a file of `leapformer sparsefinder fit`"):
        loaded(layers, other)
    with pytest.raises(LeapformerError, match=r"centroids.7 was not fitted; choose from: centroids.4"):
        loaded(layers, path, sparsefinder_centroids=7)
    with pytest.raises(
        LeapformerError, match=r"q.weight was fitted with shape \(2, 8, 4\), this model needs \(2, 8, 3\)"
    ):
        loaded(layers, path, sparsefinder_dimensions=3)


def test_code_in_a_file_does_not_run(file, tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    path = tmp_path / "evil.pt"
    torch.save({"format": FORMAT, "entries": Evil()}, path)
    with pytest.raises(LeapformerError, match="is not a file"):
        loaded(file[0], path)
    assert not (tmp_path / "ran").exists()


# -------------------------------------------------------------------------------------------------------- bad options
@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("entmax-window", {"sparse_window": -1}, "give an odd number"),
        ("sparsefinder-distance", {"entmax_alpha": "1"}, "above 1"),
        ("sparsefinder-kmeans", {"sparsefinder_nearest": 5}, "no more than there are"),
        ("sparsefinder-quantize", {"sparsefinder_bins": 0}, "at least 1"),
        ("entmax-reformer", {"reformer_buckets": 5}, "an even number"),
        ("entmax-routing", {"routing_centroids": 0}, "at least 1"),
        ("sparsefinder-block1", {"sparsefinder_block_size": 0}, "at least 1"),
        ("sparsefinder-distance", {"sparsefinder_dimensions": 0}, "at least 1"),
    ],
)
def test_bad_options_are_one_line(name, options, match):
    with pytest.raises(LeapformerError, match=match):
        cases.make(name, **options)


def test_an_even_window_shorter_than_the_text_is_refused():
    q, k, v = cases.inputs(9, 9)
    with pytest.raises(LeapformerError, match="4 is even.*shorter than the 9 tokens; give 3 or 5"):
        cases.make("entmax-window", sparse_window=4)(q, k, v)
    assert cases.make("entmax-window", sparse_window=512).graph(q, k).all()


@pytest.mark.parametrize("name", PATTERNS)
def test_positions_are_not_for_cross_attention(name):
    refused = MECHANISMS[name].capabilities.unsupported_reason("decoder-cross", PrefixMask(2, 3))
    assert (refused is None) == (name in ("sparsefinder-distance", "sparsefinder-kmeans", "entmax-reformer"))


@pytest.mark.parametrize("name", [name for name in PATTERNS if issubclass(MECHANISMS[name], Fitted)])
def test_a_model_needs_the_file(name):
    capabilities = build(name, 8, 2, block="encoder-self").capabilities
    from leapformer_fairseq.attention import Context

    assert "leapformer sparsefinder fit" in capabilities.unsupported_reason("encoder-self", None, Context())
