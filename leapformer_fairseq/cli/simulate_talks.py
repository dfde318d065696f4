"""The part of `leapformer simulate` for whole talks: options, logs and scores."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from ..runtime.simul.options import SEGMENT_OPTIONS
from ..scoring.pieces import SEGMENTERS
from ..support.errors import LeapformerError
from ..support.files import write_json
from ..support.options import choice, defaults, flag
from . import score_talks

FREE = ("segmenter", "lang")  # options that do not change the logs, only their scores


OPTIONS = f"""
--talks DIR             instead of --source and --target: a folder of talks made by `leapformer prepare` talks,
                        mustc-talks or acl6060; each goes through a session, as in `leapformer stream`
{SEGMENT_OPTIONS}
--drafts                with --talks: also show and log the words that may still change
--segmenter {choice(SEGMENTERS)} = soft  with --talks: as in `leapformer score`
--lang CODE             with --talks: as in `leapformer score`
"""


def is_for_talks(args: argparse.Namespace) -> bool:
    """Whether the options ask for a simulation of talks. Raises LeapformerError for incompatible options."""
    if args.talks:
        if args.source or args.target:
            raise LeapformerError("--talks has recordings and references; leave --source and --target out")
        return True
    if not (args.source and args.target):
        raise LeapformerError("give --source and --target, lists of utterances and references, or --talks, a folder")
    for name, default in defaults(OPTIONS).items():  # for utterances, no other values are accepted
        if getattr(args, name) != default:
            raise LeapformerError(f"{flag(name)} is for --talks; utterances are translated as they are")
    return False


def check(args: argparse.Namespace) -> list[Path]:
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


def translate(args: argparse.Namespace, simulation: Any, recordings: list[Path]) -> None:
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


def score(args: argparse.Namespace, recordings: list[Path]) -> None:
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
