"""Linear attention that forgets, or replaces: a mechanism per file. To add one, write its file and name it here."""

from . import delta, gated, gla, hgrn2, kda, retention, rfa_gate, simple_gla  # noqa: F401  (each registers its mechanisms)
