"""Scores that weigh accuracy against throughput: the paper's composite, and one that does not depend on other rows.

LeaPformer (Agostinelli et al., 2024, arXiv:2405.13046), equations 11 and 12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import stdev

from ...support.errors import LeapformerError
from .protocols import BASELINE

PAPER_STD = 1.482567  # of the 11 printed averages of table 1, sample standard deviation
STDS = ("paper", "table")


@dataclass(frozen=True)
class Measured:
    """Of a row: the average accuracy in per cent, training speed and, if known, peak memory, in any units."""

    accuracy: float
    speed: float
    memory: float | None = None


@dataclass(frozen=True)
class Score:
    """None where a score is undefined."""

    rcp: float | None
    rcpmem: float | None
    points_per_doubling: float | None


def scores(rows: Mapping[str, Measured], std: str = "paper") -> dict[str, Score]:
    """The scores of all rows but softmax. Raises LeapformerError without that row, or where `std` is none."""
    if BASELINE not in rows:
        raise LeapformerError(f"no row {BASELINE} among {', '.join(rows) or 'no rows'}: scores are relative to it")
    spread, baseline = standard_deviation(rows, std), rows[BASELINE]
    return {name: score(row, baseline, spread) for name, row in rows.items() if name != BASELINE}


def standard_deviation(rows: Mapping[str, Measured], std: str) -> float:
    """That of the paper, of the rows' accuracies (sample standard deviation), or the number given."""
    if std == "paper":
        return PAPER_STD
    if std == "table":
        if len(rows) < 2:
            raise LeapformerError("--std table: one row has no standard deviation; give --std paper or a number")
        found = stdev(row.accuracy for row in rows.values())
    else:
        try:
            found = float(std)
        except ValueError:
            found = math.nan
    if not 0 < found < math.inf:
        raise LeapformerError(f"--std {std}: give {', '.join(STDS)} or a number above 0")
    return found


def score(row: Measured, baseline: Measured, std: float) -> Score:
    """Equations 11 and 12, and accuracy points lost for each doubling of the speed (negative: gained).

    The composites are undefined where the row is better by a standard deviation or more: the denominator is not
    positive. Points per doubling are undefined where the row is not faster.
    """
    speed, denominator = row.speed / baseline.speed, 1 + (baseline.accuracy - row.accuracy) / std
    fine = denominator > 0
    memory = None if row.memory is None or baseline.memory is None else baseline.memory / row.memory
    return Score(
        rcp=speed / denominator if fine else None,
        rcpmem=(speed + memory) / 2 / denominator if fine and memory is not None else None,
        points_per_doubling=(baseline.accuracy - row.accuracy) / math.log2(speed) if speed > 1 else None,
    )
