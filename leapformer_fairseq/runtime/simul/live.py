"""Sessions from the options of a command, with an exported model or with a checkpoint that somebody else can open."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...support.errors import LeapformerError
from .exported import ExportedSystem
from .options import check_threads, decoding_options, policy_options, segment_options
from .session import Samples, Session
from .stream import DecodingOptions, System

OpenCheckpoint = Callable[[Namespace, str], System]  # from the options and the name of a device


class Sessions(NamedTuple):
    """What a live command works with; `create` makes a session, with or without drafts."""

    system: System
    options: DecodingOptions
    create: Callable[[bool], Session]


LoadSessions = Callable[[Namespace], Sessions]


def load_sessions(args: Namespace, open_checkpoint: OpenCheckpoint | None = None) -> Sessions:
    """The model on its device, the decoding options, and a function that creates sessions.

    Raises LeapformerError for incompatible options, before the model is loaded if possible.
    """
    options, segments = decoding_options(args), segment_options(args)
    system = open_system(args, args.device, open_checkpoint)
    source: type[Samples] = system.carried() if args.carry == "encoder" else Samples
    return Sessions(system, options, lambda drafts: Session(system, options, segments, source, drafts))


def open_system(args: Namespace, device: str = "cpu", open_checkpoint: OpenCheckpoint | None = None) -> System:
    """The folder that `leapformer export` made, or what `open_checkpoint` makes of any other path.

    Raises LeapformerError for options that are impossible or do not belong to the model, and for a checkpoint where
    there is nothing that could open it.
    """
    policy = policy_options(args)
    check_threads(args.num_threads)
    if is_exported(args):
        for option, chosen, only in (("engine", args.engine, "auto"), ("device", device, "cpu")):
            if chosen != only:
                raise LeapformerError(f"--{option} {chosen} has no meaning for an exported model; leave it out")
        return ExportedSystem.load(Path(args.checkpoint), policy, args.pre_decision_ratio, args.num_threads)
    if open_checkpoint is None:
        raise LeapformerError(f"{args.checkpoint} is no folder; give one made by `leapformer export`")
    return open_checkpoint(args, device)


def is_exported(args: Namespace) -> bool:
    """Whether --checkpoint names an exported model."""
    return Path(args.checkpoint).is_dir()
