"""Benchmarks without --out make the folder `bench`, and remove it if nothing was measured."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where pytest was started: tests that run beside these find what is there for a moment."""
    monkeypatch.chdir(tmp_path)
