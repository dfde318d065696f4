"""Tests of the kernels in C are skipped where there is no compiler, never where there is one that fails."""

from __future__ import annotations

import pytest

from leapformer_fairseq.attention.ops import cpu

NO_COMPILER = "there is no C compiler here"
try:
    COMPILER: str | None = cpu._compiler()[0]
except OSError:
    COMPILER = None
needs_compiler = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
