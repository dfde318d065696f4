"""A study of one's own: attentions, seeds and options of any training of our models, described by a YAML file.

    train: DATA --arch leapformer_nmt_tiny --optimizer adam --lr 2e-3 --max-update 300     words of `leapformer train`
    attention: [softmax, softmax/leap/softmax]       plans, with options after colons as in luna:luna-length=32
    seeds: [1, 2]                                    1 by default
    options:                                         more options of the training, of which all combinations are trained
      dropout: [0.1, 0.3]
    prepare: [COMMAND, ...]                          commands of `leapformer` that make the data, run once and first
    scores:                                          by default the best validation loss
      test: [COMMAND, ..., score ...]                commands for each trained model

In commands, {out} is the folder of the study, and in those of `scores` {checkpoint} is the model, {folder} the folder
for their results, and {log} the output of the command before. The last one is `leapformer score`, which gets --json.

Folders are those of recipes, so `leapformer table OUT` compares the runs: OUT/RUN/model has the checkpoints and the
log of a training, OUT/RUN/SET/scores.json the scores.
"""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ..modules.plan import names_in
from ..support.errors import LeapformerError, suggestion
from ..support.files import locked_folder, read_json, write_json, write_text
from ..support.signature import signature
from .engine import DONE, Cell, Command, State, Study
from .recipes import configuration
from .recipes.facts import BLOCKS
from .recipes.options import whole
from .recipes.options import words as split
from .recipes.plans import Attention
from .training_command import PLAN_FLAGS, SET_BY_RUNS, Training, best_model, read_training
from .trainings import BEST

KEYS = ("train", "attention", "seeds", "options", "prepare", "scores", "title")
FIELDS = ("scores", "signatures", "n_instances")
SCORES, RECORD, PREPARE, VALID = "scores.json", "study.json", "prepare", "valid"
LOG = "train.log"
Commands = tuple[str, ...]


class Run(NamedTuple):
    """A training: its attention, seed, and the values of the options that the study varies."""

    attention: Attention
    seed: int
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of its folder."""
        values = "".join(f"-{name}_{value}" for name, value in self.options.items())
        return f"{self.attention.folder}{values}-seed{self.seed}".replace("/", "+")

    @property
    def record(self) -> str:
        """What `leapformer table` shows of the run."""
        return shlex.join(["--attention", self.attention.text, "--seed", str(self.seed), *_flags(self.options)])


@dataclass
class Sweep(Study):
    """All combinations of attentions, seeds and values of options, each trained and scored.

    check_command: raises LeapformerError unless words are a command of `leapformer` with options that it has.
    """

    out: Path
    train: str
    attention: Sequence[Attention]
    check_command: Callable[[Sequence[str]], None]
    seeds: Sequence[int] = (1,)
    options: Mapping[str, Sequence[str]] | None = None
    prepare: Commands = ()
    scores: Mapping[str, Commands] | None = None
    title: str = ""
    _checked: bool = field(default=False, init=False)  # whether the models can be built, which takes time to find out

    # ---------------------------------------------------------------------------------------------------------- checks
    def check(self) -> None:
        """Raise LeapformerError for a training, attention, option or command that cannot run."""
        for attention in self.attention:
            if attention.plan.count("/") >= len(self.training.blocks):
                blocks = ", ".join(self.training.blocks)
                raise LeapformerError(f"attention {attention.text}: the model has {blocks}; give a plan for each")
            for plan in set(attention.plan.split("/")):
                names_in(plan)
        held = {key: value for key, value in self._about().items() if self._has(key)}
        locked_folder(self.out, RECORD, held, "study", grows=True, write=False)
        if not self.runs():
            raise LeapformerError("attention, seeds and options name no run; give at least one of each")
        for name in self.options or {}:
            if f"--{name}" in (*SET_BY_RUNS, "--seed"):
                raise LeapformerError(f"options: {name} is not to be varied, each run has its own; leave it out")
        for command in self.prepare:
            self.check_command(self._words(command))
        for name, commands in (self.scores or {}).items():
            if not re.fullmatch(r"[\w.-]+", name) or name == "model":
                raise LeapformerError(f"scores: {name!r} cannot be the name of a folder of scores; choose another")
            places = dict.fromkeys(("checkpoint", "folder", "log"), "X")
            of_set = [self._words(command, **places) for command in commands]
            for words in of_set:
                self.check_command(words)
            if not of_set or of_set[-1][0] != "score":
                raise LeapformerError(f"scores: {name} does not end with the command score; add it")

    def _check_models(self, runs: Sequence[Run]) -> None:
        """Raise LeapformerError unless the model of each run can be built: each attention, and each value, once."""
        checked = set[tuple[str, str]]()
        for run in runs:
            new = {("attention", run.attention.text), *run.options.items()} - checked
            if new:
                checked |= new
                try:
                    self.training.build(self._options(run))
                except LeapformerError as error:
                    raise LeapformerError(f"{run.name}: {error}") from error

    def reserve(self) -> None:
        """Raise LeapformerError if the folder holds another study; more runs and more scores are the same one."""
        about = self._about()
        if (record := self.out / RECORD).is_file():
            before = read_json(record)
            write_json(record, {key: value for key, value in before.items() if key not in about or self._has(key)})
        locked_folder(self.out, RECORD, about, "study", signature(), grows=True)

    def _about(self) -> dict[str, Any]:
        about = {"train": self.train, PREPARE: list(self.prepare)}
        return about | {f"scores {name}": list(commands) for name, commands in (self.scores or {}).items()}

    def _has(self, key: str) -> bool:
        """Whether there is anything that a key of the record led to; what has come to nothing may be corrected."""
        word, _, name = key.partition(" ")
        made = {"train": "*/model/*.pt", PREPARE: f"{PREPARE}/{DONE}", "scores": f"*/{name}/{SCORES}"}[word]
        return any(self.out.glob(made))

    # ----------------------------------------------------------------------------------------------------------- cells
    @property
    def order(self) -> list[str]:
        """The attentions in the order of the table."""
        return [attention.text for attention in self.attention]

    @cached_property
    def training(self) -> Training:
        return read_training(self._filled(_split(self.train), {}))

    def runs(self) -> list[Run]:
        """All runs, seeds outermost, so that a first comparison comes soon."""
        options = self.options or {}
        return [
            Run(attention, seed, dict(zip(options, values, strict=True)))
            for seed in dict.fromkeys(self.seeds)
            for values in dict.fromkeys(product(*options.values()))
            for attention in dict.fromkeys(self.attention)
        ]

    def cells(self, state: State) -> list[Cell]:
        """The data first, then each training with its scores."""
        prepare = [Cell(PREPARE, tuple(self._steps(self.prepare, {})))] if self.prepare else []
        runs = self.runs()
        if not prepare or PREPARE in state.results:
            missing = [run for run in runs if f"{run.name}/model" not in state.results | state.failed]
            if missing and not self._checked:
                self._check_models(missing)
                self._checked = True
        needs = tuple(cell.name for cell in prepare)
        return prepare + [cell for run in runs for cell in (self._training(run, needs), *self._scores(run))]

    def _training(self, run: Run, needs: tuple[str, ...]) -> Cell:
        folder = self.out / run.name / "model"
        words = self.training.words(self._options(run), folder)
        step = Command(tuple(words), LOG, launched=True)
        note = partial(_note, f"{run.record}\n")
        return Cell(f"{run.name}/model", (step,), needs=needs, collect=note, title=f"training {run.name}")

    def _options(self, run: Run) -> list[str]:
        plans = dict(zip(BLOCKS, run.attention.blocks, strict=True))
        flags = [word for name in self.training.blocks for word in (PLAN_FLAGS[name], plans[name])]
        keep = [] if "--keep" in self.train else ["--no-epoch-checkpoints"]
        return [*flags, *keep, "--seed", str(run.seed), *_flags(run.options), *run.attention.options]

    def _scores(self, run: Run) -> Iterator[Cell]:
        checkpoint, needs = self.out / run.name / "model" / BEST, (f"{run.name}/model",)
        if not self.scores:
            name = f"{run.name}/{VALID}"
            collect = partial(_validation_loss, checkpoint)
            yield Cell(name, (), f"{name}/{SCORES}", collect, FIELDS, needs, title=f"scores of {run.name}")
        for test_set, commands in (self.scores or {}).items():
            name = f"{run.name}/{test_set}"
            folder = self.out / name
            *before, last = self._steps(commands, {"checkpoint": checkpoint, "folder": folder})
            options = ("--checkpoint", str(checkpoint), "--json", str(folder / SCORES))
            steps = (*before, Command((*last.words, *options), last.log))
            # The command writes the file of the result, complete or not at all.
            yield Cell(name, steps, f"{name}/{SCORES}", _read_scores, FIELDS, needs, title=f"{test_set} of {run.name}")

    # -------------------------------------------------------------------------------------------------------- commands
    def _steps(self, commands: Commands, places: Mapping[str, object]) -> Iterator[Command]:
        log = ""
        for number, command in enumerate(commands, 1):
            words = self._words(command, **places, **({"log": f"{places['folder']}/{log}"} if log and places else {}))
            log = f"{number}-{words[0]}.log"
            yield Command(tuple(words), log)

    def _words(self, command: str, **places: object) -> list[str]:
        """The words of a command of `leapformer`. Raises LeapformerError for an empty one and unknown places."""
        words = self._filled(_split(command), places)
        words = words[1:] if words[:1] == ["leapformer"] else words
        if not words:
            raise LeapformerError(f"{command!r} is no command of leapformer; `leapformer --help` shows all")
        return words

    def _filled(self, words: Sequence[str], more: Mapping[str, object]) -> list[str]:
        known = {"out": self.out, **more}

        def fill(match: re.Match[str]) -> str:
            if match[1] not in known:
                raise LeapformerError(
                    f"{match[0]} is not known here; choose from {', '.join(f'{{{n}}}' for n in known)}"
                )
            return str(known[match[1]])

        return [re.sub(r"\{(\w+)\}", fill, word) for word in words]


def _flags(options: Mapping[str, str]) -> list[str]:
    """Options as words; a flag is "" or "true", and left out if it is "false"."""
    given = {name: "" if value == "true" else value for name, value in options.items() if value != "false"}
    return configuration.flags(given)


def _split(text: str) -> list[str]:
    try:
        return split(text)
    except ArgumentTypeError as error:
        raise LeapformerError(str(error)) from error


def _note(record: str, folder: Path) -> None:
    """Note beside a trained model what it is, for `leapformer table`."""
    write_text(folder.parent / "options", record)


def _read_scores(folder: Path) -> Any:
    return read_json(folder / SCORES, FIELDS)


def _validation_loss(checkpoint: Path, folder: Path) -> dict[str, Any]:
    best = best_model(checkpoint.parent, LOG)
    model = best | {"signature": signature()}
    return {"scores": {"loss": best["valid_loss"]}, "signatures": {}, "n_instances": 0, "model": model}


# ---------------------------------------------------------------------------------------------------------------- files
def read_study(path: Path, out: Path, check_command: Callable[[Sequence[str]], None]) -> Sweep:
    """The study that a YAML file describes, with its results in `out`; for `check_command`, see `Sweep`.

    Raises LeapformerError for unknown or missing keys, and for values of another form.
    """
    if not path.is_file():
        raise LeapformerError(f"no {path}; check the path, `leapformer study --example` prints one")
    content: Any = configuration.read_yaml(path)
    if not isinstance(content, dict):
        raise LeapformerError(f"{path} is no study; give it the keys {', '.join(KEYS)}")
    try:
        return _study(content, out, check_command)
    except LeapformerError as error:
        raise LeapformerError(f"{path}: {error}") from error


def _study(content: Mapping[str, Any], out: Path, check_command: Callable[[Sequence[str]], None]) -> Sweep:
    for key in content:
        if key not in KEYS:
            raise LeapformerError(f"{key!r} is no key of a study; {suggestion(key, KEYS)}choose from {', '.join(KEYS)}")
    for key in ("train", "attention"):
        if not content.get(key):
            raise LeapformerError(f"{key} is missing; `leapformer study --example` prints a whole study")
    try:
        seeds = [whole(0)(seed) for seed in _list("seeds", content.get("seeds", ["1"]))]
    except ArgumentTypeError as error:
        raise LeapformerError(f"seeds: {error}") from error
    return Sweep(
        out,
        " ".join(_list("train", content["train"])),
        [Attention(text) for text in _list("attention", content["attention"])],
        check_command,
        seeds,
        {name.lstrip("-"): values for name, values in _lists("options", content.get("options")).items()},
        tuple(_list("prepare", content.get("prepare", []))),
        {name: tuple(commands) for name, commands in _lists("scores", content.get("scores")).items()},
        str(content.get("title", "")),
    )


def _list(key: str, value: Any) -> list[str]:
    """A value that is a list of texts, or one text."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise LeapformerError(f"{key}: {value!r} is neither text nor a list of texts; correct it")
    return values


def _lists(key: str, value: Any) -> dict[str, list[str]]:
    """A value that maps names to lists of texts."""
    if not isinstance(value or {}, dict):
        raise LeapformerError(f"{key}: {value!r} does not map names to values; correct it")
    return {name: _list(f"{key}: {name}", values) for name, values in (value or {}).items()}
