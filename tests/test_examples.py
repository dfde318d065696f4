"""The examples run as they stand, the notebook's cells in order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .fresh import run_after

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("library", "after 1,000 tokens: state 67,584 bytes"),
        ("gpt", "brown fox jumps over"),
        ("swap", "self: leap  cross: softmax"),
        ("new_mechanism", "scan and reference differ by "),
    ],
)
def test_an_example_runs_and_says(name, said):
    script = str(EXAMPLES / f"{name}.py")
    done = run_after("import fairseq", f"import runpy; runpy.run_path({script!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    for difference in (line.split()[-1] for line in done.stdout.splitlines() if "differ" in line):
        assert float(difference) < 1e-4


def test_every_example_is_tested():
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {
        "library",
        "gpt",
        "swap",
        "new_mechanism",
        "stream",
        "speakers",
    }  # the last two with agents and server


def test_the_notebook_runs_and_its_statements_hold():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    cells = json.loads((EXAMPLES / "attention.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    names: dict = {}
    for cell in code:
        exec("".join(cell["source"]), names)
    assert max(names["differences"].values()) < 1e-12
    assert len(set(names["sizes"]["leap"])) == 1 and names["sizes"]["softmax"][-1] > 10 * names["sizes"]["leap"][0]
    assert len(pyplot.get_fignums()) == 2
    pyplot.close("all")
    assert not any(cell["outputs"] for cell in code)
