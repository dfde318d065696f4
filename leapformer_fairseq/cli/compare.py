"""`leapformer compare`: whether translations differ by more than chance, in quality or latency."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from ..runtime.formats.runlog import UNITS
from ..scoring.comparison import COLUMNS, FORMS
from ..scoring.pictures.latency import systems_figure
from ..scoring.significance import SAMPLES, SIGNATURE, compared
from ..scoring.systems import by_length, measures, read_systems
from ..scoring.table import Column, Table
from ..support.errors import LeapformerError
from ..support.files import write_json
from ..support.lines import read_lines
from ..support.options import TOKENIZE, choice
from ..support.signature import signature

GROUPS = 4
# of all scores, those in the table
SHOWN = ("BLEU", "chrF", "AL", "LAAL", "YAAL", "AL_CA", "LAAL_CA", "LongYAAL", "LongYAAL_CA", "LongLAAL")

OPTIONS = f"""
baseline BASELINE       the folder of a run of SimulEval or `leapformer simulate`, a generate-*.txt, a folder that holds
                        one of them, a text with a translation per line, or pieces of talks (`leapformer score
                        --resegmented`)
systems SYSTEM...       others, of the same test set
--references FILE       for a generate-*.txt or a text: one detokenised reference per line
{TOKENIZE}
--unit, --level {choice(UNITS)} = word  what has a delay, as the runs' --eval-latency-unit
--samples N:int = {SAMPLES}  resamples
--by-length FILE        one sentence per line, such as the sources: also compare groups of equal size by their number of
                        words
--groups N:int          for --by-length (default: {GROUPS})
--json FILE             also write the scores to FILE
--figure FILE           also draw BLEU against latency with both intervals to an SVG or PNG: a point for each system,
                        those in folders k1, k3, ... of a folder as a line
"""


def run(args: Namespace) -> int:
    """Print scores with confidence intervals and p. Raises LeapformerError for translations that cannot be compared."""
    if args.groups is not None and not args.by_length:
        raise LeapformerError("--groups belongs to --by-length; give both, or leave it out")
    places = [args.baseline, *args.systems]
    systems = read_systems(places, Path(args.references) if args.references else None, args.unit)
    sets = {"": systems}
    if args.by_length:
        measured = list(read_lines(Path(args.by_length), "--by-length"))
        sets |= by_length(systems, measured, GROUPS if args.groups is None else args.groups)
    rows, signatures = list[dict[str, Any]](), dict[str, str]()
    for words, parts in sets.items():
        scored = {name: measures(system, args.tokenize) for name, system in parts.items()}
        signatures = next(iter(scored.values()))[1]
        sentences = len(next(iter(parts.values())).hypotheses)
        group = {"words": words, "sentences": sentences} if args.by_length else {}
        found = compared({name: of_system for name, (of_system, _) in scored.items()}, args.samples)
        rows += [{**group, "system": name, **results} for name, results in found.items()]
    picture = ""
    if args.figure:
        points = dict(zip(places, [row for row in rows if not row.get("words")], strict=True))
        picture = systems_figure(points).save(args.figure)
    signatures["bootstrap"] = f"samples:{args.samples}|{SIGNATURE}"
    if args.json:
        write_json(args.json, {"rows": rows, "signatures": signatures, "signature": signature()}, "--json")
    columns = [Column("words", of=lambda row: row["words"] or "all"), Column("sentences")] if args.by_length else []
    titles = {name: title for title, name in COLUMNS.items()}
    forms = FORMS | dict.fromkeys(("BLEU", "chrF"), ".2f")
    scores = [Column(name, titles.get(name, f"{name} ms"), forms.get(name, ".0f"), optional=True) for name in SHOWN]
    print(Table(rows, [*columns, Column("system", ""), *scores]))
    print(
        f"\n±: half of the 95 % interval; p: of a difference to {rows[0]['system']} this large in either direction; "
        f"{args.samples:,} resamples of the sentences"
    )
    for name, text in signatures.items():
        print(f"{name}: {text}")
    if picture:
        print(picture)
    return 0
