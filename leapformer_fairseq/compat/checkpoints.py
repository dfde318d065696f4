"""Checkpoints: the types that may be in them."""

from __future__ import annotations

import argparse
import io
import pickle
from typing import Any

import numpy as np
import torch

from .patch import Patch


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


def _types_are_refused() -> bool:
    file = io.BytesIO()
    torch.save([argparse.Namespace(), np.zeros(1, np.int64), np.zeros(1, np.float32), np.float64(0)], file)
    file.seek(0)
    try:
        torch.load(file)
    except pickle.UnpicklingError:
        return True
    return False


def _allow_checkpoint_types() -> None:
    torch.serialization.add_safe_globals(checkpoint_types())


PATCHES = (
    Patch(
        "checkpoint-types",
        "torch.load refuses argparse.Namespace and numpy arrays, which fairseq writes into its checkpoints",
        "torch >= 2.6 (weights_only=True by default)",
        _types_are_refused,
        _allow_checkpoint_types,
    ),
)
