"""Runs the commands of recipes: records, logs and monitors them, and skips those that have finished.

A finished step leaves a file DIR/done. OUT/commands.sh lists every command that was started, as a user would type it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.files import owned
from .. import trainings
from ..launching import COMMANDS, Launcher, Losses, age_of, record, started_by
from ..trainings import Work

DONE = "done"


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
        if self._record([program, *map(str, words)]):
            yield from self._complete([*started_by(program), *map(str, words)], log, lambda entry: None, threads)

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
            before = age_of(save / trainings.LAST)
            watch = Losses(command, lambda line: self._say(f"  {name}: {line}"))
            try:
                yield from self._complete([*self.launcher.prefix(), *command], save / "train.log", watch)
                if more:
                    watch.end(more)
                return
            except LeapformerError as error:
                if not left or age_of(save / trainings.LAST) == before:  # it would die at the same place again
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
        if self.dry:
            self._say(shlex.join(command))
        else:
            record(self.out / COMMANDS, command)
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
