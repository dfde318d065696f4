"""Loads, describes, averages and saves fairseq checkpoints.

Files are loaded with PyTorch's protection on (`weights_only`). Averages leave out the optimizer state, two thirds of a
file.
"""

from __future__ import annotations

import hashlib
import re
import warnings
import zipfile
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..compat.checkpoints import checkpoint_types
from ..compat.errors_explained import reason_of
from ..compat.trust import check_options
from ..runtime.folder import Folder
from ..support.errors import LeapformerError
from ..support.files import replacing

# fairseq's names: checkpoint3.pt, checkpoint_1_500.pt (epoch, update), checkpoint.best_bleu_27.30.pt (metric)
_EPOCH = re.compile(r"checkpoint(\d+)\.pt")
_UPDATE = re.compile(r"checkpoint_\d+_(\d+)\.pt")
_BEST = re.compile(r"checkpoint\.best_.+_(-?\d+\.\d+)\.pt")


def last_checkpoints(folder: str | Path, count: int) -> list[Path]:
    """The `count` newest checkpoints, oldest first: of epochs, or if there are none, of --save-interval-updates.

    Raises LeapformerError if there are fewer.
    """
    numbered = _numbered(folder, _EPOCH) or _numbered(folder, _UPDATE)
    return _take(numbered, count, folder, "--last", "--keep-last-epochs")


def best_checkpoints(folder: str | Path, count: int) -> list[Path]:
    """The `count` best checkpoints by the validation metric, best last. Raises LeapformerError if there are fewer."""
    numbered = _numbered(folder, _BEST)
    # File names have the metric's value, but not whether larger is better. A checkpoint is opened only if it matters.
    if len(numbered) > count > 0 and not _larger_is_better(numbered[0]):
        numbered.reverse()
    return _take(numbered, count, folder, "--best", "--keep-best-checkpoints")


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """The last of the checkpoints with averaged parameters and without optimizer state.

    Raises LeapformerError if `paths` is empty, a file cannot be read, or the models differ in names or shapes.
    """
    if not paths:
        raise LeapformerError("no checkpoints to average; check --inputs")
    newest = load_checkpoint(paths[-1])
    models = {str(path): load_checkpoint(path)["model"] for path in paths[:-1]}
    model = average_parameters({**models, str(paths[-1]): newest["model"]})
    return {**newest, "model": model, "last_optimizer_state": None, "averaged": [path.name for path in paths]}


def average_parameters(models: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of state dicts, summed in float64; keys of `models` name them in messages.

    Integers (counters) are those of the last model. Tensors that share memory in the last model, like tied embeddings,
    share it in the result. Raises LeapformerError if names or shapes of parameters differ.
    """
    (first_name, first), *others = models.items()
    for name, model in others:
        _check_same(first_name, first, name, model)
    *_, last = models.values()
    averaged: dict[str, Tensor] = {}
    by_storage: dict[tuple[Any, ...], Tensor] = {}
    for name, tensor in last.items():
        storage = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if not tensor.numel() or storage not in by_storage:  # empty tensors all have the address 0
            by_storage[storage] = _mean([model[name] for model in models.values()])
        averaged[name] = by_storage[storage]
    return averaged


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a fairseq checkpoint; tensors are memory-mapped.

    Raises LeapformerError if it is not one, or has options that fairseq would execute as code.
    """
    # Permanently, as in `compat`: leaving a `safe_globals` block would also forget the types that were allowed before.
    torch.serialization.add_safe_globals(checkpoint_types())
    remedy = "give a checkpoint of fairseq-train"
    if path.suffix == ".safetensors":
        raise LeapformerError(f"{path} is a file of safetensors, which fairseq does not write; {remedy}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error says it, too
            # PyTorch before 1.6 wrote no archives, and the files of that time cannot be mapped.
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch, pickle and zipfile each raise their own types for a broken file
        if _is_cut_off(path):
            raise LeapformerError(f"{path} is cut off: an archive without its end; copy it again") from error
        raise LeapformerError(f"{path} cannot be read as a checkpoint ({reason_of(error)}); {remedy}") from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), Mapping):
        names = ", ".join(map(str, list(state)[:2])) if isinstance(state, dict) else type(state).__name__
        raise LeapformerError(f"{path} holds no model of fairseq, but {names[:100]}; {remedy}")
    check_options(str(path), state.get("args"), state.get("cfg"))
    return state


def _is_cut_off(path: Path) -> bool:
    """Whether a file begins as an archive of PyTorch, and does not end as one."""
    if not path.is_file() or zipfile.is_zipfile(path):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def describe_checkpoint(path: str | Path) -> dict[str, Any]:
    """Progress of the training, validation loss and number of parameters of a checkpoint or an exported folder.

    Raises LeapformerError if it is neither.
    """
    if Path(path).is_dir():
        return {**Folder.read(path).origin, "checkpoint": Path(path).name}
    state = load_checkpoint(Path(path))
    extra, history = state.get("extra_state") or {}, state.get("optimizer_history") or [{}]
    place = extra.get("train_iterator") or {}
    # Despite its name, `val_loss` is the metric by which the best checkpoint is chosen.
    chosen_by = ((state.get("cfg") or {}).get("checkpoint") or {}).get("best_checkpoint_metric", "loss")
    loss = extra.get("val_loss") if chosen_by == "loss" else None
    # After the last batch of an epoch, fairseq's iterator is at batch 0 of the next one.
    epoch = place["epoch"] - (place.get("iterations_in_epoch") == 0) if "epoch" in place else None
    return {
        "checkpoint": Path(path).name,
        "averaged": len(state.get("averaged", [])),
        "epoch": epoch,
        "updates": history[-1].get("num_updates"),
        "valid_loss": None if loss is None else float(loss),
        "parameters": _count_parameters(state["model"]),
    }


def total_updates(state: Mapping[str, Any]) -> int:
    """The updates of a checkpoint's training and of the trainings whose weights it started from."""
    # Each run adds its update count to the history. A resumed run continues the count of the entry before; a lower
    # count means that the optimizer was reset, so the entry before was the end of a training.
    counts = [int(entry.get("num_updates") or 0) for entry in state.get("optimizer_history") or []]
    return sum(count for count, after in zip(counts, [*counts[1:], -1], strict=False) if after < count)


def _count_parameters(model: Mapping[str, Tensor]) -> int:
    """The number of parameters; shared ones count once."""
    sizes = {
        _identity(tensor): tensor.numel()
        for name, tensor in model.items()
        if not name.endswith(("version", "_float_tensor"))
    }
    return sum(sizes.values())


def _identity(tensor: Tensor) -> Hashable:
    """A key that is the same for a shared parameter under each of its names."""
    # Half-precision training saves a copy under each name, so matrices are compared by value. Vectors and constant
    # matrices may be equal without being shared, e.g. norms at their initial values.
    if tensor.dim() > 1 and bool(tensor.min() < tensor.max()):
        return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).digest()
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset()


def save_checkpoint(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint atomically, and create its folder if necessary."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        torch.save(dict(state), partial)


def _numbered(folder: str | Path, pattern: re.Pattern[str]) -> list[Path]:
    """The files whose names match, sorted by the number in their name."""
    if not Path(folder).is_dir():
        raise LeapformerError(f"no folder {folder}; --inputs is the --save-dir of a training")
    matches = [(match, path) for path in Path(folder).iterdir() if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(matches, key=lambda pair: (float(pair[0].group(1)), pair[1].name))]


def _take(numbered: list[Path], count: int, folder: str | Path, option: str, keeps: str) -> list[Path]:
    if count < 1:
        raise LeapformerError(f"{option} is {count}; give at least 1")
    if len(numbered) < count:
        remedy = f"train more, keeping them with {keeps}" + (f", or give {option} {len(numbered)}" if numbered else "")
        raise LeapformerError(f"{folder} holds {len(numbered)} such checkpoints, {option} asks for {count}; {remedy}")
    return numbered[-count:]


def _larger_is_better(path: Path) -> bool:
    """Whether a larger validation metric was better in this training."""
    config = load_checkpoint(path).get("cfg") or {}
    return bool(config.get("checkpoint", {}).get("maximize_best_checkpoint_metric", False))


def _check_same(name: str, model: Mapping[str, Tensor], other_name: str, other: Mapping[str, Tensor]) -> None:
    if unshared := sorted(model.keys() ^ other.keys()):
        raise LeapformerError(
            f"{unshared[0]} is only in one of {name} and {other_name}; average checkpoints of one training"
        )
    for parameter, tensor in model.items():
        if tensor.shape != other[parameter].shape:
            shapes = f"{tuple(tensor.shape)} in {name} but {tuple(other[parameter].shape)} in {other_name}"
            raise LeapformerError(f"{parameter} is {shapes}; average checkpoints of one training")


def _mean(tensors: Iterable[Tensor]) -> Tensor:
    *_, last = tensors = list(tensors)
    if not last.is_floating_point():
        return last.clone()
    total = torch.zeros(last.shape, dtype=torch.float64)  # one at a time: a stack would hold all models in memory
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).to(last.dtype)
