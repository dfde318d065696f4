"""The part of `leapformer score` for translations of whole talks: options and table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..runtime.formats.talks import LOGGED, QUEUED, REPAIRED
from ..scoring.latency import HIGH_MS, LOW_MS
from ..scoring.pieces import SEGMENTERS
from ..scoring.table import Column, Table
from ..scoring.talk_report import LATENCIES, WAYS, TalkOptions, kind_of, score_resegmented, score_talks
from ..support.errors import LeapformerError

_HEADERS = {"": "source heard", LOGGED: "CA as logged", REPAIRED: "CA repaired", QUEUED: "CA queued"}
_ONLY = ("quality_command", "transcripts", "lang", "resegmented")  # options with a meaning for talks alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for talks."""
    group = parser.add_argument_group("translations of whole talks")
    group.add_argument(
        "--segments", metavar="FILE",
        help="the segments that the references translate: YAML or JSON, a list of {wav: NAME, offset: S, duration: S}",
    )  # fmt: skip
    group.add_argument(
        "--segmenter", choices=SEGMENTERS, default="soft",
        help="how a talk is cut into segments: soft (SoftSegmenter) or mwer (mwerSegmenter, least edit distance, with "
        "the package mweralign) (default: soft)",
    )  # fmt: skip
    group.add_argument("--lang", metavar="CODE", help="--segmenter soft: cut words as Moses does for this language")
    group.add_argument("--resegmented", metavar="FILE", help="also write the pieces, as OmniSTEval does")
    group.add_argument(
        "--quality-command", metavar="COMMAND",
        help="a program that scores segments, such as COMET in its own environment: reads and writes JSON Lines",
    )  # fmt: skip
    group.add_argument("--transcripts", metavar="FILE", help="for --quality-command: source text, one line per segment")


def is_for_talks(args: argparse.Namespace) -> bool:
    """Whether the options ask for scores of talks. Raises LeapformerError for incompatible options."""
    if args.segments:
        if args.text or args.examples:
            raise LeapformerError("--segments is for translations of talks; leave --text and --examples out")
        if not args.references:
            raise LeapformerError(f"--segments {args.segments} needs --references, a line for each segment")
        return True
    kind = None if args.references or args.text or args.examples else kind_of(Path(args.output[0]))
    if kind in ("talks", "stream"):
        raise LeapformerError(
            f"{args.output[0]} is a log of talks; give --segments and --references (of utterances: the folder it is in)"
        )
    for_talks = [name for name in _ONLY if getattr(args, name) is not None]
    if for_talks and kind is None:
        raise LeapformerError(f"--{for_talks[0].replace('_', '-')} is for translations of talks; give --segments, too")
    return kind == "pieces"


def score(args: argparse.Namespace) -> dict[str, Any]:
    """All scores of the talks, as `talk_report.score_talks` returns them.

    Raises LeapformerError for logs and segments that cannot be scored.
    """
    options = TalkOptions(
        args.unit, args.segmenter, args.lang, args.tokenize, args.quality_command, args.transcripts, args.resegmented
    )
    if args.segments:
        return score_talks(args.output, args.segments, args.references, options)
    if args.resegmented:
        raise LeapformerError(f"--resegmented {args.resegmented}: {args.output[0]} is that already; leave it out")
    return score_resegmented(args.output, options)


def lines(report: dict[str, Any]) -> list[str]:
    """The report for the terminal."""
    ratio, segmenter = report["length_ratio"], report["segmenter"]
    return [
        f"{report['n_instances']} segments of {report['n_recordings']} recordings"
        f"{f', segmenter {segmenter}' if segmenter else ''}; {report['n_empty']} without output (they have no latency)",
        *_quality(report),
        *([] if ratio is None else [f"{'length':10}{ratio:10.3f} characters for each of the references"]),
        "",
        *_latency(report),
        *_effort(report),
        *report["marks"],
        *(f"{name}: {signature}" for name, signature in report["signatures"].items()),
        report["signature"],
    ]


def _quality(report: dict[str, Any]) -> list[str]:
    latencies, lines_of_scores = tuple(LATENCIES), []
    for name, value in report["scores"].items():
        if not name.startswith(latencies):
            interval = report["intervals"].get(name)
            more = "" if interval is None else f" +- {interval:.3f} (95 %)"
            lines_of_scores.append(f"{name:10}{value:10.3f}{more}")
    return lines_of_scores


def _latency(report: dict[str, Any]) -> list[str]:
    """A table with a row for each latency and a column for each way to account for computation."""
    scores = report["scores"]
    ways = [way for way in WAYS if any(name + (way and f"_{way}") in scores for name in LATENCIES)]
    rows: list[dict[str, Any]] = []
    for name in LATENCIES:
        values = {way: scores.get(name + (way and f"_{way}")) for way in ways}
        if any(value is not None for value in values.values()):
            rows.append({"name": name, "unit": "" if name == "LongAP" else "ms", "ways": values})
        if name == "LongLAAL" and rows:  # StreamLAAL is its mean, in seconds
            seconds = {way: report["StreamLAAL_s"].get(way or "source heard") for way in ways}
            rows.append({"name": "StreamLAAL", "unit": "s", "ways": seconds})
    if not rows:
        return ["nothing was written: there is no latency"]
    low, high = LOW_MS / 1000, HIGH_MS / 1000
    limits = {"low": f"low (LongYAAL to {low:g} s)", "high": f"high ({low:g} to {high:g} s)"}
    columns = [Column(f"ways.{way}", _HEADERS[way], ".3f") for way in ways]
    table = Table(rows, [Column("name", ""), Column("unit", ""), *columns]).markdown()
    return [*table.split("\n"), f"latency regime: {limits.get(report['regime'], f'none (0 to {high:g} s)')}", ""]


def _effort(report: dict[str, Any]) -> list[str]:
    compute, shares, effort = report["compute"], report["simultaneity"], []
    if report["erasure"] is not None:
        effort.append(f"normalised erasure {report['erasure']:.3f}")
    if compute and compute["seconds_per_second"] is not None:
        effort.append(
            f"real-time factor {compute['seconds_per_second']:.3f}; 95 % of the chunks within "
            f"{compute['chunk_s_95']:.3f} s"
        )
    if shares:
        effort.append(f"SWF {shares['SWF']:.1f} %, EFSW {shares['EFSW']:.1f} %, DSPTV {shares['DSPTV']:.1f}")
    return effort
