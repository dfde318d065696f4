"""The pages with published figures: rows and batches are those of the recipes, and their commands run dry."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli.main import build_parser
from leapformer_fairseq.studies import launching
from leapformer_fairseq.studies.recipes import catalog, configuration
from leapformer_fairseq.studies.recipes.plans import Attention
from tests.studies.recipes.running import dry_run

PAGES = {name: (PLUGIN_DIR.parent / f"docs/{name}.md").read_text("utf-8") for name in ("mustc", "published")}
TABLES = catalog.tables()


def commands(text: str) -> list[str]:
    """All commands of a page, also in batch scripts, each in one line."""
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`(leapformer recipe [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line for line in lines if line.startswith("leapformer ")] + inline


COMMANDS = sorted({line for text in PAGES.values() for line in commands(text)})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_pages_run_dry(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)[1:]
    if words[0] != "recipe":
        build_parser(words[0]).parse_args(words)
        return
    at = words.index("--out") + 1
    shown = dry_run(*words[1:at], tmp_path / "out", *words[at + 1 :])
    assert any(f"{tmp_path}/out" in line for line in shown) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipe", "pair", "tokenizer"),
    [("mustc", "en-zh", "zh"), ("mustc", "en-ja", "ja-mecab"), ("mustc", "en-es", ""), ("covost2", "en-zh-CN", "zh"),
     ("covost2", "zh-CN-en", "")],
)  # fmt: skip
def test_languages_without_spaces_are_scored_in_characters(
    recipe: str, pair: str, tokenizer: str, tmp_path: Path
) -> None:
    shown = dry_run(recipe, "--pair", pair, "--root", "/r", "--out", tmp_path)
    assert any(line.startswith(f"leapformer prepare {recipe} /r --pair {pair} ") for line in shown)
    (simulated,) = [line for line in shown if line.startswith("simuleval ")]
    scored = [line for line in shown if line.startswith("leapformer score ") and "forced" not in line]
    assert len(scored) == 2, "simultaneous and offline"
    assert ("--eval-latency-unit char " in simulated) == bool(tokenizer)
    assert (f"--sacrebleu-tokenizer {tokenizer or None}" in simulated) == bool(tokenizer)
    assert all((f"--tokenize {tokenizer} --unit char" in line) == bool(tokenizer) for line in scored)


def test_commands_in_batch_scripts_are_looked_at() -> None:
    assert len(COMMANDS) > 20 and sum("--launcher slurm" in command for command in COMMANDS) == 2


def rows() -> list[tuple[str, list[str]]]:
    """Tables of the pages whose first cell names a table of the catalog, with the names of their rows."""
    found = []
    for text in PAGES.values():
        for head, body in re.findall(r"^\| ([\w-]+) \| .*\n\|[-:| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
            if head in TABLES:
                found.append((head, [line.split("|")[1].strip() for line in body.splitlines()]))
    return found


@pytest.mark.parametrize(("name", "printed"), rows(), ids=[name for name, _ in rows()])
def test_the_rows_of_the_pages_are_those_of_the_recipe(name: str, printed: list[str]) -> None:
    table = TABLES[name]
    paper = table.options[table.options.index("--paper") + 1]
    assert printed == [*table.rows] or printed == configuration.load(table.recipe, paper)["attention"].split()
    assert all(Attention(row).blocks for row in printed)


def test_every_table_of_trained_models_has_its_figures() -> None:
    """But those of whole sweeps, of one number in the text, of the development set beside another, and ours."""
    left = {name for name in TABLES if name.partition("-")[0] in ("leapformer", "mla", "abc", "luna")}
    left -= {name for name, _ in rows()}
    assert left == {
        "leapformer-figure-4", "leapformer-per-head", "mla-1", "mla-11", "abc-5", "luna-4", "luna-5-adam", "luna-6-dev",
    }  # fmt: skip


def test_the_batches_of_the_pages_are_those_of_the_configurations() -> None:
    known = {
        r"recogniser, LeaPformer and MLA": ("mustc", "leapformer", "asr"),
        r"translation, LeaPformer and CoVoST 2": ("mustc", "leapformer", "st"),
        r"translation, MLA": ("mustc", "mla", "st"),
    }
    for name, paper in re.findall(r"^\| `(\w+) --paper (\w+)` \| \d+ ×", PAGES["published"], re.MULTILINE):
        known[f"`{name} --paper {paper}`"] = name, paper, "train"
    assert len(known) == 9
    for first, (name, paper, part) in known.items():
        line = next(line for text in PAGES.values() for line in text.splitlines() if line.startswith(f"| {first} |"))
        processes, batch, frequency = re.findall(r"\d+", line.split("|")[2].replace(",", ""))
        configured = configuration.load(name, paper)
        options = configuration.flags(configured[part])
        sizes = {launching.value_of(options, "--max-tokens"), launching.value_of(options, "--batch-size")}
        assert processes == configured["batch-processes"] and batch in sizes, first
        assert frequency == (launching.value_of(options, "--update-freq") or "1"), first
        updates = launching.value_of(options, "--max-update")
        assert f"{int(updates or 0):,}" in line or "epochs" in line, first
