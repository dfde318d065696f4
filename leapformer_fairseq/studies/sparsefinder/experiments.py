"""The experiments of `leapformer sparsefinder evaluate`, `pareto`, `blocks` and `draw`, and the files they write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...attention import find
from ...attention.sparse.pattern import Pattern
from ...scoring.pictures.heatmaps import Axis
from ...support.files import write_text
from . import pictures, report
from .extraction import Graphs, Sentence
from .quality import Scored, score
from .report import Row
from .sweep import Sweep, by_head, check_windows, measure_point, model_options


def evaluate(graphs: Graphs, sweep: Sweep, sentences: Sequence[Sentence], test: Scored | None) -> Iterator[Row]:
    """Yield a row for each point and seed, at the sweep's only window: means, values by layer and head, and quality.

    Quality is left out without a `test`. Raises LeapformerError for a window without a middle, and like `score`.
    """
    check_windows(sweep.windows, sentences)
    (window,) = sweep.windows
    for point, seed in sweep.units():
        measures = measure_point(graphs, sentences, point, sweep, seed)._asdict()
        row: Row = {"mechanism": point.mechanism, "options": point.options, "window": window, "seed": seed + 1}
        row |= {name: float(x.mean()) for name, x in measures.items()}
        row["layers"] = {name: x[0].tolist() for name, x in measures.items()}
        if test is not None:
            row |= score(test, point.mechanism, model_options(point, window, sweep, seed))._asdict()
        yield row


# -------------------------------------------------------------------------------------------------------------- curves
def write_curves(
    folder: Path,
    block: str,
    sweep: Sweep,
    rows: Sequence[Row],
    scored: Sequence[Row],
    gold: Row,
    results: Mapping[str, Row],
    note: str | None = None,
) -> str:
    """Write curves.csv, curves.md and pictures, with scores also quality.csv; return the text of curves.md.

    `results` are the measures by the point's name. The text begins with `note`, if any.
    """
    report.write_csv(rows, folder / "curves.csv")
    text = [*([note] if note else []), report.as_markdown(report.recall_table(rows))]
    recall = _labelled(rows, block)
    pictures.curves_figure(recall, gold, "recall", f"{block}: recall of the gold graph").save(folder / "recall.svg")
    if scored:
        name = gold["name"]
        report.write_csv(scored, folder / "quality.csv")
        text += [report.full_markdown(gold), report.quality_markdown(scored, name)]
        named = [{**row, name: row["quality"]} for row in _labelled(scored, block)]
        oracle = {**gold, name: gold["quality"]}
        pictures.curves_figure(named, oracle, name, f"{block}: {name}").save(folder / "quality.svg")
    write_text(folder / "curves.md", "\n\n".join(text) + "\n", "--out")
    paper = 25 if block == "encoder-self" else 11  # the window of the paper's figures
    window = min(sweep.windows, key=lambda window: abs(window - paper))
    pictures.draw_panels(by_head(sweep, results, window), folder / "heads.svg", f"{block}, window {window}")
    return "\n\n".join(text)


def _labelled(rows: Sequence[Row], block: str) -> list[Row]:
    """Rename mechanisms as in the plots: in a decoder, a pattern that cannot decode from a state is "(non-causal)"."""

    def name(mechanism: str) -> str:
        causal = block == "encoder-self" or find(mechanism).capabilities.incremental
        return mechanism if causal else f"{mechanism} (non-causal)"

    return [{**row, "mechanism": name(row["mechanism"])} for row in rows]


# -------------------------------------------------------------------------------------------------------------- blocks
def write_blocks(folder: Path, rows: Sequence[Row], full: Row) -> str:
    """Write blocks.md, which is returned, blocks.svg (mean over sizes from 2; figure 7), and blocks-sizes.svg (13)."""
    text = report.blocks_markdown(rows, full)
    write_text(folder / "blocks.md", text + "\n", "--out")
    for path, by_size in (("blocks.svg", False), ("blocks-sizes.svg", True)):
        pictures.blocks_figure(rows, full, full["name"], by_size).save(folder / path)
    return text


# -------------------------------------------------------------------------------------------------------------- graphs
def draw_graphs(
    graphs: Graphs,
    sentence: Sentence,
    layers: Mapping[int, Pattern],
    heads: Sequence[int],
    most: int,
    folder: Path,
    name: str,
) -> None:
    """Draw graph and attention of the first `most` tokens, with gold edges: a picture for each layer and head."""
    block = graphs.about["block"]
    queries = Axis("token", sentence.words[:most])
    axes = queries, Axis("source token") if block == "decoder-cross" else queries
    for layer, mechanism in layers.items():
        q, k = sentence.q[layer].unsqueeze(0), sentence.k[layer].unsqueeze(0)
        parts = mechanism.graph(q, k, mask=graphs.mask), mechanism.weights(q, k, mask=graphs.mask)
        predicted, weights, gold = (x[:, :most, :most] for x in (parts[0][0], parts[1][0], sentence.graph[layer]))
        for head in heads:
            title = f"{block}, layer {layer + 1}, head {head}: {name}"
            path = folder / f"layer{layer + 1}-head{head}.svg"
            pictures.draw_graph(predicted[head], weights[head], gold[head], axes, path, title)
