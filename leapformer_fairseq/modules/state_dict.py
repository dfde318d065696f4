"""Loading checkpoints with other attention: renamed, new and rejected parameters."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from ..attention import Mechanism
from ..support.errors import LeapformerError

SIDES = "qkv"


def upgrade(state_dict: dict[str, Tensor], name: str, projections: dict[str, nn.Linear], mechanism: Mechanism) -> None:
    """Change a checkpoint, in place, so that it loads into the attention `name`.

    `projections` are those of queries, keys and values ("q", "k", "v"). A checkpoint with another mechanism loads; the
    parameters of this mechanism then keep their initial values. Old checkpoints, such as the released RoBERTa, have one
    matrix for all three projections, which is split. Raises LeapformerError for other sizes, and for a checkpoint of
    the same mechanism with other options.
    """
    for part in ("weight", "bias"):
        if f"{name}.in_proj_{part}" in state_dict:
            for side, projection in zip(SIDES, state_dict.pop(f"{name}.in_proj_{part}").chunk(3), strict=True):
                state_dict[f"{name}.{side}_proj.{part}"] = projection
    for side in SIDES:
        key, value = f"{name}.{side}_proj.weight", projections[side].weight
        if key in state_dict and state_dict[key].shape != value.shape:
            raise LeapformerError(
                f"{key} {_shapes(state_dict[key], value)}; use the --arch and the width of its training"
            )
    _check_options(state_dict, f"{name}.mechanism.", mechanism)


def remember_slots(mechanism: Mechanism) -> None:
    """Store the number of slots in checkpoints if the mechanism has slots, but no parameters that reveal it.

    The key contains the mechanism's name, so that another mechanism with other slots can load the checkpoint.
    """
    slots = getattr(mechanism, "slots", None)
    if slots is not None and not any(True for _ in mechanism.parameters()):
        mechanism.register_buffer(f"{mechanism.name.replace('-', '_')}_slots", torch.tensor(slots))


def _check_options(state_dict: dict[str, Tensor], prefix: str, mechanism: Mechanism) -> None:
    """Add and remove parameters of mechanisms; raise LeapformerError if they show other options of this mechanism."""
    expected = {prefix + key: value for key, value in mechanism.state_dict().items()}
    there = {key for key in state_dict if key.startswith(prefix)}
    continued = {prefix + key: value for key, value in mechanism.continued().items()}
    if there and not there & continued.keys():
        state_dict.update(continued)
        there |= continued.keys()
    untied = {key for key in expected if key.removeprefix(prefix) not in mechanism.tied}
    differ = (there ^ expected.keys()) & (there | untied)
    options = ", ".join(option.flag for option in mechanism.options)
    remedy = f"give {mechanism.name} the options that it was trained with ({options})"
    if there & untied and differ:
        key = min(differ)
        where = "the checkpoint only" if key in there else "this model only"
        raise LeapformerError(f"{key} is in {where}; {remedy}")
    for key in there - expected.keys():
        del state_dict[key]
    for key, value in expected.items():
        stored = state_dict.get(key)
        if key.removeprefix(prefix) in mechanism.tied:
            stored = _tied_value(state_dict, key, remedy)
        if stored is not None and stored.shape != value.shape:
            raise LeapformerError(f"{key} {_shapes(stored, value)}; {remedy}")
        if stored is not None and not value.dim() and not value.is_floating_point() and int(stored) != int(value):
            raise LeapformerError(f"{key} is {int(stored)} in the checkpoint and {int(value)} in this model; {remedy}")
        state_dict[key] = value if stored is None else stored


def _tied_value(state_dict: dict[str, Tensor], key: str, remedy: str) -> Tensor | None:
    """The stored value of a parameter that all layers share; a checkpoint may contain it in any of them."""
    values = [value for other, value in state_dict.items() if _without_layer(other) == _without_layer(key)]
    if any(not torch.equal(value, values[0]) for value in values):
        raise LeapformerError(
            f"{key} differs between the layers of the checkpoint, in this model they share it; {remedy}"
        )
    return values[0] if values else None


def _without_layer(key: str) -> str:
    """The name of a parameter without the number of its layer, the last number in the name."""
    return re.sub(r"\.\d+\.(?!.*\.\d+\.)", ".*.", key)


def _shapes(stored: Tensor, expected: Tensor) -> str:
    """The part of an error message that compares two shapes."""
    return f"is {tuple(stored.shape)} in the checkpoint and {tuple(expected.shape)} in this model"
