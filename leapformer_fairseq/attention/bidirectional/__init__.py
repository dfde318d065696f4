"""Mechanisms of encoders that need the whole sequence. To add one, write its file and name it here."""

from . import (  # noqa: F401  (each import registers its mechanism)
    bigbird,
    local,
    longformer,
    reformer,
    s4d,
    sinkhorn,
    skyformer,
    sparse_transformer,
    synthesizer,
)
