"""Noise of quantised weights in training (`--quant-noise-scalar`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from .patch import Patch


def _scales_are_on_a_gpu() -> bool:
    from fairseq.modules.quantization.scalar import ops

    if torch.cuda.is_available():
        return False
    try:
        ops.emulate_int8_tensor(torch.arange(3.0))
    except (AssertionError, RuntimeError):
        return True
    return False


def _keep_scales_with_their_weights() -> None:
    """fairseq's `emulate_int8_*`, each with its observer, on the device of the weights."""
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


class _Named(nn.Module):
    """A model with a layer of fairseq's, one of a class derived from it, and a parameter called weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(2))
        self.layer = nn.Linear(2, 2)
        self.derived = nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)


def _names_are_guessed() -> bool:
    from fairseq.modules.quantization.scalar import utils

    return bool(set(utils.get_layers(_Named(), "(.*?)")) - {"layer"})


def _take_layers_as_they_are() -> None:
    from fairseq.modules.quantization.scalar import utils

    whole = utils.get_layers

    @functools.wraps(whole)
    def get_layers(model: nn.Module, *args: Any, **options: Any) -> list[str]:
        own = {name for name, _ in model.named_parameters()}  # of weights that layers share, those of the first
        layers = ((name, part) for name, part in model.named_modules() if type(part) in utils.MAPPING)
        return [name for name, _ in layers if f"{name}.weight" in own]

    utils.get_layers = get_layers


PATCHES = (
    Patch(
        "scalar-noise-without-gpu",
        "--quant-noise-scalar moves scales to a GPU, also where there is none",
        "fairseq 0.12",
        _scales_are_on_a_gpu,
        _keep_scales_with_their_weights,
    ),
    Patch(
        "scalar-noise-by-names",
        "--quant-noise-scalar guesses layers from the names of parameters, and fails at weights and learned positions",
        "fairseq 0.12",
        _names_are_guessed,
        _take_layers_as_they_are,
    ),
)
