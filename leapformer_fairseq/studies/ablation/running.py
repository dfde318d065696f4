"""A run of an ablation: a training that can be interrupted and resumed.

FOLDER/train.log holds the output of all attempts; FOLDER/done the result of a finished run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ...models.averaging import describe_checkpoint
from ...support.errors import LeapformerError
from ...support.files import read_json, write_json
from ...support.signature import signature
from .. import trainings
from .search import Result

Watch = Callable[[str], None]  # receives the value of a validation, as text from the log
LOG, DONE = "train.log", "done"
BEST = "checkpoint_best.pt"


def finished(folder: Path) -> Result | None:
    """Return the result of the run in `folder`, None unless finished. Raises LeapformerError if it cannot be read."""
    path = folder / DONE
    if not path.is_file():
        return None
    names = [field.name for field in fields(Result)]
    values = read_json(path, names, "delete it, and the run is repeated")
    return Result(**{name: values[name] for name in names})


def complete(
    command: Sequence[str], folder: Path, measure: str, watch: Watch, threads: int | None = None
) -> Generator[trainings.Process, int, Result]:
    """Start or resume a training, as work of `trainings`; write its result to `folder` and return it.

    measure: the log's name of the value that validation minimises.
    threads: of the training; None for the user's setting.

    Raises LeapformerError with the reason if the training fails or leaves no validation loss.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    start = trainings.size_of(log)
    status = yield from train(command, log, measure, watch, threads)
    if status:
        raise trainings.failure(log, start, status)
    best: dict[str, Any] = describe_checkpoint(folder / BEST) if (folder / BEST).is_file() else {"valid_loss": None}
    if best["valid_loss"] is None or not math.isfinite(best["valid_loss"]):
        raise LeapformerError(f"no validation loss ({best['valid_loss']}) in {folder / BEST}; see {log}")
    result = Result(
        loss=best["valid_loss"],
        wps=trainings.speed(log, "wps"),
        epoch=best["epoch"],
        updates=best["updates"],
        parameters=best["parameters"],
        signature=signature(**({} if threads is None else {"threads": threads})),
    )
    write_json(folder / DONE, asdict(result))
    return result


def train(
    command: Sequence[str], log: Path, measure: str, watch: Watch, threads: int | None
) -> Generator[trainings.Process, int, int]:
    """Run `command`, append its output to `log`, and return its exit status."""

    def look(entry: dict[str, Any]) -> None:
        if measure in entry:
            watch(entry[measure])

    environment = {} if threads is None else trainings.environment(threads)
    return (yield trainings.Process(command, log, look, environment))
