"""`leapformer lra`: Long Range Arena: data, a grid of trainings, tables, composite scores."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..studies.lra import protocols
from ..support import user_dir
from ..support.errors import LeapformerError
from ..support.files import make_folder, write_json, write_text
from ..support.options import Step
from . import calls

if TYPE_CHECKING:
    from ..studies.lra.protocols import Protocol

STEP = "STEP"
NONE = "none"


def _protocol(args: Namespace) -> tuple[Protocol, tuple[str, ...]]:
    """The protocol, and the quirks to use: those of --quirks or, by default, the protocol's."""
    protocol = protocols.load(args.protocol)
    if args.quirks is None:
        return protocol, protocol.quirks
    quirks = () if args.quirks == NONE else tuple(name for name in args.quirks.split(",") if name)
    protocols.check_quirks(quirks)
    return protocol, quirks


# ----------------------------------------------------------------------------------------------------------------- data
def _prepare(args: Namespace) -> int:
    from ..studies.lra.grid import make_data
    from .main import main

    protocol, quirks = _protocol(args)
    data, tasks = Path(args.data), args.tasks or list(protocol.tasks)
    protocols.check_names("tasks", tasks, protocol.tasks, protocol)
    commands: list[list[str]] = []
    for task in tasks:
        root = None if args.root is None else Path(args.root)
        root = root / task if root is not None and (root / task).is_dir() else root
        commands += make_data(protocol, task, root, data, quirks, data / "corpora")
    make_folder(data)
    for command in commands:  # `leapformer prepare` and `corpus`, which skip finished work
        print(shlex.join(user_dir.typed("leapformer", command)), flush=True)
        status = main(command)
        if status:
            return status
    return 0


# ------------------------------------------------------------------------------------------------------------------ run
def _run(args: Namespace) -> int:
    from ..studies.lra.grid import Grid

    protocol, quirks = _protocol(args)
    rows, tasks = args.attention or tuple(protocol.rows), args.tasks or tuple(protocol.tasks)
    more, seeds = tuple(shlex.split(args.train_options)), args.seeds or protocol.seeds
    grid = Grid(protocol, Path(args.data), Path(args.out), quirks, more, tasks, rows, seeds)
    return calls.run_study(grid, args, "lra", "run")[1]


# -------------------------------------------------------------------------------------------------------------- results
def _table(args: Namespace) -> None:
    from ..scoring.table import Column, Table
    from ..studies.lra import tables

    results, protocol, cells = _collected(args)
    text = tables.accuracy_table(cells, protocol, not args.without_published)
    print(text)
    if args.out:
        folder = make_folder(args.out)
        write_text(folder / "table.md", f"# {protocol.title}\n\n{text}", "--out")
        write_json(folder / "results.json", {"protocol": protocol.name, "rows": tables.as_rows(cells), "runs": results})
        columns = [Column(name) for name in results[0] if name not in ("quirks", "signature", "cores")]
        write_text(folder / "results.csv", Table(results, columns).csv(), "--out")


def _collected(args: Namespace) -> tuple[list[dict[str, Any]], Protocol, Any]:
    from ..studies.lra import tables
    from ..studies.lra.grid import collect

    results, protocol = collect([Path(folder) for folder in args.results])
    return results, protocol, tables.cells(results)


def _quirks(args: Namespace) -> None:
    from ..studies.lra import effects
    from ..studies.lra.grid import collect

    base, protocol = collect([Path(args.base)])
    changes = [change for folder in args.results for change in effects.effects(base, collect([Path(folder)])[0])]
    text = effects.table(changes, protocol)
    print(text)
    if args.out:
        folder = make_folder(args.out)
        write_text(folder / "quirks.md", text, "--out")
        write_json(folder / "quirks.json", effects.content(changes), "--out")


def _rcp(args: Namespace) -> None:
    from ..studies.lra import composite

    if bool(args.published) == bool(args.results):
        raise LeapformerError("give folders of results, or --published for the papers' tables")
    if args.results and not args.bench:
        raise LeapformerError("--bench: give the lra.json of `leapformer bench lra`; scores need a throughput")
    if args.published:
        table = composite.published(args.std, args.published)
    else:
        _, protocol, cells = _collected(args)
        table = composite.measured(cells, protocol, Path(args.bench), args.std)
    print(table.text())
    if args.out:
        folder = make_folder(args.out)
        write_text(folder / "rcp.md", table.text(), "--out")
        write_json(folder / "rcp.json", table.content(), "--out")
        table.draw(folder / "rcp.svg")


def _params(args: Namespace) -> None:
    from ..studies.lra import params

    protocol, quirks = _protocol(args)
    rows, tasks = args.attention or list(protocol.rows), args.tasks or list(protocol.tasks)
    for kind, names, choices in (("tasks", tasks, protocol.tasks), ("attention", rows, protocol.rows)):
        protocols.check_names(kind, names, choices, protocol)
    counts = params.counts(protocol, tasks, rows, quirks)
    text = params.table(counts, protocol)
    print(text)
    if args.out:
        folder = make_folder(args.out)
        write_text(folder / "params.md", text, "--out")
        write_json(folder / "params.json", params.content(counts), "--out")


QUIRKS = "; ".join(f"{name}: {quirk.what}" for name, quirk in protocols.QUIRKS.items())
PROTOCOL = f"""
--protocol NAME!        {", ".join(protocols.NAMES)}, or a YAML file like theirs
--tasks TASK...         default: all of the protocol
--quirks NAMES          published flaws, separated by commas, or none (default: the protocol's); those of the data are
                        in `leapformer prepare lra --help`; {QUIRKS}
"""
ROWS = "--attention ROW...  rows of the protocol (default: all)"
DATA = "--data DIR!  a folder of arrays for each task"
RESULTS = "the --out of `leapformer lra run`, one or several"
STEPS = {
    "prepare": Step(
        "make the data of a protocol's tasks, generated or from the published files",
        f"""
{PROTOCOL}
{DATA}
--root DIR              the published files: DIR/TASK, or DIR itself if there is no such folder
""",
        _prepare,
    ),
    "run": Step(
        "train and test a grid of tasks, rows and seeds; resumable",
        f"""
{PROTOCOL}
{ROWS}
{DATA}
--out DIR!              trainings and results; the same command resumes
--seeds N...:int        default: the protocol's
--jobs N:int = 1        trainings at once, one thread each
--train-options TEXT =  more options for all trainings, e.g. "--max-update 100"
{calls.study_options("trainings")}
""",
        _run,
    ),
    "table": Step(
        "accuracies over seeds, beside those that the papers print",
        f"""
results DIR...          {RESULTS}
--out DIR               also write table.md, results.csv and results.json here
--without-published     leave the papers' tables out
""",
        _table,
    ),
    "quirks": Step(
        "what published flaws change: the accuracies of the same rows with and without",
        """
base DIR                the --out of `leapformer lra run` to compare with
results DIR...          others, of the same protocol with other --quirks
--out DIR               also write quirks.md and quirks.json here
""",
        _quirks,
    ),
    "rcp": Step(
        "accuracy weighed against throughput: the paper's composite and points per doubling",
        f"""
results [DIR...]        {RESULTS}
--bench FILE            lra.json of `leapformer bench lra`, for throughput and memory
--published [(leapformer|luna)=leapformer]  from the tables that this paper prints instead (without a name: leapformer)
--std X = paper         paper (1.482567), table (of the rows at hand: a row more changes all scores), or a number
--out DIR               also write rcp.md, rcp.json and rcp.svg here
""",
        _rcp,
    ),
    "params": Step(
        "parameters of every row: all, without embeddings, of the mechanism",
        f"""
{PROTOCOL}
{ROWS}
--out DIR               also write params.md and params.json here
""",
        _params,
    ),
}
