"""Entry point of `leapformer`: finds the sub-command, imports only its module, and prints errors as one line."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys

from .. import __version__
from ..errors import one_line
from ..fairseq_errors import explained
from . import fairseq_commands

# name -> (module in this package, help). The text stands here as well so that `leapformer --help` imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("doctor", "versions, devices, and what was patched in fairseq"),
    "user-dir": ("user_dir", "the path to give to fairseq's --user-dir"),
    "list": (
        "list",
        "attention mechanisms with their options and blocks, and our model architectures, tasks and criterions",
    ),
    "corpus": ("corpus", "make a small corpus: English-German speech translation, text to speech, ListOps, Pathfinder"),
    "prepare": (
        "prepare",
        "prepare a data set: speech translation, whole talks, translation, language modelling, classification, text to "
        "speech",
    ),
    "recipe": ("recipe", "a data set or a paper's table from data to scores: prepare, train, evaluate"),
    "average": ("average", "average the parameters of a training's last or best checkpoints"),
    "score": (
        "score",
        "score a SimulEval run or translations of whole talks (BLEU, chrF, latency), generated text (BLEU, chrF) or a "
        "log of eval-lm (perplexity) or validate (perplexity of masked subwords, accuracy, losses of speech)",
    ),
    "compare": ("compare", "whether translations differ by more than the choice of test sentences: paired bootstrap"),
    "simulate": (
        "simulate",
        "translate a test set simultaneously, with delays and scores: utterances as SimulEval does, without it, or "
        "whole talks",
    ),
    "curve": (
        "curve",
        "quality against latency over a grid of policies: runs of `leapformer simulate`, a table and a picture",
    ),
    "tts": ("tts", "speak text, phonemes or a manifest with a trained text to speech model"),
    "score-speech": (
        "score_speech",
        "score synthesised speech: mel cepstral and spectral distortion, duration, and pictures",
    ),
    "stream": (
        "stream",
        "translate a recording of any length, or speech that arrives on standard input, live in the terminal",
    ),
    "serve": (
        "serve",
        "translate speech live on a page in the browser: microphone or file in, text out, several speakers and "
        "listeners",
    ),
    "sentence-ends": (
        "sentence_ends",
        "train a small network that finds where sentences end in speech without pauses, for --sentence-ends",
    ),
    "eval-stream": (
        "eval_stream",
        "perplexity of a language model over one long text, read as a stream in constant memory",
    ),
    "export": (
        "export",
        "a trained model as ONNX graphs with explicit states, to run without PyTorch and fairseq",
    ),
    "bench": ("bench", "speed, memory and FLOPs of attention, decoding, training and whole models"),
    "plot": ("plot", "draw the results of a benchmark"),
    "maps": ("maps", "draw attention maps and learned proportions of a trained model"),
    "ablate": (
        "ablate",
        "replace one attention block at a time in a training, rank what that costs, and recommend a plan",
    ),
    "linearize": (
        "linearize",
        "turn a trained softmax model into one with other attention: align its blocks, choose, distil",
    ),
    "lra": (
        "lra",
        "Long Range Arena: data, a grid of trainings, tables beside the papers', composite scores, parameters",
    ),
    "sparsefinder": (
        "sparsefinder",
        "sparse attention that is predicted: extract a teacher's graphs, fit, evaluate, and draw all curves",
    ),
    "probe": ("probe", "train small models to recall, copy, reverse and calculate: what can a mechanism remember?"),
    "report": ("report", "compare the scored runs of a quickstart or recipe folder: table, JSON and curve"),
    "table": ("table", "compare the scored runs of a recipe: table, JSON and picture"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one sub-command and return the exit status: 0, 2 for a user's error, 130 when interrupted."""
    try:
        return _dispatch(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("leapformer: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        found = explained(error)
        if found is None:
            raise
        print(f"leapformer: error: {one_line(found)}", file=sys.stderr)
        return 2


def _dispatch(argv: list[str]) -> int:
    command = argv[0] if argv else None
    if command in fairseq_commands.COMMANDS:
        # Not through argparse, which would take options of ours and fairseq's for its own.
        return fairseq_commands.run(command, argv[1:])
    # Importing fairseq lets every library log whatever it does, unless logging was configured before.
    logging.basicConfig(level=logging.WARNING)
    args = build_parser(command).parse_args(argv)
    return args.run(args)


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of all sub-commands, of which only `command` has its own arguments."""
    parser = argparse.ArgumentParser(
        prog="leapformer", description="Linear attention for sequence generation with fairseq."
    )
    parser.add_argument("--version", action="version", version=f"leapformer {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module_name, help_text) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_text, description=help_text)
        if name == command:
            module = importlib.import_module(f".{module_name}", __package__)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    for name, fairseq_command in fairseq_commands.COMMANDS.items():
        subparsers.add_parser(name, help=fairseq_command.help)
    return parser


if __name__ == "__main__":
    sys.exit(main())
