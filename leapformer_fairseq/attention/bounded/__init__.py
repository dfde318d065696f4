"""Bounded memories of n slots, ABC and Luna: a control per file. To add one, write its file and import it here."""

from . import cluster, linformer, luna, mlp, placed, window  # noqa: F401  (each import registers its mechanisms)
