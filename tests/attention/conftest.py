"""Fixtures of the attention tests."""

from __future__ import annotations

import pytest

from leapformer_fairseq.attention.ops import cpu as native


@pytest.fixture(params=["C", "torch"])
def language(request, monkeypatch):
    """Both ways of the decoding step; float64 is always PyTorch."""
    take(request.param, monkeypatch)
    return request.param


def take(language, monkeypatch):
    if language == "torch":
        monkeypatch.setenv(native.SWITCH, "0")
    else:
        assert native.load() is not None, "no C compiler here: the step in C is not tested"
