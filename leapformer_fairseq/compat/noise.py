"""Quantisation noise during training (`--quant-noise-scalar`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from .patch import Patch


def _scales_are_on_a_gpu() -> bool:
    from fairseq.modules.quantization.scalar import ops

    if torch.cuda.is_available():  # fairseq's version works there, except for a model on the CPU
        return False
    try:
        ops.emulate_int8_tensor(torch.arange(3.0))
    except (AssertionError, RuntimeError):
        return True
    return False


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


def _take_layers_as_they_are() -> None:
    from fairseq.modules.quantization.scalar import utils

    @functools.wraps(utils.get_layers)
    def get_layers(model: nn.Module, *args: Any, **options: Any) -> list[str]:
        # named_parameters() lists a weight that layers share only under the first of them, so noise is added once.
        parameters = {name for name, _ in model.named_parameters()}
        # The exact type, since fairseq looks it up in MAPPING; a derived class would be a KeyError.
        layers = (name for name, part in model.named_modules() if type(part) in utils.MAPPING)
        return [name for name in layers if f"{name}.weight" in parameters]

    utils.get_layers = get_layers


PATCHES = (
    Patch(
        "scalar-noise-without-gpu",
        "--quant-noise-scalar moves scales to a GPU even if there is none",
        "fairseq 0.12",
        _scales_are_on_a_gpu,
        _keep_scales_with_their_weights,
    ),
    Patch(
        "scalar-noise-by-names",
        "--quant-noise-scalar guesses layers from parameter names, and fails on `weights` and learned positions",
        "fairseq 0.12",
        _names_are_guessed,
        _take_layers_as_they_are,
    ),
)
