"""Configurations have the papers' hyperparameters, or say why they have not, and every table has a command."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fairseq import options as fairseq_options

from leapformer_fairseq import PLUGIN_DIR, register
from leapformer_fairseq.attention import find
from leapformer_fairseq.cli.main import build_parser

register()
ROOT = PLUGIN_DIR.parent
CONFIGS = ROOT / "configs"

pytestmark = pytest.mark.skipif(not CONFIGS.is_dir(), reason="the installed package has no configurations beside it")

TABLE: dict[str, Any] = yaml.safe_load((CONFIGS / "papers.yaml").read_text("utf-8")) if CONFIGS.is_dir() else {}
SPEECH = ("mustc", "covost2")
STEPS = {
    **dict.fromkeys(("wikitext103",), "lm"),
    **dict.fromkeys(SPEECH, "speech"),
    "ljspeech": "tts",
    **dict.fromkeys(("wmt14_ende", "iwslt14_esen_doc", "iwslt17"), "translation"),
    "mlm": "mlm",
    "glue": "glue",
    **dict.fromkeys(("race", "csqa"), "choices"),
}
# what the scripts give to fairseq beside the configuration's options
TASKS = {
    "lm": "--task language_modeling",
    "mlm": "--task masked_lm",
    "glue": "--task sentence_prediction",
    "choices": "--task sentence_ranking --criterion sentence_ranking",
    "tts": "--task text_to_speech --criterion tacotron2_with_length",
}
MORE = {
    "asr": '"${asr_options[@]}"',
    "st": '"${simul_options[@]}" "${st_options[@]}"',
    "length": '"${offline_options[@]}" "${length_options[@]}" "${st_options[@]}"',
}


def sourced(name: str, values: str) -> list[str]:
    """Words that bash makes of `values` after a configuration was read."""
    dataset = name.split("/")[0]
    script = f'dataset={dataset}; . "$0"; . "$1"; printf "%s\\n" {values}'
    command = ["bash", "-euc", script, str(ROOT / f"scripts/{STEPS[dataset]}.sh"), str(CONFIGS / f"{name}.sh")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def parsed(name: str, array: str) -> dict[str, Any]:
    """An array of options as fairseq understands them, with what the --arch fills in."""
    words = sourced(name, MORE.get(array, '"${' + array + '_options[@]}"'))
    if array == "eval":
        return {key.replace("-", "_"): value for key, value in re.findall(r"--([\w-]+) (\S+)", " ".join(words))}
    words = ["data", *TASKS.get(STEPS[name.split("/")[0]], "").split(), *words]
    return vars(fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words))


def comments(name: str) -> str:
    """All comments of a configuration and of those it is based on, as one line."""
    path = CONFIGS / f"{name}.sh"
    text = path.read_text("utf-8")
    found = " ".join(part.strip() for part in re.findall(r"#(.*)", text))
    for base in re.findall(r'^\. "\$\(dirname [^)]*\)/(\S+)\.sh"', text, re.MULTILINE):
        found += " " + comments(str((path.parent / base).resolve().relative_to(CONFIGS.resolve())))
    return re.sub(r"\s+", " ", found)


def found(name: str, array: str) -> dict[str, Any]:
    if array != "variables":
        return parsed(name, array)
    names = list(TABLE[name][array])
    return dict(zip(names, sourced(name, " ".join(f'"${{{x}}}"' for x in names)), strict=True))


def alike(value: Any, other: Any) -> bool:
    return value == other or str(value) == str(other)


def disagreements(name: str, array: str, rows: dict[str, list[Any]]) -> list[str]:
    """One line for each value that is neither the paper's nor a difference that the configuration explains."""
    values, wrong = found(name, array), []
    for option, (paper, source, *difference) in rows.items():
        ours, why = difference or (paper, "")
        if not alike(values.get(option), ours):
            wrong.append(f"{name} {array} {option}: {values.get(option)!r}, and {paper!r} in {source}")
        elif why not in comments(name):
            wrong.append(f"{name} {array} {option}: no comment says {why!r}")
    return wrong


@pytest.mark.parametrize(("name", "array"), [(name, array) for name, arrays in TABLE.items() for array in arrays])
def test_a_configuration_has_the_values_of_its_paper(name, array):
    assert disagreements(name, array, TABLE[name][array]) == []


def test_another_value_and_a_missing_comment_are_noticed():
    """Inverted control."""
    rows = {"lr": [[0.5], "nowhere"], "max_update": [1, "nowhere", 150000, "since the moon is full"]}
    first, second = disagreements("wikitext103/leapformer", "train", rows)
    assert "lr: [1.0], and [0.5] in nowhere" in first and "no comment says 'since the moon is full'" in second


def test_every_configuration_of_a_paper_is_in_the_table():
    """What has values of our own, of fairseq's examples or of released scripts says so in its first lines."""
    others = {"small", "tiny", "fairseq", "roberta", "leapformer_script", "luna_code", "mt"}
    names = {str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.glob("*/*.sh")}
    left = {name for name in names - set(TABLE) if Path(name).name not in others}
    assert left == {"iwslt14_esen_doc/luna", "sparsefinder/mlm"}, "which combine papers, or are small"


def tables() -> dict[str, list[str]]:
    """The rows of the tables of configs/tables.txt."""
    found: dict[str, list[str]] = {}
    for line in (CONFIGS / "tables.txt").read_text("utf-8").splitlines() if CONFIGS.is_dir() else ():
        if line.startswith(" "):
            found[list(found)[-1]].append(line.strip())
        elif line and not line.startswith("#"):
            found[line.split()[0]] = []
    return found


def dry_run(command: str) -> subprocess.CompletedProcess[str]:
    words = [*shlex.split(command), "--dry-run"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", tables())
def test_a_table_is_a_command_for_each_of_its_rows(name, tmp_path):
    done = dry_run(f"bash scripts/tables.sh {name} --root /nowhere --out {tmp_path}/out")
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^ +--attention (.*)", done.stdout, re.MULTILINE)
    assert shown == tables()[name] or len(shown) == 1 and not tables()[name]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("row", sorted({row for rows in tables().values() for row in rows}))
def test_rows_of_tables_can_be_built(row):
    """Mechanisms exist, serve their blocks and have these options."""
    plan, *options = row.split(":")
    names = plan.split("/") if "/" in plan else [plan] * 3
    known = {option.name for name in names for option in find(name).options}
    assert {option.partition("=")[0].replace("-", "_") for option in options} <= known
    for name, block in zip(names, ("encoder-self", "decoder-self", "decoder-cross"), strict=True):
        assert block in find(name).capabilities.blocks


def test_a_row_that_fails_is_named_and_the_others_run(tmp_path):
    done = dry_run(f"bash scripts/tables.sh leapformer-5 --out {tmp_path}/out --average none")
    assert done.returncode == 1 and done.stderr.count("--average none: give a whole number") == 2
    assert "failed: softmax/cosformer/softmax:cosformer-length=0 softmax/leap/softmax; the messages" in done.stderr
    other = dry_run("bash scripts/tables.sh leapformer-11 --out x")
    assert other.returncode == 1 and "there is no table leapformer-11; choose from leapformer-4 " in other.stderr


PAGE = (ROOT / "docs/papers.md").read_text("utf-8") if CONFIGS.is_dir() else ""
COMMANDS = sorted(set(re.findall(r"`((?:bash scripts/|leapformer )[^`]+)`", re.sub(r"\n(?!\|)", " ", PAGE))))
# the tables that the papers have, by the headings of the page
PAPERS = {"LeaPformer": 10, "Modular Linearized Attention": 11, "ABC": 13, "Luna": 6, "Sparsefinder": 6}


@pytest.mark.parametrize(("paper", "count"), PAPERS.items())
def test_the_page_has_every_table_of_every_paper(paper, count):
    section = PAGE.partition(f"\n## {paper} (")[2].partition("\n## ")[0]
    numbers = set()
    for line in section.splitlines():
        first = re.split(r"\bfigures?\b", line.split("|")[1])[0] if line.startswith("|") else ""
        for begin, end in re.findall(r"(\d+)(?:[ab]\b)?(?: to (\d+))?", first):
            numbers |= set(range(int(begin), int(end or begin) + 1))
    assert numbers == set(range(1, count + 1))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_can_be_parsed(command, tmp_path):
    if command.startswith("bash"):
        done = dry_run(command.replace("--out DIR", f"--out {tmp_path}/out"))
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "out").exists()
    else:
        words = shlex.split(command)[1:]
        build_parser(words[0]).parse_args(words)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("wikitext103/run.sh --contexts '0 -5'", "--contexts -5: give a whole number from 0"),
        ("mustc/run.sh --k '3 0'", "--k 0: give a whole number from 1"),
        ("mustc/run.sh --sets nonsense", "--sets nonsense: choose from tst-COMMON, tst-HE"),
        ("ljspeech/sweep.sh --ratios -1", "--ratios -1: give a number above 0"),
        ("ljspeech/sweep.sh --dampenings 0.0", "--dampenings 0.0: give a number above 0"),
        ("iwslt14_esen_doc/run.sh --window 0", "--window 0: give a whole number from 1"),
        ("multi30k/run.sh --set dev", "--set dev: choose from test, valid"),
        ("glue/run.sh --tasks COLA", "--tasks COLA: choose from MNLI, QNLI, QQP, SST-2"),
    ],
)
def test_values_out_of_range_are_named_before_anything_is_trained(command, message, tmp_path):
    done = dry_run(f"bash scripts/{command} --root /nowhere --out {tmp_path}/out")
    assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_command_that_is_wrong_is_noticed():
    """Inverted control."""
    assert len(COMMANDS) > 40
    assert dry_run("bash scripts/lra/run.sh --protocol luna --out x --sedes 1").returncode == 1
    with pytest.raises(SystemExit):
        build_parser("bench").parse_args(["bench", "newspapers"])
