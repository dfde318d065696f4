"""`leapformer score`: quality and latency of a SimulEval run or of talks; quality of generated or validated text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..data.wikitext import count_tokens
from ..runtime.formats.runlog import UNITS, read_threads
from ..scoring.generation import score_generation
from ..scoring.perplexity import score_evaluation
from ..scoring.report import score_run
from ..scoring.validation import score_validation
from ..support.errors import LeapformerError
from ..support.files import write_json
from ..support.lines import read_lines
from ..support.signature import signature
from . import score_talks

HELP = (
    "score a SimulEval run or translations of whole talks (BLEU, chrF, latency), generated text (BLEU, chrF) or a "
    "log of eval-lm (perplexity) or validate (perplexity of masked subwords, accuracy, losses of speech)"
)
_UNITS_OF_SCORES = {
    "BLEU": "",
    "chrF": "",
    "rare_recall": "%",
    "AP": "",
    "perplexity": "",
    "bits": "per token",
    "accuracy": "%",
    **dict.fromkeys(("loss", "L1", "MSE", "end"), ""),
}  # all others are in milliseconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument(
        "output", metavar="OUTPUT", nargs="+",
        help="the --output folder of simuleval, a generate-*.txt (or those of all shards), the output of eval-lm or "
        "validate, or logs of talks: OmniSTEval's JSONL, simulstream's metrics log, a resegmented JSONL",
    )  # fmt: skip
    parser.add_argument(
        "--references", metavar="FILE",
        help="for a generate-*.txt, and with --segments: one detokenised reference per line",
    )  # fmt: skip
    parser.add_argument(
        "--training-text", metavar="FILE",
        help="the target side of the training data: also score how many of the references' words that are not among "
        "its 100 most frequent were translated (rare_recall)",
    )  # fmt: skip
    parser.add_argument("--text", metavar="FILE", help="for the output of eval-lm: the text that was evaluated")
    parser.add_argument(
        "--examples",
        metavar="FILE",
        help="for the output of validate: the text or labels that were validated, one per line",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="the model; with --json, how it was trained is noted, too")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU tokenizer: 13a, zh, ja-mecab, ... (default: 13a)")
    parser.add_argument(
        "--unit", "--level", choices=UNITS, default="word",
        help="what has a delay, as the run's --eval-latency-unit (default: word)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write all scores, with those of each utterance, to FILE")
    score_talks.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print a table of scores. Raises LeapformerError for a folder or option that cannot be scored."""
    if sum(map(bool, (args.references, args.text, args.examples))) > 1:
        raise LeapformerError(
            "--references is for translations, --text for language models, --examples for validate; give one of them"
        )
    of_talks = score_talks.is_for_talks(args)
    if args.training_text and (of_talks or args.text or args.examples):
        raise LeapformerError("--training-text is for translations of sentences; leave it out here")
    threads: int | None = None  # only the logs of our own runs say with how many they were timed
    if len(args.output) > 1 and not args.references and not of_talks:
        raise LeapformerError(f"{args.output[1]}: only translations are scored from several files, with --references")
    (output, *_) = args.output
    if of_talks:
        report = score_talks.score(args)
    elif args.references:
        report = score_generation(args.output, args.references, args.tokenize, args.training_text)
    elif args.text:
        report = score_evaluation(output, count_tokens(args.text))
    elif args.examples:
        report = score_validation(output, sum(1 for _ in read_lines(Path(args.examples))))
    else:
        report, threads = score_run(output, args.tokenize, args.unit, args.training_text), read_threads(output)
    if args.checkpoint:
        from ..models.averaging import describe_checkpoint  # imports torch, without which scores are fast

        report["model"] = describe_checkpoint(args.checkpoint) | {"signature": signature(threads=threads)}
    if args.json:
        write_json(args.json, report, "--json")
    counted = "tokens" if args.text else "lines" if args.examples else None
    print("\n".join(score_talks.lines(report) if of_talks else _lines(report, counted)))
    return 0


def _lines(report: dict[str, Any], counted: str | None) -> list[str]:
    if counted:
        lines = [f"{report['n_instances']} {counted}"]
    else:
        lines = [f"{report['n_instances']} utterances, {report['n_empty']} without output (they have no latency)"]
    width = max(8, *(len(name) for name in report["scores"]))
    for name, value in report["scores"].items():
        lines.append(f"{name:{width}}{value:12.3f} {_UNITS_OF_SCORES.get(name.removesuffix('_CA'), 'ms')}".rstrip())
    compute = report["compute"]
    if compute and compute["seconds_per_second"] is not None:
        lines.append(f"{'compute':{width}}{compute['seconds_per_second']:12.3f} s per second of audio")
    return [
        *lines,
        *report.get("marks", []),
        *(f"{name}: {signature}" for name, signature in report["signatures"].items()),
    ]
