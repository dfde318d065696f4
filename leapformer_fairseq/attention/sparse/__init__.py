"""Sparse attention: most weights are exactly zero. To add a mechanism, write its file and import it here."""

from . import baselines, blocks, entmax, predicted  # noqa: F401  (each import registers its mechanisms)
