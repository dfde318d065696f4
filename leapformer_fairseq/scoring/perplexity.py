"""The result of fairseq-eval-lm, checked because it silently skips text."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError

_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens")
_RESULT = re.compile(r"Loss \(base 2\): (\S+), Perplexity: (\S+)")


def score_evaluation(log: str | Path, tokens: int) -> dict[str, Any]:
    """Perplexity, and bits per token, from the output of fairseq-eval-lm for a text of `tokens` words and line ends.

    If there are several evaluations, the last one counts. Raises LeapformerError if it did not finish, if it left out
    tokens or if the perplexity is not a number.
    """
    path = Path(log)
    if not path.is_file():
        raise LeapformerError(f"no log {path}; give the output of `leapformer eval-lm`")
    text = path.read_text(encoding="utf-8", errors="replace")
    counts, results = _TOKENS.findall(text), _RESULT.findall(text)
    if not counts or not results:
        raise LeapformerError(f"{path} holds no perplexity; did `leapformer eval-lm` come to its end?")
    evaluated = int(counts[-1].replace(",", ""))
    if evaluated != tokens:
        raise LeapformerError(
            f"{path}: {evaluated} tokens were evaluated but the text has {tokens}; "
            "give the text of the --gen-subset, and a --tokens-per-sample that the model can read"
        )
    bits, perplexity = (float(value) for value in results[-1])
    if not math.isfinite(perplexity):
        raise LeapformerError(f"{path}: the perplexity is {perplexity}; the training did not work, see its log")
    return {
        "scores": {"perplexity": perplexity, "bits": bits},
        "signatures": {"perplexity": "unit:token|line ends:predicted|tool:fairseq-eval-lm"},
        "compute": None,
        "n_instances": evaluated,
        "n_empty": 0,
    }
