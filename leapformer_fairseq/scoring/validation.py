"""Reads the result of fairseq-validate: accuracy, perplexity, or the losses of speech synthesis."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError

_RESULT = re.compile(r"valid on '[^']*' subset \| (.*)")
# fairseq's name -> ours
_NAMES = {
    "accuracy": "accuracy",
    "ppl": "perplexity",
    "loss": "bits",
    "nll_loss": "bits",
    "l1_loss": "L1",
    "mse_loss": "MSE",
    "eos_loss": "end",
}
# fairseq's names of the scores -> signature; the first entry whose names are all there counts. So a classifier's loss
# is not read, in bits per sentence, which nobody compares.
_SCORES = {
    ("ppl", "nll_loss"): "unit:subword|given the reference before it|tool:fairseq-validate",
    ("accuracy",): "unit:example|tool:fairseq-validate",
    ("l1_loss", "mse_loss", "eos_loss"): "sum of L1, MSE and cross-entropy of the end|tool:fairseq-validate",
    ("ppl", "loss"): "unit:subword|masked ones only|tool:fairseq-validate",
}


def score_validation(log: str | Path, examples: int) -> dict[str, Any]:
    """Read accuracy (per cent), perplexity and bits per subword, or losses of speech from fairseq-validate's output.

    Keys as in `report.score_run`. `examples` is the number of validated lines. Of several results, the last one counts.
    Raises LeapformerError if there is none, or if it is not finite.
    """
    path = Path(log)
    if not path.is_file():
        raise LeapformerError(f"no log {path}; give the output of `leapformer validate`")
    results = _RESULT.findall(path.read_text(encoding="utf-8", errors="replace"))
    fields = dict(field.split(" ", 1) for field in results[-1].split(" | ")) if results else {}
    names = next((names for names in _SCORES if fields.keys() >= set(names)), None)
    if names is None:
        raise LeapformerError(
            f"{path} holds no accuracy, no perplexity and no losses of speech; did `leapformer validate --log-format "
            "simple` finish?"
        )
    scores = {_NAMES[name]: float(fields[name]) for name in names}
    if "MSE" in scores:
        scores = {"loss": sum(scores.values()), **scores}
    main, value = next(iter(scores.items()))
    if not math.isfinite(value):
        raise LeapformerError(f"{path}: the {main} is {value}; the training failed, see its log")
    return {
        "scores": scores,
        "signatures": {main: _SCORES[names]},
        "compute": None,
        "n_instances": examples,
        "n_empty": 0,
    }
