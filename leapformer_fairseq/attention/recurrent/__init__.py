"""Linear attention with forgetting or the delta rule. To add a mechanism, write its file and import it here."""

from . import decay, delta, gated  # noqa: F401  (each registers its mechanisms)
