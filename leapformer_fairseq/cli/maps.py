"""`leapformer maps`: draw attention maps and learned proportions of a model."""

from __future__ import annotations

import sys
from argparse import Namespace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import LeapformerError
from ..support.files import make_folder, write_json
from . import calls

if TYPE_CHECKING:
    from ..scoring.table import Table


OPTIONS = """
--path CHECKPOINT!      a checkpoint of one of our models
--input FILE_OR_TEXT!   text, or a file with a sentence per line; for speech models an audio file or a manifest (.tsv);
                        for classifiers a split of the data, e.g. test
--target FILE_OR_TEXT   translations of --input (default: the model's own, by greedy search)
--out DIR!              folder for the pictures
--data DIR              folder with the dictionary (default: that of the training)
--subwords MODEL        sentencepiece model for text that is not cut yet
--block BLOCK           encoder-self, decoder-self or decoder-cross (default: all)
--layer N = all         a layer, counted from 1, or all
--head N = mean         a head, counted from 0, mean or all
--lines N:int = 20      sentences to read: the first is drawn, proportions are taken from all
--max-length N:int = 1024  longer sentences are cut to this many tokens or encoder states
"""


@calls.owning
def run(args: Namespace) -> int:
    """Draw to --out and print the saturation of the proportions. Raises LeapformerError for unsuitable input."""
    from ..modules.capture import choose
    from ..scoring.pictures.inputs import Request, examples, load
    from ..scoring.pictures.maps import draw_maps

    layer, head = _number(args.layer, "--layer", 1, ("all",)), _number(args.head, "--head", 0, ("mean", "all"))
    model, task = load(args.path, args.data)
    one_layer, one_head = (value if isinstance(value, int) else None for value in (layer, head))
    chosen = choose(model, args.block, one_layer, one_head)
    request = Request(args.input, args.target, args.subwords, args.lines, args.max_length)
    sentences = examples(model, task, request)
    sentences = chain(list(islice(sentences, 1)), sentences)  # read the first now: bad input must leave no folder
    folder = make_folder(args.out)
    proportions, drawn = draw_maps(model, sentences, chosen, head, folder, lambda note: print(note, file=sys.stderr))
    rows = proportions.rows()
    if rows:
        _write(folder / "proportions.json", rows, args)
        print(_table(rows))
    else:
        print("No mechanism here has proportions; only the attention was drawn.")
    print(f"{len(drawn)} pictures in {folder}")
    return 0


def _number(text: str, option: str, first: int, words: tuple[str, ...]) -> int | str:
    if text in words:
        return text
    if not text.isdecimal():
        raise LeapformerError(f"{option} {text}: give a number, counted from {first}, or {' or '.join(words)}")
    return int(text)


def _write(path: Path, rows: list[dict[str, Any]], args: Namespace) -> None:
    from ..support.signature import environment, signature

    options = {"path": args.path, "input": args.input, "lines": args.lines, "max_length": args.max_length}
    content = {"signature": signature(**options), "environment": environment(), "options": options, "rows": rows}
    write_json(path, content, "--out")


def _table(rows: list[dict[str, Any]]) -> Table:
    from ..scoring.pictures.proportions import HIGH, LOW
    from ..scoring.table import Column, Table

    columns = [Column(name) for name in ("block", "layer", "mechanism", "side", "count")]
    columns += [Column("mean", form=".3f"), Column("std", form=".3f")]
    return Table(rows, [*columns, Column("below", f"below {LOW}", ".1%"), Column("above", f"above {HIGH}", ".1%")])
