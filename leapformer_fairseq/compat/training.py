"""Training: defaults under fairseq-hydra-train, --bf16, averages of the weights, and quantisation noise."""

from __future__ import annotations

import argparse
import importlib.util
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError
from .patch import patch, source_has, wrapping


# ------------------------------------------------------------------------------------------------------------- options
def filled(config: Any, task: Any, model: type) -> Namespace:
    """The options that fairseq-train would give a model: those of `config`, the flags' defaults, and the task's.

    Raises LeapformerError for an option that the model does not have.
    """
    from omegaconf import OmegaConf

    configured: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    parser = ArgumentParser(add_help=False, argument_default=SUPPRESS, allow_abbrev=False)
    model.add_args(parser)  # type: ignore[attr-defined]
    defaults = vars(parser.parse_args([]))
    flags = {action.dest for action in parser._actions} | {"_name", "arch"}
    # A section with `arch` was converted from flags, and holds the options of the whole command.
    unknown = [] if "arch" in configured else sorted(configured.keys() - flags)
    arch = configured.get("_name")
    if unknown:
        raise LeapformerError(
            f"model.{unknown[0]}: {arch} has no such option; `leapformer train --arch {arch} --help` lists them"
        )
    task_config = getattr(task, "cfg", None)
    of_task: Any = OmegaConf.to_container(task_config, resolve=True) if OmegaConf.is_config(task_config) else {}
    rest = {name: value for name, value in of_task.items() if name not in flags}
    return Namespace(**{**rest, **defaults, **configured, "arch": arch or configured.get("arch")})


def _defaults_are_missing() -> bool:
    from fairseq import models
    from omegaconf import OmegaConf

    class Model:
        @classmethod
        def add_args(cls, parser: ArgumentParser) -> None:
            parser.add_argument("--width", type=int, default=3)

        @classmethod
        def build_model(cls, args: Any, task: Any) -> Any:
            return getattr(args, "width", None)

    name = "leapformer_defaults_are_looked_for"
    models.ARCH_MODEL_REGISTRY[name] = Model
    try:
        return bool(models.build_model(OmegaConf.create({"_name": name}), None) != 3)
    finally:
        del models.ARCH_MODEL_REGISTRY[name]


@patch(
    "hydra-defaults",
    "fairseq-hydra-train sets no defaults for models whose options are flags",
    _defaults_are_missing,
)
@wrapping("fairseq.models:build_model")
def _fill_defaults(build: Any, cfg: Any, task: Any, *args: Any, **options: Any) -> Any:
    from fairseq import models
    from omegaconf import OmegaConf

    name = cfg.get("_name") or cfg.get("arch") if OmegaConf.is_config(cfg) else None
    model = models.ARCH_MODEL_REGISTRY.get(name)
    # Of an architecture of a model with a dataclass, fairseq fills the options by that.
    if model is not None and models.ARCH_MODEL_NAME_REGISTRY.get(name, name) not in models.MODEL_DATACLASS_REGISTRY:
        cfg = filled(cfg, task, model)
    return build(cfg, task, *args, **options)


def _bf16_means_tpu() -> bool:
    from fairseq import options

    parser = argparse.ArgumentParser()
    parser.set_defaults(bf16=True, fp16=False, batch_size=None, max_tokens=None)
    return importlib.util.find_spec("torch_xla") is None and options.parse_args_and_arch(parser, []).tpu


@patch(
    "bf16",
    "--bf16 is taken for a TPU, so that it ends in an AttributeError on a GPU",
    _bf16_means_tpu,
    "fairseq 0.12 without torch_xla",
)
@wrapping("fairseq.options:parse_args_and_arch")
def _without_tpu(parse: Any, *args: Any, **options: Any) -> Any:
    parsed = parse(*args, **options)  # with parse_known=True, a tuple with the unknown arguments
    (parsed[0] if isinstance(parsed, tuple) else parsed).tpu = False
    return parsed


# ------------------------------------------------------------------------------ moving averages of weights: --store-ema
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


@patch(
    "ema-of-counters",
    "--store-ema multiplies integers, such as a vocabulary's fingerprint, by the decay",
    _counters_are_averaged,
)
@wrapping("fairseq.models.ema.ema:EMA._step_internal")
def _copy_counters(average: Any, self: Any, new_model: nn.Module, updates: int | None = None) -> None:
    integers = {
        name
        for name, value in new_model.state_dict().items()
        if not (isinstance(value, Tensor) and value.is_floating_point())
    }
    self.skip_keys = {*self.skip_keys, *integers}  # fairseq copies these instead of averaging them
    average(self, new_model, updates)


@patch(
    "ema-without-versions",
    "--store-ema drops versions, so that the averaged decoder is taken for an old one and loses its last norm",
    lambda: "version" not in _loaded("version", torch.ones(1)),
)
@wrapping("fairseq.models.ema.ema:EMA.restore")
def _keep_versions(load: Any, self: Any, state_dict: dict[str, Tensor], build_fp32_params: bool = False) -> None:
    # fairseq does not average names that contain `version`, and then omits them; complete them from the model.
    load(self, {**self.model.state_dict(), **state_dict}, build_fp32_params)


@patch(
    "ema-of-other-weights",
    "--store-ema cannot start from the weights of a checkpoint without averages: they are already deleted",
    source_has("fairseq.trainer:Trainer.load_checkpoint", 'del state["model"]'),
)
@wrapping("fairseq.trainer:Trainer.load_checkpoint")
def _begin_averages_with_the_weights(original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Load as fairseq does; if the checkpoint has no averages, start them from its weights."""
    from fairseq import checkpoint_utils

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


# ------------------------------------------------------------------------- quantisation noise: --quant-noise-scalar
def _scales_are_on_a_gpu() -> bool:
    from fairseq.modules.quantization.scalar import ops

    if torch.cuda.is_available():  # fairseq's version works there, except for a model on the CPU
        return False
    try:
        ops.emulate_int8_tensor(torch.arange(3.0))
    except (AssertionError, RuntimeError):
        return True
    return False


@patch(
    "scalar-noise-without-gpu",
    "--quant-noise-scalar moves scales to a GPU even if there is none",
    _scales_are_on_a_gpu,
)
def _keep_scales_with_their_weights() -> None:
    """Replace fairseq's `emulate_int8_*` by versions that compute on the device of the weights."""
    from fairseq.modules.quantization.scalar import ops

    def emulating(make: Any) -> Any:
        def emulate(
            w: Tensor, scale: Tensor | None = None, zero_point: Tensor | None = None, bits: int = 8
        ) -> tuple[Tensor, Tensor, Tensor]:
            if scale is None or zero_point is None:
                observer = make().to(w.device)
                observer(w.float())
                scale, zero_point = (x.to(w) for x in observer.calculate_qparams())
            return ops.quantize(w, scale, zero_point, bits=bits), scale, zero_point

        return emulate

    observers = ops.quantization.observer
    ops.emulate_int8_histogram = emulating(observers.HistogramObserver)
    ops.emulate_int8_tensor = emulating(observers.MinMaxObserver)


class _MisleadingNames(nn.Module):
    """A model with a plain linear layer, one of a derived class, and a parameter named `weights`."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(2))
        self.layer = nn.Linear(2, 2)
        self.derived = nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)


def _names_are_guessed() -> bool:
    from fairseq.modules.quantization.scalar import utils

    return bool(set(utils.get_layers(_MisleadingNames(), "(.*?)")) - {"layer"})


@patch(
    "scalar-noise-by-names",
    "--quant-noise-scalar guesses layers from parameter names, and fails on `weights` and learned positions",
    _names_are_guessed,
)
@wrapping("fairseq.modules.quantization.scalar.utils:get_layers")
def _take_layers_as_they_are(_: Any, model: nn.Module, *args: Any, **options: Any) -> list[str]:
    from fairseq.modules.quantization.scalar import utils

    # named_parameters() lists a weight that layers share only under the first of them, so noise is added once.
    parameters = {name for name, _ in model.named_parameters()}
    # The exact type, since fairseq looks it up in MAPPING; a derived class would be a KeyError.
    layers = (name for name, part in model.named_modules() if type(part) in utils.MAPPING)
    return [name for name in layers if f"{name}.weight" in parameters]
