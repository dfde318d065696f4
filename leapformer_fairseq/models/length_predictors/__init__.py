"""Predictors of the target length, for mechanisms such as cosFormer that need it before the target is known.

From Agostinelli and Chen, 2023, Modular Linearized Attention (arXiv:2304.08453): a ratio of the source length, a table
of durations, or a small network on the encoder output. Lengths are in decoder steps; durations of source tokens are in
frames, of which a text-to-speech decoder may write several per step.

To add a predictor, write its file and import it here.
"""

from .base import (
    IN_TRAINING,
    LENGTH_PREDICTORS,
    LengthPredictor,
    Predictor,
    Setting,
    Source,
    length_options,
    register,
)
from .conv import Conv
from .lookup import Lookup
from .oracle import Oracle
from .ratio import Ratio

__all__ = [
    "IN_TRAINING",
    "LENGTH_PREDICTORS",
    "Conv",
    "LengthPredictor",
    "Lookup",
    "Oracle",
    "Predictor",
    "Ratio",
    "Setting",
    "Source",
    "length_options",
    "register",
]
