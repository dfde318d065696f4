"""Runs the commands of recipes: records, logs and monitors them, and skips those that have finished.

A finished step leaves a file DIR/done. OUT/commands.sh lists every command that was started, as a user would type it.
"""

from __future__ import annotations

import fcntl
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ...support.files import owned
from ...support.lines import read_lines
from .. import trainings
from ..trainings import Work

DONE, COMMANDS = "done", "commands.sh"
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


class Shell:
    """Runs the commands of a recipe whose results are in `out`.

    say:  prints a line for the user.
    call: runs a short `leapformer` command in this process.
    dry:  only print the commands.
    """

    def __init__(
        self,
        out: Path,
        say: Callable[[str], None],
        call: Callable[[Sequence[str]], None],
        dry: bool = False,
        launcher: Launcher | None = None,
    ) -> None:
        self.out, self.dry, self.launcher = out, dry, launcher or Launcher()
        self._say, self._call = say, call
        self._start = time.monotonic()
        self._threads: int | None = None

    def say(self, text: str) -> None:
        """Print the elapsed time and what happens next."""
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        self._say(f"== [{minutes}m{seconds}s] {text}")

    def run(self, *works: Work, at_once: int = 1, threads: int | None = None) -> None:
        """Run works, at most `at_once` in parallel, with one thread each if more than one; an exception ends all."""
        at_once = min(at_once, len(works))
        self._threads = 1 if at_once > 1 else threads
        trainings.run_all(works, max(1, at_once))

    # ------------------------------------------------------------------------------------------------------- commands
    def leapformer(self, *words: object) -> Work:
        """Run one of our short commands in this process."""
        if self._record(["leapformer", *map(str, words)]):
            self._call([str(word) for word in words])
        return
        yield  # makes this a generator, as a Work has to be

    def logged(self, log: Path, *words: object, program: str = "leapformer", threads: int | None = None) -> Work:
        """Run a long command with its output in a file. Raises LeapformerError if it fails."""
        # Programs of this environment, even if it is not activated.
        start = [*trainings.PROGRAM] if program == "leapformer" else [str(Path(sys.executable).with_name(program))]
        if self._record([program, *map(str, words)]):
            if not Path(start[0]).is_file():
                raise ModuleNotFoundError(f"no {start[0]}", name=program)  # explained as a missing package
            yield from self._complete([*start, *map(str, words)], log, lambda entry: None, threads)

    def train(self, name: str, data: Path, save: Path, *words: str, more: str = "--train-options") -> Work:
        """Train with the options that all recipes share; resume from the last checkpoint, if there is one.

        Losses are printed as they arrive, with the `name` of the run, and a warning at the end if training was too
        short. `more` is the recipe's option for a longer training, "" if it has none. Raises LeapformerError if
        training fails more often than the launcher restarts it.
        """
        options = ["--num-workers", "1", "--required-batch-size-multiple", "1"]
        options += ["--skip-invalid-size-inputs-valid-test", "--log-format", "json"]
        command = ["train", str(data), "--save-dir", str(save), *options, *words]
        if not self._record(["leapformer", *command]):
            return
        for left in range(self.launcher.restarts, -1, -1):
            before = _age(save / trainings.LAST)
            watch = Losses(command, lambda line: self._say(f"  {name}: {line}"))
            try:
                yield from self._complete([*self.launcher.prefix(), *command], save / "train.log", watch)
                if more:
                    watch.end(more)
                return
            except LeapformerError as error:
                if not left or _age(save / trainings.LAST) == before:  # it would die at the same place again
                    raise
                self.say(f"{name} goes on from its last checkpoint, it died: {error}")

    def once(self, folder: Path, *works: Work) -> Work:
        """Run works unless this or another process has finished them; waits while another process runs them."""
        if self.dry:
            for work in works:
                yield from work
            return
        with owned(folder, waits=True):
            if (folder / DONE).is_file():
                self.say(f"{folder} is finished, skipped")
                return
            for work in works:
                yield from work
            (folder / DONE).touch()

    def _complete(self, command: Sequence[str], log: Path, watch: trainings.Watch, threads: int | None = None) -> Work:
        start, threads = trainings.size_of(log), threads or self._threads
        status = yield trainings.Process(command, log, watch, trainings.environment(threads))
        if status:
            raise trainings.failure(log, start, status)

    def _record(self, command: Sequence[str]) -> bool:
        """Record a command, or print it in a dry run; return whether to run it."""
        line = shlex.join(command)
        if self.dry:
            self._say(line)
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            with (self.out / COMMANDS).open("a+", encoding="utf-8") as file:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)  # other processes record their runs here, too
                lines = list(read_lines(self.out / COMMANDS))
                if line not in lines:
                    file.write(("" if lines else _HEADING) + line + "\n")
        return not self.dry

    # -------------------------------------------------------------------------------------------------------- folders
    @contextmanager
    def folder(self, folder: Path, record: Sequence[str]) -> Iterator[None]:
        """Lock the folder of a run with the options `record` for this process; see `trainings.locked`."""
        if self.dry:
            yield
            return
        with trainings.locked(folder, " ".join(record), "run"):
            yield

    def need(self, folder: Path, step: str) -> None:
        """Raise LeapformerError unless the step that writes `folder`/done is finished."""
        if not (self.dry or (folder / DONE).is_file()):
            raise LeapformerError(f"{folder} is not finished; run the step {step} first")


def _age(checkpoint: Path) -> int:
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
