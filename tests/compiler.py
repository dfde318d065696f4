"""Tests of the kernels in C are skipped where there is no compiler, never where there is one that fails."""

from __future__ import annotations

import os
import shlex
import shutil

import pytest

COMPILER = shutil.which((shlex.split(os.environ.get("CC", "")) or ["cc"])[0])
NO_COMPILER = "there is no C compiler here"
needs_compiler = pytest.mark.skipif(COMPILER is None, reason=NO_COMPILER)
