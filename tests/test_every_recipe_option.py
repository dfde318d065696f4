"""Every option of every recipe reaches the commands that it is for, and the records of the folders that these fill.

Recipes are run dry. Values are such that occur nowhere else: a number that is given has to be a word of a command.
"""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from leapformer_fairseq.studies.engine import Engine, State
from leapformer_fairseq.studies.launching import Launcher
from leapformer_fairseq.studies.recipes import catalog
from leapformer_fairseq.studies.recipes.recipe import launcher_of

# One data set for each kind of recipe, and what it needs to run dry.
NEEDS: dict[str, list[str]] = {
    "quickstart": [],
    "translation": ["--root", "/R", "--pair", "en-de"],
    "language_model": ["--root", "/R"],
    "speech": ["--train", "/a.tsv", "--dev", "/b.tsv", "--test", "/c.tsv"],
    "multi30k": ["--root", "/R"],
    "iwslt14_esen_doc": ["--root", "/R"],
    "tatoeba": ["--root", "/R"],
    "wikitext2": ["--root", "/R", "--attention", "leap", "--seeds", "1"],
    "mlm": ["--root", "/R", "--attention", "leap"],
    "glue": ["--root", "/R", "--attention", "leap", "--vocabulary", "/V", "--pretrained", "/P"],
    "race": ["--root", "/R", "--attention", "leap", "--vocabulary", "/V", "--pretrained", "/P"],
    "mustc": ["--root", "/R"],
    "mboshi": ["--root", "/R"],
    "talks": ["--root", str(Path(__file__).parent), "--checkpoints", "/m.pt"],
    "ljspeech": ["--root", "/R"],
    "espeak_tts": [],
    "sparsefinder": ["--root", "/R"],
    "lra": ["--reduced", "--root", "/R"],
}
# option -> a value, and the options without which it has no meaning; for one recipe, or all
VALUES: dict[Any, tuple[str, list[str]]] = {
    "--pair": ("xx-yy", []),
    ("multi30k", "--pair"): ("de-en", []),
    ("mustc", "--pair"): ("en-es", []),
    ("covost2", "--pair"): ("en-de", []),
    ("iwslt14_esen_doc", "--pair"): ("en-es", []),
    "--linearize": ("/teacher.pt", []),
    "--keep": ("97", ["--linearize", "/teacher.pt"]),
    "--linearize-options": ("--distill-updates 991", ["--linearize", "/teacher.pt"]),
    "--set": ("valid", []),
    "--tasks": ("MNLI QNLI", []),
    ("lra", "--tasks"): ("image", []),
    ("lra", "--attention"): ("leap", []),
    ("sparsefinder", "--train-on-valid"): ("", ["--paper", "mlm_small"]),
    ("lra", "--quirks"): ("none", []),
    "--pretrained-seed": ("97", []),
    "--attention": ("relu", []),
    "--minutes": ("97.5", []),
    "--long-minutes": ("983.5", []),
    "--segment": ("tokens seconds", []),
    "--sets": ("dev", []),
    ("mustc", "--sets"): ("tst-HE dev", []),
    ("talks", "--sets"): ("snr20", []),
    **{(name, "--sets"): ("valid", []) for name in ("wikitext2", "wikitext103", "language_model")},
    "--predictors": ("lookup oracle", ["--attention", "cosformer"]),
    "--train-k": ("3-7", []),
    "--checkpoints": ("/x.pt /y.pt", []),
    "--split": ("dev", []),
    "--config-yaml": ("other.yaml", []),
    "--grid": ("c2", []),
    "--stages": ("32:7", []),
    "--block": ("decoder-cross", []),
    "--recipe": ("mlm", []),
    "--protocol": ("luna", []),
    "--entmax": ("softmax/entmax/softmax", []),
    "--softmax": ("relu", []),
    "--columns": ("audio=path text=sentence", []),
    ("speech", "--longest"): ("97", []),
    "--download": ("", []),
    ("talks", "--root"): (str(Path(__file__).parents[1]), []),
    "--vocabulary": ("/W", []),
    "--epochs": ("97", []),
    "--jobs": ("2", ["--seeds", "1 2 3"]),
    ("lra", "--jobs"): ("97", []),
    ("sparsefinder", "--epochs"): ("97 89", []),
}
# Where the value is no word of a command, or not only: what is compared then is all that is said and recorded.
ONLY_CHANGES = {
    "--out", "--attention", "--sets", "--linearize", "--longest", "--tasks", "--predictors", "--train-k", "--grid",
    "--stages", "--block", "--recipe", "--protocol", "--entmax", "--softmax", "--seeds", "--pictures", "--segment",
    "--pretrained", "--paper", "--jobs", "--pretrained-seed", "--k", "--pair",
}  # fmt: skip
# No command of a dry run tells: below, tests/studies/recipes/test_shell.py, and test_speech_of_ones_own
LAUNCHES = {
    "--launcher", "--processes", "--machines", "--slurm-options", "--restarts", "--dry-run", "--anyway", "--only"
}  # fmt: skip
SWEEPS = {"--ratios", "--dampenings", "--sizes"}


class Said(NamedTuple):
    """What a dry run says: all its lines, and for each folder of a run the record and the commands in it."""

    lines: tuple[str, ...]
    folders: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]

    @property
    def words(self) -> set[str]:
        return {word for line in self.lines if not line.startswith("#") for word in shlex.split(line)}


@cache
def dry(name: str, *words: str) -> Said:
    lines: list[str] = []
    with patch("os.cpu_count", lambda: 5):
        recipe = catalog.start(name, [*words, "--dry-run"])
        Engine(recipe, say=lines.append, dry=True).run()
    folders = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]()
    for cell in recipe.cells(State()):
        if cell.records:  # the innermost, which is known by all records on the way
            folder, record = f"{recipe.out}/{[*cell.records][-1]}", tuple(" ".join(cell.records.values()).split())
            folders[folder] = record, (*folders.get(folder, ((), ()))[1], *map(str, cell.steps))
    lines = [line for text in lines for line in text.splitlines()]
    return Said((f"# jobs: {recipe.jobs}", *lines), folders)


def options_of(name: str) -> list[Any]:
    parser, _ = catalog.parser_for(name)
    return [action for action in parser._actions if action.option_strings[0] != "-h"]


def value_for(name: str, action: Any) -> tuple[list[str], list[str]]:
    """The words of an option, and those that it needs beside it."""
    option = action.option_strings[0]
    value, more = VALUES.get((name, option), VALUES.get(option, ("", [])))
    if action.nargs == 0:
        return [option], more
    if not value:
        value = {
            "N": "97", "DIR": "/elsewhere", "FILE": "/other.txt", "PATH": "/other", "CHECKPOINT": "/other.pt",
            "TABLE": "/other.tsv", "LIST": "41 43", "TEXT": "--patience 977",
        }.get(action.metavar, "")  # fmt: skip
    if option == "--paper":
        found = [one for one in catalog.configuration.names(name) if one != action.default]
        value = found[0] if found else ""
    return [option, value], more


def cases() -> list[Any]:
    return [
        pytest.param(name, action.option_strings[0], id=f"{name}{action.option_strings[0]}")
        for name in NEEDS
        for action in options_of(name)
        if action.option_strings[0] not in LAUNCHES | SWEEPS | {"--reduced"}  # instead of --protocol
        and not (action.option_strings[0] == "--paper" and len(catalog.configuration.names(name)) < 2)
    ]


def test_every_kind_of_recipe_is_looked_at() -> None:
    kinds = {about.recipe for about in catalog.DATASETS.values()}
    assert {catalog.DATASETS[name].recipe for name in NEEDS} == kinds


def both(name: str, option: str) -> tuple[Said, Said, list[str]]:
    """Without and with an option, and its values."""
    action = next(action for action in options_of(name) if action.option_strings[0] == option)
    words, more = value_for(name, action)
    common = [*NEEDS[name], *more]
    if option in common[:-1] and option not in more:  # it is needed anyway
        at = common.index(option)
        changed = [*common[:at], *words, *common[at + 2 :]]
    else:
        changed = [*common, *words]
    out = [] if option == "--out" else ["--out", "/O"]
    return dry(name, *common, "--out", "/O"), dry(name, *changed, *out), words[1:]


@pytest.mark.parametrize(("name", "option"), cases())
def test_every_option_reaches_a_command(name: str, option: str) -> None:
    before, after, values = both(name, option)
    assert before.lines != after.lines, f"{option} changes nothing"
    if option not in ONLY_CHANGES:
        for value in values and shlex.split(values[0]):
            assert any(value in word.replace("=", " ", word.startswith("--")).split() for word in after.words), (
                f"{option} {value} is in no command"
            )
    elif option == "--jobs":  # trainings at once, of this process or of the command
        assert f"# jobs: {values[0]}" in after.lines or values[0] in after.words
    elif option in ("--k", "--seeds"):
        for value in values[0].split():
            assert value in after.words, f"{option} {value} is in no command"


# Commands in a folder change, and not what the folder is known by, for a reason; in folders of this depth below --out.
SAME_RECORD = {
    "--pair": ((1, 2), "the prepared data in --out is refused first"),
    "--average": ((1,), "of training: more checkpoints are kept; if there are too few, averaging says so"),
    "--k": ((2,), "each k has a folder of its own"),
    "--softmax": ((1, 2), "two trainings share the cores: the same updates, divided among fewer processes"),
}


@pytest.mark.parametrize(("name", "option"), cases())
def test_a_folder_is_known_by_what_its_commands_depend_on(name: str, option: str) -> None:
    """Or else the same folder would be taken for finished although other options were given."""
    before, after, _ = both(name, option)
    for folder in before.folders.keys() & after.folders.keys():
        (record, commands), (other_record, other_commands) = before.folders[folder], after.folders[folder]
        if commands != other_commands and folder.count("/") - 1 not in SAME_RECORD.get(option, ((),))[0]:
            assert record != other_record, f"{folder} has the same record {record} with other commands"


@pytest.mark.parametrize(("option", "value", "field"), [
    ("--processes", "3", "processes"), ("--machines", "5", "machines"), ("--restarts", "11", "restarts"),
    ("--slurm-options", "--gpus 7", "slurm_options"),
])  # fmt: skip
def test_options_of_the_launcher_arrive(option: str, value: str, field: str) -> None:
    parser, _ = catalog.parser_for("multi30k")
    kind = catalog.DATASETS["multi30k"].recipe
    given = (parser.read(["--launcher", "slurm", *words]) for words in ([], [option, value]))
    plain, other = (launcher_of(settings, kind) for settings in given)
    assert plain == Launcher("slurm", slurm_options=[]) and getattr(other, field) != getattr(plain, field)
    if field != "restarts":
        assert plain.prefix() != other.prefix()
    assert {name for name in vars(plain) if getattr(plain, name) != getattr(other, name)} == {field}


@pytest.mark.parametrize("name", ["ljspeech", "espeak_tts"])
@pytest.mark.parametrize("option", sorted(SWEEPS))
def test_options_of_a_sweep_reach_its_commands(name: str, option: str) -> None:
    words = [option] if option == "--sizes" else [option, "41.5 43.5"]
    before, after = (dry(name, "sweep", *NEEDS[name], "--out", "/O", *more) for more in ([], words))
    assert before.lines != after.lines
    if option != "--sizes":
        assert all(any(f" {value}" in line for line in after.lines) for value in ("41.5", "43.5"))


UNREAD = ("speech", "mboshi", "lra")  # some of their options follow from prepared data


@pytest.mark.parametrize(
    "name", [name for name in NEEDS if name not in UNREAD and catalog.DATASETS[name].recipe.option_lists]
)
def test_options_of_the_command_line_have_the_last_word(name: str) -> None:
    """They stand behind those of the configuration, and a repeated list of options is all of its repetitions."""
    recipe = catalog.DATASETS[name].recipe
    for option in recipe.option_lists:
        settings, marks = f"--{option}-options", ("--first 1", "--second 2")
        need = ["--linearize", "/t.pt"] if option == "linearize" else []
        words = [*NEEDS[name], *need, "--out", "/O", settings, marks[0], settings, marks[1]]
        found = catalog.start(name, words).options(option)
        assert found[-4:] == ["--first", "1", "--second", "2"] or found[-6:-2] == ["--first", "1", "--second", "2"], (
            option
        )


def test_a_model_of_another_teacher_is_another_model() -> None:
    """Though the rows of the table are named alike."""
    one, other = (dry("multi30k", *NEEDS["multi30k"], "--linearize", f"/{name}.pt", "--out", "/O") for name in "ab")
    assert one.folders.keys() == other.folders.keys()
    model = "/O/leap_linearized-seed1/model"
    assert one.folders[model][0] != other.folders[model][0] and one.folders[model][1] != other.folders[model][1]
