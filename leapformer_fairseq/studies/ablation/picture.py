"""Plots the losses of an ablation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .search import Candidate, Slot, plan_text, replaced
from .study import COMBINATION, Study

MARKERS = "osD^vP*X"
SPREAD = 0.6  # share of the space between two blocks that the mechanisms of a block take


def draw(study: Study, path: str | Path) -> None:
    """Write `figure` as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure(study)).print_png(str(path))


def figure(study: Study) -> Any:
    """Plot the validation loss by block (and layers) and mechanism as a matplotlib figure.

    The baseline is a line, replacements in the recommended plan are ringed, and combinations are stars: black for the
    recommended one, grey for the others.
    """
    from matplotlib.figure import Figure

    places = list(dict.fromkeys(run.candidate.slot for run in study.runs if run.candidate))
    drawing = Figure(figsize=(6.0 + 1.2 * len(places), 4.2), layout="constrained")
    axes = drawing.subplots()
    _draw_replacements(axes, study, places)
    names = [
        f"{slot.block}\nlayers {slot.layers}" if study.settings.layer_groups > 1 else slot.block for slot in places
    ]
    baseline, *others = study.runs
    if baseline.result:
        label = f"baseline {study.settings.baseline}"
        axes.axhline(baseline.result.loss, color="0.3", linewidth=1, linestyle="--", label=label)
    for run in others:
        if run.role == COMBINATION and run.result:
            chosen = run.plan == study.recommended
            label = "recommended plan (of what is ringed)" if chosen else f"given up: {plan_text(run.plan)}"
            axes.plot(len(names), run.result.loss, "*", color="k" if chosen else "0.6", markersize=12, label=label)
            names.append("recommended" if chosen else "given up")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set(
        ylabel=f"best validation {study.training.metric}", title=f"One block at a time: {study.training.args.arch}"
    )
    axes.grid(alpha=0.3, axis="y")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return drawing


def _draw_replacements(axes: Any, study: Study, places: list[Slot]) -> None:
    """Plot the mechanisms side by side in each slot, each with a colour and a marker of its own."""
    tried = [(run.candidate, run.result) for run in study.runs if run.candidate and run.result]
    mechanisms = list(dict.fromkeys(candidate.mechanism for candidate, _ in tried))
    for i, mechanism in enumerate(mechanisms):
        offset, style = SPREAD * ((i + 0.5) / len(mechanisms) - 0.5), {"color": f"C{i % 10}", "linestyle": "none"}
        points = {c: (places.index(c.slot) + offset, r.loss) for c, r in tried if c.mechanism == mechanism}
        axes.plot(*zip(*points.values(), strict=True), marker=MARKERS[i % len(MARKERS)], label=mechanism, **style)
        for candidate, point in points.items():
            if _takes(study, candidate):
                axes.plot(*point, marker="o", markersize=14, fillstyle="none", **style)


def _takes(study: Study, candidate: Candidate) -> bool:
    """Whether the recommended plan has the candidate's mechanism in its slot."""
    return study.recommended is not None and replaced(study.recommended, candidate) == study.recommended
