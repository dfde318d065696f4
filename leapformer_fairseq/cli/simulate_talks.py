"""The part of `leapformer simulate` for whole talks: its options, logs and scores."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..scoring.pieces import SEGMENTERS
from ..support.errors import LeapformerError
from ..support.files import write_json
from . import score_talks

if TYPE_CHECKING:
    from ..runtime.simul.options import TakesOptions

FREE = ("segmenter", "lang")  # options that do not change what is written


def add_arguments(parser: TakesOptions) -> None:
    """Add the options for talks."""
    from ..runtime.simul.options import add_segment_options

    add = parser.add_argument
    add("--talks", metavar="DIR", help="instead of --source and --target: a folder of talks made by `leapformer "
        "prepare` talks, mustc-talks or acl6060; each goes through a session, as in `leapformer stream`")  # fmt: skip
    add_segment_options(parser)
    add("--drafts", action="store_true", help="with --talks: also show, and log, what is not certain yet")
    add("--segmenter", choices=SEGMENTERS, default="soft", help="with --talks: as in `leapformer score`")
    add("--lang", metavar="CODE", help="with --talks: as in `leapformer score`")


def serves(args: argparse.Namespace) -> bool:
    """Whether the command is about talks. Raises LeapformerError for incompatible options."""
    if args.talks:
        if args.source or args.target:
            raise LeapformerError("--talks has recordings and references; leave --source and --target out")
        return True
    if not (args.source and args.target):
        raise LeapformerError("give --source and --target, lists of utterances and references, or --talks, a folder")
    for name, default in defaults().items():
        if getattr(args, name) != default:
            raise LeapformerError(f"--{name.replace('_', '-')} is for --talks; utterances are translated as they are")
    return False


def defaults() -> dict[str, Any]:
    """The options for talks with their defaults, which they must keep for utterances."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args([]))


def check(args: argparse.Namespace) -> list[Path]:
    """The recordings of the talks. Raises LeapformerError if they and the segmentation do not match."""
    from ..data.talks import REFERENCES, SEGMENTS, read_recordings
    from ..scoring.segmentation import by_recording, find_recording, read_segments

    folder = Path(args.talks)
    recordings = read_recordings(folder)
    known = [name for name, _ in by_recording(read_segments(folder / SEGMENTS, folder / REFERENCES))]
    found = [find_recording(str(path), known) for path in recordings]
    for path, name in zip(recordings, found, strict=True):
        if name is None:
            raise LeapformerError(f"{folder / SEGMENTS} has no segments of {path.name}; prepare the talks again")
    for name in known:
        if name not in found:
            raise LeapformerError(f"{folder} has segments of {name}, but no such recording; prepare the talks again")
    return recordings


def translate(args: argparse.Namespace, simulation: Any, recordings: list[Path]) -> None:
    """Translate the talks that do not have a log yet."""
    from tqdm import tqdm

    from ..runtime.audio import check_file
    from ..simul.talks import simulate_talks

    lengths = {one: check_file(one) for one in recordings}
    waiting = [one for one in recordings if not simulation.log(one).is_file()]
    total = math.ceil(sum(lengths.values()))  # what is heard adds up to no more
    done = total - sum(lengths[one] for one in waiting)
    shape = "{l_bar}{bar}| {n:.0f}/{total:.0f} s of audio [{elapsed}<{remaining}]"
    with tqdm(total=total, initial=done, desc="simulation of talks", bar_format=shape, mininterval=1.0) as progress:
        for one in simulate_talks(args, simulation, waiting, args.jobs, progress.update):
            if args.jobs > 1:
                progress.update(lengths[one])


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
