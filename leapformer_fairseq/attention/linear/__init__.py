"""Linear attention: a feature map per file. To add one, write its file and name it here."""

from . import cosformer, elu, leap, performer, relu, rfa, rope, t2r  # noqa: F401  (each import registers its mechanism)
