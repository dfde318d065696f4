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
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            refused = [line for line in lines if "GLOBAL" in line]  # what torch calls code in a file of weights
            reason = (refused or lines)[0][:200]
            raise LeapformerError(f"{path} cannot be read as a fairseq checkpoint ({reason})") from error

    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


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
            raise

    Trainer.load_checkpoint = load_checkpoint


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
        "checkpoint-that-does-not-fit",
        "training from a checkpoint that does not fit ends in a page without what the model said was wrong",
        "fairseq 0.12",
        always,
        _let_our_errors_through,
    ),
)
