"""The effects of published flaws: accuracies of the same rows with and without a quirk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import ttest_ind

from ...scoring.table import NOTHING, Column, Table, page
from ...support.errors import LeapformerError
from .protocols import Protocol
from .tables import NOTE, TITLES, Cell, cells


@dataclass(frozen=True)
class Effect:
    """Test accuracies of a row in a task, before and after a change of quirks."""

    change: str
    task: str
    row: str
    before: Cell
    after: Cell

    @property
    def points(self) -> float:
        """The change of the mean over seeds, in percentage points."""
        return self.after.mean - self.before.mean

    @property
    def p(self) -> float | None:
        """p of Welch's t-test over seeds; None if one side has a single seed."""
        samples = self.before.accuracies, self.after.accuracies
        return float(ttest_ind(*samples, equal_var=False).pvalue) if min(map(len, samples)) > 1 else None


def effects(base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> list[Effect]:
    """Compare the rows and tasks that both have. Raises LeapformerError if nothing can be compared."""
    before, after = cells(base), cells(other)
    (first, old), (second, new) = ((results[0]["protocol"], results[0]["quirks"]) for results in (base, other))
    if first != second:
        raise LeapformerError(f"results of protocols {first} and {second}; compare quirks within one protocol")
    changes = [f"with {name}" for name in new if name not in old]
    changes += [f"without {name}" for name in old if name not in new]
    change = ", ".join(changes)
    if not change:
        raise LeapformerError(f"both folders have the quirks {', '.join(old) or 'none'}; give one with others")
    shared = [(task, row) for row in before for task in before[row] if task in after.get(row, ())]
    if not shared:
        raise LeapformerError(f"no row and task that both folders have ({change}); run the same rows")
    return [Effect(change, task, row, before[row][task], after[row][task]) for task, row in shared]


def table(changes: Sequence[Effect], protocol: Protocol) -> str:
    """A table in Markdown: mean and standard deviation over seeds, before and after."""
    columns = [
        *(Column("change"), Column("task"), Column("row", "")),
        *(Column("before", "as in the protocol", ".2f"), Column("after", "changed", ".2f")),
        *(Column("points", form="+.2f"), Column("p", form=".2f", missing=NOTHING)),
    ]
    records = [
        {
            "change": effect.change,
            "task": TITLES[effect.task],
            "row": protocol.rows[effect.row].title,
            "before": effect.before.value,
            "after": effect.after.value,
            "points": effect.points,
            "p": effect.p,
        }
        for effect in changes
    ]
    return page(Table(records, columns, [f"p: Welch's t-test over seeds. {NOTE}"]).markdown())


def content(changes: Sequence[Effect]) -> list[dict[str, Any]]:
    """The content of the table, for JSON."""
    return [
        {
            "change": effect.change,
            "task": effect.task,
            "row": effect.row,
            "before": list(effect.before.accuracies),
            "after": list(effect.after.accuracies),
            "points": round(effect.points, 4),
            "p": None if effect.p is None else round(effect.p, 4),
        }
        for effect in changes
    ]
