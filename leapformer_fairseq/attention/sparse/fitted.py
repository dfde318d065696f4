"""Sparsity patterns with parts that are fitted to the queries and keys of an entmax teacher.

A file written by `leapformer sparsefinder fit` has an entry for each layer. A mechanism finds its entry by the
fingerprint of its layer's query and key projections, so a file cannot be used with another checkpoint, nor an entry in
another layer.

Shapes: B batch, H heads, T tokens, D head dimension, r projected dimensions, c centroids.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import Capabilities
from ..kernels import Projections
from ..ops.precision import accumulated
from ..options import Option
from .pattern import Pattern

FORMAT = 1
FILE = Option(
    "sparsefinder_file",
    "",
    "sparsefinder-*, entmax-reformer and entmax-routing: the file that `leapformer sparsefinder fit` made for the "
    "checkpoint",
)
DIMENSIONS = Option(
    "sparsefinder_dimensions", 4, "sparsefinder-*: dimensions to which queries and keys are projected", least=1
)

MISSING = (
    "it predicts the graph of a trained entmax model; train that, and give the file that `leapformer sparsefinder fit` "
    f"makes for it with {FILE.flag}"
)

Entry = Mapping[str, Tensor]


class Fitted(Pattern):
    """A sparsity pattern with parts that are fitted to a teacher: the buffers that `parts` names.

    In a model they are read from `--sparsefinder-file` once the weights of the teacher's checkpoint are loaded; they
    are not saved in checkpoints. In use as a library they are random until `adopt` is called.
    """

    capabilities = Capabilities(constant_state=False, append=False, missing=MISSING)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.file: str = self.chosen.sparsefinder_file
        self.adopted = not self.file
        self._projections: Projections | None = None
        self.register_load_state_dict_post_hook(_adopt_entry)

    def missing(self) -> str:
        return "" if self.chosen.sparsefinder_file else MISSING

    def parts(self) -> dict[str, str]:
        """The name of each fitted buffer, mapped to its name in an entry."""
        raise NotImplementedError

    def receive(self, projections: Projections) -> None:
        self._projections = projections

    def adopt(self, entry: Entry) -> None:
        """Copy a layer's entry into the buffers. Raises LeapformerError if a part is missing or has another shape."""
        for buffer, name in self.parts().items():
            if name not in entry:
                kind = name.rpartition(".")[0]
                known = [other for other in entry if kind and other.startswith(kind + ".")]
                remedy = f"choose from: {', '.join(known)}, or fit it" if known else "fit it"
                size = re.match(r"block(\d+)\.", name)
                how = f" --blocks {size[1]}" if size else ""
                raise LeapformerError(
                    f"{self.name}: {name} was not fitted; {remedy} with `leapformer sparsefinder fit{how}`"
                )
            part = getattr(self, buffer)
            if entry[name].shape != part.shape:
                raise LeapformerError(
                    f"{self.name}: {name} was fitted with shape {tuple(entry[name].shape)}, this model needs "
                    f"{tuple(part.shape)}; fit it again for this model and these options"
                )
            part.copy_(entry[name])
        self.adopted = True

    def adopt_from_file(self) -> None:
        """Adopt this layer's entry of the file. Raises LeapformerError, naming the file, if it has none."""
        if self._projections is None:
            raise self.refusal(
                f"{FILE.flag} {self.file}: a layer's entry is found by its projections, and this {self.name} is in no "
                "layer; give the entry to `adopt`"
            )
        fit = read_file(self.file)
        entries: dict[str, Entry] = fit["entries"]
        wanted = fingerprint(self._projections)
        if wanted not in entries:
            raise self.refusal(
                f"{FILE.flag} {self.file} was fitted to {fit['teacher']}, which has other weights in this layer; fit "
                "it to this checkpoint with `leapformer sparsefinder extract` and `fit`"
            )
        if str(fit.get("alpha", self.chosen.entmax_alpha)) != str(self.chosen.entmax_alpha):
            raise self.refusal(
                f"{FILE.flag} {self.file} was fitted to a teacher with --entmax-alpha {fit['alpha']}, this model has "
                f"{self.chosen.entmax_alpha}; use the alpha of the teacher"
            )
        self.adopt(entries[wanted])

    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        self.check_fitted()
        return self._edges(q, k, seen)

    def check_fitted(self) -> None:
        """Raise LeapformerError in training, and as long as no weights that match the file have been loaded."""
        if self._projections is not None and self.training:
            raise self.refusal(
                f"{self.name} predicts the graph of a trained model, and what it is fitted to changes in training; "
                "train with entmax, and put it in the place of that with --model-overrides"
            )
        if not self.adopted:
            raise self.refusal(
                f"{self.name}: the weights are not those that {FILE.flag} {self.file} was fitted to, none were loaded; "
                "load a trained entmax model"
            )

    def _edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """`edges`, once the fitted parts are there."""
        raise NotImplementedError


class Projected(Fitted):
    """A pattern that compares queries and keys in few dimensions, q' = W_q q + b_q and k' = W_k k + b_k, per head.

    Treviso et al., 2022, section 4, which has one W and b for both; the released code has two. The cache stores each
    key's projection with it.
    """

    q_weight: Tensor
    q_bias: Tensor
    k_weight: Tensor
    k_bias: Tensor

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.dims: int = self.chosen.sparsefinder_dimensions
        weight, bias = first_projection(num_heads, head_dim, self.dims)
        for side in ("q", "k"):
            self.register_buffer(f"{side}_weight", weight.clone(), persistent=False)
            self.register_buffer(f"{side}_bias", bias.clone(), persistent=False)

    def parts(self) -> dict[str, str]:
        return {f"{side}_{part}": f"{side}.{part}" for side in ("q", "k") for part in ("weight", "bias")}

    def project_queries(self, q: Tensor) -> Tensor:
        """q', (B, H, T, r), in float32 or float64."""
        return projected(q, self.q_weight, self.q_bias)

    def project_keys(self, k: Tensor) -> Tensor:
        """k', (B, H, T, r), in float32 or float64."""
        return projected(k, self.k_weight, self.k_bias)

    def _cached(self, k: Tensor) -> Tensor:
        return torch.cat([k, self.project_keys(k).to(k.dtype)], -1)

    def _cached_projections(self, k: Tensor) -> Tensor:
        """k', (B, H, T, r), of keys as `_cached` returns them."""
        return accumulated(k[..., self.head_dim :])


def projected(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W x + b per head: x (B, H, T, D), weight (H, D, r), bias (H, r); (B, H, T, r) in float32 or float64."""
    x = accumulated(x)
    return x @ weight.to(x.dtype) + bias.to(x.dtype).unsqueeze(1)


def first_projection(
    heads: int, dim: int, dims: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Weight (H, D, r) and bias (H, r) before fitting, uniform in +-1 / sqrt(D) as in `nn.Linear`."""
    generator = torch.Generator().manual_seed(1) if generator is None else generator
    bound = dim**-0.5
    weight, bias = (
        (2 * torch.rand(*shape, generator=generator) - 1) * bound for shape in ((heads, dim, dims), (heads, dims))
    )
    return weight, bias


def block_prefix(size: int) -> str:
    """The prefix of names, in an entry, of parts that are fitted to blocks of `size` tokens; empty for size 1."""
    return "" if size == 1 else f"block{size}."


def fingerprint(projections: Projections) -> str:
    """SHA-256 of the query and key projections of a layer."""
    digest = hashlib.sha256()
    for layer in (projections.q, projections.k):
        assert layer is not None, "keys are projected in every block"
        for parameter in (layer.weight, layer.bias):
            if parameter is not None:
                digest.update(parameter.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_file(path: str, option: str = FILE.flag) -> dict[str, Any]:
    """The content of a file written by `leapformer sparsefinder fit`: format, teacher, entries by fingerprint.

    Raises LeapformerError, naming `option` as the source of the path, if the file is missing or of another kind.
    """
    try:
        fit = _read(path, Path(path).stat().st_mtime_ns)
    except OSError:
        raise LeapformerError(
            f"{option} {path}: there is no such file; check the path, or make it with `leapformer sparsefinder fit`"
        ) from None
    if fit is None:
        raise LeapformerError(
            f"{option} {path} is not a file of `leapformer sparsefinder fit` (format {FORMAT}); make it again"
        )
    return fit


@lru_cache(maxsize=4)  # all layers read the same file; `changed`, the time of its last change, is part of the key
def _read(path: str, changed: int) -> dict[str, Any] | None:
    try:
        fit = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        return None
    return fit if isinstance(fit, dict) and fit.get("format") == FORMAT else None


def _adopt_entry(mechanism: nn.Module, _: Any) -> None:
    """Called after the mechanism has loaded a checkpoint; its block's projections are loaded before it."""
    assert isinstance(mechanism, Fitted)
    if mechanism.file and mechanism._projections is not None:
        mechanism.adopt_from_file()
