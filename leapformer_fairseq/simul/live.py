"""Systems and sessions from the options of a command, with a checkpoint or an exported model.

PyTorch is imported for a checkpoint only.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial

from ..runtime.simul import live
from ..runtime.simul.live import Sessions, is_exported
from ..runtime.simul.options import check_threads, policy_options
from ..runtime.simul.stream import System
from ..support.errors import LeapformerError


def load_sessions(args: Namespace) -> Sessions:
    """As `runtime.simul.live.load_sessions`, also for a checkpoint."""
    return live.load_sessions(args, open_checkpoint)


def open_system(args: Namespace, device: str = "cpu") -> System:
    """As `runtime.simul.live.open_system`, also for a checkpoint."""
    return live.open_system(args, device, open_checkpoint)


def open_checkpoint(args: Namespace, device: str) -> System:
    """The checkpoint that the options name, on a device. Raises LeapformerError as `load_system` does."""
    if args.data_root is None:
        raise LeapformerError("--data-root is missing; give the folder of the config yaml, as in training")
    from ..models.loading import available_device
    from . import loading

    set_threads(args.num_threads)
    place, policy = available_device(device), policy_options(args)
    system = loading.load_system(
        args.checkpoint, args.data_root, args.config_yaml, policy, args.pre_decision_ratio, args.engine
    )
    system.to(place)
    return system


def prepare_thread(args: Namespace) -> Callable[[], None] | None:
    """What every thread that translates begins with: torch counts its threads in each, onnxruntime does not."""
    return None if is_exported(args) else partial(set_threads, args.num_threads)


def set_threads(count: int) -> None:
    """Set torch's number of CPU threads. Raises LeapformerError for a number below one."""
    check_threads(count)
    import torch

    torch.set_num_threads(count)
