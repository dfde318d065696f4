"""`leapformer lra`: Long Range Arena with the papers' protocols and a corrected one, from data to tables."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..studies.lra import protocols
from ..support.errors import LeapformerError
from ..support.files import make_folder, write_json, write_text
from . import calls

if TYPE_CHECKING:
    from ..studies.lra.protocols import Protocol

HELP = "Long Range Arena: data, a grid of trainings, tables beside the papers', composite scores, parameters"
NONE = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command per step."""
    actions = parser.add_subparsers(metavar="STEP", required=True)
    for name, (add, text, step) in STEPS.items():
        action = actions.add_parser(name, help=text, description=text)
        add(action)
        action.set_defaults(step=step)


def run(args: argparse.Namespace) -> int:
    """Run a step; the status is 1 if a training failed. Raises LeapformerError for wrong options and data."""
    return int(args.step(args) or 0)


# -------------------------------------------------------------------------------------------------------------- options
def _add_protocol(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--protocol", required=True, metavar="NAME", help=f"{', '.join(protocols.NAMES)}, or a YAML file like theirs"
    )
    parser.add_argument("--tasks", nargs="+", metavar="TASK", help="default: all of the protocol")
    quirks = "; ".join(f"{name}: {quirk.what}" for name, quirk in protocols.QUIRKS.items())
    parser.add_argument(
        "--quirks", metavar="NAMES",
        help="published flaws, separated by commas, or none (default: the protocol's); those of the data are in "
        f"`leapformer prepare lra --help`; {quirks}",
    )  # fmt: skip


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attention", nargs="+", metavar="ROW", help="rows of the protocol (default: all)")


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True, metavar="DIR", help="a folder of arrays for each task")


def _protocol(args: argparse.Namespace) -> tuple[Protocol, tuple[str, ...]]:
    """The protocol, and the quirks to use: those of --quirks or, by default, the protocol's."""
    protocol = protocols.load(args.protocol)
    if args.quirks is None:
        return protocol, protocol.quirks
    quirks = () if args.quirks == NONE else tuple(name for name in args.quirks.split(",") if name)
    protocols.check_quirks(quirks)
    return protocol, quirks


# ----------------------------------------------------------------------------------------------------------------- data
def _add_prepare(parser: argparse.ArgumentParser) -> None:
    _add_protocol(parser)
    _add_data(parser)
    parser.add_argument(
        "--root", metavar="DIR", help="the published files: DIR/TASK, or DIR itself if there is no such folder"
    )


def _prepare(args: argparse.Namespace) -> int:
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
        print(shlex.join(["leapformer", *command]), flush=True)
        status = main(command)
        if status:
            return status
    return 0


# ------------------------------------------------------------------------------------------------------------------ run
def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_protocol(parser)
    _add_rows(parser)
    _add_data(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="trainings and results; the same command resumes")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="default: the protocol's")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="trainings at once, one thread each (default: 1)"
    )
    parser.add_argument(
        "--train-options", default="", metavar="TEXT", help='more options for all trainings, e.g. "--max-update 100"'
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands, train nothing")


def _run(args: argparse.Namespace) -> int:
    from ..studies.lra.grid import Grid

    protocol, quirks = _protocol(args)
    rows, tasks = args.attention or tuple(protocol.rows), args.tasks or tuple(protocol.tasks)
    more, seeds = tuple(shlex.split(args.train_options)), args.seeds or protocol.seeds
    grid = Grid(protocol, Path(args.data), Path(args.out), quirks, more, tasks, rows, seeds)
    return calls.run_study(grid, "lra", "run", args.jobs, args.dry_run)[1]


# -------------------------------------------------------------------------------------------------------------- results
def _add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="+", metavar="DIR", help="the --out of `leapformer lra run`, one or several")


def _add_table(parser: argparse.ArgumentParser) -> None:
    _add_results(parser)
    parser.add_argument("--out", metavar="DIR", help="also write table.md, results.csv and results.json here")
    parser.add_argument("--without-published", action="store_true", help="leave the papers' tables out")


def _table(args: argparse.Namespace) -> None:
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


def _collected(args: argparse.Namespace) -> tuple[list[dict[str, Any]], Protocol, Any]:
    from ..studies.lra import tables
    from ..studies.lra.grid import collect

    results, protocol = collect([Path(folder) for folder in args.results])
    return results, protocol, tables.cells(results)


def _add_quirks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="DIR", help="the --out of `leapformer lra run` to compare with")
    parser.add_argument("results", nargs="+", metavar="DIR", help="others, of the same protocol with other --quirks")
    parser.add_argument("--out", metavar="DIR", help="also write quirks.md and quirks.json here")


def _quirks(args: argparse.Namespace) -> None:
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


def _add_rcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", nargs="*", metavar="DIR", help="the --out of `leapformer lra run`, one or several")
    parser.add_argument("--bench", metavar="FILE", help="lra.json of `leapformer bench lra`, for throughput and memory")
    parser.add_argument(
        "--published", nargs="?", const="leapformer", choices=("leapformer", "luna"),
        help="from the tables that this paper prints instead (without a name: leapformer)",
    )  # fmt: skip
    parser.add_argument(
        "--std", default="paper", metavar="X",
        help="paper (1.482567), table (of the rows at hand: a row more changes all scores), or a number "
        "(default: paper)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="also write rcp.md, rcp.json and rcp.svg here")


def _rcp(args: argparse.Namespace) -> None:
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


def _add_params(parser: argparse.ArgumentParser) -> None:
    _add_protocol(parser)
    _add_rows(parser)
    parser.add_argument("--out", metavar="DIR", help="also write params.md and params.json here")


def _params(args: argparse.Namespace) -> None:
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


STEPS = {
    "prepare": (_add_prepare, "make the data of a protocol's tasks, generated or from the published files", _prepare),
    "run": (_add_run, "train and test a grid of tasks, rows and seeds; resumable", _run),
    "table": (_add_table, "accuracies over seeds, beside those that the papers print", _table),
    "quirks": (_add_quirks, "what published flaws change: the accuracies of the same rows with and without", _quirks),
    "rcp": (_add_rcp, "accuracy weighed against throughput: the paper's composite and points per doubling", _rcp),
    "params": (_add_params, "parameters of every row: all, without embeddings, of the mechanism", _params),
}
