"""Systems and sessions from the options of a command. Without PyTorch, where an exported model is opened."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..runtime.simul.options import check_threads, decoding_options, policy_options, segment_options, set_threads
from ..runtime.simul.session import Samples, Session
from ..runtime.simul.stream import DecodingOptions, System
from ..support.errors import LeapformerError


def load_sessions(args: Namespace) -> tuple[System, DecodingOptions, Callable[[bool], Session]]:
    """The model on its device, the decoding options, and a function that creates a session, with or without drafts.

    Raises LeapformerError for incompatible options, before the model is loaded if possible.
    """
    options, segments = decoding_options(args), segment_options(args)
    system = open_system(args, args.device)
    source: type[Samples] = Samples
    if args.carry == "encoder":
        from .states import States  # with PyTorch

        source = States
    return system, options, lambda drafts: Session(system, options, segments, source, drafts)


def prepare_thread(args: Namespace) -> Callable[[], None] | None:
    """What every thread that translates begins with: torch counts its threads in each, onnxruntime does not."""
    return None if Path(args.checkpoint).is_dir() else partial(set_threads, args.num_threads)


def open_system(args: Namespace, device: str = "cpu") -> System:
    """The checkpoint that the options name, or the folder that `leapformer export` made.

    Raises LeapformerError for options that are impossible or do not belong to it, and as `load_system` does.
    """
    policy, ratio = policy_options(args), args.pre_decision_ratio
    check_threads(args.num_threads)
    if Path(args.checkpoint).is_dir():
        for option, chosen, only in (("engine", args.engine, "auto"), ("device", device, "cpu")):
            if chosen != only:
                raise LeapformerError(f"--{option} {chosen} has no meaning for an exported model; leave it out")
        from ..runtime.simul.exported import ExportedSystem

        return ExportedSystem.load(Path(args.checkpoint), policy, ratio, args.num_threads)
    if args.data_root is None:
        raise LeapformerError("--data-root is missing; give the folder of the config yaml, as in training")
    from ..models.loading import available_device
    from . import loading

    set_threads(args.num_threads)
    found = available_device(device)
    system = loading.load_system(args.checkpoint, args.data_root, args.config_yaml, policy, ratio, args.engine)
    system.to(found)
    return system
