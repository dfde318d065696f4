"""How sums over keys are computed; nothing here knows a mechanism.

The names below are for mechanisms of your own, too.
"""

from .linear import append_ones, normalize, prefix_sums
from .precision import accumulated, in_float32

__all__ = ["accumulated", "append_ones", "in_float32", "normalize", "prefix_sums"]
