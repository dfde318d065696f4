"""Loads a trained model from its checkpoint and checks the device, with clear errors for anything unsuitable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .. import register
from ..compat.errors_explained import explained
from ..support.errors import LeapformerError
from .stock import adopt, architecture, needed


def load_model(checkpoint: str, kinds: tuple[str, ...], purpose: str, overrides: dict[str, Any]) -> tuple[Any, Any]:
    """Load a checkpoint and return its model in eval mode and its task.

    `kinds` are the registered models that `purpose`, a noun for the message, supports. `overrides` replaces saved
    options, such as the data folder. Raises LeapformerError for a missing or unreadable file, for another model, and
    if the data that the task needs is missing or does not fit.
    """
    if Path(checkpoint).is_dir():
        raise LeapformerError(f"--path {checkpoint} is a folder; {purpose} needs the checkpoint itself")
    if not Path(checkpoint).is_file():
        raise LeapformerError(f"no file {checkpoint}; check --path")
    import yaml
    from fairseq import checkpoint_utils

    register()
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(checkpoint, overrides)
    except Exception as error:
        explanation = explained(error)
        if explanation is None:
            raise
        raise explanation from error
    adopt(state)
    _check_architecture(checkpoint, state, kinds, purpose)
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [checkpoint], arg_overrides=overrides, state=state
        )
    except OSError as error:
        raise LeapformerError(
            f"the data of {checkpoint} cannot be read ({error.filename or error}); "
            "give the folder with the dictionary that the model was trained with"
        ) from error
    except Exception as error:
        if not isinstance(error.__context__, yaml.YAMLError):  # which fairseq replaces by a bare Exception
            raise
        raise LeapformerError(
            f"{' '.join(str(error).split())}; correct the file, or give another data folder"
        ) from error
    return models[0].eval(), task


def _check_architecture(checkpoint: str, state: dict[str, Any], kinds: tuple[str, ...], purpose: str) -> None:
    """Reject other models before they are built, when the error would be about a missing task or weight."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    arch = architecture(state)
    if ARCH_MODEL_NAME_REGISTRY.get(arch) not in kinds:
        raise LeapformerError(f"{checkpoint} holds architecture {arch!r}; {purpose} needs {needed(kinds)}")


def available_device(name: str) -> torch.device:
    """Return the device of that name. Raises LeapformerError if this machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LeapformerError(f"--device {name} is not a device; give cpu, cuda or cuda:0") from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and (device.index or 0) >= count):
        raise LeapformerError(f"--device {name} is not available here ({count} GPUs visible); give --device cpu")
    return device
