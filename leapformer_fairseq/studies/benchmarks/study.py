"""A benchmark as a study for the engine: every case is measured each time, and the results are written after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from ...support.files import write_json, write_text
from ...support.signature import environment, signature
from ..engine import Call, Cell, State, Study
from . import tables
from .measure import Case, measured
from .tables import Results


@dataclass
class Benchmark(Study):
    """The cases of a benchmark, in NAME.json and NAME.md; `options` are those of the command that change results."""

    commands: ClassVar[str] = ""

    name: str
    module: ModuleType
    cases: Sequence[Case]
    options: dict[str, Any]
    out: Path

    def cells(self, state: State) -> list[Cell]:
        """A call for each case, in this process, alone."""
        how = self.options.get("seed", 1), self.options.get("threads", 1)
        calls = [Call(measured, (case, *how), inline=True) for case in self.cases]
        return [
            Cell(case.about, (call,), None, alone=True, vital=True, title=case.about)
            for case, call in zip(self.cases, calls, strict=True)
        ]

    def results(self, state: State) -> Results:
        """The rows so far, by section."""
        results: Results = {}
        for cell in self.cells(state):
            for section, rows in (state.results.get(cell.name) or {}).items():
                results.setdefault(section, []).extend(rows)
        return results

    def report(self, state: State) -> None:
        """Write NAME.json and NAME.md, and how many of the cases these have."""
        if not state.results:
            return
        method, left = self.module.__doc__ or "", len(self.cases) - len(state.results)
        threads = {"threads": self.options.get("threads", 1)}  # `measured` sees to that
        signed = signature(**{**threads, **self.options})
        about = {"benchmark": self.name, "signature": signed, "environment": {**environment(), **threads}}
        if left:
            method += f"\n{len(state.results)} of {len(self.cases)} cases are measured.\n"
        content = {**about, "options": self.options, "cases_left": left, "method": method, **self.results(state)}
        write_json(self.out / f"{self.name}.json", content, "--out")
        text = tables.markdown(self.results(state), self.module.TABLES, self.module.TITLE, method, signed)
        write_text(self.out / f"{self.name}.md", text, "--out")
