"""`leapformer table`: compare the scored runs of a recipe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..scoring.pictures.runs import draw_runs
from ..scoring.runs import check_order, collect_runs, compare, order_sentence, runs_table
from ..support.files import write_json, write_text
from ..support.signature import signature

HELP = "compare the scored runs of a recipe: table, JSON and picture"

PICTURE = "table.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument(
        "folder", metavar="DIR", help="the --out folder of a recipe for text; gets table.md, table.json, table.png"
    )
    parser.add_argument(
        "--also",
        nargs="+",
        default=[],
        metavar="TABLE.json",
        help="add the runs of these, from other folders or machines",
    )
    parser.add_argument("--title", default="Scores by attention", help="the heading (default: %(default)s)")
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a paragraph below; may be repeated"
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="PLAN", help="attentions in the order of the table")
    parser.add_argument(
        "--expect",
        nargs="+",
        action="append",
        default=[],
        metavar="PLAN",
        help="attentions from best to worst: report whether the results agree; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Print and write the table. Raises LeapformerError if there are no runs, or if DIR is not writable."""
    folder = Path(args.folder)
    runs = collect_runs(folder, args.also)
    rows = compare(runs, args.rows)
    checks = [check_order(runs, expected) for expected in args.expect]
    table_signature = signature()
    content = {
        "title": args.title,
        "notes": args.note,
        "rows": rows,
        "expected": checks,
        "runs": runs,
        "signature": table_signature,
    }
    write_json(folder / "table.json", content)
    write_text(folder / "table.md", _markdown(args.title, args.note, rows, checks, runs, table_signature))
    draw_runs(rows, args.title, folder / PICTURE)
    print(runs_table(rows))
    for check in checks:
        print(order_sentence(check))
    return 0


def _markdown(
    title: str,
    notes: Sequence[str],
    rows: Sequence[dict[str, Any]],
    checks: Sequence[dict[str, Any]],
    runs: Sequence[dict[str, Any]],
    table_signature: str,
) -> str:
    parts = [f"# {title}", "", runs_table(rows, "github"), "", f"![scores by attention]({PICTURE})", ""]
    for check in checks:
        parts += [order_sentence(check), ""]
    for note in (*notes, *_legend(rows)):
        parts += [note, ""]
    by_options: dict[str, list[str]] = {}
    for row in rows:
        by_options.setdefault(row["options"], []).append(row["attention"])
    parts += ["Options of the runs:", ""]
    parts += [f"* {', '.join(dict.fromkeys(names))}: `{options}`" for options, names in by_options.items()]
    signatures = {name: text for run in runs for name, text in run["signatures"].items()}
    parts += ["", "Signatures:", "", *(f"* {name}: `{text}`" for name, text in signatures.items())]
    scored_with = {run["model"]["signature"] for run in runs if "signature" in run["model"]}
    parts += [f"* scored with: `{text}`" for text in sorted(scored_with)]
    return "\n".join([*parts, f"* this table: `{table_signature}`", ""])


def _legend(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Explanations of the columns that need one."""
    legend = []
    if any(len(row["seeds"]) > 1 for row in rows):
        legend.append("Scores are means over the seeds, with the least and the greatest in brackets.")
    if any("/" in row["attention"] for row in rows):
        legend.append("Attention is encoder self / decoder self / decoder cross; one name stands for all three.")
    return legend
