"""The documentation's code runs, and its commands exist."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.attention import CAUSAL, MECHANISMS, OPTIONS, build
from leapformer_fairseq.cli import fairseq_commands
from leapformer_fairseq.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.fixture()
def squared():
    """The mechanism of docs/adding_a_mechanism.md, registered for one test."""
    page = (ROOT / "docs/adding_a_mechanism.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    module = types.ModuleType("leapformer_fairseq.attention.squared")
    module.__package__ = "leapformer_fairseq.attention"
    try:
        exec(compile(code, "squared.py", "exec"), module.__dict__)
        yield build("squared", 8, 2, squared_scale=0.5).double()
    finally:
        MECHANISMS.pop("squared", None)
        OPTIONS.pop("squared_scale", None)


def test_the_example_mechanism_agrees_in_every_form(squared):
    q, k, v = (torch.randn(2, 2, 70, 8, dtype=torch.double, requires_grad=True) for _ in range(3))
    outputs = {form: squared(q, k, v, visible=CAUSAL, form=form) for form in squared.forms}
    gradients = {form: torch.autograd.grad(out.square().sum(), (q, k, v)) for form, out in outputs.items()}
    for form in squared.forms:
        torch.testing.assert_close(outputs[form], outputs["parallel"])
        torch.testing.assert_close(gradients[form], gradients["parallel"])


def test_the_library_example_of_the_readme_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict = {}
    exec(code, names)
    torch.testing.assert_close(names["step"], names["out"][:, :, 9:10])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_commands_and_files_that_exist(page):
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"(?:^|`)leapformer ([a-z][a-z-]*)", text, re.MULTILINE):
        assert command in COMMANDS or command in fairseq_commands.COMMANDS, command
    for script in re.findall(r"bash (scripts/[\w/.]+\.sh)", text):
        assert (ROOT / script).is_file(), script
    for target in re.findall(r"\]\(((?!http)[^)#]+)", text):
        assert (page.parent / target).exists(), target
