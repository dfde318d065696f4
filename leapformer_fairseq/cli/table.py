"""`leapformer table`: compare the scored runs of a recipe."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..scoring.pictures.scores import runs_figure
from ..scoring.runs import check_order, collect_runs, compare, order_sentence, runs_table
from ..scoring.table import bullets, page, signed
from ..support.files import write_json, write_text
from ..support.signature import signature

PICTURE = "table.svg"


OPTIONS = """
folder DIR              the --out folder of a recipe for text; gets table.md, table.json, table.svg
--also TABLE.json... =  add the runs of these, from other folders or machines
--title TITLE = Scores by attention  the heading
--note TEXT*            a paragraph below; may be repeated
--rows PLAN... =        attentions in the order of the table
--expect PLAN...*       attentions from best to worst: report whether the results agree; may be repeated
"""


def run(args: Namespace) -> int:
    """Print and write the table. Raises LeapformerError if there are no runs, or if DIR is not writable."""
    folder = Path(args.folder)
    runs = collect_runs(folder, args.also)
    rows = compare(runs, args.rows)
    checks = [check_order(runs, expected) for expected in args.expect]
    content = {
        "title": args.title,
        "notes": args.note,
        "rows": rows,
        "expected": checks,
        "runs": runs,
        "signature": signature(),
    }
    write_json(folder / "table.json", content)
    picture = runs_figure(rows, args.title).save(folder / PICTURE, "scores by attention")
    write_text(folder / "table.md", _markdown(content, picture))
    print(runs_table(rows))
    for check in checks:
        print(order_sentence(check))
    return 0


def _markdown(content: dict[str, Any], picture: str) -> str:
    rows, runs = content["rows"], content["runs"]
    by_options: dict[str, list[str]] = {}
    for row in rows:
        by_options.setdefault(row["options"], []).append(row["attention"])
    options = [f"{', '.join(dict.fromkeys(names))}: `{text}`" for text, names in by_options.items()]
    signatures = signed({name: text for run in runs for name, text in run["signatures"].items()})
    scored_with = {run["model"]["signature"] for run in runs if "signature" in run["model"]}
    signatures += [f"scored with: `{text}`" for text in sorted(scored_with)]
    return page(
        f"# {content['title']}",
        runs_table(rows).markdown(),
        picture,
        *map(order_sentence, content["expected"]),
        *content["notes"],
        *_legend(rows),
        "Options of the runs:",
        bullets(options),
        "Signatures:",
        bullets([*signatures, f"this table: `{content['signature']}`"]),
    )


def _legend(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Explanations of the columns that need one."""
    legend = []
    if any(len(row["seeds"]) > 1 for row in rows):
        legend.append("Scores are means over the seeds, with the least and the greatest in brackets.")
    if any("/" in row["attention"] for row in rows):
        legend.append("Attention is encoder self / decoder self / decoder cross; one name stands for all three.")
    return legend
