"""Sparse attention: most weights are exactly zero. To add a mechanism, write its file and name it here."""

from . import (  # noqa: F401  (each import registers its mechanisms)
    bigbird,
    bigbird_blocks,
    block1,
    block2,
    distance,
    entmax,
    kmeans,
    longformer,
    quantize,
    reformer,
    routing,
    window,
)
