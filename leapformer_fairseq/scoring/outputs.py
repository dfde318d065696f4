"""Scores what fairseq's commands wrote: translations of generate, and the logs of eval-lm and validate.

The logs are checked, because eval-lm silently skips text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runtime.formats.runlog import INSTANCES_LOG
from ..support.errors import LeapformerError
from ..support.lines import read_lines
from .marks import length_ratio, marks
from .quality import quality
from .significance import intervals

_GENERATED = re.compile(r"[SHDPT]-\d+\t")  # begins the lines of a generate-*.txt
_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens")
_PERPLEXITY = re.compile(r"Loss \(base 2\): (\S+), Perplexity: (\S+)")
_VALID = re.compile(r"valid on '[^']*' subset \| (.*)")
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


def read_hypotheses(paths: Sequence[str | Path]) -> dict[int, str]:
    """The best hypothesis by sample number, from the D- lines of a generate-*.txt, or of one for each shard.

    A file without such lines is plain text, one hypothesis a line. Raises LeapformerError if a file is missing or holds
    no translations, or if two files have the same sentence.
    """
    hypotheses: dict[int, str] = {}
    for path in map(Path, paths):
        if (path / INSTANCES_LOG).is_file():
            raise LeapformerError(
                f"{path} is the folder of a simulation, which has its references; leave --references out"
            )
        if path.is_dir():
            names = sorted(file.name for file in path.glob("generate-*.txt"))
            raise LeapformerError(
                f"{path} is a folder; give a generate-*.txt in it, it has {', '.join(names) or 'none'}"
            )
        if not path.is_file():
            raise LeapformerError(
                f"no generation output {path}; run `leapformer generate ... --results-path {path.parent}`"
            )
        shard: dict[int, str] = {}
        lines = list(read_lines(path))
        if lines and not any(map(_GENERATED.match, lines)):
            if len(paths) > 1:
                raise LeapformerError(f"{path} is plain text, without lines D-...; give one file of it, with all lines")
            return dict(enumerate(lines))
        for number, line in enumerate(lines, 1):
            if line.startswith("D-"):
                name, *_, text = fields = line.split("\t", 2)
                if len(fields) < 3 or not name[2:].isdecimal():
                    raise LeapformerError(f"{path}, line {number}, is cut off; generate it again")
                shard.setdefault(int(name[2:]), text)  # the first of --nbest is the best
        twice = sorted(shard.keys() & hypotheses.keys())
        if twice:
            raise LeapformerError(f"{path} has sentence {twice[0]} again; give each shard (--shard-id) once")
        hypotheses |= shard
    if not hypotheses:
        raise LeapformerError(
            f"{', '.join(map(str, paths))} holds no translations (lines D-...); give what `leapformer generate` wrote"
        )
    return hypotheses


def read_references(path: str | Path) -> list[str]:
    """Read references, one per line. Raises LeapformerError if the file cannot be read or is empty."""
    references = list(read_lines(path, "--references"))
    if not references:
        raise LeapformerError(f"--references {path} is empty; give one reference per line")
    return references


def aligned_hypotheses(paths: Sequence[str | Path], references: Sequence[str]) -> list[str]:
    """The hypotheses in the order of the references.

    Raises LeapformerError unless there is exactly one for each reference. For models other than ours, fairseq drops the
    last batch unless `--required-batch-size-multiple 1` is given.
    """
    hypotheses = read_hypotheses(paths)
    last = max(hypotheses, default=-1)
    if last >= len(references):
        raise LeapformerError(
            f"{', '.join(map(str, paths))} holds {len(hypotheses)} sentences, the last of number {last}, for "
            f"{len(references)} references; give the references of this set, one for each sentence"
        )
    missing = sorted(set(range(len(references))) - set(hypotheses))
    if missing:
        raise LeapformerError(
            f"{', '.join(map(str, paths))} lacks {len(missing)} of {len(references)} sentences, first number "
            f"{missing[0]}; give a text with a line for each reference, or all shards of generated ones, and generate "
            "all sentences: --required-batch-size-multiple 1 for a model of fairseq's own, and no "
            "--skip-invalid-size-inputs-valid-test"
        )
    return [hypotheses[i] for i in range(len(references))]


def score_generation(
    paths: Sequence[str | Path], references: str | Path, tokenize: str = "13a", training: str | Path | None = None
) -> dict[str, Any]:
    """Score all shards of generated text against one reference per line; keys as in `report.score_run`.

    `training` is a text that the model was trained on; with it, the recall of rare words is measured, too. Raises
    LeapformerError if a sentence is missing.
    """
    lines = read_references(references)
    predictions = aligned_hypotheses(paths, lines)
    scores = quality(predictions, lines, tokenize, training)
    lengths = length_ratio(predictions, lines)
    record = _record(
        {score.name: score.value for score in scores},
        {score.name: score.signature for score in scores},
        len(lines),
        sum(not text for text in predictions),
    )
    resampled = intervals({score.name: score.measure for score in scores if score.measure})
    return record | {"intervals": resampled, "length_ratio": lengths, "marks": marks(lengths)}


def score_evaluation(log: str | Path, tokens: int) -> dict[str, Any]:
    """Read perplexity and bits per token from the output of fairseq-eval-lm; keys as in `report.score_run`.

    `tokens` is the number of words and line ends of the text. Of several evaluations, the last one counts. Raises
    LeapformerError if it did not finish, left out tokens, or has a perplexity that is not finite.
    """
    path = Path(log)
    output = _output(path, "eval-lm")
    counts, results = _TOKENS.findall(output), _PERPLEXITY.findall(output)
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
    signatures = {"perplexity": "unit:token|line ends:predicted|tool:fairseq-eval-lm"}
    return _record({"perplexity": perplexity, "bits": bits}, signatures, evaluated)


def score_validation(log: str | Path, examples: int) -> dict[str, Any]:
    """Read accuracy (per cent), perplexity and bits per subword, or losses of speech from fairseq-validate's output.

    Keys as in `report.score_run`. `examples` is the number of validated lines. Of several results, the last one counts.
    Raises LeapformerError if there is none, or if it is not finite.
    """
    path = Path(log)
    results = _VALID.findall(_output(path, "validate"))
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
    return _record(scores, {main: _SCORES[names]}, examples)


def _output(path: Path, command: str) -> str:
    if not path.is_file():
        raise LeapformerError(f"no log {path}; give the output of `leapformer {command}`")
    return path.read_text(encoding="utf-8", errors="replace")


def _record(scores: dict[str, float], signatures: dict[str, str], count: int, empty: int = 0) -> dict[str, Any]:
    """The keys that every report has."""
    return {"scores": scores, "signatures": signatures, "compute": None, "n_instances": count, "n_empty": empty}
