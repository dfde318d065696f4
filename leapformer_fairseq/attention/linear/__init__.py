"""Linear attention: a feature map per file. To add one, write its file and import it here."""

from . import cosformer, elu, hedgehog, leap, performer, relu, rfa, rope, t2r, taylor  # noqa: F401  (each registers one)
