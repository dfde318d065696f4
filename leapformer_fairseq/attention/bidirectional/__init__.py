"""Mechanisms of encoders that need the whole sequence. To add one, write its file and name it here."""

from . import chosen, reformer, s4d, sinkhorn, skyformer, synthesizer  # noqa: F401  (each import registers its mechanisms)
