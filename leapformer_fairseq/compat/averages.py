"""Averages of the weights during training (`--store-ema`)."""

from __future__ import annotations

import functools
import inspect
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

from .patch import Patch


class _Noting(nn.Module):
    """A model with one number, which notes what it is given to load."""

    def __init__(self, name: str, value: Tensor) -> None:
        super().__init__()
        self.register_buffer(name, value)
        self.loaded: set[str] = set()

    def load_state_dict(self, state_dict: Any, *args: Any, **options: Any) -> Any:
        self.loaded = set(state_dict)
        return super().load_state_dict(state_dict, *args, **options)


def _loaded(name: str, value: Tensor) -> set[str]:
    """What the average of a model with this number loads in its first step."""
    from fairseq.models.ema.ema import EMA

    settings = {"ema_decay": 0.5, "ema_seed_model": None, "ema_fp32": False, "ema_start_update": 0}
    model = _Noting(name, value)
    average = EMA(model, Namespace(**settings, ema_update_freq=1))
    average.step(model)
    found: set[str] = average.model.loaded
    return found


def _counters_are_averaged() -> bool:
    try:
        _loaded("count", torch.ones(1, dtype=torch.long))
    except RuntimeError:
        return True
    return False


def _copy_counters() -> None:
    from fairseq.models.ema.ema import EMA

    average = EMA._step_internal

    @functools.wraps(average)
    def _step_internal(self: EMA, new_model: nn.Module, updates: int | None = None) -> None:
        whole = {name for name, value in new_model.state_dict().items() if not _is_real(value)}
        self.skip_keys = {*self.skip_keys, *whole}  # which it copies
        average(self, new_model, updates)

    EMA._step_internal = _step_internal


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _versions_are_left_out() -> bool:
    return "version" not in _loaded("version", torch.ones(1))


def _keep_versions() -> None:
    from fairseq.models.ema.ema import EMA

    load = EMA.restore

    @functools.wraps(load)
    def restore(self: EMA, state_dict: dict[str, Tensor], build_fp32_params: bool = False) -> None:
        load(self, {**self.model.state_dict(), **state_dict}, build_fp32_params)

    EMA.restore = restore


def _averages_begin_with_deleted_weights() -> bool:
    from fairseq.trainer import Trainer

    return 'del state["model"]' in inspect.getsource(Trainer.load_checkpoint)


def _begin_averages_with_the_weights() -> None:
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    whole = Trainer.load_checkpoint

    def load_checkpoint(self: Trainer, *args: Any, **options: Any) -> Any:
        """As in fairseq; where a checkpoint has no averages they begin with its weights."""
        if not self.cfg.ema.store_ema:
            return whole(self, *args, **options)
        load, without = checkpoint_utils.load_checkpoint_to_cpu, []

        def load_checkpoint_to_cpu(*args: Any, **options: Any) -> dict[str, Any]:
            state: dict[str, Any] = load(*args, **options)
            if isinstance(state.get("extra_state"), dict) and "ema" not in state["extra_state"]:
                without.append(True)
                state["extra_state"]["ema"] = {}
            return state

        checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
        try:
            found = whole(self, *args, **options)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = load
        if without:
            self.ema.restore(self.get_model().state_dict(), build_fp32_params=self.cfg.ema.ema_fp32)
        return found

    Trainer.load_checkpoint = load_checkpoint


PATCHES = (
    Patch(
        "ema-of-counters",
        "--store-ema multiplies whole numbers, as a vocabulary's fingerprint, by the decay",
        "fairseq 0.12",
        _counters_are_averaged,
        _copy_counters,
    ),
    Patch(
        "ema-without-versions",
        "--store-ema leaves versions out, so that the averaged decoder is taken for an old one and loses its last norm",
        "fairseq 0.12",
        _versions_are_left_out,
        _keep_versions,
    ),
    Patch(
        "ema-of-other-weights",
        "--store-ema cannot begin with the weights of a checkpoint without averages: they are deleted by then",
        "fairseq 0.12",
        _averages_begin_with_deleted_weights,
        _begin_averages_with_the_weights,
    ),
)
