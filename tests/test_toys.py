"""A mechanism of each family in one small file passes the tests of all mechanisms, without a line changed in them."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leapformer_fairseq.attention import CAUSAL, Mechanism, TokenInfo, registry
from leapformer_fairseq.cli import check_mechanism
from leapformer_fairseq.support import user_dir

from . import covering

TESTS = Path(__file__).parent
TOYS = sorted(path for path in (TESTS / "toys").glob("*.py") if path.stem != "__init__")
# their promises; fairseq's contract; parity with gradients, padding, masks, prompts and steps
SUITES = ["modules/test_attention.py", *(f"attention/test_{about}.py" for about in ("contract", "forms", "causality"))]
if covering.whole_products:
    SUITES = [*check_mechanism.SUITES]


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
    given = {**os.environ, user_dir.VARIABLE: str(folder / "tests" / "toys"), "PYTHONPATH": str(TESTS.parent)}
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


class Operations(TorchDispatchMode):
    """Counts the operations inside of the `with` block."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gate", "decay"])
def test_a_scan_of_the_shared_operators_takes_few_operations(name, monkeypatch):
    """As the page says: their number hardly depends on that of the tokens."""
    for registered in ("MECHANISMS", "OPTIONS"):
        monkeypatch.setattr(registry, registered, dict(getattr(registry, registered)))
    module = importlib.import_module(f".toys.{name}", __package__)
    mechanism = getattr(module, {"gate": "Gated", "decay": "Decay"}[name])(8, 2)
    counts = []
    for tokens in (300, 600):
        q, k, v = (torch.randn(2, 2, tokens, 8) for _ in range(3))
        about = replace(TokenInfo.whole(tokens), inputs=torch.randn(2, tokens, 16))
        with torch.no_grad(), Operations() as in_chunks:
            out = mechanism(q, k, v, query=about, key=about, mask=CAUSAL)
        with torch.no_grad(), Operations() as one_by_one:
            expected, _ = Mechanism.scan_(mechanism, mechanism.init_state(2, 8, k), q, k, v, about, about, CAUSAL)
        torch.testing.assert_close(out, expected)
        counts.append((in_chunks.count, one_by_one.count))
    assert counts[0][0] < 150 and counts[1][0] < 1.3 * counts[0][0] and counts[0][1] > 30 * counts[0][0], counts


@pytest.mark.full
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
