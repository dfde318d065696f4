"""All scores of a SimulEval run in one JSON structure."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ..runtime.formats.runlog import read_compute, read_instances
from .latency import latency_scores, simultaneity
from .marks import below_twins, length_ratio, marks
from .quality import quality


def score_run(
    output: str | Path, tokenize: str = "13a", unit: str = "word", training: str | Path | None = None
) -> dict[str, Any]:
    """Score the run in folder `output` (SimulEval's --output).

    `training` is a text that the model was trained on; with it, the recall of rare words is measured, too. Keys:

    scores:       corpus values: BLEU, chrF and the recall from 0 to 100; AL, LAAL, DAL, ATD, YAAL in ms, AP a ratio,
                  each also as `_CA` if computation was timed. A latency is the mean over the utterances that have it.
    simultaneity, length_ratio, marks: see the functions of these names.
    signatures:   of the quality scores.
    compute:      seconds, and seconds per second of audio; None if not logged.
    n_instances:  utterances.
    n_empty:      utterances without output. They have no latency, so many of them make it look better.
    unit:         of latency: "word" or "char".
    instances:    the scores of each utterance.

    Raises LeapformerError as `runlog.read_instances` and `quality.quality` do.
    """
    instances = read_instances(output, unit)
    predictions = [instance.prediction for instance in instances]
    references = [instance.reference for instance in instances]
    qualities = quality(predictions, references, tokenize, training)
    latencies = [latency_scores(instance, unit) for instance in instances]
    measured = [scores for scores in latencies if scores is not None]
    timed = all("AL_CA" in scores for scores in measured)  # a mean over some of the utterances would mislead
    names = dict.fromkeys(name for scores in measured for name in scores if timed or not name.endswith("_CA"))
    means = {name: fmean(scores[name] for scores in measured if name in scores) for name in names}
    compute = read_compute(output)
    shares, lengths = simultaneity(instances, unit), length_ratio(predictions, references)
    return {
        "scores": {
            **{score.name: score.value for score in qualities},
            **means,
        },
        "simultaneity": shares,
        "length_ratio": lengths,
        "marks": [*marks(lengths, means.get("AL"), shares), *below_twins(means)],
        "signatures": {score.name: score.signature for score in qualities},
        "compute": None
        if compute is None
        else {
            **asdict(compute),
            "seconds_per_second": compute.seconds_per_second,
            "without_prenet": compute.without_prenet,
        },
        "n_instances": len(instances),
        "n_empty": len(instances) - len(measured),
        "unit": unit,
        "instances": [
            {"index": instance.index}
            | {score.name: score.per_sentence[rank] for score in qualities}
            | (latencies[rank] or {})
            for rank, instance in enumerate(instances)
        ],
    }
