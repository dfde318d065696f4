"""`leapformer simulate`: translate a test set simultaneously, with delays and scores: utterances as SimulEval does,
without it, or whole talks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.formats.runlog import SIMULATION, UNITS
from ..runtime.simul.options import SYSTEM_OPTIONS
from ..scoring.quality import bleu
from ..support.files import locked_folder
from ..support.options import DEVICE, TOKENIZE, TakesOptions, add_options, at_least, choice, defaults
from . import calls, score, simulate_talks

if TYPE_CHECKING:
    from ..simul.simulate import Simulation

# Options that do not change the translations, and entries of the namespace that are not options.
_FREE = ("out", "jobs", "tokenize", "run", *simulate_talks.FREE)


OPTIONS = f"""
--source LIST           a file with the path of one recording per line
--target LIST           a file with one reference translation per line
--out DIR!              log and scores; the same command resumes there
{SYSTEM_OPTIONS}
--source-segment-size MS:int = 40  audio sent at a time, in milliseconds; delays are multiples of it
--eval-latency-unit {choice(UNITS)} = word  what has a delay
{TOKENIZE}
{DEVICE}
--jobs N:int = 1        processes that translate
{simulate_talks.OPTIONS}
"""


def add_arguments(parser: TakesOptions) -> None:
    """Add the arguments of the sub-command."""
    add_options(parser, OPTIONS)


@calls.owning
def run(args: argparse.Namespace) -> int:
    """Translate what is missing from the folder, log each sentence or talk as soon as it is done, and print the scores.

    Raises LeapformerError for unsuitable options, models and files.
    """
    at_least(1, jobs=args.jobs)
    of_talks = simulate_talks.is_for_talks(args)
    bleu([""], [""], args.tokenize)  # an unusable tokenizer must fail now, not after the translation
    try:
        (_simulate_talks if of_talks else _simulate_utterances)(args)
    except KeyboardInterrupt:
        print(f"leapformer: interrupted; {args.out} keeps finished work, the same command resumes", file=sys.stderr)
        return 130
    return 0


def _simulate_utterances(args: argparse.Namespace) -> None:
    from ..simul.simulate import build_simulation, logged, put_in_order, read_utterances

    utterances = read_utterances(args.source, args.target)
    simulation = build_simulation(args)
    folder = _locked_folder(args, defaults(simulate_talks.OPTIONS))
    done = logged(folder, args.eval_latency_unit)
    waiting = [utterance for utterance in utterances if utterance.index not in done]
    _translate(args, simulation, waiting, len(utterances))
    put_in_order(folder)
    out = str(folder / "scores.json")
    score.utterances(str(folder), args.tokenize, args.eval_latency_unit, args.checkpoint, out)
    if simulation.batched:
        print("decoded in batches: nothing was timed, so there are no scores in _CA")


def _simulate_talks(args: argparse.Namespace) -> None:
    from ..simul.talks import build_talk_simulation

    recordings = simulate_talks.check(args)
    simulation = build_talk_simulation(args)
    _locked_folder(args, ("source", "target"))
    simulate_talks.translate(args, simulation, recordings)
    simulate_talks.score(args, recordings)


def _locked_folder(args: argparse.Namespace, without: Collection[str]) -> Path:
    """The --out folder, locked to this model and these options, except those in `without`, which do not concern it."""
    from ..models.averaging import describe_checkpoint
    from ..support.signature import signature

    options = {name: value for name, value in vars(args).items() if name not in (*_FREE, *without)}
    about = {"options": options, "model": describe_checkpoint(args.checkpoint)}
    return locked_folder(args.out, SIMULATION, about, "simulation", signature(threads=args.num_threads))


def _translate(args: argparse.Namespace, simulation: Simulation, waiting: list[Any], total: int) -> None:
    from tqdm import tqdm

    from ..simul.simulate import log_outcome, simulate

    way, left_out = "in batches" if simulation.batched else "one by one", list[float]()
    with tqdm(total=total, initial=total - len(waiting), unit="sentence", desc=f"simulation, {way}") as progress:
        for outcome in simulate(args, simulation, waiting, args.jobs):
            log_outcome(Path(args.out), outcome)
            left_out += [outcome.left_out_s] if outcome.left_out_s else []
            progress.update()
    if left_out:
        print(
            f"{len(left_out)} recordings begin with long silence, {sum(left_out):.1f} s of it were left out; "
            "--silence-db off translates it"
        )
