"""The page's JavaScript answers as Python does: segments, ends of sentences, policies, text and sessions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from leapformer_fairseq.runtime import serve
from leapformer_fairseq.runtime.serve.files import POLICIES

from .cases import FOLDER, KINDS, content

PAGE = Path(serve.__file__).parent / "page"
NODE = shutil.which("node")


def test_the_server_knows_which_policies_the_page_has() -> None:
    script = (PAGE / "local/policy.js").read_text(encoding="utf-8")
    table = script.partition("export const POLICIES = {")[2].partition("}")[0]
    assert tuple(entry.partition(":")[0].strip(' "') for entry in table.split(",")) == POLICIES


@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_are_those_of_python(kind: str) -> None:
    """After a change that is meant: `python -m tests.runtime.serve.cases`."""
    kept = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
    found = content(kind)
    assert kept["common"] == found["common"]
    for case, expected in zip(kept["cases"], found["cases"], strict=True):
        assert case == expected


@pytest.mark.skipif(NODE is None, reason="no node")
def test_the_page_answers_alike() -> None:
    words = ["--no-warnings", str(Path(__file__).with_name("cases.mjs")), PAGE.as_uri()]
    found = subprocess.run([str(NODE), *words], capture_output=True, text=True, timeout=60)
    assert found.stdout == f"{sum(len(cases) for _, cases, _ in KINDS.values())} cases\n", found.stdout + found.stderr
    assert not found.returncode
