"""`leapformer compare`: whether translations differ by more than chance."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from ..scoring.significance import SAMPLES, as_rows, by_length, paired_bootstrap, read_systems
from ..scoring.table import Column, Table
from ..support.errors import LeapformerError
from ..support.files import write_json
from ..support.lines import read_lines
from ..support.options import TOKENIZE
from ..support.signature import signature

GROUPS = 4

OPTIONS = f"""
baseline BASELINE       a generate-*.txt, or a folder of a run that holds one
systems SYSTEM...       others, of the same test set
--references FILE!      one detokenised reference per line
{TOKENIZE}
--samples N:int = {SAMPLES}  resamples
--by-length FILE        one sentence per line, such as the sources: also compare groups of equal size by their number of
                        words
--groups N:int          for --by-length (default: {GROUPS})
--json FILE             also write the scores to FILE
"""


def run(args: Namespace) -> int:
    """Print scores with confidence intervals and p. Raises LeapformerError for translations that cannot be compared."""
    if args.groups is not None and not args.by_length:
        raise LeapformerError("--groups belongs to --by-length; give both, or leave it out")
    systems, references = read_systems([args.baseline, *args.systems], Path(args.references))
    sets = {"": (systems, references)}
    if args.by_length:
        measured = list(read_lines(Path(args.by_length), "--by-length"))
        sets |= by_length(systems, references, measured, GROUPS if args.groups is None else args.groups)
    rows: list[dict[str, Any]] = []
    for words, (texts, targets) in sets.items():
        scores, signatures = paired_bootstrap(texts, targets, args.tokenize, args.samples)
        group = {"words": words, "sentences": len(targets)} if args.by_length else {}
        rows += [group | row for row in as_rows(scores)]
    columns = [Column("words", of=lambda row: row["words"] or "all"), Column("sentences")] if args.by_length else []
    columns += [Column("system", ""), *(Column(name, form=".2f") for name in signatures)]
    print(Table(rows, columns))
    print(
        f"\n±: 95 % interval; p: of the difference to {rows[0]['system']}, {args.samples:,} resamples of the sentences"
    )
    for name, text in signatures.items():
        print(f"{name}: {text}")
    if args.json:
        write_json(args.json, {"rows": rows, "signatures": signatures, "signature": signature()}, "--json")
    return 0
