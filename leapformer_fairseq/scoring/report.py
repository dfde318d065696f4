"""All scores of a SimulEval run in one JSON structure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ..runtime.formats.runlog import Instance, read_compute, read_instances
from .latency import latency_scores, simultaneity
from .marks import below_twins, length_ratio, marks
from .quality import QualityScore, quality
from .significance import intervals, mean_of


def score_run(
    output: str | Path, tokenize: str = "13a", unit: str = "word", training: str | Path | None = None
) -> dict[str, Any]:
    """Score the run in folder `output` (SimulEval's --output).

    `training` is a text that the model was trained on; with it, the recall of rare words is measured, too. Keys:

    scores:       corpus values: BLEU, chrF and the recall from 0 to 100; AL, LAAL, DAL, ATD, YAAL in ms, AP a ratio,
                  each also as `_CA` if computation was timed. A latency is the mean over the utterances that have it.
    intervals:    halves of the 95 % intervals of these scores by resampling of utterances, see `significance`.
    simultaneity, length_ratio, marks: see the functions of these names.
    signatures:   of the quality scores.
    compute:      seconds, and seconds per second of audio; None if not logged.
    n_instances:  utterances.
    n_empty:      utterances without output. They have no latency, so many of them make it look better.
    unit:         of latency: "word" or "char".
    instances:    the scores of each utterance.

    Raises LeapformerError as `runlog.read_instances` and `quality.quality` do.
    """
    instances, compute = read_instances(output, unit), read_compute(output)
    texts = [instance.prediction for instance in instances], [instance.reference for instance in instances]
    latencies = run_latencies(instances, unit)
    # Some utterances lack some of them: the order is that of one with most.
    names = [name for scores in sorted(latencies, key=len, reverse=True) for name in scores]
    report = combined(instances, quality(*texts, tokenize, training), latencies, names, unit, "AL")
    return report | {
        "compute": None
        if compute is None
        else {
            **asdict(compute),
            "seconds_per_second": compute.seconds_per_second,
            "without_prenet": compute.without_prenet,
        }
    }


def run_latencies(instances: Sequence[Instance], unit: str = "word") -> list[dict[str, float]]:
    """The latencies of each utterance of a run; those with computation only if it was timed in all of them."""
    latencies = [latency_scores(instance, unit) for instance in instances]
    timed = all("AL_CA" in scores for scores in latencies if scores)  # a mean over some of the utterances would mislead
    return [{name: v for name, v in scores.items() if timed or not name.endswith("_CA")} for scores in latencies]


def combined(
    instances: Sequence[Instance],
    qualities: Sequence[QualityScore],
    latencies: Sequence[dict[str, float]],
    names: Iterable[str],
    unit: str,
    lagging: str,
) -> dict[str, Any]:
    """What the reports of utterances and talks have in common; see `score_run` for the keys.

    `latencies` are those of each instance, `names` those to average, and `lagging` the one that is marked if negative.
    """
    values_of = {name: [scores[name] for scores in latencies if name in scores] for name in dict.fromkeys(names)}
    means = {name: fmean(values) for name, values in values_of.items() if values}
    measures = {score.name: score.measure for score in qualities if score.measure}
    measures |= {name: mean_of([scores.get(name) for scores in latencies]) for name in means}
    lengths = length_ratio([one.prediction for one in instances], [one.reference for one in instances])
    shares = simultaneity(instances, unit)
    return {
        "scores": {**{score.name: score.value for score in qualities}, **means},
        "intervals": intervals(measures),
        "simultaneity": shares,
        "length_ratio": lengths,
        "marks": [*marks(lengths, means.get(lagging), shares, lagging), *below_twins(means)],
        "signatures": {score.name: score.signature for score in qualities},
        "n_instances": len(instances),
        "n_empty": sum(not instance.delays for instance in instances),
        "unit": unit,
        "instances": [
            {
                "index": instance.index,
                **{score.name: score.per_sentence[rank] for score in qualities},
                **latencies[rank],
            }
            for rank, instance in enumerate(instances)
        ],
    }
