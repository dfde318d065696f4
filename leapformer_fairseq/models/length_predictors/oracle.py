"""The oracle predictor: the true target length."""

from __future__ import annotations

from torch import Tensor

from ...support.errors import LeapformerError
from .base import Predictor, Source, register


@register("oracle")
class Oracle(Predictor):
    """Returns the true length, for training and analysis."""

    def forward(self, source: Source) -> Tensor:
        if source.target is None:
            raise LeapformerError(
                "--length-predictor oracle needs the targets, which translation and speech synthesis do not have; "
                "train with another predictor (ratio, lookup, conv), or use a plan that needs no length"
            )
        return source.target.float()
