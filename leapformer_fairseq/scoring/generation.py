"""Scores the detokenised output of fairseq-generate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..runtime.formats.runlog import INSTANCES_LOG
from ..support.errors import LeapformerError
from ..support.lines import read_lines
from .marks import length_ratio, marks
from .quality import quality


def read_hypotheses(paths: Sequence[str | Path]) -> dict[int, str]:
    """The best hypothesis by sample number, from the D- lines of a generate-*.txt, or of one for each shard.

    Raises LeapformerError if a file is missing or holds no translations, or if two files have the same sentence.
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
        for number, line in enumerate(read_lines(path), 1):
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
            f"{missing[0]}; give all shards, and generate all sentences: --required-batch-size-multiple 1 for a model "
            "of fairseq's own, and no --skip-invalid-size-inputs-valid-test"
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
    return {
        "scores": {score.name: score.value for score in scores},
        "signatures": {score.name: score.signature for score in scores},
        "length_ratio": lengths,
        "marks": marks(lengths),
        "compute": None,
        "n_instances": len(lines),
        "n_empty": sum(not text for text in predictions),
    }
