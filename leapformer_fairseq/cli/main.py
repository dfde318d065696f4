"""Entry point of `leapformer`: finds the sub-command, and imports only its module."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from contextlib import ExitStack
from importlib.abc import SourceLoader

from .. import __version__, register
from ..compat.errors_explained import explained
from ..support import ending, user_dir
from ..support.errors import LeapformerError, suggestion
from ..support.options import add_command, call, described
from . import fairseq_commands

GROUPS = {
    "First steps": ("demo", "list", "doctor"),
    "Data, and all from data to scores": ("corpus", "prepare", "recipe"),
    "Speech, live translation, and models without PyTorch": (
        "stream",
        "serve",
        "simulate",
        "curve",
        "sentence-ends",
        "tts",
        "export",
    ),
    "Experiments": ("study", "ablate", "linearize", "probe", "lra", "sparsefinder", "bench", "check-mechanism"),
    "Results": ("score", "score-speech", "eval-stream", "compare", "table", "report", "plot", "maps"),
    "fairseq": ("average", "user-dir"),
}
#: name -> module
COMMANDS = {name: name.replace("-", "_") for names in GROUPS.values() for name in names}
COMMANDS["demo"] = ".runtime.commands.demo"


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command and return its exit status, which `ending.status_of` tells of."""
    words, shown = ending.without_flag(sys.argv[1:] if argv is None else argv)
    with ExitStack() as stack:  # an error may be one of the user's folder
        return ending.status_of(
            lambda: _dispatch(stack.enter_context(user_dir.taken(words))), explained, words, shown, "leapformer"
        )


def _dispatch(argv: list[str]) -> int:
    logging.raiseExceptions = False  # a log that cannot be written is no reason for a traceback
    command = argv[0] if argv else None
    if command in fairseq_commands.COMMANDS:
        # Not through argparse, which would take options of ours and fairseq's for its own.
        return fairseq_commands.run(command, argv[1:])
    # Importing fairseq lets every library log whatever it does, unless logging was configured before.
    logging.basicConfig(level=logging.WARNING)
    if command is None:
        print(build_parser(None).format_help(), end="", file=sys.stderr)
        return 2
    if not command.startswith("-") and command not in COMMANDS:
        near = suggestion(command, [*COMMANDS, *fairseq_commands.COMMANDS])
        raise LeapformerError(f"there is no command {command!r}; {near}`leapformer --help` shows all")
    if user_dir.given():
        register()
    args = build_parser(command).parse_args(argv)
    return call(args)


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of all sub-commands, of which only `command` has its own arguments."""
    parser = _Overview(prog="leapformer", usage="leapformer COMMAND ...")
    parser.add_argument("--version", action="version", version=f"leapformer {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, prog="leapformer", parser_class=ending.Parser)
    if command in COMMANDS:
        module = importlib.import_module(f".{COMMANDS[command]}", __package__)
        add_command(subparsers.add_parser(command), module)
    return parser


def _summary(module: str) -> str:
    """The first sentence of a command's docstring, read from its source, since many modules are slow to import."""
    spec = importlib.util.find_spec(f".{module}", __package__)
    source = spec.loader.get_source(spec.name) if spec and isinstance(spec.loader, SourceLoader) else None
    return described((source or "").removeprefix('"""').partition('"""')[0]).partition(". ")[0]


class _Overview(ending.Parser):
    """Its help is one screen of all commands in groups."""

    def format_help(self) -> str:
        lines = ["Linear attention for sequence generation with fairseq.", "", "usage: leapformer COMMAND ..."]
        lines += ["       leapformer COMMAND --help tells the options of a command, --version the version,"]
        lines += [f"       {ending.FLAG} shows where in the code a command failed"]
        lines += [f"       {user_dir.FLAG} FOLDER gives attention mechanisms of your own to any command"]
        for title, group in GROUPS.items():
            lines.append(f"{title}:")
            lines += [f"  {name:15} {_summary(COMMANDS[name])}" for name in group]
        names = ", ".join(fairseq_commands.COMMANDS)
        return "\n".join([*lines, f"  {names}:", f"  {'':15} as fairseq-train, ... with our models"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
