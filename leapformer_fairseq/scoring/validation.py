"""The result of fairseq-validate: accuracy of a classifier, perplexity of a masked language model or a translator."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..errors import LeapformerError

_RESULT = re.compile(r"valid on '[^']*' subset \| (.*)")
# fairseq's name -> ours
_NAMES = {"accuracy": "accuracy", "ppl": "perplexity", "loss": "bits", "nll_loss": "bits"}
# What is read, and its signature, by the names that there are; the first that fits. Nobody compares what the loss of a
# classifier is, in bits a sentence.
_SCORES = {
    ("ppl", "nll_loss"): "unit:subword|given the reference before it|tool:fairseq-validate",
    ("accuracy",): "unit:example|tool:fairseq-validate",
    ("ppl", "loss"): "unit:subword|masked ones only|tool:fairseq-validate",
}


def score_validation(log: str | Path, examples: int) -> dict[str, Any]:
    """Accuracy in per cent, or perplexity and bits of a subword, from the output of fairseq-validate.

    `examples` is how many lines the validated file has. The last result counts when there are several. Raises
    LeapformerError when there is none, or it is no number.
    """
    path = Path(log)
    if not path.is_file():
        raise LeapformerError(f"no log {path}; give the output of `leapformer validate`")
    results = _RESULT.findall(path.read_text(encoding="utf-8", errors="replace"))
    fields = dict(field.split(" ", 1) for field in results[-1].split(" | ")) if results else {}
    found = next((names for names in _SCORES if fields.keys() >= set(names)), None)
    if found is None:
        raise LeapformerError(
            f"{path} holds no accuracy and no perplexity; did `leapformer validate --log-format simple` end well?"
        )
    scores = {_NAMES[name]: float(fields[name]) for name in found}
    main, value = next(iter(scores.items()))
    if not math.isfinite(value):
        raise LeapformerError(f"{path}: the {main} is {value}; the training did not work, see its log")
    return {
        "scores": scores,
        "signatures": {main: _SCORES[found]},
        "compute": None,
        "n_instances": examples,
        "n_empty": 0,
    }
