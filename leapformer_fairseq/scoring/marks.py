"""Warnings that scores alone do not give: signs of a failing system, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DEGENERATE = 20.0  # per cent, see `latency.simultaneity`
SHORT, LONG = 0.8, 1.2  # characters of the hypotheses for each of the references


def length_ratio(predictions: Sequence[str], references: Sequence[str]) -> float | None:
    """Characters of all hypotheses divided by those of all references, without spaces; None for empty references.

    Characters, because a model may repeat itself within a word, and because not all languages have spaces.
    """
    written, wanted = (sum(len("".join(text.split())) for text in texts) for texts in (predictions, references))
    return written / wanted if wanted else None


def below_twins(means: Mapping[str, float]) -> list[str]:
    """A line for each latency with computation (`_CA`) that is below the same latency without, which no delay explains.

    `means` are latencies in ms by name, as `report.score_run` and `talk_report.score_pieces` have them.
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
    """Lines about a `length_ratio`, a latency in ms called `name`, and the result of `latency.simultaneity`.

    None if there is nothing to report.
    """
    found = []
    if shares and abs(shares["DSPTV"]) > DEGENERATE:
        found.append(
            f"degenerate policy: {shares['SWF']:.0f} % of the units came before the end of the source, and "
            f"{shares['EFSW']:.0f} % would if all lagged by YAAL, so YAAL says little"
        )
    if lagging is not None and lagging < 0:
        found.append(
            f"negative {name}: hypotheses run ahead of the speech, words are due before they are said; raise the "
            "pre-decision ratio, in training, too"
        )
    if lengths is not None and lengths > LONG:
        found.append(f"too long: {lengths:.2f} characters for each of the references: repetition, or what was not said")
    if lengths is not None and lengths < SHORT:
        found.append(f"too short: {lengths:.2f} characters for each of the references; sentences end too early")
    return found
