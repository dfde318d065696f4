"""The table of every report: records, columns and notes, as Markdown and CSV.

A record is a mapping, as JSON holds it. A value is None, text, a number, a list of them, or a measurement: a mapping
with its mean (or score) and how far it may be off: min and max over seeds or repeats (`spread`), the standard deviation
or half of a 95 % interval, p of the difference from a baseline, and a mark that a note explains. `written` is the only
place that formats them. Standard library only: GPU checks report where nothing but PyTorch is installed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

Record = Mapping[str, Any]
Form = str | Callable[[Any], str]  # a format of numbers such as ".2f", or a function
NOTHING = "–"
_NUMBER = re.compile(r"[+-]?[\d.,]+ ?%?")


@dataclass(frozen=True)
class Column:
    """A column of a table.

    key:      of the value in a record; for a value within a mapping, "scores.BLEU".
    title:    by default the key.
    form:     of numbers, and of every number of a measurement.
    of:       computes the value from the record, in place of the key.
    missing:  text for a record without a value.
    optional: whether the column is left out if no record has a value.
    """

    key: str
    title: str | None = None
    form: Form = ""
    of: Callable[[Record], Any] | None = None
    missing: str = ""
    optional: bool = False

    @property
    def head(self) -> str:
        return self.key if self.title is None else self.title

    def value(self, record: Record) -> Any:
        if self.of is not None:
            return self.of(record)
        value: Any = record
        for key in (self.key,) if self.key in record else self.key.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def text(self, record: Record) -> str:
        value = self.value(record)
        return self.missing if value in (None, "") else written(value, self.form)


@dataclass(frozen=True)
class Table:
    """Records, the columns to show of them, and notes below; `Table.of` shows every key."""

    records: Sequence[Record]
    columns: Sequence[Column]
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, records: Sequence[Record], form: Form = "", missing: str = "") -> Table:
        """A table with a column for each key of the records."""
        keys = dict.fromkeys(key for record in records for key in record)
        return cls(records, [Column(key, form=form, missing=missing, of=_getter(key)) for key in keys])

    @property
    def shown(self) -> list[Column]:
        """The columns without optional ones that have no value."""
        return [c for c in self.columns if not c.optional or any(c.value(r) not in (None, "") for r in self.records)]

    def __str__(self) -> str:
        return self.markdown()

    def markdown(self) -> str:
        """The table and its notes in GitHub's Markdown, columns of numbers aligned to the right."""
        columns = self.shown
        lines = [[_escaped(text) for text in line] for line in self._lines(columns)]
        widths = [max(3, *map(len, texts)) for texts in zip(*lines, strict=True)]
        right = [_is_numeric(column.value(record) for record in self.records) for column in columns]
        rule = ["-" * (width - 1) + "-:"[on_right] for width, on_right in zip(widths, right, strict=True)]
        sides = [f"{'<>'[on_right]}{width}" for width, on_right in zip(widths, right, strict=True)]
        table = [f"| {' | '.join(map(format, line, sides))} |" for line in (lines[0], rule, *lines[1:])]
        return "\n\n".join(["\n".join(table), *self.notes])

    def csv(self) -> str:
        """The table as comma-separated values, unescaped and without notes."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._lines(self.shown))
        return text.getvalue()

    def _lines(self, columns: Sequence[Column]) -> list[list[str]]:
        return [[column.head for column in columns], *([c.text(record) for c in columns] for record in self.records)]


def _getter(key: str) -> Callable[[Record], Any]:
    return lambda record: record.get(key)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _is_numeric(values: Iterable[Any]) -> bool:
    """Whether values are numbers, measurements or lists of numbers, as far as there are any."""
    known = [item for value in values for item in (value if isinstance(value, list | tuple) else (value,))]
    known = [item for item in known if item not in (None, "")]
    return bool(known) and all(
        _NUMBER.fullmatch(item) if isinstance(item, str) else isinstance(item, int | float | Mapping) for item in known
    )


# --------------------------------------------------------------------------------------------------------------- values
def written(value: Any, form: Form = "") -> str:
    """A value as text: `1.5 (1.2–1.8)` for a mean over several seeds, `1.5 ± 0.2 (p = 0.030)` for an interval."""
    if isinstance(value, Mapping):
        return _measurement(value, form)
    if isinstance(value, list | tuple):
        return " ".join(written(item, form) for item in value if item is not None)
    if isinstance(value, str | bool):
        return str(value)
    return form(value) if callable(form) else format(value, form)


def _measurement(value: Record, form: Form) -> str:
    text, least, most = (written(value[key], form) if key in value else "" for key in (_mean(value), "min", "max"))
    margin = value.get("std", value.get("interval"))
    text += f" ({least}–{most})" * (least != most)
    text += "" if margin is None else f" ± {written(margin, form)}"
    return text + ("" if value.get("p") is None else f" (p = {value['p']:.3f})") + value.get("mark", "")


def _mean(value: Record) -> str:
    return "mean" if "mean" in value else "score"


def number(value: Any) -> float | None:
    """The number of a value: that of a measurement is its mean."""
    return value[_mean(value)] if isinstance(value, Mapping) else value


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """The mean, min and max over seeds or repeats; None without any value."""
    known = [value for value in values if value is not None]
    return {"mean": fmean(known), "min": min(known), "max": max(known)} if known else None


def deviation(values: Sequence[float]) -> dict[str, float | None]:
    """The mean over seeds, and the sample standard deviation if there are several."""
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else None}


def differences(
    records: Sequence[Record],
    value: Callable[[Record], Any],
    is_baseline: Callable[[Record], bool],
    alike: Callable[[Record], Hashable] = lambda record: None,
) -> list[float | None]:
    """Subtract from each record's value that of the baseline among the records that are `alike`; None for itself."""
    baselines = {alike(record): record for record in reversed(records) if is_baseline(record)}

    def difference(record: Record) -> float | None:
        baseline = baselines.get(alike(record))
        both = [] if baseline in (None, record) else [number(value(x)) for x in (record, baseline) if x is not None]
        return None if len(both) < 2 or None in both else both[0] - both[1]  # type: ignore[operator]

    return [difference(record) for record in records]


def significant(value: Any) -> str:
    """A number with two significant digits and all digits before the point; integers whole."""
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = f"{value:.1e}"
    digits = 1 - int(rounded.partition("e")[2])
    return rounded if digits > 4 else f"{value:,.{max(0, digits)}f}"


# ---------------------------------------------------------------------------------------------------------------- pages
def page(*parts: str) -> str:
    """Join the paragraphs, tables and lists of a page in Markdown; empty ones are left out."""
    return "\n\n".join(part for part in parts if part) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """A list in Markdown."""
    return "\n".join(f"* {line}" for line in lines)


def signed(signatures: Mapping[str, str]) -> list[str]:
    """Lines for signatures by name."""
    return [f"{name}: `{text}`" for name, text in signatures.items()]
