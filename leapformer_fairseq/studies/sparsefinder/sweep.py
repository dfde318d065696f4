"""Measure sparsity and recall of every point of a grid, with every window, on sentences that were not fitted to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...attention import build, find
from ...attention.sparse.entmax import ALPHA
from ...attention.sparse.fitted import DIMENSIONS, FILE, Fitted, read_file
from ...attention.sparse.pattern import SEED, WINDOW, Pattern
from ...support.errors import LeapformerError
from .extraction import Graphs, Sentence
from .fitting import fitted_count
from .grids import Point
from .measures import Measures, measure_windows

FITTED = "--fitted"


@dataclass(frozen=True)
class Sweep:
    """The sweep: `points` with `windows` and global tokens `ends`; `files` are the fitted files, one per seed."""

    points: Sequence[Point]
    windows: Sequence[int]
    ends: str
    files: Sequence[str]

    def units(self) -> list[tuple[Point, int]]:
        """Return each point with each seed, counted from 0; points without anything random have one."""
        return [(point, i) for point in self.points for i in range(max(1, len(self.files)) if point.seeded else 1)]


def evaluated(graphs: Graphs, files: Sequence[str], limit: int | None) -> list[Sentence]:
    """Return at most `limit` sentences, those after the ones that any of the files was fitted to.

    Raises LeapformerError if there are none, and for a file of another teacher.
    """
    start = 0
    for path in files:
        fitted = read_file(path, FITTED)
        if fitted["layers"] != graphs.about["fingerprints"]:
            raise LeapformerError(
                f"{path} was fitted to {fitted['teacher']} ({fitted['block']}), {graphs.folder} is of "
                f"{graphs.about['teacher']} ({graphs.about['block']}); fit it to these graphs"
            )
        if fitted["graphs"] == str(graphs.folder.resolve()):
            start = max(start, fitted_count(len(graphs), fitted["settings"]["part"]))
    if limit is not None and limit < 1:
        raise LeapformerError(f"--sentences {limit}: give at least 1")
    if start >= len(graphs):
        raise LeapformerError(
            f"{graphs.folder}: all {len(graphs)} sentences were fitted to; give other graphs of this teacher, or fit "
            "with --part 0.9"
        )
    stop = len(graphs) if limit is None else min(len(graphs), start + limit)
    return list(graphs.sentences(start, stop))


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file, which tells a repeated fit from the first, whatever its name."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def check_windows(windows: Sequence[int], sentences: Sequence[Sentence]) -> None:
    """Raise LeapformerError for windows without a middle: below 0, or even and shorter than the longest sentence."""
    longest = max(max(sentence.graph.shape[2:]) for sentence in sentences)
    for window in windows:
        if window < 0 or (window % 2 == 0 and 0 < window < longest):
            raise LeapformerError(
                f"--window {window}: it has no middle, and the longest sentence has {longest} tokens; give an odd "
                "number, or 0 for none"
            )


def name_of(point: Point, seed: int) -> str:
    """Return the name of a point with a seed, counted from 0, in a study."""
    return f"points/{point.file_name}-seed{seed + 1}"


def by_head(
    sweep: Sweep, results: Mapping[str, Mapping[str, Any]], window: int
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return sparsities and recalls (P, L, H) of each mechanism's P points at one window, with the first seed.

    `results` are the measures by the point's name.
    """
    at = list(sweep.windows).index(window)
    by_mechanism: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for point in sweep.points:
        held = results[name_of(point, 0)]
        pair = torch.tensor(held["sparsity"])[at], torch.tensor(held["recall"])[at]
        by_mechanism.setdefault(point.mechanism, []).append(pair)
    return {
        name: (torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs]))
        for name, pairs in by_mechanism.items()
    }


@torch.no_grad()
def measure_point(graphs: Graphs, sentences: Sequence[Sentence], point: Point, sweep: Sweep, seed: int) -> Measures:
    """Return measures (W, L, H), averaged over sentences."""
    layers = list(mechanisms(graphs, point, sweep.ends, sweep.files, seed))
    total: list[torch.Tensor] | None = None
    for sentence in sentences:
        seen = graphs.seen(sentence)
        per_layer = []
        for layer, mechanism in enumerate(layers):
            q, k = sentence.q[layer].unsqueeze(0), sentence.k[layer].unsqueeze(0)
            predicted = mechanism.graph(q, k, mask=graphs.mask)[0]
            per_layer.append(measure_windows(predicted, sentence.graph[layer], seen, sweep.windows))
        stacked = [torch.stack(values, 1) for values in zip(*per_layer, strict=True)]
        total = stacked if total is None else [a + b for a, b in zip(total, stacked, strict=True)]
    assert total is not None
    return Measures(*(x / len(sentences) for x in total))


def mechanisms(graphs: Graphs, point: Point, ends: str, files: Sequence[str], seed: int) -> Iterator[Pattern]:
    """Yield the pattern of each layer, with its fitted parts and its learned alpha."""
    about, options = graphs.about, {ALPHA.name: graphs.about["alpha"], **pattern_options(point, ends, files, seed)}
    for layer, key in enumerate(about["fingerprints"]):
        pattern = build(point.mechanism, about["head_dim"], about["heads"], block=about["block"], **options)
        assert isinstance(pattern, Pattern)
        if isinstance(pattern, Fitted):
            pattern.adopt(_file(point, files, seed)["entries"][key])
        if pattern.alpha_logit is not None:
            pattern.alpha_logit.data.copy_(torch.logit(torch.tensor(about["alphas"][layer]) - 1))
        yield pattern


def pattern_options(point: Point, ends: str, files: Sequence[str], seed: int) -> dict[str, Any]:
    """Return the options of a point for one seed."""
    options, known = {"sparse_global": ends, **point.options}, find(point.mechanism).options
    if SEED in known:
        options[SEED.name] = seed + 1
    if DIMENSIONS in known:
        options[DIMENSIONS.name] = _file(point, files, seed)["settings"]["dimensions"]
    return options


def model_options(point: Point, window: int, sweep: Sweep, seed: int) -> dict[str, Any]:
    """Return the options with which a model has the pattern in its layers."""
    options = {**pattern_options(point, sweep.ends, sweep.files, seed), WINDOW.name: window}
    if issubclass(find(point.mechanism), Fitted):
        options[FILE.name] = str(Path(sweep.files[seed]).resolve())
    return options


def gold_sparsity(graphs: Graphs, sentences: Sequence[Sentence]) -> float:
    """Return the sparsity of the teacher's graphs, averaged like the measures."""
    sparsities = [1 - s.graph.sum((2, 3)) / graphs.seen(s).sum() for s in sentences]
    return float(torch.stack([sparsity.mean() for sparsity in sparsities]).mean())


def _file(point: Point, files: Sequence[str], seed: int) -> dict[str, Any]:
    if not files:
        raise LeapformerError(
            f"{point.mechanism} has fitted parts; give the files of `leapformer sparsefinder fit` with --fitted"
        )
    return read_file(files[seed], FITTED)


def rows_of(point: Point, seed: int, windows: Sequence[int], measures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each window; `measures` are nested lists (W, L, H)."""
    means = {name: torch.tensor(measures[name]).flatten(1).mean(1).tolist() for name in Measures._fields}
    about = {"mechanism": point.mechanism, "options": point.options, "origins": list(point.origins), "seed": seed + 1}
    return [
        {**about, "window": window, **{name: values[i] for name, values in means.items()}}
        for i, window in enumerate(windows)
    ]


def rounded(x: torch.Tensor) -> list[Any]:
    """Return nested lists, rounded to six decimals."""
    numbers: list[Any] = (x * 1e6).round().div(1e6).tolist()
    return numbers
