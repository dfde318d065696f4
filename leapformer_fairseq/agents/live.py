"""Create the sessions of a live translation command from its options."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from ..loading import available_device
from . import loading
from .options import decoding_options, segment_options, set_threads, system_arguments
from .session import Session
from .stream import DecodingOptions, TranslationSystem


def load_sessions(args: Namespace) -> tuple[TranslationSystem, DecodingOptions, Callable[[bool], Session]]:
    """The model on its device, the decoding options, and a function that creates a session, with or without drafts.

    Raises LeapformerError for incompatible options, before the model is loaded if possible.
    """
    set_threads(args.num_threads)
    device, options, segments = available_device(args.device), decoding_options(args), segment_options(args)
    system = loading.load_system(*system_arguments(args))
    system.model.to(device)
    return system, options, lambda drafts: Session(system, options, segments, args.carry, drafts)
