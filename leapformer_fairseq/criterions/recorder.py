"""What a criterion asked of the model, and what it got, for one that has to look at it once more."""

from __future__ import annotations

from typing import Any

from torch import nn


class Recorder:
    """A model that remembers the arguments and the output of its last pass."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.args: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        self.output: Any = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.args, self.options = args, options
        self.output = self.model(*args, **options)
        return self.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
