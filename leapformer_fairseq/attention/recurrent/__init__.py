"""Linear attention that forgets, or replaces. To add a mechanism, write its file and name it here."""

from . import decay, delta, gated  # noqa: F401  (each registers its mechanisms)
