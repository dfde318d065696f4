"""Protocols of Long Range Arena: files that say how every task and row is trained, each value with its source.

A protocol is a YAML file with `title`, `seeds`, `quirks`, `train` (options of `leapformer train` for all), `tasks` and
`rows` (options of each), and for tasks that are generated `corpus` (options of `leapformer corpus`). Of a row, `tasks`
has options that hold in some task only. What it does not have is that of its `base`, one of ours or a file beside it;
null takes a row or task of the base away, and `keep` names the rows of the base that stay.
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
LEAPFORMER, LUNA = "leapformer", "luna"  # those of the papers, with the models of each
BASELINE = "softmax"
INTERVALS = 20  # validations of a training
Options = Mapping[str, Any]


class Quirk(NamedTuple):
    """A flaw of released code: what it is, and the options that bring it back, in some tasks or rows only.

    A function as a value gets the options so far.
    """

    what: str
    options: Options | Mapping[str, Options]
    rows: str = ""  # their names begin with it


def _one_position_less(found: Options) -> int:
    """No room for the mark before a picture; of the benchmark's 1,024 pixels where the task does not say how many."""
    return int(found.get("max-positions", 1025)) - 1


def _one_pixel_less(found: Options) -> int:
    return int(found["max-positions"]) - 1


def _padded_mean(found: Options) -> str:
    """The mean of Y_P has no padding in it."""
    return "packed" if found.get("pooling") == "packed" else "padded-mean"


_TAKEN_BY_MARK = {"max-positions": _one_position_less, "longest": _one_pixel_less}
_PADDED = {"listops": 2048, "text": 4096, "retrieval": 4096, "pathfinder": 0, "image": 0}  # lengths of the release

#: beside those of the data, `prepare.QUIRKS`; options by task where they are not the same in all
QUIRKS = {
    "mark-replaces-last": Quirk(
        "the mark before a picture takes the place of its last pixel",
        {"pathfinder": _TAKEN_BY_MARK, "image": _TAKEN_BY_MARK},
    ),
    "first-dev-batches": Quirk(
        "the development score is of the first batches only",
        {
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
    """A line of the table: its title, options of all tasks, and of some."""

    title: str
    train: Options
    tasks: Mapping[str, Options] = field(default_factory=dict)


@dataclass(frozen=True)
class Protocol:
    """How tasks and rows are trained; see the module."""

    name: str
    title: str
    seeds: tuple[int, ...]
    quirks: tuple[str, ...]
    train: Options
    tasks: Mapping[str, Options]
    rows: Mapping[str, Row]
    corpus: Mapping[str, Options]

    def content(self) -> dict[str, Any]:
        """All of it, as `load` reads it from a file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def options(self, task: str, row: str, quirks: Sequence[str]) -> dict[str, Any]:
        """Options of `leapformer train`, later ones before earlier: of all, the task, the row, quirks."""
        found = {**self.train, **self.tasks[task], **self.rows[row].train, **self.rows[row].tasks.get(task, {})}
        for quirk in (QUIRKS[name] for name in quirks if name in QUIRKS):
            by_task = any(name in prepare.TASKS for name in quirk.options)
            if row.startswith(quirk.rows):
                for name, value in (quirk.options.get(task, {}) if by_task else quirk.options).items():
                    found[name] = value(found) if callable(value) else value
        updates = found["max-update"]
        found.setdefault("validate-interval-updates", max(1, updates // INTERVALS))
        if found.get("lr-scheduler") == "polynomial_decay":
            found.setdefault("total-num-update", updates)
        return found


def load(name: str) -> Protocol:
    """A protocol of ours by name, or one in a file. Raises LeapformerError for what cannot be read or is incomplete."""
    path = _path(name)
    try:
        found = _read(path)
        rows = {
            row: Row(about["title"], about["train"], about.get("tasks", {})) for row, about in found["rows"].items()
        }
        protocol = Protocol(
            found.get("name", path.stem),
            found["title"],
            tuple(found["seeds"]),
            tuple(found["quirks"]),
            found["train"],
            found["tasks"],
            rows,
            found.get("corpus", {}),
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
    """The rows that `leapformer bench lra` measures with the models of a paper; with LeaPformer's those of both."""
    return load(LUNA if paper == LUNA else "corrected").rows


def _read(path: Path) -> dict[str, Any]:
    """A protocol's file with what its base has."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    base = found.pop("base", None)
    if base is None:
        return found
    inherited, keep = _read(_path(base, path.parent)), found.pop("keep", None)
    if keep is not None:
        inherited["rows"] = {name: inherited["rows"][name] for name in keep}
    return _merged(inherited, found)


def _path(name: str, folder: Path = Path()) -> Path:
    return FOLDER / f"{name}.yaml" if name in NAMES else folder / name


def _merged(base: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for name, value in own.items():
        if isinstance(value, Mapping) and isinstance(found.get(name), Mapping):
            found[name] = _merged(found[name], value)
        elif value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


def check_quirks(names: Sequence[str]) -> None:
    """Raise LeapformerError for an unknown quirk."""
    known = {**prepare.QUIRKS, **QUIRKS}
    for name in names:
        if name not in known:
            raise LeapformerError(f"--quirks {name}: choose from {', '.join(known)}, or none")


def check_names(flag: str, names: Sequence[str], known: Iterable[str], protocol: Protocol) -> None:
    """Raise LeapformerError for a task or row that the protocol does not have."""
    for name in names:
        if name not in known:
            raise LeapformerError(f"--{flag} {name}: protocol {protocol.name} has {', '.join(known)}")


def data_quirks(task: str, quirks: Sequence[str]) -> list[str]:
    """Those of the quirks that change the data of a task."""
    return sorted(name for name in quirks if name in prepare.QUIRKS and task in prepare.QUIRKS[name].tasks)


def words(options: Options) -> list[str]:
    """Options as on a command line; true ones without a value, false ones not at all."""
    found = []
    for name, value in options.items():
        if value is not False and value is not None:
            found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return found
