"""What projections and centroids are fitted to: real negatives, the losses by hand, and the same again from a seed."""

from __future__ import annotations

import pytest
import torch

from leapformer_fairseq.attention import CAUSAL
from leapformer_fairseq.studies.sparsefinder.extraction import PART, RECORD, Graphs, packed_bits, unpacked_bits
from leapformer_fairseq.studies.sparsefinder.fitting import (
    Settings,
    as_many,
    block_graph,
    fit,
    kmeans,
    query_loss,
    triple_loss,
    triples,
)
from leapformer_fairseq.studies.sparsefinder.grids import Point
from leapformer_fairseq.studies.sparsefinder.sweep import Sweep, evaluated, measure_point
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import write_json


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def random_graph(density, seen):
    gold = (torch.rand(4, *seen.shape, generator=generator()) < density) & seen
    return gold | torch.eye(*seen.shape, dtype=torch.bool)


@pytest.mark.parametrize("density", [0.02, 0.5, 0.97])
@pytest.mark.parametrize("causal", [True, False])
def test_negatives_are_seen_and_have_no_edge(causal, density):
    seen = CAUSAL.mask(40, 40) if causal else torch.ones(40, 40, dtype=torch.bool)
    gold = random_graph(density, seen)
    head, query, positive, negative = triples(gold, seen, generator())
    assert gold[head, query, positive].all()
    assert (seen[query, negative] & ~gold[head, query, negative]).all()
    possible = (seen & ~gold).any(-1)
    expected = (gold & possible.unsqueeze(-1)).nonzero()
    assert torch.equal(torch.stack([head, query, positive], 1), expected)


def test_negatives_are_uniform():
    seen = torch.ones(1, 10, dtype=torch.bool)
    gold = torch.zeros(3000, 1, 10, dtype=torch.bool)
    gold[:, :, :4] = True
    negative = triples(gold, seen, generator())[3]
    shares = torch.bincount(negative, minlength=10) / len(negative)
    assert (shares[:4] == 0).all() and (shares[4:] - 1 / 6).abs().max() < 0.02


def test_a_graph_without_negatives_has_no_loss():
    gold = torch.ones(2, 3, 3, dtype=torch.bool)
    q, k = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    assert triple_loss(q, k, gold, gold[0], 1.0, generator()) == 0


def test_as_many_negatives_as_edges_without_replacement():
    allowed = torch.rand(3, 20, 30, generator=generator()) < 0.5
    counts = torch.randint(0, 25, (3, 20), generator=generator())
    found = as_many(allowed, counts, generator())
    assert not (found & ~allowed).any()
    assert torch.equal(found.sum(-1), torch.minimum(counts, allowed.sum(-1)))


def test_losses_by_hand():
    q, k = torch.tensor([[[0.0]]]), torch.tensor([[[1.0], [2.0]]])
    gold, seen = torch.tensor([[[False, True]]]), torch.ones(1, 2, dtype=torch.bool)
    assert triple_loss(q, k, gold, seen, 1.0, generator()) == 1 + 4 - 1
    assert query_loss(q, k, gold, seen, 1.0, generator()) == 1 + 4 - 1
    assert triple_loss(q, k, ~gold, seen, 1.0, generator()) == 0  # 1 + 1 - 4, cut off


def test_a_block_has_an_edge_where_a_token_has():
    gold = torch.zeros(1, 7, 7, dtype=torch.bool)
    gold[0, 1, 6] = gold[0, 5, 2] = True
    found = block_graph(gold, 3)
    assert found.shape == (1, 3, 3) and found.nonzero().tolist() == [[0, 0, 2], [0, 1, 0]]


def test_centroids_of_separate_clouds_and_the_same_from_a_seed():
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = (centres.unsqueeze(1) + 0.1 * torch.randn(3, 50, 2, generator=generator())).flatten(0, 1)
    found = kmeans(points, 3, seed=1)
    assert torch.cdist(centres, found).min(1).values.max() < 0.1
    assert torch.equal(found, kmeans(points, 3, seed=1))
    with pytest.raises(LeapformerError, match="extract more sentences"):
        kmeans(points[:2], 3, seed=1)


def test_bits_are_packed_without_loss():
    for count in (1, 7, 8, 9, 30):
        x = torch.rand(2, 3, count) < 0.5
        packed = packed_bits(x)
        assert packed.shape[-1] == -(-count // 8) and torch.equal(unpacked_bits(packed, count), x)


@pytest.mark.parametrize(
    "bad",
    [
        {"dimensions": 0},
        {"part": 0.0},
        {"part": 1.5},
        {"batch": 0},
        {"blocks": (0,)},
        {"lr": -1.0},
        {"l2": -0.1},
        {"clip": 0.0},
    ],
)
def test_bad_settings_are_one_line(bad):
    with pytest.raises(LeapformerError, match=f"--{next(iter(bad))}"):
        Settings(**bad).check()


# ------------------------------------------------------------------------------------------------------ a known teacher
def known_graphs(folder, sentences=160, tokens=24, layers=1, heads=2, dim=16):
    """A teacher whose edges are the pairs that are near each other in two of the dimensions."""
    draw = generator(7)
    shape = (layers, heads, tokens, dim)
    for part in range(-(-sentences // PART)):
        made = []
        for index in range(part * PART, min(sentences, (part + 1) * PART)):
            q, k = torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)
            graph = torch.cdist(q[..., :2], k[..., :2]) < 0.7
            bits = packed_bits(graph)
            made.append(
                {"index": index, "words": list(map(str, range(tokens))), "q": q, "k": k, "keys": tokens, "graph": bits}
            )
        torch.save(made, folder / f"part-{part:04}.pt")
    about = {
        "teacher": "known",
        "block": "encoder-self",
        "causal": False,
        "heads": heads,
        "head_dim": dim,
        "alpha": "1.5",
    }
    write_json(folder / RECORD, {**about, "fingerprints": ["a"], "indexes": list(range(sentences))})
    return Graphs(folder)


@pytest.mark.parametrize(
    ("loss", "projections"),
    [
        ("triple", "shared"),
        pytest.param("query", "separate", marks=pytest.mark.full),
        pytest.param("query", "shared", marks=pytest.mark.full),
        pytest.param("triple", "separate", marks=pytest.mark.full),
    ],
)
def test_a_graph_of_few_dimensions_is_found(tmp_path, loss, projections):
    graphs = known_graphs(tmp_path, sentences=64)
    recalls = {}
    for epochs in (1, 10):
        path = tmp_path / f"epochs{epochs}.pt"
        steps = {"epochs": epochs, "lr": 0.03, "batch": 8}
        settings = Settings(2, loss=loss, projections=projections, margin=2.0, points=100, **steps)
        fit(graphs, settings, 1, path)
        held_out = evaluated(graphs, [str(path)], None)
        assert [sentence.index for sentence in held_out] == list(range(58, 64))
        sweep = Sweep([], [0], "none", [str(path)])
        points = [Point("sparsefinder-distance", {"sparsefinder_threshold": t / 20}) for t in range(1, 120, 6)]
        found = [measure_point(graphs, held_out, point, sweep, 0) for point in points]
        recalls[epochs] = max(float(x.recall.mean()) for x in found if x.sparsity.mean() >= 0.8)
    assert recalls[10] > 0.75 and recalls[10] > recalls[1]  # 0.2 is chance


def test_centroids_of_blocks_are_fitted(tmp_path):
    graphs = known_graphs(tmp_path, sentences=40)
    fit(graphs, Settings(blocks=(4,), part=0.5), 1, tmp_path / "seed1.pt")
    sweep = Sweep([], [0], "none", [str(tmp_path / "seed1.pt")])
    held_out = evaluated(graphs, sweep.files, 3)
    assert len(held_out) == 3
    for name in ("sparsefinder-block1", "sparsefinder-block2"):
        options = {"sparsefinder_block_size": 4, "sparsefinder_blocks": 1, "sparsefinder_centroids": 4}
        found = measure_point(graphs, held_out, Point(name, options), sweep, 0)
        assert 0.1 < float(found.sparsity.mean()) < 0.6 and float(found.recall.mean()) > 0.5
