"""Protocols of Long Range Arena: files that say how each task and row is trained, with a source for each value.

A protocol is a YAML file with `title`, `seeds`, `quirks`, `train` (options of `leapformer train` for all), `tasks` and
`rows` (options of each), and `corpus` (options of `leapformer corpus` for generated tasks). In a row, `tasks` has
options for some tasks only. A protocol inherits from its `base`, one of ours or a file beside it: null removes a row or
task of the base, and `keep` names the rows of the base to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...data.lra import prepare
from ...support.errors import LeapformerError

FOLDER = Path(__file__).with_name("protocols")
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
LEAPFORMER, LUNA = "leapformer", "luna"  # the papers' protocols
BASELINE = "softmax"
INTERVALS = 20  # validations per training, unless the protocol says otherwise
Options = Mapping[str, Any]


class Quirk(NamedTuple):
    """A flaw of released code.

    what:    a description.
    options: the options that reproduce it, for all tasks, or by task. A function computes the value from the options so
             far.
    rows:    it concerns only rows whose names begin with this.
    """

    what: str
    options: Options | Mapping[str, Options]
    rows: str = ""


def _one_position_less(options: Options) -> int:
    """No room for the mark before an image; by default for the benchmark's 1,024 pixels and the mark."""
    return int(options.get("max-positions", 1025)) - 1


def _one_pixel_less(options: Options) -> int:
    return int(options["max-positions"]) - 1


def _padded_mean(options: Options) -> str:
    """Pooling with padding, except for Luna's mean of Y_P, which contains none."""
    return "packed" if options.get("pooling") == "packed" else "padded-mean"


_TAKEN_BY_MARK = {"max-positions": _one_position_less, "longest": _one_pixel_less}
# lengths to which released code pads; images have one length
_PADDED = {"listops": 2048, "text": 4096, "retrieval": 4096, "pathfinder": 0, "image": 0}

#: quirks of training; those of the data are in `prepare.QUIRKS`
QUIRKS = {
    "mark-replaces-last": Quirk(
        "the mark before a picture takes the place of its last pixel",
        {"pathfinder": _TAKEN_BY_MARK, "image": _TAKEN_BY_MARK},
    ),
    "first-dev-batches": Quirk(
        "the development score is of the first batches only",
        {  # batches * their size
            "listops": {"valid-examples": 62 * 32},
            "pathfinder": {"valid-examples": 156 * 128},
            "retrieval": {"valid-examples": 300 * 16},
            "text": {"valid-examples": 200 * 32},
            "image": {"valid-examples": 20 * 256},
        },
    ),
    "softmax-recomputed": Quirk(
        "softmax alone runs its layers again in the backward pass", {"checkpoint-activations": True}, BASELINE
    ),
    "linformer-frozen": Quirk("Linformer's projection is not trained", {"freeze": "control_table"}, "linformer"),
    "padding-pooled": Quirk(
        "the mean over tokens counts padding as zeros, up to the longest sequence of the task",
        {task: {"pooling": _padded_mean, "padded-length": length} for task, length in _PADDED.items()},
    ),
}


@dataclass(frozen=True)
class Row:
    """A row of the table: its title, options for all tasks, and further options by task."""

    title: str
    train: Options
    tasks: Mapping[str, Options] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """A protocol, as described above."""

    name: str
    title: str
    seeds: tuple[int, ...]
    quirks: tuple[str, ...]
    train: Options
    tasks: Mapping[str, Options]
    rows: Mapping[str, Row]
    corpus: Mapping[str, Options]

    def content(self) -> dict[str, Any]:
        """The protocol as a dictionary, in the form that `load` reads from a file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def options(self, task: str, row: str, quirks: Sequence[str]) -> dict[str, Any]:
        """Options of `leapformer train`; the row overrides the task, which overrides all, and quirks override them."""
        options = {**self.train, **self.tasks[task], **self.rows[row].train, **self.rows[row].tasks.get(task, {})}
        for quirk in (QUIRKS[name] for name in quirks if name in QUIRKS):
            by_task = any(name in prepare.TASKS for name in quirk.options)
            if row.startswith(quirk.rows):
                for name, value in (quirk.options.get(task, {}) if by_task else quirk.options).items():
                    options[name] = value(options) if callable(value) else value
        updates = options["max-update"]
        options.setdefault("validate-interval-updates", max(1, updates // INTERVALS))
        if options.get("lr-scheduler") == "polynomial_decay":
            options.setdefault("total-num-update", updates)
        return options


def load(name: str) -> Protocol:
    """Load one of our protocols by name, or a file. Raises LeapformerError if it is unreadable or incomplete."""
    path = _path(name)
    try:
        content = _read(path)
        rows = {
            row: Row(about["title"], about["train"], about.get("tasks", {})) for row, about in content["rows"].items()
        }
        protocol = Protocol(
            content.get("name", path.stem),
            content["title"],
            tuple(content["seeds"]),
            tuple(content["quirks"]),
            content["train"],
            content["tasks"],
            rows,
            content.get("corpus", {}),
        )
    except OSError as error:
        raise LeapformerError(
            f"--protocol {name}: {path} cannot be read ({error.strerror}); choose from {', '.join(NAMES)}, or give a "
            "file like theirs"
        ) from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise LeapformerError(
            f"--protocol {path}: {type(error).__name__}: {' '.join(str(error).split())}; compare it with "
            f"{FOLDER / 'corrected.yaml'}"
        ) from error
    for task in protocol.tasks:
        if task not in prepare.TASKS:
            raise LeapformerError(f"--protocol {path}: unknown task {task!r}; choose from {', '.join(prepare.TASKS)}")
        if "max-update" not in {**protocol.train, **protocol.tasks[task]}:
            raise LeapformerError(f"--protocol {path}: {task} has no max-update; say how long it trains")
    check_quirks(protocol.quirks)
    return protocol


def timed_rows(paper: str) -> Mapping[str, Row]:
    """The rows that `leapformer bench lra` measures with the models of a paper; LeaPformer's has those of both."""
    return load(LUNA if paper == LUNA else "corrected").rows


def _read(path: Path) -> dict[str, Any]:
    """Read a protocol's file, merged with its base."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    base = content.pop("base", None)
    if base is None:
        return content
    inherited, keep = _read(_path(base, path.parent)), content.pop("keep", None)
    if keep is not None:
        inherited["rows"] = {name: inherited["rows"][name] for name in keep}
    return _merge(inherited, content)


def _path(name: str, folder: Path = Path()) -> Path:
    return FOLDER / f"{name}.yaml" if name in NAMES else folder / name


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `base`, overridden by `changes`, or removed by None; mappings are merged key by key."""
    merged = dict(base)
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = _merge(merged[name], value)
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = value
    return merged


def check_quirks(names: Sequence[str]) -> None:
    """Raise LeapformerError for an unknown quirk."""
    choices = {**prepare.QUIRKS, **QUIRKS}
    for name in names:
        if name not in choices:
            raise LeapformerError(f"--quirks {name}: choose from {', '.join(choices)}, or none")


def check_names(flag: str, names: Sequence[str], choices: Iterable[str], protocol: Protocol) -> None:
    """Raise LeapformerError for a task or row that the protocol does not have."""
    for name in names:
        if name not in choices:
            raise LeapformerError(f"--{flag} {name}: protocol {protocol.name} has {', '.join(choices)}")


def data_quirks(task: str, quirks: Sequence[str]) -> list[str]:
    """The quirks that change the data of a task."""
    return sorted(name for name in quirks if name in prepare.QUIRKS and task in prepare.QUIRKS[name].tasks)


def words(options: Options) -> list[str]:
    """Options as command-line words: True becomes a flag, False and None nothing."""
    line = []
    for name, value in options.items():
        if value is not False and value is not None:
            line += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return line
