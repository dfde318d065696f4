"""`leapformer simulate`: translate a test set simultaneously, with delays and scores. Utterances as SimulEval does,
without it, or whole talks.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.formats.runlog import SIMULATION, UNITS
from ..runtime.simul import own
from ..runtime.simul.options import SEGMENT_OPTIONS, SYSTEM_OPTIONS, own_options
from ..scoring.pieces import SEGMENTERS
from ..scoring.quality import bleu
from ..support.errors import LeapformerError
from ..support.files import locked_folder, write_json
from ..support.options import DEVICE, TOKENIZE, at_least, choice, defaults, flag
from . import calls, score, score_talks

if TYPE_CHECKING:
    from ..simul.simulate import Simulation

# Options that do not change the translations, and entries of the namespace that are not options.
_FREE = ("out", "jobs", "tokenize", "run", "segmenter", "lang")


TALK_OPTIONS = f"""
--talks DIR             instead of --source and --target: a folder of talks made by `leapformer prepare` talks,
                        mustc-talks or acl6060; each goes through a session, as in `leapformer stream`
{SEGMENT_OPTIONS}
--drafts                with --talks: also show and log the words that may still change
--segmenter {choice(SEGMENTERS)} = soft  with --talks: as in `leapformer score`
--lang CODE             with --talks: as in `leapformer score`
"""
OPTIONS = f"""
--source LIST           a file with the path of one recording per line
--target LIST           a file with one reference translation per line
--limit N:int           only the first N of them
--out DIR!              log and scores; the same command resumes there
{SYSTEM_OPTIONS}
--source-segment-size MS:int = 40  audio sent at a time, in milliseconds; delays are multiples of it
--eval-latency-unit {choice(UNITS)} = word  what has a delay
{TOKENIZE}
{DEVICE}
--jobs N:int = 1        processes that translate
{TALK_OPTIONS}
"""
more_options = own_options


@calls.owning
def run(args: argparse.Namespace) -> int:
    """Translate what is missing from the folder, log each sentence or talk as soon as it is done, and print the scores.

    Raises LeapformerError for unsuitable options, models and files.
    """
    at_least(1, jobs=args.jobs, limit=args.limit)
    of_talks = is_for_talks(args)
    bleu([""], [""], args.tokenize)  # an unusable tokenizer must fail now, not after the translation
    try:
        (_simulate_talks if of_talks else _simulate_utterances)(args)
    except KeyboardInterrupt:
        print(f"leapformer: interrupted; {args.out} keeps finished work, the same command resumes", file=sys.stderr)
        return 130
    return 0


def _simulate_utterances(args: argparse.Namespace) -> None:
    from ..simul.simulate import build_simulation, logged, put_in_order, read_utterances

    utterances = read_utterances(args.source, args.target)[: args.limit]
    simulation = build_simulation(args)
    folder = _locked_folder(args, defaults(TALK_OPTIONS))
    done = logged(folder, args.eval_latency_unit)
    waiting = [utterance for utterance in utterances if utterance.index not in done]
    _translate(args, simulation, waiting, len(utterances))
    put_in_order(folder)
    out = str(folder / "scores.json")
    score.utterances(str(folder), args.tokenize, args.eval_latency_unit, args.checkpoint, out)
    if simulation.batched:
        print("decoded in batches: nothing was timed, so there are no scores in _CA")


def _locked_folder(args: argparse.Namespace, without: Collection[str]) -> Path:
    """The --out folder, locked to this model and these options, except those in `without`, which do not concern it."""
    from ..models.averaging import describe_checkpoint
    from ..support.signature import signature

    options = {name: value for name, value in vars(args).items() if name not in (*_FREE, *without)}
    options["policy_file"] = own.digest(args.policy_file)
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


# ---------------------------------------------------------------------------------------------------------------- talks
def _simulate_talks(args: argparse.Namespace) -> None:
    from ..simul.talks import build_talk_simulation

    recordings = recordings_of(args)
    simulation = build_talk_simulation(args)
    _locked_folder(args, ("source", "target", "limit"))
    _translate_talks(args, simulation, recordings)
    _score_talks(args, recordings)


def is_for_talks(args: argparse.Namespace) -> bool:
    """Whether the options ask for a simulation of talks. Raises LeapformerError for incompatible options."""
    if args.talks:
        if args.source or args.target:
            raise LeapformerError("--talks has recordings and references; leave --source and --target out")
        if args.limit:
            raise LeapformerError(f"--limit {args.limit} is for utterances; talks are all translated, leave it out")
        return True
    if not (args.source and args.target):
        raise LeapformerError("give --source and --target, lists of utterances and references, or --talks, a folder")
    for name, default in defaults(TALK_OPTIONS).items():  # for utterances, no other values are accepted
        if getattr(args, name) != default:
            raise LeapformerError(f"{flag(name)} is for --talks; utterances are translated as they are")
    return False


def recordings_of(args: argparse.Namespace) -> list[Path]:
    """The recordings of the talks. Raises LeapformerError if they do not match the segments."""
    from ..data.talks import REFERENCES, SEGMENTS, read_recordings
    from ..scoring.pieces import by_recording, find_recording, read_segments

    folder = Path(args.talks)
    recordings = read_recordings(folder)
    segmented = [name for name, _ in by_recording(read_segments(folder / SEGMENTS, folder / REFERENCES))]
    matches = [find_recording(str(path), segmented) for path in recordings]
    for path, name in zip(recordings, matches, strict=True):
        if name is None:
            raise LeapformerError(f"{folder / SEGMENTS} has no segments of {path.name}; prepare the talks again")
    for name in segmented:
        if name not in matches:
            raise LeapformerError(f"{folder} has segments of {name}, but no such recording; prepare the talks again")
    return recordings


def _translate_talks(args: argparse.Namespace, simulation: Any, recordings: list[Path]) -> None:
    """Translate the talks that do not have a log yet."""
    from tqdm import tqdm

    from ..runtime.audio import check_file
    from ..simul.talks import simulate_talks

    lengths = {recording: check_file(recording) for recording in recordings}
    waiting = [recording for recording in recordings if not simulation.log(recording).is_file()]
    total = math.ceil(sum(lengths.values()))  # tqdm hides the bar if the count exceeds the total
    done = total - sum(lengths[recording] for recording in waiting)
    # tqdm's own format would print seconds with all their digits.
    shape = "{l_bar}{bar}| {n:.0f}/{total:.0f} s of audio [{elapsed}<{remaining}]"
    with tqdm(total=total, initial=done, desc="simulation of talks", bar_format=shape, mininterval=1.0) as progress:
        for recording in simulate_talks(args, simulation, waiting, args.jobs, progress.update):
            if args.jobs > 1:  # other processes do not report their progress within a talk
                progress.update(lengths[recording])


def _score_talks(args: argparse.Namespace, recordings: list[Path]) -> None:
    """Join the logs, score them as `leapformer score` does, and print the scores with the resources used."""
    from ..data.talks import REFERENCES, SEGMENTS
    from ..models.averaging import describe_checkpoint
    from ..scoring import talk_report
    from ..simul.talks import join_logs, summarise_usage
    from ..support.signature import signature

    out, folder = Path(args.out), Path(args.talks)
    log = join_logs(out, recordings, args.eval_latency_unit)
    options = talk_report.TalkOptions(
        args.eval_latency_unit, args.segmenter, args.lang, args.tokenize, threads=args.num_threads
    )
    report = talk_report.score_talks([str(log)], str(folder / SEGMENTS), str(folder / REFERENCES), options)
    report["model"] = describe_checkpoint(args.checkpoint) | {"signature": signature(threads=args.num_threads)}
    report["usage"] = summarise_usage(out, recordings)
    write_json(out / "scores.json", report)
    print("\n".join([*score_talks.lines(report), *_usage(report["usage"])]))


def _usage(usage: dict[str, Any]) -> list[str]:
    memory, time = usage["memory_growth_mib"], usage["compute_growth"]
    if memory is None and time is None:
        return []
    parts = [] if memory is None else [f"memory at most {memory:.1f} MiB above that after a minute"]
    parts += [] if time is None else [f"CPU time for a second of audio {time:+.1%} from first to last quarter"]
    return [f"longest talk, {usage['longest_talk']}: {'; '.join(parts)}"]
