"""`leapformer curve`: quality against latency over a grid of policies. Runs of `leapformer simulate`, a table and a
picture.
"""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.simul import own
from ..runtime.simul.options import check_unused, rows
from ..runtime.simul.policy import POLICIES, find
from ..runtime.simul.segments import HISTORIES, SEGMENTS, SegmentOptions
from ..scoring.quality import bleu
from ..support.declared import Option
from ..support.errors import LeapformerError
from ..support.options import at_least, defaults, flag, parse, without
from . import calls, simulate

if TYPE_CHECKING:
    from ..simul.simulate import Utterance
    from ..studies.curve import Curve, Run, Setting

# The values of options of policies that are combined by default; of others, it is their default alone.
_GRIDS = {"k": "1 3 5 9", "hold": "2 4 6", "agree": "2 3", "align_frames": "4 8", "edatt_alpha": "0.2 0.4 0.6"}
_DECLARED = [option for policy in POLICIES.values() for option in policy.options]
# Options of `leapformer simulate` that the grid sets for each run, so that the command takes lists of them instead.
_OF_RUNS = (
    "--checkpoint", "--policy", *(option.flag for option in _DECLARED), "--pre-decision-ratio",
    "--source-segment-size", "--segment", "--out",
)  # fmt: skip
_SHARED = without(simulate.OPTIONS, _OF_RUNS)


def _listed(option: Option) -> Option:
    """An option of a policy as `rows` makes a list of it."""
    default = str(option.default).lower() if option.type is bool else option.default  # as `_values` reads it
    values, about = _GRIDS.get(option.name, default), option.help.partition(" (default")[0]
    return option._replace(default=values, help=about, kind=option.type, long="")


OPTIONS = f"""
--out DIR!              runs and results; the same command resumes there
--checkpoints FILE...!  leapformer_simulst* or leapformer_s2t*
--names NAME... =       of the checkpoints (default: those of the files)
--policies LIST... = wait-k  when to write: {", ".join(POLICIES)}, or some of your own; all their options are lists
{rows(map(_listed, _DECLARED), listed=True)}
--pre-decision-ratios LIST... =  encoder states (40 ms each) per step; by default the trained number
--segment-sizes LIST... = 40  audio sent at a time, in ms; delays are multiples of it
--repeats N:int = 0     time the computation N times, one utterance at a time, for the scores in _CA (default: 0, none)
--segment LIST... = pause  with --talks: what ends a segment: pause, tokens, seconds
{calls.study_options("runs")}
{_SHARED}
"""


def more_options(words: Sequence[str]) -> str:
    """The options of policies that the words of the command bring, as a table."""
    return rows(map(_listed, own.options(words)), listed=True)


@calls.owning
def run(args: Namespace) -> int:
    """Simulate what is missing from the folder, and rewrite the results after each run.

    Raises LeapformerError for unsuitable options, and if a run fails.
    """
    from ..studies.curve import refusals, refuse, rows, table

    curve = _plan(args)
    refuse(curve.runs)
    if args.dry_run:
        waiting, refused = len(curve.waiting), sum(bool(run.reason) for run in curve.runs)
        print(f"{waiting} runs to do, {len(curve.runs) - waiting - refused} finished before, {refused} refused")
    common = Namespace(dry_run=args.dry_run, only=args.only)  # --jobs are those of a simulation
    _, status = calls.run_study(curve, common, inline=_call)
    if not status:
        print("\n".join([*([] if args.dry_run else [table(rows(curve))]), *refusals(curve)]))
    return status


def _call(words: Sequence[str]) -> None:
    """Simulate, but hide the scores, which the table will show."""
    with redirect_stdout(io.StringIO()):
        calls.call(words)


# ------------------------------------------------------------------------------------------------------------ planning
def _utterances(args: Namespace, of_talks: bool) -> list[Utterance]:
    """The utterances, none for talks. Raises LeapformerError for unsuitable lists and impossible numbers."""
    from ..simul.simulate import read_utterances

    at_least(1, limit=args.limit, jobs=args.jobs)
    at_least(0, repeats=args.repeats)
    if of_talks and args.repeats:
        raise LeapformerError(f"--repeats {args.repeats} is for utterances; talks are timed at once")
    if of_talks:
        simulate.recordings_of(args)
        return []
    return read_utterances(args.source, args.target)[: args.limit]


def _runs(args: Namespace) -> list[Run]:
    """All runs of the grid. Raises LeapformerError for unsuitable names and numbers, and for an empty grid."""
    from ..studies.curve import Grid, name_checkpoints

    for file in args.policy_file:
        own.load(file)
    policies = _items(args.policies)
    for policy in policies:
        find(policy)
    declared = [option for policy in POLICIES.values() for option in policy.options]
    options = {option.name: option for option in declared if hasattr(args, option.name)}
    numbers = {name: _values(flag(name), getattr(args, name), option.type) for name, option in options.items()}
    for name, values in numbers.items():
        for value in values:
            _listed(options[name]).check(value)
    _check_unused(args, policies)
    ratios = _values("--pre-decision-ratios", args.pre_decision_ratios, int) or [None]
    sizes = _values("--segment-sizes", args.segment_sizes, int)
    shared, segments = _shared_flags(args), _segments(args)
    grid = Grid(name_checkpoints(args.checkpoints, args.names), policies, numbers, ratios, sizes, segments)
    runs = [_run(args, grid.checkpoints[setting.checkpoint], setting, shared) for setting in grid.settings()]
    if not runs:
        raise LeapformerError("the grid is empty; give --policies and for each its numbers, and --segment-sizes")
    return runs


def _check_unused(args: Namespace, policies: Sequence[str]) -> None:
    """Raise LeapformerError for a list, other than the default, for an option that none of the policies has."""
    declared = dict.fromkeys(option for policy in POLICIES.values() for option in policy.options)
    lists = defaults(rows(map(_listed, declared), listed=True))
    given = {name: values for name, default in lists.items() if (values := getattr(args, name, default)) != default}
    check_unused(policies, {name: f"{flag(name)} {' '.join(values)}" for name, values in given.items()})


def _plan(args: Namespace) -> Curve:
    """The study. Raises LeapformerError for options that would make every run fail."""
    from ..studies.curve import Curve

    runs = _runs(args)
    utterances = _utterances(args, simulate.is_for_talks(runs[0].args))
    checkpoints = _checked(args, runs)
    about = {**_settings(args), **{f"checkpoint {name}": described for name, described in checkpoints.items()}}
    return Curve(Path(args.out), runs, args.repeats, utterances, about, checkpoints)


def _segments(args: Namespace) -> list[tuple[str, ...]]:
    """The options of `leapformer simulate` for each item of --segment, a value of its --segment or --history.

    Raises LeapformerError for any other item, and for utterances.
    """
    if not args.talks:
        if _items(args.segment) != ["pause"]:
            raise LeapformerError(
                f"--segment {' '.join(args.segment)} is for --talks; utterances are translated as they are"
            )
        return [()]
    options = {choice: ("--segment", choice) for choice in SEGMENTS}
    options |= {choice: ("--history", choice) for choice in HISTORIES if choice != SegmentOptions.history}
    for item in _items(args.segment):
        if item not in options:
            raise LeapformerError(f"--segment {item}: choose from {', '.join(options)}")
    return [options[item] for item in _items(args.segment)]


def _run(args: Namespace, checkpoint: str, setting: Setting, shared: list[str]) -> Run:
    from ..studies.curve import Run

    paths = ["--checkpoint", checkpoint, "--out", str(Path(args.out, "runs", setting.name))]
    flags = [*paths, *setting.flags, *shared]
    return Run(setting, ["simulate", *flags], parse(simulate, flags))


def _checked(args: Namespace, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """{name: description of the checkpoint}. Raises LeapformerError for options that would make every run fail."""
    from ..models.averaging import describe_checkpoint
    from ..models.loading import available_device
    from ..runtime.simul.options import decoding_options
    from ..simul.live import set_threads

    decoding_options(runs[0].args)
    available_device(args.device)
    set_threads(args.num_threads)
    bleu([""], [""], args.tokenize)
    paths = {run.setting.checkpoint: run.args.checkpoint for run in runs}
    return {name: {"path": path, **describe_checkpoint(path)} for name, path in paths.items()}


def _items(values: Sequence[str]) -> list[str]:
    """The items of a list, whether it was given as one quoted argument or as several."""
    return " ".join(values).split()


_EXAMPLES: dict[type, str] = {
    int: "whole numbers, e.g. {} '4 8'",
    float: "numbers, e.g. {} '0.4 0.8'",
    bool: "true or false",
}


def _values(option: str, values: Sequence[str] | None, kind: type) -> list[Any]:
    """The items of a list as values of a kind; without a list, None, which is the policy's own default."""
    read = {"true": True, "false": False}.__getitem__ if kind is bool else kind
    try:
        return [None] if values is None else [read(item) for item in _items(values)]
    except (ValueError, KeyError) as error:
        raise LeapformerError(f"{option} {' '.join(values or ())}: give {_EXAMPLES[kind].format(option)}") from error


def _shared(args: Namespace) -> dict[str, tuple[Any, Any]]:
    """{option: (value, default)} for the options that all runs share."""
    return {flag(name): (getattr(args, name), default) for name, default in defaults(_SHARED).items()}


def _shared_flags(args: Namespace) -> list[str]:
    """The arguments of `leapformer simulate` that all runs share, without defaults."""
    values = {option: value for option, (value, default) in _shared(args).items() if value != default}
    values.pop(own.FLAG, None)  # a list
    # --silence-db off is stored as None; a flag without a value as True.
    words = {option: "off" if value is None else str(value) for option, value in values.items()}
    files = [word for file in args.policy_file for word in (own.FLAG, file)]
    return files + [word for option, text in words.items() for word in ([option] if text == "True" else [option, text])]


def _settings(args: Namespace) -> dict[str, Any]:
    """The options that must stay the same in a folder: all but the number of processes, which changes no results."""
    shared = {option: value for option, (value, _) in _shared(args).items() if option != "--jobs"}
    return {**shared, own.FLAG: own.digest(args.policy_file)}
