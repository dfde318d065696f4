"""Fixtures of the attention tests."""

from __future__ import annotations

import pytest

from leapformer_fairseq.attention.ops import cpu as native

from ..compiler import COMPILER, NO_COMPILER


@pytest.fixture(params=["C", "torch"])
def language(request, monkeypatch):
    """Both ways of the decoding step; float64 is always PyTorch."""
    take(request.param, monkeypatch)
    return request.param


def take(language, monkeypatch):
    if language == "torch":
        monkeypatch.setenv(native.SWITCH, "0")
    elif COMPILER is None:
        pytest.skip(NO_COMPILER)
    else:
        assert native.load() is not None, "the C compiler fails: the step in C is not tested"
