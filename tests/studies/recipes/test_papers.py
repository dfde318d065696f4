"""Configurations have the papers' hyperparameters, or say why they have not, and every table has a command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fairseq import options as fairseq_options

from leapformer_fairseq import PLUGIN_DIR, register
from leapformer_fairseq.attention import find
from leapformer_fairseq.cli.main import build_parser, main
from leapformer_fairseq.studies.recipes import catalog, configuration
from leapformer_fairseq.studies.recipes.plans import Attention
from leapformer_fairseq.support.errors import LeapformerError
from tests.studies.recipes import running

register()
TABLE: dict[str, Any] = yaml.safe_load((configuration.configs() / "papers.yaml").read_text("utf-8"))
# What the recipes give to fairseq besides the configuration's options.
TASKS = {
    "wikitext103": "--task language_modeling",
    "mlm": "--task masked_lm",
    "glue": "--task sentence_prediction",
    **dict.fromkeys(("race", "csqa"), "--task sentence_ranking --criterion sentence_ranking"),
    "ljspeech": "--task text_to_speech --criterion tacotron2_with_length",
}
# Option lists that stand together on a command line, by what papers.yaml calls them.
TOGETHER = {"st": ("simul", "st"), "length": ("offline", "length", "st")}


def parsed(name: str, array: str) -> dict[str, Any]:
    """A list of options as fairseq understands them, with what the --arch fills in."""
    configured = configuration.load(*name.split("/"))
    words = [word for one in TOGETHER.get(array, (array,)) for word in configuration.flags(configured.get(one, {}))]
    if array in ("eval", "extract", "fit", "pareto"):  # which are not of fairseq's trainings
        return {key.replace("-", "_"): value for key, value in re.findall(r"--([\w-]+) (\S+)", " ".join(words))}
    words = ["data", *TASKS.get(name.split("/")[0], "").split(), *words]
    return vars(fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words))


def comments(name: str) -> str:
    """All comments of a configuration and of those it is based on, as one line."""
    path = configuration.configs() / f"{name}.yaml"
    text = path.read_text("utf-8")
    found = " ".join(part.strip() for part in re.findall(r"#(.*)", text))
    for base in re.findall(r"^base: (\S+)", text, re.MULTILINE):
        found += " " + comments(str((path.parent / base).resolve().relative_to(configuration.configs().resolve())))
    return re.sub(r"\s+", " ", found)


def found(name: str, array: str) -> dict[str, Any]:
    if array != "variables":
        return parsed(name, array)
    configured = configuration.load(*name.split("/"))
    tasks = configured.get("task-settings", {}).items()
    return {
        **{key.replace("-", "_"): value for key, value in configured.items()},
        **{f"task_settings[{task}]": " ".join(configuration.flags(options)) for task, options in tasks},
    }


def alike(value: Any, other: Any) -> bool:
    return value == other or str(value) == str(other)


def disagreements(name: str, array: str, rows: dict[str, list[Any]]) -> list[str]:
    """One line for each value that is neither the paper's nor a difference that the configuration explains."""
    values, wrong = found(name, array), []
    for option, (paper, source, *difference) in rows.items():
        ours, why = difference or (paper, "ours" if source == "ours" else "")
        if not alike(values.get(option), ours):
            wrong.append(f"{name} {array} {option}: {values.get(option)!r}, and {paper!r} in {source}")
        elif not re.search(rf"\b{re.escape(why)}", comments(name)):
            wrong.append(f"{name} {array} {option}: no comment says {why!r}")
    return wrong


@pytest.mark.parametrize(("name", "array"), [(name, array) for name, arrays in TABLE.items() for array in arrays])
def test_a_configuration_has_the_values_of_its_paper(name, array):
    assert disagreements(name, array, TABLE[name][array]) == []


# Where these papers state values of their configurations, and other sources. A.2 of LeaPformer is its hardware.
LEAPFORMER = {"appendix A.10.6", "appendix A.10.7", "table 4", "released script"}
MLA = {"section 3.3.1", "section 7.2.1", "section 7.2.2", "table 6", "table 9", "released code", "ours"}
SOURCES = {
    **dict.fromkeys(("wikitext103/leapformer", "mustc/leapformer", "covost2/leapformer"), LEAPFORMER),
    **dict.fromkeys(("mustc/mla", "mustc/mla_224", "ljspeech/mla"), MLA),
}


@pytest.mark.parametrize(("name", "places"), SOURCES.items())
def test_values_are_cited_from_places_that_state_some(name, places):
    assert {row[1] for rows in TABLE[name].values() for row in rows.values()} <= places


def test_another_value_and_a_missing_comment_are_noticed():
    """Inverted control."""
    rows = {"lr": [[0.5], "nowhere"], "max_update": [1, "nowhere", 150000, "since the moon is full"]}
    first, second, third = disagreements("wikitext103/leapformer", "train", {**rows, "momentum": [0.99, "ours"]})
    assert "momentum: no comment says 'ours'" in third
    assert "lr: [1.0], and [0.5] in nowhere" in first and "no comment says 'since the moon is full'" in second


def test_every_configuration_of_a_paper_is_in_the_table():
    """What has values of our own, of fairseq's examples or of released scripts says so in its first lines."""
    others = {"small", "tiny", "fairseq", "roberta", "leapformer_script", "luna_code", "mt_small", "mlm_small"}
    folder = configuration.configs()
    names = {str(path.relative_to(folder).with_suffix("")) for path in folder.glob("*/*.yaml")}
    left = {name for name in names - set(TABLE) if Path(name).name not in others}
    assert left == {"iwslt14_esen_doc/luna"}, "which combines papers"


TABLES = catalog.tables()


def dry_run(*words: object) -> list[str]:
    """The commands of a recipe; raises LeapformerError."""
    return [line for line in running.dry_run(*words) if not line.startswith("#")]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_a_command_for_each_of_its_rows(name, tmp_path):
    root = () if TABLES[name].recipe == "espeak_tts" else ("--root", "/nowhere")
    shown = dry_run(name, *root, "--out", tmp_path / "out")
    trained = {line.split("--save-dir ")[1].split()[0] for line in shown if line.startswith("leapformer train")}
    for row in TABLES[name].rows:
        assert f"{tmp_path}/out/" in " ".join(trained) and any(Attention(row).folder in save for save in trained), row
    assert trained and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("table", "optimizer"),
    [("luna-5", "apollo"), ("luna-5-adam", "adam"), ("luna-6", "apollo"), ("luna-6-dev", "apollo")],
)
def test_the_translation_models_of_luna_are_trained_with_apollo(table, optimizer, tmp_path):
    """Section 4.3; table 5 has one row with Adam."""
    trained = [x for x in dry_run(table, "--root", "/nowhere", "--out", tmp_path) if x.startswith("leapformer train")]
    assert trained and all(f"--optimizer {optimizer} " in line for line in trained)


@pytest.mark.parametrize(
    ("protocol", "models"), [("luna", "luna"), ("leapformer", "leapformer"), ("corrected", "leapformer")]
)
def test_speed_on_long_range_arena_is_that_of_the_models_of_the_paper(protocol, models, tmp_path):
    shown = dry_run("lra", "--protocol", protocol, "--root", "/nowhere", "--out", tmp_path / "out")
    assert sum(f"bench lra --protocol {models} " in line for line in shown) == 1


def test_table_4_of_luna_compares_with_roberta():
    for data in ("mlm", "glue", "race"):
        assert configuration.load(data, "luna")["attention"].split() == ["softmax", "luna"]


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("mla-")])
def test_cosformer_goes_on_behind_the_predicted_length(name, tmp_path):
    """As section 3.3.1 has it, with the least normalizer of the released code, as the sums turn negative there."""
    shown = dry_run(name, "--root", "/nowhere", "--out", tmp_path)
    trained = [line for line in shown if re.search(r"--decoder-(self|cross)-attention cosformer", line)]
    assert bool(trained) == (name != "mla-10")
    for line in trained:
        assert "--cosformer-overrun extrapolate" in line and "--normalizer-floor 0.1" in line


@pytest.mark.parametrize("name", ["mla-1", "mla-3", "mla-4", "mla-5", "mla-6", "mla-11"])
def test_only_where_a_network_predicts_durations_it_is_trained(name, tmp_path):
    """As in the released code, where it is an option. Tables 1 and 2, and table 11, are those systems alone."""
    shown = dry_run(name, "--root", "/nowhere", "--out", tmp_path)
    trained = [x for x in shown if re.search(r"^leapformer train .*--decoder-(self|cross)-attention cosformer", x)]
    learned = name in ("mla-3", "mla-11")
    assert trained and all(("--length-predictor conv " in line) == learned for line in trained)
    spoken = [line.split(" --out ")[1].split()[0] for line in shown if line.startswith("leapformer tts")]
    assert all(("-conv" in out) == learned for out in spoken if "cosformer" in out)
    assert {"mla-1": 10, "mla-11": 3}.get(name, len(spoken)) == len(spoken)


def test_cosformer_translates_with_lengths_in_steps_and_not_without(tmp_path):
    """Figure 4 of LeaPformer; in table 5 it knows the true length, which nobody does while translating."""
    for name, translated in (("leapformer-figure-4", True), ("leapformer-5", False)):
        shown = dry_run(name, "--root", "/nowhere", "--out", tmp_path)
        row = next(row for row in TABLES[name].rows if "cosformer" in row)
        folder = f"{tmp_path}/{Attention(row).folder}/"
        trained = [line for line in shown if f"--save-dir {folder}" in line]
        assert len(trained) == 1 and "--length-predictor oracle" in trained[0]
        assert any(line.startswith("simuleval ") and folder in line for line in shown) == translated


# Of language models the papers have more than one column.
COLUMNS = {
    "leapformer-4": ("valid", "test"),
    "abc-3a": ("valid-context0", "valid-context480", "test-context0", "test-context480"),
    "abc-3b": ("valid-context256", "test-context256"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_of_a_table_is_scored(name, tmp_path):
    shown = "\n".join(dry_run(name, "--root", "/nowhere", "--out", tmp_path))
    runs = set(re.findall(rf"{tmp_path}/(\S+-seed1)/model ", shown))
    assert len(runs) >= 4
    for run in runs:
        scored = re.findall(rf"--json {tmp_path}/{run}/(\S+)/scores.json", shown)
        assert tuple(scored) == COLUMNS[name], run


@pytest.mark.parametrize("row", sorted({row for table in TABLES.values() for row in table.rows}))
def test_rows_of_tables_can_be_built(row):
    """Mechanisms exist, serve their blocks and have these options."""
    plan, *options = row.split(":")
    names = plan.split("/") if "/" in plan else [plan] * 3
    known = {option.name for name in names for option in find(name).options}
    assert {option.partition("=")[0].replace("-", "_") for option in options} <= known
    for name, block in zip(names, ("encoder-self", "decoder-self", "decoder-cross"), strict=True):
        assert block in find(name).capabilities.blocks


def test_a_row_that_fails_is_named_and_the_others_run(tmp_path, capsys):
    assert main(["recipe", "leapformer-5", "train", "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert told.count("holds no prepared data; run the step prepare first") == 2
    assert "failed: softmax/cosformer/softmax:cosformer-length=0 softmax/leap/softmax; the messages" in told
    assert main(["recipe", "leapformer-11", "--out", "x"]) == 2
    assert "there is no recipe leapformer-11; choose from quickstart, " in capsys.readouterr().err


PAGE = (PLUGIN_DIR.parent / "docs/papers.md").read_text("utf-8")
COMMANDS = sorted(set(re.findall(r"`(leapformer [^`]+)`", re.sub(r"\n(?!\|)", " ", PAGE))))
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
    words = shlex.split(command)[1:]
    if words[0] == "recipe":
        assert dry_run(*(str(tmp_path / "out") if word == "DIR" else word for word in words[1:]))
        assert not (tmp_path / "out").exists()
    else:
        build_parser(words[0]).parse_args(words)


def test_rows_whose_scores_are_relative_to_softmax_come_with_it():
    """Tables 8 and 9 of LeaPformer have an RCPmem; without softmax there is none, and the recipe says so."""
    commands = [command for command in COMMANDS if "--protocol leapformer --attention" in command]
    rows = [set(shlex.split(command)[6].split()) for command in commands]
    assert sorted(map(len, rows)) == [2, 4] and all("softmax" in names for names in rows)
    for names in (*rows, {"luna-16"}):
        words = ["lra", "--protocol", "luna" if names == {"luna-16"} else "leapformer", "--attention", " ".join(names)]
        said = running.dry_run(*words, "--root", "/nowhere", "--out", "/nowhere")
        scored = any(line.startswith("leapformer lra rcp ") for line in said)
        assert scored == ("softmax" in names) != any("no composite scores: --attention leaves out" in x for x in said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("wikitext103 --contexts '0 -5'", "--contexts -5: give a whole number from 0"),
        ("mustc --k '3 0'", "--k 0: give a whole number from 1"),
        ("mustc --sets nonsense", "--sets nonsense: choose from tst-COMMON, tst-HE, dev"),
        ("ljspeech --ratios -1", "--ratios -1: give a number above 0"),
        ("ljspeech --dampenings 0.0", "--dampenings 0.0: give a number above 0"),
        ("iwslt14_esen_doc --window 0", "--window 0: give a whole number from 1"),
        ("multi30k --set dev", "--set dev: choose from test, valid"),
        ("wikitext103 --sets dev", "--sets dev: choose from valid, test"),
        ("glue --tasks COLA", "--tasks COLA: choose from MNLI, QNLI, QQP, SST-2"),
        ("multi30k --launcher ssh", "--launcher ssh: choose from local, torchrun, slurm"),
        ("multi30k --processes 2", "--processes 2 needs --launcher torchrun or slurm"),
        ("multi30k --launcher torchrun --machines 2", "need --launcher slurm, not torchrun"),
    ],
)
def test_values_out_of_range_are_named_before_anything_is_trained(words, message, tmp_path):
    with pytest.raises(LeapformerError, match=re.escape(message)):
        dry_run(*shlex.split(words), "--root", "/nowhere", "--out", tmp_path / "out")


def test_a_command_that_is_wrong_is_noticed():
    """Inverted control."""
    assert len(COMMANDS) > 40
    with pytest.raises(LeapformerError, match="--sedes"):
        dry_run("lra", "--protocol", "luna", "--out", "x", "--sedes", "1")
    with pytest.raises(LeapformerError):
        build_parser("bench").parse_args(["bench", "newspapers"])
