"""Reads the result of fairseq-eval-lm, and checks it because the command silently skips text."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError

_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens")
_RESULT = re.compile(r"Loss \(base 2\): (\S+), Perplexity: (\S+)")


def score_evaluation(log: str | Path, tokens: int) -> dict[str, Any]:
    """Read perplexity and bits per token from the output of fairseq-eval-lm; keys as in `report.score_run`.

    `tokens` is the number of words and line ends of the text. Of several evaluations, the last one counts. Raises
    LeapformerError if it did not finish, left out tokens, or has a perplexity that is not finite.
    """
    path = Path(log)
    if not path.is_file():
        raise LeapformerError(f"no log {path}; give the output of `leapformer eval-lm`")
    text = path.read_text(encoding="utf-8", errors="replace")
    counts, results = _TOKENS.findall(text), _RESULT.findall(text)
    if not counts or not results:
        raise LeapformerError(f"{path} holds no perplexity; did `leapformer eval-lm` finish?")
    evaluated = int(counts[-1].replace(",", ""))
    if evaluated != tokens:
        raise LeapformerError(
            f"{path}: {evaluated} tokens were evaluated but the text has {tokens}; "
            "give the text of the --gen-subset, and a --tokens-per-sample that the model can read"
        )
    bits, perplexity = (float(value) for value in results[-1])
    if not math.isfinite(perplexity):
        raise LeapformerError(f"{path}: the perplexity is {perplexity}; the training failed, see its log")
    return {
        "scores": {"perplexity": perplexity, "bits": bits},
        "signatures": {"perplexity": "unit:token|line ends:predicted|tool:fairseq-eval-lm"},
        "compute": None,
        "n_instances": evaluated,
        "n_empty": 0,
    }
