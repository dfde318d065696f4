"""One decoding step of Luna in few operations (see `slot_step`).

Shapes: B rows, H heads, l packed rows, D head dimension, E value dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .masks import Rows
from .slot_step import MemoryStep, Reading
from .step import Projections

if TYPE_CHECKING:
    from .luna import Luna, LunaState, PackedState


class LunaStep(MemoryStep):
    """The step of Luna: its slots hold means, over as many tokens as there were so far; unpacking only reads them.

    A token is written by what one more projection of it has in common with the packed sequence: that of the stock keys
    (tied), one of its own (untied), or the keys themselves (standard, and as a library).
    """

    mechanism: Luna

    def __init__(self, mechanism: Luna, projections: Projections) -> None:
        super().__init__(mechanism, projections, Reading(False, projections.k is not None, masked=True))
        self.writes = self.key  # where in a projected row that is which writes
        if self.sides == 2 and "write" in mechanism.own:
            own: Any = mechanism.own["write"]
            self.writes = self.end
            self.project_more(own.weight.detach(), own.bias.detach())
        elif mechanism.stock.get("write") is not None:
            self.key = self.value  # tied: the stock keys only write

    def _control(self, x: Tensor, projected: Tensor, state: LunaState, position: int) -> Tensor:
        seen = projected[:, self.writes : self.writes + self.heads * self.dim].view(len(x), self.heads, 1, -1)
        return self.mechanism.alpha(seen, state.queries, self.mechanism.dropping()).squeeze(2)

    def _mass(self, state: LunaState | PackedState, position: int) -> Tensor:
        return state.keep.to(state.keys.dtype) * position

    def _write(self, state: LunaState, k: Tensor, v: Tensor, control: Tensor) -> None:
        state.keys, state.values, *_ = self.mechanism.write(tuple(state.tensors().values()), k, v, control)

    def _lookup(self, state: LunaState | PackedState, q: Tensor, position: int) -> Tensor:
        if self.sides == 1:
            return self.mechanism.attend(state, q, Rows.whole(1, device=q.device))
        return self.mechanism.lookup(tuple(state.tensors().values()), q, position)
