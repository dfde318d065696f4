"""Fit projections and centroids to queries, keys and graphs of a teacher (Treviso et al., 2022, section 4, Table 5).

Shapes: L layers, H heads, T queries, S keys, D head dimension, r projected dimensions, E edges, c centroids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ...attention.ops.blocks import in_blocks
from ...attention.sparse.fitted import FORMAT, block_prefix, first_projection, projected, read_file
from ...support.errors import LeapformerError
from ...support.files import write_with
from .extraction import Graphs, Sentence
from .grids import values_of

LOSSES = ("triple", "query")
PROJECTIONS = ("shared", "separate")
TRIES = 8  # random draws of a negative before searching for one
SPARE = 2.0  # above all random numbers, so never chosen


@dataclass(frozen=True)
class Settings:
    """Settings of the fit; the defaults are those of the paper's Table 5.

    loss:        "triple", over each edge and one key without an edge (the paper), or "query", over the sums of all
                 edges of a query and as many other keys (the released code).
    projections: "shared" by queries and keys (the paper's text), or "separate" (the default of the released code).
    blocks:      additional block sizes z for which sparsefinder-block1 and -block2 are fitted; z = 1 always is.
    part:        share of the sentences to fit to; the rest is for evaluation.
    points:      maximum number of projected queries and keys per head that are clustered; 0: all.
    """

    dimensions: int = 4
    margin: float = 1.0
    lr: float = 0.01
    l2: float = 0.0
    batch: int = 16
    epochs: int = 1
    clip: float = 1.0
    loss: str = "triple"
    projections: str = "shared"
    blocks: tuple[int, ...] = ()
    part: float = 0.9
    points: int = 20_000

    def check(self) -> None:
        """Raise LeapformerError for a value out of range."""
        for name, least in (
            ("dimensions", 1), ("batch", 1), ("epochs", 1), ("points", 0), ("margin", 0), ("l2", 0)
        ):  # fmt: skip
            if not getattr(self, name) >= least:
                raise LeapformerError(f"--{name} {getattr(self, name)}: give at least {least}")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise LeapformerError(f"--{name} {getattr(self, name)}: give a number above 0")
        for size in self.blocks:
            if size < 1:
                raise LeapformerError(f"--blocks {size}: give blocks of at least 1 token")
        if not 0 < self.part <= 1:
            raise LeapformerError(f"--part {self.part}: give the share of the sentences to fit to, above 0 and up to 1")


def fitted_count(sentences: int, part: float) -> int:
    """Return the number of sentences, counted from the first, to fit to."""
    return max(1, round(sentences * part))


def fit(graphs: Graphs, settings: Settings, seed: int, path: Path) -> None:
    """Write the file for `--sparsefinder-file` to `path`."""
    settings.check()
    generator = torch.Generator().manual_seed(seed)
    count = fitted_count(len(graphs), settings.part)
    entries: list[dict[str, Tensor]] = [{} for _ in graphs.about["fingerprints"]]
    for size in dict.fromkeys((1, *settings.blocks)):
        projections = _Projections(graphs, settings, size, generator)
        _train(projections, graphs, settings, count, generator)
        for entry, new in zip(entries, projections.by_layer(), strict=True):
            entry.update(new)
        _add_centroids(entries, projections, graphs, count, settings.points, seed, generator)
    content = {
        "format": FORMAT,
        "teacher": graphs.about["teacher"],
        "block": graphs.about["block"],
        "alpha": graphs.about["alpha"],
        "seed": seed,
        "settings": asdict(settings),
        "graphs": str(graphs.folder.resolve()),
        "sentences": count,
        "layers": graphs.about["fingerprints"],
        "entries": dict(zip(graphs.about["fingerprints"], entries, strict=True)),
    }
    write_with(path, partial(torch.save, content), "the seeds before it are kept: make room, and repeat the command")


def check_fitted(path: Path, graphs: Graphs, settings: Settings) -> None:
    """Raise LeapformerError if a finished file has other settings or was fitted to other graphs."""
    fitted = read_file(str(path))
    if fitted["settings"] != asdict(settings) or fitted["layers"] != graphs.about["fingerprints"]:
        raise LeapformerError(f"{path} was fitted with other settings, or to other graphs; choose another --out")


def parameter_count(graphs: Graphs, settings: Settings) -> int:
    """Return the number of parameters in the projections of a head."""
    sets = 1 if settings.projections == "shared" else 2
    return sets * (int(graphs.about["head_dim"]) + 1) * settings.dimensions


class _Projections:
    """Projections for blocks of `size` tokens: one or two sets of weights (L * H, D, r) and biases (L * H, r)."""

    def __init__(self, graphs: Graphs, settings: Settings, size: int, generator: torch.Generator) -> None:
        self.settings, self.size, self.heads = settings, size, graphs.about["heads"]
        self.layers = len(graphs.about["fingerprints"])
        self.prefix = block_prefix(size)
        sets = 1 if settings.projections == "shared" else 2
        count, dim = self.layers * self.heads, graphs.about["head_dim"]
        self.sets = [first_projection(count, dim, settings.dimensions, generator) for _ in range(sets)]
        self.parameters = [x.requires_grad_() for pair in self.sets for x in pair]

    def project(self, sentence: Sentence) -> tuple[Tensor, Tensor]:
        """Return projected queries (L * H, T, r) and keys (L * H, S, r); for blocks (L * H, N, z * r)."""
        q, k = sentence.q.flatten(0, 1), sentence.k.flatten(0, 1)
        return self._joined(projected(q, *self.sets[0])), self._joined(projected(k, *self.sets[-1]))

    def loss(self, sentence: Sentence, seen: Tensor, generator: torch.Generator) -> Tensor:
        q, k = self.project(sentence)
        gold = sentence.graph.flatten(0, 1)
        if self.size > 1:
            gold, seen = block_graph(gold, self.size), block_graph(seen.unsqueeze(0), self.size)[0]
        by_name = {"triple": triple_loss, "query": query_loss}
        return by_name[self.settings.loss](q, k, gold, seen, self.settings.margin, generator)

    def by_layer(self) -> list[dict[str, Tensor]]:
        """Return the file's entry for each layer."""
        entries = []
        for layer in range(self.layers):
            heads = slice(layer * self.heads, (layer + 1) * self.heads)
            entry = {}
            for side, (weight, bias) in (("q", self.sets[0]), ("k", self.sets[-1])):
                entry[f"{self.prefix}{side}.weight"] = weight.detach()[heads].clone()
                entry[f"{self.prefix}{side}.bias"] = bias.detach()[heads].clone()
            entries.append(entry)
        return entries

    def _joined(self, x: Tensor) -> Tensor:
        """Concatenate the projections of a block's tokens."""
        return x if self.size == 1 else in_blocks(x.unsqueeze(0), self.size)[0].flatten(2)


def block_graph(graph: Tensor, size: int) -> Tensor:
    """Reduce a graph (H, T, S) to blocks (H, N, M): True where any token of a block has an edge to any of the other."""
    queries, keys = graph.shape[1:]
    padded = F.pad(graph, (0, -keys % size, 0, -queries % size))
    return padded.unflatten(2, (-1, size)).unflatten(1, (-1, size)).any(4).any(2)


def _train(
    projections: _Projections, graphs: Graphs, settings: Settings, count: int, generator: torch.Generator
) -> None:
    """Minimise the loss over the first `count` sentences."""
    optimizer = torch.optim.Adam(projections.parameters, lr=settings.lr, weight_decay=settings.l2)
    for _ in range(settings.epochs):
        for batch in _batches(graphs.sentences(0, count), settings.batch):
            optimizer.zero_grad()
            for sentence in batch:
                loss = projections.loss(sentence, graphs.seen(sentence), generator) / len(batch)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(projections.parameters, settings.clip)
            optimizer.step()


# ------------------------------------------------------------------------------------------------------------- losses
def triple_loss(q: Tensor, k: Tensor, gold: Tensor, seen: Tensor, margin: float, generator: torch.Generator) -> Tensor:
    """Return the mean of [margin + |q' - k'_P|^2 - |q' - k'_N|^2]_+ over edges, each with one negative (section 4).

    q (H, T, r), k (H, S, r), gold (H, T, S), seen (T, S).
    """
    head, query, positive, negative = triples(gold, seen, generator)
    at = q[head, query]
    far, near = (at - k[head, negative]).square().sum(-1), (at - k[head, positive]).square().sum(-1)
    return (margin + near - far).clamp_min(0).sum() / max(1, len(head))


def query_loss(q: Tensor, k: Tensor, gold: Tensor, seen: Tensor, margin: float, generator: torch.Generator) -> Tensor:
    """Return [margin + sum_P |q' - k'_P|^2 - sum_N |q' - k'_N|^2]_+ of each query, averaged over queries and heads.

    As in the released code. A query has as many negatives as edges, drawn without replacement, or all if there are
    fewer. Shapes as in `triple_loss`.
    """
    negatives = as_many(seen & ~gold, gold.sum(-1), generator)
    distances = (q.unsqueeze(2) - k.unsqueeze(1)).square().sum(-1)
    near, far = (torch.where(part, distances, 0).sum(-1) for part in (gold, negatives))
    return ((margin + near - far).clamp_min(0) * gold.any(-1)).sum() / (gold.shape[0] * gold.shape[1])


def triples(gold: Tensor, seen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return heads, queries and keys of the edges, (E,) each, and for each edge a random visible key without an edge.

    Edges of queries without such a key are left out.
    """
    allowed = seen & ~gold
    counts = allowed.sum(-1)
    head, query, positive = gold.nonzero(as_tuple=True)
    possible = counts[head, query] > 0
    head, query, positive = head[possible], query[possible], positive[possible]
    reach = seen.sum(-1)[query]  # the visible keys are a prefix, or all
    negative = _drawn_below(reach, generator)
    wrong = ~allowed[head, query, negative]
    for _ in range(TRIES):
        left = wrong.nonzero().squeeze(1)
        if not len(left):
            break
        negative[left] = _drawn_below(reach[left], generator)
        wrong[left] = ~allowed[head[left], query[left], negative[left]]
    left = wrong.nonzero().squeeze(1)
    if len(left):  # nearly all keys have an edge
        which = _drawn_below(counts[head[left], query[left]], generator)
        order = allowed[head[left], query[left]].byte().argsort(dim=-1, descending=True, stable=True)
        negative[left] = order.gather(1, which.unsqueeze(1)).squeeze(1)
    return head, query, positive, negative


def as_many(allowed: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Choose `counts` (H, T) random keys of those allowed in each row of (H, T, S), or all if there are fewer."""
    noise = torch.rand(allowed.shape, generator=generator).masked_fill(~allowed, SPARE)
    limit = noise.sort(-1).values.gather(-1, (counts - 1).clamp_min(0).unsqueeze(-1))
    return allowed & (noise <= limit) & (counts > 0).unsqueeze(-1)


def _drawn_below(limits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw an integer from 0 to below each limit."""
    drawn = (torch.rand(len(limits), generator=generator, dtype=torch.float64) * limits).long()
    return torch.minimum(drawn, limits - 1)


# ---------------------------------------------------------------------------------------------------------- centroids
@torch.no_grad()
def _add_centroids(
    entries: list[dict[str, Tensor]],
    projections: _Projections,
    graphs: Graphs,
    count: int,
    points: int,
    seed: int,
    generator: torch.Generator,
) -> None:
    """Add centroids of projected queries and keys to `entries`.

    For tokens, not blocks, also centroids of the unprojected directions, for entmax-routing.
    """
    share = 0 if points == 0 else max(1, points // (2 * count))
    pooled: dict[str, list[Tensor]] = {f"{projections.prefix}centroids": []}
    if projections.size == 1:
        pooled["routing"] = []
    for sentence in graphs.sentences(0, count):
        for low, whole in zip(projections.project(sentence), (sentence.q, sentence.k), strict=True):
            some = torch.randperm(low.shape[1], generator=generator)[: share or None]
            pooled[f"{projections.prefix}centroids"].append(low[:, some])
            if projections.size == 1:
                pooled["routing"].append(F.normalize(whole.flatten(0, 1)[:, some], dim=-1))
    numbers = {
        kind: values_of("routing_centroids" if kind == "routing" else "sparsefinder_centroids") for kind in pooled
    }
    for kind, parts in pooled.items():
        heads = torch.cat(parts, 1).unflatten(0, (len(entries), -1))  # (L, H, N, ..)
        for number in numbers[kind]:
            for entry, layer in zip(entries, heads, strict=True):
                centroids = torch.stack([kmeans(head, number, seed) for head in layer])
                entry[f"{kind}.{number}"] = F.normalize(centroids, dim=-1) if kind == "routing" else centroids


def kmeans(points: Tensor, count: int, seed: int) -> Tensor:
    """Return centroids (c, d) of points (N, d): the best of 10 k-means++ runs of at most 300 iterations (Table 5)."""
    from sklearn.cluster import KMeans

    if len(points) < count:
        raise LeapformerError(f"{len(points)} queries and keys cannot have {count} centroids; extract more sentences")
    result = KMeans(count, init="k-means++", n_init=10, max_iter=300, random_state=seed).fit(points.numpy())
    return torch.from_numpy(result.cluster_centers_).float()


def _batches(sentences: Iterator[Sentence], size: int) -> Iterator[list[Sentence]]:
    batch: list[Sentence] = []
    for sentence in sentences:
        batch.append(sentence)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
