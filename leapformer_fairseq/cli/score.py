"""`leapformer score`: quality and latency of a SimulEval run, quality of fairseq-generate output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import LeapformerError
from ..scoring.generation import score_generation
from ..scoring.report import score_run
from ..scoring.runlog import UNITS

HELP = "score a SimulEval run (BLEU, chrF, latency) or the output of fairseq-generate (BLEU, chrF)"
_UNITS_OF_SCORES = {"BLEU": "", "chrF": "", "AP": ""}  # all others are milliseconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("output", metavar="OUTPUT", help="the --output folder of simuleval, or a generate-*.txt")
    parser.add_argument("--references", metavar="FILE", help="for a generate-*.txt: one detokenised reference per line")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU tokenizer: 13a, zh, ja-mecab, ... (default: 13a)")
    parser.add_argument("--unit", choices=UNITS, default="word", help="the run's --eval-latency-unit (default: word)")
    parser.add_argument("--json", metavar="FILE", help="also write all scores, with those of each utterance, to FILE")


def run(args: argparse.Namespace) -> int:
    """Print the scores as a table. Raises LeapformerError for a folder or option that cannot be scored."""
    if args.references:
        report = score_generation(args.output, args.references, args.tokenize)
    else:
        report = score_run(args.output, args.tokenize, args.unit)
    if args.json:
        try:
            Path(args.json).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise LeapformerError(f"--json {args.json} cannot be written: {error.strerror}") from error
    print("\n".join(_lines(report)))
    return 0


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['n_instances']} utterances, {report['n_empty']} without output (they have no latency)"]
    for name, value in report["scores"].items():
        lines.append(f"{name:8}{value:12.3f} {_UNITS_OF_SCORES.get(name.removesuffix('_CA'), 'ms')}".rstrip())
    compute = report["compute"]
    if compute and compute["seconds_per_second"] is not None:
        lines.append(f"{'compute':8}{compute['seconds_per_second']:12.3f} s per second of audio")
    return lines + [f"{name}: {signature}" for name, signature in report["signatures"].items()]
