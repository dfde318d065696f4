"""What a published flaw changes: accuracies of the same rows with and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import ttest_ind
from tabulate import tabulate

from ...support.errors import LeapformerError
from .protocols import Protocol
from .tables import NOTE, TITLES, Cell, cells, written


@dataclass(frozen=True)
class Effect:
    """Test accuracies of a row in a task, before a change of quirks and after it."""

    change: str
    task: str
    row: str
    before: Cell
    after: Cell

    @property
    def points(self) -> float:
        """By how much the mean over seeds changes."""
        return self.after.mean - self.before.mean

    @property
    def p(self) -> float | None:
        """Of Welch's t-test over seeds; None where one side has a single seed."""
        samples = self.before.accuracies, self.after.accuracies
        return float(ttest_ind(*samples, equal_var=False).pvalue) if min(map(len, samples)) > 1 else None


def effects(base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> list[Effect]:
    """The rows and tasks that both have. Raises LeapformerError where nothing can be compared."""
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


def table(found: Sequence[Effect], protocol: Protocol) -> str:
    """Markdown: mean and standard deviation over seeds, before and after."""
    lines = [
        [one.change, TITLES[one.task], protocol.rows[one.row].title, written(one.before), written(one.after)]
        + [f"{one.points:+.2f}", "–" if one.p is None else f"{one.p:.2f}"]
        for one in found
    ]
    headers = ["change", "task", "", "as in the protocol", "changed", "points", "p"]
    text = tabulate(lines, headers, tablefmt="github", disable_numparse=True)
    return f"{text}\n\np: Welch's t-test over seeds. {NOTE}\n"


def content(found: Sequence[Effect]) -> list[dict[str, Any]]:
    """The same for a machine."""
    return [
        {
            "change": one.change,
            "task": one.task,
            "row": one.row,
            "before": list(one.before.accuracies),
            "after": list(one.after.accuracies),
            "points": round(one.points, 4),
            "p": None if one.p is None else round(one.p, 4),
        }
        for one in found
    ]
