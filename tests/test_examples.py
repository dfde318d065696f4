"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("library", "after 1,000 tokens: state 67,584 bytes"),
        ("swap", "self: leap  cross: softmax"),
        ("new_mechanism", "scan and reference differ by "),
    ],
)
def test_an_example_runs_and_says(name, said):
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    for difference in (line.split()[-1] for line in done.stdout.splitlines() if "differ" in line):
        assert float(difference) < 1e-4


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"library", "swap", "new_mechanism", "stream"}
