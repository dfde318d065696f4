"""Encoder mechanisms that need the whole sequence. To add one, write its file and import it here."""

from . import chosen, reformer, s4d, sinkhorn, skyformer, synthesizer  # noqa: F401  (each import registers its mechanisms)
