"""Checkpoints of other attention: what is renamed, what keeps its initial value, and what is refused."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from ..attention import Mechanism
from ..support.errors import LeapformerError

SIDES = "qkv"


def upgrade(state_dict: dict[str, Tensor], name: str, projections: dict[str, nn.Linear], mechanism: Mechanism) -> None:
    """Make a checkpoint fit the attention `name` of these projections ("q", "k", "v") and this mechanism, in place.

    A checkpoint of another mechanism loads: this one's own parameters keep their initial value. Old ones, as that of
    the released RoBERTa, project queries, keys and values by one matrix: it is split. Raises LeapformerError for other
    sizes, and for a checkpoint of the same mechanism with other options.
    """
    for part in ("weight", "bias"):
        if f"{name}.in_proj_{part}" in state_dict:
            for side, own in zip(SIDES, state_dict.pop(f"{name}.in_proj_{part}").chunk(3), strict=True):
                state_dict[f"{name}.{side}_proj.{part}"] = own
    for side in SIDES:
        key, value = f"{name}.{side}_proj.weight", projections[side].weight
        if key in state_dict and state_dict[key].shape != value.shape:
            raise LeapformerError(
                f"{key} {_shapes(state_dict[key], value)}; use the --arch and the width of its training"
            )
    _check_options(state_dict, f"{name}.mechanism.", mechanism)


def remember_slots(mechanism: Mechanism) -> None:
    """Store the number of slots in checkpoints, for a mechanism that has slots but no parameters that tell it.

    The mechanism is part of the key: another one, which may have other slots, loads the checkpoint as before.
    """
    slots = getattr(mechanism, "slots", None)
    if slots is not None and not any(True for _ in mechanism.parameters()):
        mechanism.register_buffer(f"{mechanism.name.replace('-', '_')}_slots", torch.tensor(slots))


def _check_options(state_dict: dict[str, Tensor], prefix: str, mechanism: Mechanism) -> None:
    """Fill in or drop what belongs to mechanisms; refuse what this one with other options would have."""
    own = {prefix + key: value for key, value in mechanism.state_dict().items()}
    there = {key for key in state_dict if key.startswith(prefix)}
    continued = {prefix + key: value for key, value in mechanism.continued().items()}
    if there and not there & continued.keys():
        state_dict.update(continued)
        there |= continued.keys()
    untied = {key for key in own if key.removeprefix(prefix) not in mechanism.tied}
    differ = (there ^ own.keys()) & (there | untied)
    options = ", ".join(option.flag for option in mechanism.options)
    remedy = f"give {mechanism.name} the options that it was trained with ({options})"
    if there & untied and differ:
        key = min(differ)
        where = "the checkpoint only" if key in there else "this model only"
        raise LeapformerError(f"{key} is in {where}; {remedy}")
    for key in there - own.keys():
        del state_dict[key]
    for key, value in own.items():
        found = state_dict.get(key)
        if key.removeprefix(prefix) in mechanism.tied:
            found = _of_any_layer(state_dict, key, remedy)
        if found is not None and found.shape != value.shape:
            raise LeapformerError(f"{key} {_shapes(found, value)}; {remedy}")
        if found is not None and not value.dim() and not value.is_floating_point() and int(found) != int(value):
            raise LeapformerError(f"{key} is {int(found)} in the checkpoint and {int(value)} in this model; {remedy}")
        state_dict[key] = value if found is None else found


def _of_any_layer(state_dict: dict[str, Tensor], key: str, remedy: str) -> Tensor | None:
    """A parameter that all layers share, which a checkpoint may hold in any of them."""
    found = [value for other, value in state_dict.items() if _in_any_layer(other) == _in_any_layer(key)]
    if any(not torch.equal(value, found[0]) for value in found):
        raise LeapformerError(
            f"{key} differs between the layers of the checkpoint, in this model they share it; {remedy}"
        )
    return found[0] if found else None


def _in_any_layer(key: str) -> str:
    """The name of a parameter without the number of its layer, which is the last number in it."""
    return re.sub(r"\.\d+\.(?!.*\.\d+\.)", ".*.", key)


def _shapes(found: Tensor, own: Tensor) -> str:
    """That a tensor of a checkpoint does not fit, in words."""
    return f"is {tuple(found.shape)} in the checkpoint and {tuple(own.shape)} in this model"
