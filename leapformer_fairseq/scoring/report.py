"""All scores of a run in one JSON structure."""

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

    `training`: a text that the model was trained on, for the recall of rare words.

    Keys: `scores` (corpus values: BLEU, chrF and the recall from 0 to 100; AL, LAAL, DAL, ATD, YAAL in ms, AP a ratio,
    each also `_CA` if computation was timed; a latency is the mean over utterances that have it), `simultaneity`,
    `length_ratio` and `marks` (see there), `signatures`, `compute` (seconds, and seconds per second of audio; None if
    not logged), `n_instances`, `n_empty` (utterances without output: they have no latency, so many of them make it look
    better), `unit`, and `instances` with the scores of each utterance. Raises LeapformerError.
    """
    instances = read_instances(output, unit)
    predictions, references = ([getattr(one, side) for one in instances] for side in ("prediction", "reference"))
    found = quality(predictions, references, tokenize, training)
    latencies = [latency_scores(one, unit) for one in instances]
    measured = [scores for scores in latencies if scores is not None]
    timed = all("AL_CA" in scores for scores in measured)
    names = dict.fromkeys(name for scores in measured for name in scores if timed or not name.endswith("_CA"))
    means = {name: fmean(scores[name] for scores in measured if name in scores) for name in names}
    compute = read_compute(output)
    shares, lengths = simultaneity(instances, unit), length_ratio(predictions, references)
    return {
        "scores": {
            **{score.name: score.value for score in found},
            **means,
        },
        "simultaneity": shares,
        "length_ratio": lengths,
        "marks": [*marks(lengths, means.get("AL"), shares), *below_twins(means)],
        "signatures": {score.name: score.signature for score in found},
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
            {"index": one.index} | {score.name: score.per_sentence[rank] for score in found} | (latencies[rank] or {})
            for rank, one in enumerate(instances)
        ],
    }
