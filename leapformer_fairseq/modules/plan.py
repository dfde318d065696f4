"""Attention plans: which mechanism serves which layer of a block.

"leap" serves every layer; "softmax,leap*4,softmax" names one mechanism per layer, `*4` repeating.
"""

from __future__ import annotations

from ..attention import find
from ..errors import LeapformerError


def expand_plan(plan: str, layers: int) -> list[str]:
    """One registered mechanism name per layer.

    Raises LeapformerError for an unknown mechanism, a bad repeat or a plan that does not fit `layers`.
    """
    names = names_in(plan)
    if len(names) == 1 and "*" not in plan:
        names *= layers
    if len(names) != layers:
        raise LeapformerError(
            f"attention plan {plan!r} names {len(names)} layers but the stack has {layers}; "
            f"name one mechanism for all, or one per layer, e.g. {names[0]}*{layers}"
        )
    return names


def names_in(plan: str) -> list[str]:
    """The mechanisms that a plan names, as often as it says; LeapformerError for an unknown one or a bad repeat."""
    names: list[str] = []
    for part in plan.split(","):
        name, star, times = (piece.strip() for piece in part.partition("*"))
        if star and not (times.isdigit() and int(times) > 0):
            raise LeapformerError(
                f"attention plan {plan!r}: {part.strip()!r} needs a positive number after '*', e.g. leap*4"
            )
        find(name)
        names += [name] * (int(times) if star else 1)
    return names
