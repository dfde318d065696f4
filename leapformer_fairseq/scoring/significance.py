"""Bootstrap resampling of test sentences: intervals of scores, and whether a difference could be due to the sentences.

A test set of the same size is drawn from the sentences many times, with replacement, and scored again (Koehn, 2004,
W04-3250). Every score of every system gets the same draws, so that quality and latency vary together and differences
are paired. Intervals are sacreBLEU's, with its seed. Differences between training seeds are not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..support.errors import LeapformerError

SAMPLES = 1_000
LEAST_SAMPLES = 100
SEED = 12345  # sacreBLEU's
SIGNATURE = f"seed:{SEED}|interval:95%, half of its width|p:two-sided, paired"
Sums = NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A score of a test set that depends on sums over its sentences alone.

    sums:  (sentences, n), what each sentence adds to n sums, such as the numbers of matching n-grams.
    score: the score for n such sums; NaN if there is none.
    """

    sums: Sums
    score: Callable[[Sums], float]

    @property
    def value(self) -> float:
        """The score of all sentences."""
        return self.score(self.sums.sum(0))


def mean_of(values: Sequence[float | None]) -> Measure:
    """The mean over those sentences that have a value, such as a latency."""
    rows = [(0.0, 0.0) if value is None else (value, 1.0) for value in values]
    return Measure(np.array(rows).reshape(-1, 2), lambda sums: sums[0] / sums[1] if sums[1] else float("nan"))


def resampled(measures: Mapping[str, Measure], samples: int = SAMPLES) -> dict[str, Sums]:
    """The scores, (samples,), of resampled test sets: the same sentences for all measures, which have equally many."""
    counts = {len(measure.sums) for measure in measures.values()}
    if len(counts) > 1:
        raise LeapformerError(f"measures of {sorted(counts)} sentences cannot be resampled together; give equally many")
    scores: dict[str, list[float]] = {name: [] for name in measures}
    for drawn in _draws(counts.pop() if counts else 0, samples):
        for name, measure in measures.items():
            scores[name].append(float(measure.score(drawn @ measure.sums)))
    return {name: np.array(values) for name, values in scores.items()}


def _draws(count: int, samples: int) -> Iterator[Sums]:
    """How often each sentence is drawn, (count,), in each resampled test set; nothing of fewer than two sentences."""
    random = np.random.default_rng(SEED)
    for _ in range(samples if count > 1 else 0):
        yield np.bincount(random.choice(count, size=count, replace=True), minlength=count).astype(float)


def interval(scores: Sums) -> float | None:
    """Half the width of the 95 % interval of resampled scores; None without any, as of a single sentence."""
    known = np.sort(scores[~np.isnan(scores)])
    cut = len(known) // 40
    return float(known[len(known) - cut - 1] - known[cut]) / 2 if len(known) else None


def intervals(measures: Mapping[str, Measure], samples: int = SAMPLES) -> dict[str, float]:
    """Half the width of the 95 % interval of each measure, without those that have no score."""
    found = {name: interval(scores) for name, scores in resampled(measures, samples).items()}
    return {name: half for name, half in found.items() if half is not None}


def p_value(differences: Sums, difference: float) -> float | None:
    """How probable a difference at least this large, in either direction, is if only the sentences make it.

    The resampled differences, less their mean, stand for those of equal systems. None without any. (sacreBLEU's p
    counts one direction, so that it is half as large: of equal systems a tenth have a p below 0.05.)
    """
    known = differences[~np.isnan(differences)]
    if not len(known) or np.isnan(difference):
        return None
    return float((np.abs(known - known.mean()) >= abs(difference)).sum() + 1) / (len(known) + 1)


def compared(
    systems: Mapping[str, Mapping[str, Measure]], samples: int = SAMPLES
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compare systems with the first one on the same sentences: {system: {name of the score: result}}.

    A result has "score", "interval", and for others than the first system "difference" to it, "difference_interval" and
    "p"; None what cannot be told. Scores that a system has not, or the first one, are left out. Raises LeapformerError
    for fewer than two systems or too few samples.
    """
    if len(systems) < 2:
        raise LeapformerError(f"{len(systems)} system to compare; give a baseline and at least one other")
    if samples < LEAST_SAMPLES:
        raise LeapformerError(f"--samples {samples}: give at least {LEAST_SAMPLES}; p is a share of them")
    scores = {name: resampled(measures, samples) for name, measures in systems.items()}
    first, *_ = systems
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in systems}
    for name, measures in systems.items():
        for key in (key for key in measures if key in systems[first]):
            result: dict[str, Any] = {"score": measures[key].value, "interval": interval(scores[name][key])}
            if name != first:
                difference = measures[key].value - systems[first][key].value
                drawn = scores[name][key] - scores[first][key]
                result |= {"difference": difference, "difference_interval": interval(drawn)}
                result["p"] = p_value(drawn, difference)
            found[name][key] = result
    return found
