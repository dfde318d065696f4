"""How the processes of trainings are started, what their logs say while they run, and the list of started commands."""

from __future__ import annotations

import fcntl
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..support.errors import LeapformerError
from ..support.files import make_folder
from ..support.lines import read_lines
from . import trainings

COMMANDS = "commands.sh"
_HEADING = """\
# `leapformer train` is `fairseq-train --user-dir $(leapformer user-dir)`, and so are generate, validate, eval-lm and
# preprocess.
"""
# If the validation loss falls by a larger share in the last tenth of the updates, the training was too short: at this
# pace, twice the updates would reduce the loss by a tenth.
STILL_FALLS = 0.01
LAUNCHERS = ("local", "torchrun", "slurm")
# The script for each machine of a SLURM job; the first machine is the rendezvous, at torchrun's usual port.
_ON_EACH_MACHINE = (
    'exec {torchrun} --nnodes "$SLURM_NNODES" --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d '
    '--rdzv-endpoint "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29400" "$@"'
)


@dataclass(frozen=True)
class Launcher:
    """How to start the processes of a training: by fairseq, by torchrun on this machine, or by srun on several.

    restarts: how often to resume a training that dies, as long as each attempt leaves a new checkpoint.
    """

    name: str = "local"
    processes: int = 1  # on each machine
    machines: int = 1
    slurm_options: Sequence[str] = ()
    restarts: int = 0

    def checked(self) -> Self:
        """Itself. Raises LeapformerError for options of another launcher."""
        if self.name == "local" and self.processes > 1:
            raise LeapformerError(
                f"--processes {self.processes} needs --launcher torchrun or slurm; fairseq alone takes all GPUs"
            )
        if self.name != "slurm" and (self.machines > 1 or self.slurm_options):
            raise LeapformerError(f"--machines and --slurm-options need --launcher slurm, not {self.name}")
        return self

    def prefix(self) -> list[str]:
        """The words before `leapformer train`."""
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        program = [f"--nproc-per-node={self.processes}", "-m", trainings.PROGRAM[-1]]
        if self.name == "torchrun":
            return [*torchrun, "--standalone", *program]
        if self.name == "slurm":
            on_each = _ON_EACH_MACHINE.format(torchrun=shlex.join(torchrun))
            srun = ["srun", f"--nodes={self.machines}", "--ntasks-per-node=1", *self.slurm_options]
            return [*srun, "bash", "-c", on_each, "leapformer", *program]
        return list(trainings.PROGRAM)


def started_by(program: str) -> list[str]:
    """The words that start a program of this environment, even if that is not activated.

    Raises ModuleNotFoundError, which is explained as a missing package, if there is no such program.
    """
    if program == "leapformer":
        return list(trainings.PROGRAM)
    path = Path(sys.executable).with_name(program)
    if not path.is_file():
        raise ModuleNotFoundError(f"no {path}", name=program)
    return [str(path)]


def record(path: Path, command: Sequence[str]) -> None:
    """Add a command, as a user would type it, to a list of commands, unless it is there."""
    line = shlex.join(command)
    make_folder(path.parent)
    with path.open("a+", encoding="utf-8") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # other processes record their commands here, too
        lines = list(read_lines(path))
        if line not in lines:
            file.write(("" if lines else _HEADING) + line + "\n")


def age_of(checkpoint: Path) -> int:
    """The modification time of a file in nanoseconds; 0 if it does not exist."""
    return checkpoint.stat().st_mtime_ns if checkpoint.is_file() else 0


class Losses:
    """Prints the losses of a training run as they appear in its log, with the remaining time."""

    def __init__(self, command: Sequence[str], say: Callable[[str], None]) -> None:
        self._say = say
        self._updates, self._epochs = (_last(command, f"--max-{unit}") for unit in ("update", "epoch"))
        self._begin: tuple[float, float] | None = None
        self._valid: list[tuple[float, float]] = []  # updates and loss

    def __call__(self, entry: Mapping[str, Any]) -> None:
        if "num_updates" in entry and "loss" in entry:
            self._say(f"update {entry['num_updates']}: {_losses(entry, '')}{self._left(entry)}")
            return
        for name, updates in entry.items():
            subset = name.removesuffix("num_updates")
            if subset not in (name, "", "train_") and f"{subset}loss" in entry:
                self._say(f"update {updates}: valid {_losses(entry, subset)}")
                self._valid.append((float(updates), float(entry[f"{subset}loss"])))

    def end(self, more: str) -> None:
        """Print a warning if the validation loss was still falling fast; `more` is the option for longer training."""
        last = max((updates for updates, _ in self._valid), default=0.0)
        earlier = [(updates, loss) for updates, loss in self._valid if updates <= 0.9 * last]
        if not earlier:
            return
        before, best = (min(loss for _, loss in validations) for validations in (earlier, self._valid))
        # Validations may be further apart than a tenth of the updates, so the fall is scaled to that.
        fell = (1 - best / before) * 0.1 / (1 - earlier[-1][0] / last)
        if fell > STILL_FALLS:
            reached = self._updates and last >= self._updates
            longer = f"--max-update {2 * last:.0f}" if reached else f"--max-epoch {2 * self._epochs:.0f}"
            self._say(
                f"the validation loss still fell by {fell:.1%} in the last tenth of the training; more updates would "
                f'help, with another --out: {more} "{longer}"'
            )

    def _left(self, entry: Mapping[str, Any]) -> str:
        """Estimate the remaining time, by updates or epochs, whichever ends first; "" if it is not known."""
        shares = [float(entry["num_updates"]) / self._updates] if self._updates else []
        shares += [float(entry["update"]) / self._epochs] if self._epochs and "update" in entry else []
        if not shares:
            return ""
        now, share = time.monotonic(), max(shares)
        if self._begin is None:
            self._begin = now, share  # not 0: a resumed training starts later
        begun, first = self._begin
        if share <= first:
            return ""
        seconds = (now - begun) * max(0.0, 1 - share) / (share - first)
        return time_left(seconds)


def time_left(seconds: float) -> str:
    """Words for the remaining time, to be added to a line."""
    return f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"


def _losses(entry: Mapping[str, Any], subset: str) -> str:
    """The losses in an entry of the log; in training, only the first two."""
    titles = {
        "loss": "loss", "l1_loss": "L1", "ppl": "perplexity", "accuracy": "accuracy",
        "char_error": "character error %",
    }  # fmt: skip
    wanted = list(titles) if subset else ["loss", "l1_loss"]
    return ", ".join(f"{titles[name]} {entry[subset + name]}" for name in wanted if subset + name in entry)


def _last(command: Sequence[str], flag: str) -> float:
    """The last value of an option, which is the one that counts; 0 if it is missing."""
    places = [i for i, word in enumerate(command[:-1]) if word == flag]
    return float(command[places[-1] + 1]) if places else 0.0
