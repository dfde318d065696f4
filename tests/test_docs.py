"""The documentation's code runs, and its commands exist."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from leapformer_fairseq import attention
from leapformer_fairseq.attention import CAUSAL, MECHANISMS, TokenInfo, build
from leapformer_fairseq.cli import fairseq_commands
from leapformer_fairseq.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RESULTS = ROOT / "docs/results"


def test_the_examples_of_adding_a_mechanism_are_the_tested_ones():
    page = (ROOT / "docs/adding_a_mechanism.md").read_text(encoding="utf-8")
    toys = {path.read_text(encoding="utf-8") for path in (ROOT / "tests/toys").glob("*.py")}
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 5 and toys.issuperset(examples)


def test_the_page_of_mechanisms_lists_all_that_one_may_import_and_its_examples_import_nothing_else():
    page = (ROOT / "docs/adding_a_mechanism.md").read_text(encoding="utf-8")
    table = page.partition("## What you may import")[2].partition("\n## ")[0]
    for module in (attention, attention.ops):
        rows = table.partition(f"| from `{module.__name__}` |")[2].partition("\n\n")[0]
        listed = {name for row in rows.splitlines()[2:] for name in re.findall(r"`(\w+)", row.split("|")[1])}
        assert listed >= set(module.__all__) - {"OPTIONS"}, module
    (of_options,) = (row for row in table.splitlines() if "`Option`" in row)
    assert all(re.search(rf"\b{field}\b", of_options) for field in attention.Option._fields)
    for toy in (ROOT / "tests/toys").glob("*.py"):
        modules = set(re.findall(r"from (leapformer_fairseq\S*) import", toy.read_text(encoding="utf-8")))
        assert modules <= {attention.__name__, attention.ops.__name__}, toy


@pytest.mark.full
def test_the_commands_of_the_page_of_mechanisms_run_in_an_empty_folder(tmp_path):
    page = (
        (ROOT / "docs/adding_a_mechanism.md").read_text(encoding="utf-8").partition("\n## How the folder is found")[0]
    )
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (first, *commands), (example,) = ([text for kind, text in blocks if kind == wanted] for wanted in ("", "python"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def typed(text):
        command = ["bash", "-e", "-o", "pipefail", "-c", text]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]

    typed(first)
    (tmp_path / "my_attention" / "cubic.py").write_text(example, encoding="utf-8")
    for text in commands:
        typed(text)
    assert (tmp_path / "exported" / "model.json").is_file()


def test_the_examples_of_adding_a_policy_are_the_tested_ones():
    page = (ROOT / "docs/adding_a_policy.md").read_text(encoding="utf-8")
    policies = {path.read_text(encoding="utf-8") for path in (ROOT / "tests/policies").glob("*.py")}
    *examples, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)  # the last is a program; test_own_policy runs it
    assert len(examples) == 2 and policies.issuperset(examples)


def test_the_names_of_the_page_of_policies_are_where_it_says():
    page = (ROOT / "docs/adding_a_policy.md").read_text(encoding="utf-8")
    rows = page.partition("| name | import from |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    found = {name: row.split("`")[-2] for row in rows for name in re.findall(r"`(\w+)`", row.rpartition("| `")[0])}
    assert len(found) > 10 and all(pkgutil.resolve_name(f"{module}:{name}") for name, module in found.items())
    *policies, program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for code in (*policies, program):
        for module, names in re.findall(r"^from (leapformer_fairseq\S*) import (.*)", code, re.MULTILINE):
            assert {found[name] for name in names.split(", ")} == {module}


def test_the_library_example_of_the_readme_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict = {}
    exec(code, names)
    torch.testing.assert_close(names["step"], names["out"][:, 9:10])


def test_the_page_of_models_of_ones_own_runs(tmp_path, monkeypatch, capsys):
    """All its examples, in order; what they print is in the comments, and the program is examples/gpt.py."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/your_own_model.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    names: dict = {"__name__": "page"}
    exec(code, names)
    assert names["loss"] < 0.5
    said = re.findall(r"print\(.*\)  # (.*)", code)
    assert (
        len(said) >= 4 and [line for line in capsys.readouterr().out.splitlines() if not line.startswith("b'")] == said
    )
    program = (ROOT / "examples/gpt.py").read_text(encoding="utf-8")
    model = page[page.index("class Block(") : page.index("```", page.index("class Block("))]
    assert model in program and sum(bool(line.strip()) for line in model.splitlines()) <= 40


def test_what_the_page_of_the_library_lists_exists():
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    entries = re.findall(r"^::: (\S+)(?:\n    options:\n      members: \[(.*)\])?", page, re.MULTILINE)
    listed = [f"{name}.{member}".rstrip(".") for name, members in entries for member in members.split(", ")]
    assert len(listed) > len(entries) and all(pkgutil.resolve_name(name).__doc__ for name in listed)
    names = [name for name, _ in entries]
    assert len(names) == len(set(names)), "listed twice"


COLUMNS = ("what", "blocks", "time", "state", "refused", "source")
LETTERS = {"E": "encoder-self", "D": "decoder-self", "C": "decoder-cross"}


def rows_of_the_mechanism_table() -> list[tuple[list[str], dict[str, str]]]:
    """(names, cells) of every row of the table of mechanisms."""
    page = (ROOT / "docs/mechanisms.md").read_text(encoding="utf-8")
    table = page.partition("| mechanism | weight of key j for query i")[2].partition("\n\n")[0].splitlines()[2:]
    rows = []
    for line in table:
        first, *cells = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|"))
        rows.append((re.findall(r"`([\w-]+)`", first), dict(zip(COLUMNS, cells, strict=True))))
    return rows


def test_every_mechanism_has_a_row():
    assert sorted(name for names, _ in rows_of_the_mechanism_table() for name in names) == sorted(MECHANISMS)


@pytest.mark.parametrize(("names", "cells"), rows_of_the_mechanism_table())
def test_blocks_in_the_table_are_those_of_the_code(names, cells):
    for name in names:
        assert tuple(LETTERS[letter] for letter in cells["blocks"].split()) == MECHANISMS[name].capabilities.blocks, (
            name
        )
        crosses = "decoder-cross" in MECHANISMS[name].capabilities.blocks
        assert crosses == MECHANISMS[name].capabilities.prefixes or "wait-k cross" in cells["refused"] or not crosses


@pytest.mark.parametrize(("names", "cells"), rows_of_the_mechanism_table())
def test_the_sizes_of_states_in_the_table_are_those_of_the_code(names, cells):
    d, e, n, heads, tokens = 8, 5, 3, 2, 12
    for name, size in zip(names, cells["state"].removesuffix(", grows").split(", "), strict=True):
        options = {"abc_slots": n, "luna_length": n, "cosformer_length": 20, "abc_pool_size": 9, "abc_global_every": 4}
        options["performer_features"] = options["t2r_features"] = n
        options["rfa_features"], options["taylor_dim"] = 2 * n, n
        known = {option.name for option in MECHANISMS[name].options}
        mechanism = build(name, d, heads, **{key: value for key, value in options.items() if key in known})
        k, v = torch.randn(1, heads, tokens, d), torch.randn(1, heads, tokens, e)
        if not mechanism.capabilities.incremental:
            assert size == "none", name
            continue
        mask = None if mechanism.capabilities.unsupported_reason(None, CAUSAL) else CAUSAL
        state = mechanism.init_state(1, e, k, mask=mask)
        inputs = k.transpose(1, 2).flatten(2)
        state = mechanism.write(state, k, v, replace(TokenInfo.whole(tokens), inputs=inputs))
        numbers = sum(x.numel() for x in state.tensors().values() if x.is_floating_point())
        formula = re.sub(r"(\d)([a-z])", r"\1 * \2", re.sub(r"^d e$", "d * e", size)).replace(" (", " * (")
        assert numbers == heads * eval(formula, {"d": d, "e": e, "n": n, "l": n, "r": 4, "T": tokens}), name


@pytest.mark.full
def test_the_site_has_every_page_and_no_broken_link(tmp_path):
    # not --quiet, which hides warnings from --strict
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site/api/index.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_commands_and_files_that_exist(page):
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"(?:^|`)leapformer ([a-z][a-z-]*)", text, re.MULTILINE):
        assert command in COMMANDS or command in fairseq_commands.COMMANDS, command
    for script in re.findall(r"bash (scripts/[\w/.]+\.sh)", text):
        assert (ROOT / script).is_file(), script
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(((?!http)[^)#]+)", prose):
        assert (page.parent / target).exists(), target


def test_results_are_pages_with_an_entry_in_the_index_and_raw_files():
    index = (RESULTS / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in RESULTS.iterdir()} - {"README.md", "raw"}
    assert pages == set(re.findall(r"^\| \[[^]]+\]\(([\w.]+)\) \|", index, re.MULTILINE))


def test_every_picture_of_the_results_is_listed_and_shown():
    listed = yaml.safe_load((RESULTS / "raw/pictures.yaml").read_text(encoding="utf-8"))
    drawn = {path.relative_to(RESULTS / "raw").as_posix() for path in RESULTS.glob("raw/**/*.png")}
    drawn |= {path.relative_to(RESULTS / "raw").as_posix() for path in RESULTS.glob("raw/**/*.svg")}
    assert sorted(entry["picture"] for entry in listed) == sorted(drawn)
    for entry in listed:
        assert f"(raw/{entry['picture']})" in (RESULTS / entry["page"]).read_text(encoding="utf-8"), entry
        assert entry["from"] is None or (RESULTS / "raw" / entry["from"]).is_file(), entry


def test_the_page_of_aims_counts_its_rows():
    page = (RESULTS / "aims.md").read_text(encoding="utf-8")
    verdicts = [line.split("|")[4].strip() for line in page.splitlines() if line.startswith("| ")][2:]
    unknown = sum("not measur" in verdict for verdict in verdicts)
    met = sum(verdict == "held" or (verdict.startswith("met") and "**" not in verdict) for verdict in verdicts)
    missed = len(verdicts) - met - unknown
    counts = f"Of {len(verdicts)} aims, {met} are met, {missed} missed at least in part, and {unknown} not measured."
    assert counts in page
