"""Checkpoints: what may be in them, and files that are none."""

from __future__ import annotations

import argparse
import functools
from typing import Any

import numpy as np
import torch

from ..errors import LeapformerError
from .patch import Patch, always


def checkpoint_types() -> list[Any]:
    """The types in fairseq's checkpoints beyond tensors and builtins; none of them can run code when unpickled.

    `argparse.Namespace` holds the configuration of models without a dataclass, numpy arrays the metrics of --eval-bleu.
    """
    reconstruct, scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
    # numpy 2 renamed `numpy.core`; files written by either version are read by both.
    functions = [
        (function, f"{package}.multiarray.{name}")
        for function, name in ((reconstruct, "_reconstruct"), (scalar, "scalar"))
        for package in ("numpy._core", "numpy.core")
    ]
    dtypes = {type(np.dtype(code)) for code in ("?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8")}
    return [argparse.Namespace, np.ndarray, np.dtype, *functions, *dtypes]


def _namespace_is_refused() -> bool:
    return argparse.Namespace not in torch.serialization.get_safe_globals()


def _allow_checkpoint_types() -> None:
    torch.serialization.add_safe_globals(checkpoint_types())


def _say_what_is_unreadable() -> None:
    """One line for a file that is no checkpoint, instead of a page from pickle, zipfile or omegaconf."""
    from fairseq import checkpoint_utils

    load = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(path, *args, **kwargs)
        except (OSError, LeapformerError):
            raise  # a missing file says so itself
        except Exception as error:
            raise LeapformerError(
                f"{path} cannot be read as a fairseq checkpoint ({_reason(error)}); give one of fairseq-train"
            ) from error

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def _reason(error: Exception) -> str:
    """What is wrong with a file, on one line."""
    if isinstance(error, KeyError):
        return f"it holds no {error}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    refused = [line for line in lines if "GLOBAL" in line]  # what torch calls code in a file of weights
    # torch goes on to recommend loading such files without protection.
    advice = [line for line in lines if "weights_only" in line]
    return ([*refused, *(line for line in lines if line not in advice)] or ["it is none"])[0][:200]


def _name_missing_files() -> None:
    """One line for a checkpoint that is not there."""
    from fairseq import checkpoint_utils

    for name in ("load_model_ensemble", "load_model_ensemble_and_task"):
        load = getattr(checkpoint_utils, name)

        @functools.wraps(load)
        def load_or_say(filenames: Any, *args: Any, _load: Any = load, **kwargs: Any) -> Any:
            try:
                return _load(filenames, *args, **kwargs)
            except OSError as error:
                if not str(error).startswith("Model file not found"):
                    raise
                raise LeapformerError(f"{str(error)[0].lower()}{str(error)[1:]}; check the path") from None

        setattr(checkpoint_utils, name, load_or_say)


def _let_our_errors_through() -> None:
    """What one of our models says of a checkpoint that does not fit it, instead of fairseq's guess at the reason."""
    from fairseq.trainer import Trainer

    load = Trainer.load_checkpoint

    @functools.wraps(load)
    def load_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(self, *args, **kwargs)
        except Exception as error:
            if isinstance(error.__context__, LeapformerError):
                raise error.__context__ from None
            if str(error).startswith("Cannot load model parameters"):
                name, what = args[0] if args else "the checkpoint", _difference(error.__context__)
                raise LeapformerError(
                    f"{name} does not fit this model{what}; use the layers and sizes of its training"
                ) from None
            raise

    Trainer.load_checkpoint = load_checkpoint


def _difference(error: BaseException | None) -> str:
    """The first tensor that torch finds missing, unknown or of another shape, in brackets."""
    lines = [line.strip() for line in str(error or "").splitlines()[1:] if line.strip()]
    return f" ({lines[0][:160]})" if lines else ""


PATCHES = (
    Patch(
        "checkpoint-types",
        "torch.load refuses argparse.Namespace and numpy arrays, which fairseq writes into its checkpoints",
        "torch >= 2.6 (weights_only=True by default)",
        _namespace_is_refused,
        _allow_checkpoint_types,
    ),
    Patch(
        "unreadable-checkpoint",
        "a file that is no checkpoint ends in a page from pickle, zipfile or omegaconf",
        "fairseq 0.12",
        always,
        _say_what_is_unreadable,
    ),
    Patch(
        "missing-checkpoint",
        "a checkpoint that is not there ends in a traceback",
        "fairseq 0.12",
        always,
        _name_missing_files,
    ),
    Patch(
        "checkpoint-that-does-not-fit",
        "training from a checkpoint that does not fit ends in a page without what the model said was wrong",
        "fairseq 0.12",
        always,
        _let_our_errors_through,
    ),
)
