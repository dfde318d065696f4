"""Scores that weigh accuracy against throughput: LeaPformer's composites, and one that does not depend on other rows.

LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046), equations 11 and 12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import stdev

from ...support.errors import LeapformerError
from .protocols import BASELINE

PAPER_STD = 1.482567  # sample standard deviation of the 11 averages printed in table 1
STDS = ("paper", "table")


@dataclass(frozen=True)
class Measured:
    """A row's average accuracy in per cent, training speed and, if known, peak memory, the latter two in any unit."""

    accuracy: float
    speed: float
    memory: float | None = None


@dataclass(frozen=True)
class Score:
    """The scores of a row, see `score`; None if undefined."""

    rcp: float | None
    rcpmem: float | None
    points_per_doubling: float | None


def scores(rows: Mapping[str, Measured], std: str = "paper") -> dict[str, Score]:
    """Score all rows but softmax. Raises LeapformerError without a row of softmax, or for a wrong `std`."""
    if BASELINE not in rows:
        raise LeapformerError(f"no row {BASELINE} among {', '.join(rows) or 'no rows'}: scores are relative to it")
    spread, baseline = standard_deviation(rows, std), rows[BASELINE]
    return {name: score(row, baseline, spread) for name, row in rows.items() if name != BASELINE}


def standard_deviation(rows: Mapping[str, Measured], std: str) -> float:
    """The standard deviation of accuracy that `std` selects: "paper", "table" (of these rows), or a number."""
    if std == "paper":
        return PAPER_STD
    if std == "table":
        if len(rows) < 2:
            raise LeapformerError("--std table: one row has no standard deviation; give --std paper or a number")
        value = stdev(row.accuracy for row in rows.values())
    else:
        try:
            value = float(std)
        except ValueError:
            value = math.nan
    if not 0 < value < math.inf:
        raise LeapformerError(f"--std {std}: give {', '.join(STDS)} or a number above 0")
    return value


def score(row: Measured, baseline: Measured, std: float) -> Score:
    """Equations 11 (RCP) and 12 (RCPmem), and accuracy points lost per doubling of speed (negative: gained).

    RCP = (speed / softmax's) / (1 + (softmax's accuracy - accuracy) / std); RCPmem has the mean of relative speed and
    inverse relative memory as numerator. Both are undefined if the row is better by a standard deviation or more, when
    the denominator is not positive. Points per doubling are undefined if the row is not faster.
    """
    speed, denominator = row.speed / baseline.speed, 1 + (baseline.accuracy - row.accuracy) / std
    defined = denominator > 0
    memory = None if row.memory is None or baseline.memory is None else baseline.memory / row.memory
    return Score(
        rcp=speed / denominator if defined else None,
        rcpmem=(speed + memory) / 2 / denominator if defined and memory is not None else None,
        points_per_doubling=(baseline.accuracy - row.accuracy) / math.log2(speed) if speed > 1 else None,
    )
