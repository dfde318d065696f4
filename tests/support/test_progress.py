"""Progress without tqdm, which exported models do not need."""

from __future__ import annotations

import re
import sys

import pytest

from leapformer_fairseq.support import progress as module
from leapformer_fairseq.support.progress import progress


@pytest.mark.parametrize("total", [0, 5])
def test_one_line_of_a_terminal_is_written_again(
    total: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 0.5, 1.25, 1.5, 2.0])
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("runtime", "line") as watch:
        for done in range(1, 5):
            watch(done, total)
    written = capsys.readouterr().err
    assert written.endswith("\n") and written.count("\n") == 1
    shown = re.findall(r"\r(.*?)\x1b\[K", written)
    of = " of 5" if total else ""
    assert shown == [f"runtime: 2{of} lines, 1.6 a second", f"runtime: 4{of} lines, 2.0 a second"]


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_written_without_a_terminal_or_before_work_begins(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with progress("runtime", "line") as watch:
        if not terminal:
            watch(1, 2)
    assert capsys.readouterr().err == ""
