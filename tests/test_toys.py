"""A mechanism of each family in one small file passes the tests of all mechanisms, without a line changed in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import covering

TESTS = Path(__file__).parent
TOYS = sorted(path for path in (TESTS / "toys").glob("*.py") if path.stem != "__init__")
# parity with gradients, padding, masks, prompts and steps; fairseq's contract and checkpoints; beam search; streaming
PARITY = [f"attention/test_{about}.py" for about in ("forms", "causality", "chunks")]
SUITES = ["modules/test_attention.py", "models/test_nmt.py", *PARITY]
if covering.whole_products:
    SUITES = ["attention", "modules", *(f"models/test_{model}.py" for model in ("nmt", "lm", "streaming_encoder"))]


def run_with_toys(*arguments: str, folder: Path = TESTS.parent) -> subprocess.CompletedProcess[str]:
    """pytest over the registry-driven tests of the toys, in a process that registered them."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:flake8",
        "-n",
        "0",
        "-k",
        "toy",
        "--assert=plain",  # else every file of tests is compiled anew
        *(["--all"] if covering.whole_products else []),
        *arguments,
    ]
    given = {**os.environ, "LEAPFORMER_TOYS": "1", "PYTHONPATH": str(TESTS.parent)}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("toy", TOYS, ids=lambda path: path.stem)
def test_a_toy_is_one_small_file(toy):
    text = toy.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert len(re.findall(r'@register\("toy-[a-z]+"', text)) == 1


def test_toys_pass_the_tests_of_all_mechanisms():
    found = run_with_toys(*(str(TESTS / suite) for suite in SUITES))
    assert found.returncode == 0, found.stdout[-4000:]
    passed = int(re.search(r"(\d+) passed", found.stdout).group(1))
    assert passed > 40 * len(TOYS), found.stdout[-500:]


def test_a_wrong_toy_is_found(tmp_path):
    """Inverted control: a decay that forgets to fade what was written before, in a copy of the tests."""
    shutil.copytree(TESTS, tmp_path / "tests", ignore=shutil.ignore_patterns("frozen", "__pycache__"))
    toy = tmp_path / "tests" / "toys" / "decay.py"
    right = toy.read_text(encoding="utf-8")
    wrong = right.replace("faded.unsqueeze(-1) * state.kv", "state.kv")
    assert wrong != right
    toy.write_text(wrong, encoding="utf-8")
    found = run_with_toys("tests/attention/test_forms.py", "-k", "toy-decay", "-x", folder=tmp_path)
    assert found.returncode == 1, found.stdout[-2000:]
