"""Warnings beside the scores: signs of a failing system, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DEGENERATE = 20.0  # per cent; see DSPTV in `latency.simultaneity`
SHORT, LONG = 0.8, 1.2  # limits of `length_ratio`


def length_ratio(predictions: Sequence[str], references: Sequence[str]) -> float | None:
    """Characters of all predictions divided by those of all references, without spaces; None for empty references.

    Characters and not words, because a model may repeat itself within a word, and not all languages have spaces.
    """
    written, wanted = (sum(len("".join(text.split())) for text in texts) for texts in (predictions, references))
    return written / wanted if wanted else None


def below_twins(means: Mapping[str, float]) -> list[str]:
    """Explain each latency with computation (`_CA`) that is below the same one without, which looks impossible.

    `means` are latencies in ms by name, as in `report.score_run` and `talk_report.score_pieces`.
    """
    twins = {name: name.partition("_CA")[0] for name in means if "_CA" in name}
    return [
        f"{name} {means[name]:.2f} is below {twin} {means[twin]:.2f}: with computation, fewer units are written before "
        "the end of the source, and only those count"
        for name, twin in twins.items()
        if means[name] < means.get(twin, means[name])
    ]


def marks(
    lengths: float | None, lagging: float | None = None, shares: Mapping[str, float] | None = None, name: str = "AL"
) -> list[str]:
    """Warnings about a `length_ratio`, a latency in ms called `name`, and the result of `latency.simultaneity`."""
    warnings = []
    if shares and abs(shares["DSPTV"]) > DEGENERATE:
        warnings.append(
            f"degenerate policy: {shares['SWF']:.0f} % of the units came before the end of the source, and "
            f"{shares['EFSW']:.0f} % would if all lagged by YAAL, so YAAL says little"
        )
    if lagging is not None and lagging < 0:
        warnings.append(
            f"negative {name}: hypotheses run ahead of the speech, words are due before they are said; raise the "
            "pre-decision ratio, in training, too"
        )
    if lengths is not None and lengths > LONG:
        warnings.append(
            f"too long: {lengths:.2f} characters for each of the references: repetition, or what was not said"
        )
    if lengths is not None and lengths < SHORT:
        warnings.append(f"too short: {lengths:.2f} characters for each of the references; sentences end too early")
    return warnings
