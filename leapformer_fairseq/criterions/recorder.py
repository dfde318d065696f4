"""A wrapper that records a criterion's call of the model, for code that needs its arguments or output again."""

from __future__ import annotations

from typing import Any

from torch import nn


class Recorder:
    """A model that records the arguments and the output of its last call; all attributes are the model's."""

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
