"""How the processes of trainings are started, what their logs say while they run, and the list of started commands."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
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
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # devices of GPU drivers
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

    def keep_batch(self, meant: int, options: Sequence[str], own: Sequence[str], flag: str) -> list[str]:
        """Options of fairseq with which a training keeps its batch, whatever the number of processes.

        A batch is max-tokens (or batch-size) x update-freq x processes. The update-freq in `options` is for `meant`
        processes; for others it is changed. One that the user gives, in `own`, the words of the option `flag`, stays.
        Without torchrun and SLURM, as many GPUs of this machine are used as can share the batch.

        Raises LeapformerError for a number of processes that cannot.
        """
        typed, world = value_of(own, "--update-freq"), value_of(options, "--distributed-world-size")
        frequencies = [int(number) for number in re.findall(r"\d+", value_of(options, "--update-freq") or "1")]
        shares = gcd(*(meant * frequency for frequency in frequencies))
        if self.name != "local":
            processes = self.processes * self.machines
        elif world and world.isdecimal():
            processes = int(world)
        else:
            most = max(1, 0 if "--cpu" in options else gpus())
            processes = max(count for count in range(1, most + 1) if typed or shares % count == 0)
        if not typed and shares % processes:
            fit = ", ".join(str(count) for count in range(1, shares + 1) if shares % count == 0)
            raise LeapformerError(
                f"{processes} processes cannot share the batch of {meant} with --update-freq "
                f"{','.join(map(str, frequencies))}; give a number of {fit}, or a batch of your own: {flag} "
                '"--max-tokens N --update-freq N"'
            )
        changed = typed is None and processes != meant
        words = ["--update-freq", ",".join(str(meant * f // processes) for f in frequencies)] if changed else []
        # Said to fairseq, too, which would take all GPUs of the machine on which the command is repeated.
        return [*words, *(["--distributed-world-size", str(processes)] if self.name == "local" and not world else [])]

    @property
    def options(self) -> list[str]:
        """The options of a recipe that select this launcher; none for the default."""
        if self.name == "local" and not self.restarts:
            return []
        numbers = {"--processes": self.processes, "--machines": self.machines, "--restarts": self.restarts}
        words = [word for flag, number in numbers.items() for word in (flag, str(number))]
        slurm = [f"--slurm-options={shlex.join(self.slurm_options)}"] if self.slurm_options else []
        return ["--launcher", self.name, *words, *slurm]

    def prefix(self, typed: bool = False) -> list[str]:
        """The words before `train`; if they are to be typed, programs have their names instead of their paths."""
        ours = ["leapformer"] if typed else list(trainings.PROGRAM)
        torchrun = ["torchrun"] if typed else [sys.executable, "-m", "torch.distributed.run"]
        program = [f"--nproc-per-node={self.processes}", "-m", trainings.PROGRAM[-1]]
        if self.name == "torchrun":
            return [*torchrun, "--standalone", *program]
        if self.name == "slurm":
            on_each = _ON_EACH_MACHINE.format(torchrun=shlex.join(torchrun))
            srun = ["srun", f"--nodes={self.machines}", "--ntasks-per-node=1", *self.slurm_options]
            return [*srun, "bash", "-c", on_each, "leapformer", *program]
        return ours


def gpus() -> int:
    """The number of GPUs that fairseq would use. PyTorch is imported to count them only if there is a driver."""
    if not any(map(os.path.exists, _DRIVERS)):
        return 0
    from torch.cuda import device_count

    return device_count()


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


def record(path: Path, line: str) -> None:
    """Add a command, as a user would type it, to a list of commands, unless it is there."""
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
        self._updates, self._epochs = (float(value_of(command, f"--max-{unit}") or 0) for unit in ("update", "epoch"))
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


def value_of(words: Sequence[str], flag: str) -> str | None:
    """The last value of an option in a command, which is the one that counts; None if it is missing."""
    value = None
    for word, after in pairwise([*words, ""]):
        value = after if word == flag else word.partition("=")[2] if word.startswith(f"{flag}=") else value
    return value
