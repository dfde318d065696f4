"""Exponential moving averages of the weights (`--store-ema`)."""

from __future__ import annotations

import functools
import inspect
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

from .patch import Patch


class _RecordingModel(nn.Module):
    """A model with a single buffer that records the names it is asked to load."""

    def __init__(self, name: str, value: Tensor) -> None:
        super().__init__()
        self.register_buffer(name, value)
        self.loaded: set[str] = set()

    def load_state_dict(self, state_dict: Any, *args: Any, **options: Any) -> Any:
        self.loaded = set(state_dict)
        return super().load_state_dict(state_dict, *args, **options)


def _loaded(name: str, value: Tensor) -> set[str]:
    """The names that the average of a model with this buffer loads in its first step."""
    from fairseq.models.ema.ema import EMA

    settings = {"ema_decay": 0.5, "ema_seed_model": None, "ema_fp32": False, "ema_start_update": 0}
    model = _RecordingModel(name, value)
    average = EMA(model, Namespace(**settings, ema_update_freq=1))
    average.step(model)
    names: set[str] = average.model.loaded
    return names


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
        integers = {name for name, value in new_model.state_dict().items() if not _is_real(value)}
        self.skip_keys = {*self.skip_keys, *integers}  # fairseq copies these instead of averaging them
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
        # fairseq does not average names that contain `version`, and then omits them; complete them from the model.
        load(self, {**self.model.state_dict(), **state_dict}, build_fp32_params)

    EMA.restore = restore


def _averages_begin_with_deleted_weights() -> bool:
    from fairseq.trainer import Trainer

    return 'del state["model"]' in inspect.getsource(Trainer.load_checkpoint)


def _begin_averages_with_the_weights() -> None:
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer

    original = Trainer.load_checkpoint

    def load_checkpoint(self: Trainer, *args: Any, **options: Any) -> Any:
        """Load as fairseq does; if the checkpoint has no averages, start them from its weights."""
        if not self.cfg.ema.store_ema:
            return original(self, *args, **options)
        load, lacking = checkpoint_utils.load_checkpoint_to_cpu, []

        def load_checkpoint_to_cpu(*args: Any, **options: Any) -> dict[str, Any]:
            state: dict[str, Any] = load(*args, **options)
            if isinstance(state.get("extra_state"), dict) and "ema" not in state["extra_state"]:
                lacking.append(True)
                # Any value keeps fairseq from reading state["model"], which it has deleted by then.
                state["extra_state"]["ema"] = {}
            return state

        checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
        try:
            extra_state = original(self, *args, **options)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = load
        if lacking:
            self.ema.restore(self.get_model().state_dict(), build_fp32_params=self.cfg.ema.ema_fp32)
        return extra_state

    Trainer.load_checkpoint = load_checkpoint


PATCHES = (
    Patch(
        "ema-of-counters",
        "--store-ema multiplies integers, such as a vocabulary's fingerprint, by the decay",
        "fairseq 0.12",
        _counters_are_averaged,
        _copy_counters,
    ),
    Patch(
        "ema-without-versions",
        "--store-ema drops versions, so that the averaged decoder is taken for an old one and loses its last norm",
        "fairseq 0.12",
        _versions_are_left_out,
        _keep_versions,
    ),
    Patch(
        "ema-of-other-weights",
        "--store-ema cannot start from the weights of a checkpoint without averages: they are already deleted",
        "fairseq 0.12",
        _averages_begin_with_deleted_weights,
        _begin_averages_with_the_weights,
    ),
)
