"""Entry point of `leapformer`: finds the sub-command, and imports only its module."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from typing import NamedTuple

from .. import __version__
from ..compat.errors_explained import explained
from ..support import ending
from ..support.errors import LeapformerError, suggestion
from . import fairseq_commands


class Command(NamedTuple):
    """A module of this package, and a line for `leapformer --help`, which imports none of them."""

    module: str
    help: str


GROUPS: dict[str, dict[str, Command]] = {
    "First steps": {
        "demo": Command("demo", "translate a bundled sentence with a bundled model, at once and without PyTorch"),
        "list": Command("list", "attention mechanisms, the options of one, our models, tasks and criterions"),
        "doctor": Command("doctor", "versions, devices, and what was patched in fairseq"),
    },
    "Data, and all from data to scores": {
        "corpus": Command("corpus", "make a small corpus: speech translation, text to speech, Long Range Arena"),
        "prepare": Command("prepare", "prepare a data set, published or of your own"),
        "recipe": Command("recipe", "a data set or a paper's table: prepare, train, evaluate"),
    },
    "Speech, live translation, and models without PyTorch": {
        "stream": Command("stream", "translate a recording or standard input live in the terminal"),
        "serve": Command("serve", "translate live on a page in the browser"),
        "simulate": Command("simulate", "translate a test set simultaneously, with delays and scores"),
        "curve": Command("curve", "quality against latency over a grid of policies"),
        "sentence-ends": Command("sentence_ends", "train a network that cuts speech without pauses into sentences"),
        "tts": Command("tts", "speak text, phonemes or a manifest with a trained model"),
        "export": Command("export", "a trained model as ONNX graphs, to run without PyTorch and fairseq"),
    },
    "Experiments": {
        "study": Command("study", "attentions, seeds and options of any training, out of a file of ten lines"),
        "ablate": Command("ablate", "which attention blocks can be linear, one at a time"),
        "linearize": Command("linearize", "turn a trained softmax model into a linear one"),
        "probe": Command("probe", "what a mechanism can remember: recall, copy, reverse, calculate"),
        "lra": Command("lra", "Long Range Arena: data, a grid of trainings, tables, composite scores"),
        "sparsefinder": Command("sparsefinder", "predict the sparse graph of an entmax model"),
        "bench": Command("bench", "speed, memory and FLOPs of attention, decoding, training and models"),
    },
    "Results": {
        "score": Command("score", "score simultaneous or generated translations, and fairseq's logs"),
        "score-speech": Command("score_speech", "score synthesised speech"),
        "eval-stream": Command("eval_stream", "perplexity of a language model over a text without end"),
        "compare": Command("compare", "whether translations differ by more than chance"),
        "table": Command("table", "compare the scored runs of a recipe"),
        "report": Command("report", "compare the scored runs of a quickstart"),
        "plot": Command("plot", "draw the results of a benchmark"),
        "maps": Command("maps", "draw attention maps and learned proportions of a model"),
    },
    "fairseq": {
        "average": Command("average", "average the last or best checkpoints of a training"),
        "user-dir": Command("user_dir", "the path to give to fairseq's --user-dir"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command and return its exit status, which `ending.status_of` tells of."""
    words, shown = ending.without_flag(sys.argv[1:] if argv is None else argv)
    return ending.status_of(lambda: _dispatch(words), explained, words, shown, "leapformer")


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
    args = build_parser(command).parse_args(argv)
    return args.run(args)


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of all sub-commands, of which only `command` has its own arguments."""
    parser = _Overview(prog="leapformer", usage="leapformer COMMAND ...")
    parser.add_argument("--version", action="version", version=f"leapformer {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, prog="leapformer", parser_class=ending.Parser)
    if command in COMMANDS:
        module = importlib.import_module(f".{COMMANDS[command].module}", __package__)
        subparser = subparsers.add_parser(command, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


class _Overview(ending.Parser):
    """Its help is one screen of all commands in groups."""

    def format_help(self) -> str:
        lines = ["Linear attention for sequence generation with fairseq.", "", "usage: leapformer COMMAND ..."]
        lines += ["       leapformer COMMAND --help tells the options of a command, --version the version,"]
        lines += [f"       {ending.FLAG} shows where in the code a command failed"]
        for title, group in GROUPS.items():
            lines.append(f"{title}:")
            lines += [f"  {name:14} {command.help}" for name, command in group.items()]
        names = ", ".join(fairseq_commands.COMMANDS)
        return "\n".join([*lines, f"  {names}:", f"  {'':14} as fairseq-train, ... with our models"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
