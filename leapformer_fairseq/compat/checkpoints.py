"""Checkpoints: the types that they may contain, and copies that are complete or absent."""

from __future__ import annotations

import argparse
import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..support.files import rename, replacing
from .patch import patch, source_has


def checkpoint_types() -> list[Any]:
    """The types in fairseq's checkpoints beyond tensors and builtins; none of them can run code when unpickled.

    `argparse.Namespace` holds the configuration of models without a dataclass; numpy arrays hold the metrics of
    --eval-bleu.
    """
    reconstruct, scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
    # numpy 2 renamed `numpy.core` to `numpy._core`: allow both names, so that files of either version load in both.
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


@patch(
    "checkpoint-types",
    "torch.load refuses argparse.Namespace and numpy arrays, which fairseq writes into its checkpoints",
    _types_are_refused,
    "torch >= 2.6 (weights_only=True by default)",
)
def _allow_checkpoint_types() -> None:
    torch.serialization.add_safe_globals(checkpoint_types())


@patch(
    "checkpoint-copies",
    "fairseq copies to checkpoint_last.pt in place: a training that is killed meanwhile cannot resume",
    source_has("fairseq.file_io:PathManager.copy", "return shutil.copyfile"),
)
def _copy_beside() -> None:
    """Let a copy or a renamed file, such as checkpoint_last.pt, take its name only when it is complete and synced."""
    from fairseq.file_io import PathManager

    copy = PathManager.copy

    def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if "://" in f"{src_path}{dst_path}":  # a remote file system that iopath handles
            return bool(copy(src_path, dst_path, overwrite))
        with replacing(Path(dst_path)) as partial:
            shutil.copyfile(src_path, partial)
        return True

    PathManager.copy = staticmethod(copy_whole)
    PathManager.rename = staticmethod(lambda src, dst: rename(Path(src), Path(dst)))
