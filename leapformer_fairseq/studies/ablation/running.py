"""One run of an ablation: a training that can be interrupted and resumed.

FOLDER/train.log has the output of all attempts; a finished run leaves its result in FOLDER/done.
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

Watch = Callable[[str], None]  # gets the value of the last validation, as it stands in the log
LOG, DONE = "train.log", "done"
BEST = "checkpoint_best.pt"


def finished(folder: Path) -> Result | None:
    """The result of the run in `folder` if it is finished. Raises LeapformerError when it cannot be read."""
    path = folder / DONE
    if not path.is_file():
        return None
    names = [field.name for field in fields(Result)]
    found = read_json(path, names, "delete it, and the run is repeated")
    return Result(**{name: found[name] for name in names})


def complete(
    command: Sequence[str], folder: Path, measure: str, watch: Watch, threads: int | None = None
) -> Generator[trainings.Process, int, Result]:
    """Start a training, or resume an interrupted one, as work of `trainings`; its result, which is left in `folder`.

    `measure` is the log's name for what validation minimises. `threads`: of the training, if not as the user has it.
    Raises LeapformerError with the reason when the training fails or leaves no validation loss.
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
