"""The engine that runs every study: trainings, measurements and what is made of them, from any state of their folder.

A study is a pure function from the results so far to the cells that are wanted, each with its work and the file that it
leaves. The engine asks it again after each cell that ends. So the next cells may depend on results, and a study that
was interrupted or killed is resumed by the same code that runs it.
"""

from __future__ import annotations

import json
import math
import shlex
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from ..support import files, user_dir
from ..support.errors import LeapformerError, first_line
from ..support.files import InUse, make_folder, owned, read_json, write_json, write_text
from ..support.processes import pool_of
from ..support.progress import Watch, unwatched
from . import trainings
from .launching import COMMANDS, Launcher, Losses, age_of, record, started_by, time_left

POLL_S = 0.1  # between two looks at processes, logs and calls
DONE = "done"
NOT_STARTED = "not started"
ERRORS = "error.log"  # in a cell's folder: the traceback of a function that failed
SHOWN = 20  # names in a message


@dataclass(frozen=True)
class Command:
    """A step that runs a program of this environment as a process.

    words:    the arguments of `program`.
    inline:   for a short command of `leapformer`: run in this process, and nothing is looked at until it has ended.
    log:      the file in the cell's folder to which the output of all attempts is appended.
    launched: for a training: started by the study's launcher, resumed if it dies, with its losses printed.
    longer:   the option for more updates, which is named if the loss of a launched training still falls at its end.
    threads:  by default one if cells run in parallel, else all cores or the user's OMP_NUM_THREADS.
    tell:     returns what a JSON entry of the log says about the cell, such as an accuracy, or "".
    """

    words: tuple[str, ...]
    log: str = "log"
    program: str = "leapformer"
    launched: bool = False
    inline: bool = False
    longer: str = ""
    threads: int | None = None
    tell: Callable[[dict[str, Any]], str] | None = None

    def __str__(self) -> str:
        return shlex.join(user_dir.typed(self.program, self.words))


@dataclass(frozen=True)
class Call:
    """A step that calls a function of a module, in this process or, with --jobs and unless `inline`, in another one.

    The value of a cell's last call is its result, unless the cell collects it.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    inline: bool = False

    def __str__(self) -> str:
        arguments = ", ".join(map(repr, self.arguments))
        return f"# {self.function.__module__}.{self.function.__qualname__}({arguments})"


@dataclass(frozen=True)
class Cell:
    """A unit of work, which is done as soon as its result is there. Nothing else says so.

    name:    unique in the study, for messages and --only.
    steps:   run one after the other; those that resume, such as trainings, go on where they were interrupted.
    result:  the file with the result, below the study's folder; its folder is the cell's, with the logs. It holds a
             JSON object if its name ends with .json or it has `fields`, else it is an empty mark, unless a step writes
             it. By default NAME/done. None for a cell that is run each time, such as a table of all that is there; its
             folder is the study's.
    collect: makes the content of the result, given the cell's folder, after the last step.
    fields:  keys that a JSON result must have.
    needs:   names of the cells that must be done before.
    some_of: names of cells that must have ended before, one of which must be done.
    inputs:  files that must exist, or be below the folder of a cell in `needs`, before any work of the study.
    records: what the options of folders, below the study's, must be; see `Study.lock_cells`.
    cores:   how many of --jobs it takes.
    alone:   no cell runs beside it, for measurements of time.
    vital:   its failure ends the study.
    tidy:    deletes from the cell's folder, once the result is there, what only resuming needs.
    title:   what it is called for the user; by default its name.
    whole:   whether a JSON result is complete, for one that its step writes as it grows.
    """

    name: str
    steps: tuple[Command | Call, ...]
    result: str | None = ""
    collect: Callable[[Path], Any] | None = None
    fields: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    some_of: tuple[str, ...] = ()
    inputs: tuple[Path, ...] = ()
    records: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1
    alone: bool = False
    vital: bool = False
    tidy: Callable[[Path], None] | None = None
    title: str = ""
    whole: Callable[[Any], bool] = lambda value: True

    def __str__(self) -> str:
        return self.title or self.name

    @property
    def before(self) -> tuple[str, ...]:
        """The names of all cells that come before."""
        return (*self.needs, *self.some_of)

    @property
    def kind(self) -> tuple[str, ...]:
        """The commands and functions of the steps; cells that share them are assumed to take about as long."""
        return tuple(
            step.function.__qualname__ if isinstance(step, Call) else " ".join((step.program, *step.words[:1]))
            for step in self.steps
        )

    @property
    def is_json(self) -> bool:
        return bool(self.fields) or (self.result or "").endswith(".json")

    def path(self, out: Path) -> Path:
        """The file of the result in a study's folder."""
        return out / (self.result or f"{self.name}/{DONE}")

    def folder(self, out: Path) -> Path:
        """The cell's folder."""
        return out if self.result is None else self.path(out).parent

    def is_done(self, out: Path) -> bool:
        return self.result is not None and self.path(out).is_file() and self.whole(self.read(out))

    def read(self, out: Path) -> Any:
        """The result, True for a mark, of a cell that is done. Raises LeapformerError if the file is damaged."""
        return read_json(self.path(out), self.fields) if self.is_json else True

    def check(self, value: Any, out: Path) -> None:
        """Raise LeapformerError for a value that cannot be the result."""
        if not self.is_json or self.is_done(out):
            return
        try:
            json.dumps(value)
        except TypeError as error:
            raise LeapformerError(f"{error}; the result goes to {self.path(out)}") from error
        if not isinstance(value, dict):
            raise LeapformerError(f"{value!r} cannot be the content of {self.path(out)}; return a dict")

    def write(self, out: Path, value: Any) -> None:
        """Write the result, complete or not at all, unless it is there."""
        if self.result is None or self.is_done(out):
            return
        path = self.path(out)
        if self.is_json:
            write_json(path, value)
        else:
            write_text(path, "")


@dataclass
class State:
    """What is known about a study: results by the cell's name, and why cells failed or were not started."""

    results: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Study(ABC):
    """A description of work for the engine, in the folder `out`.

    commands:   the file there that lists the commands that were started, as they are typed; "" for none.
    lock_cells: not this study but each cell locks its folders, so that commands with other options may share `out`. The
                folders in its `records` are this study's alone; a cell without records is also waited for if another
                process makes it.
    """

    out: Path
    commands: ClassVar[str] = COMMANDS
    lock_cells: ClassVar[bool] = False

    def check(self) -> None:  # noqa: B027
        """Raise LeapformerError for a wrong option or plan; called before any work, and before the folder is made."""

    def check_work(self) -> None:  # noqa: B027
        """Raise LeapformerError for missing data, and whatever takes time to check; called if there is work to do."""

    def reserve(self) -> None:  # noqa: B027
        """Note in the folder, which the engine has locked, whose it is. Raises LeapformerError if it is another's."""

    @abstractmethod
    def cells(self, state: State) -> Sequence[Cell]:
        """The cells that are wanted, done or not, in the order in which to start them; nothing but `state` counts."""

    def report(self, state: State) -> None:  # noqa: B027
        """Write tables and figures of the results so far; called at the start and whenever cells have ended."""


# ------------------------------------------------------------------------------------------------------------- planning
def planned(study: Study, state: State, only: Collection[str] = (), dry: bool = False) -> list[Cell]:
    """Read results into `state` until the study asks for no further cells; return those that are selected by `only`.

    Raises LeapformerError for a damaged result, two cells of one name, result or log, an unknown need, a cycle, a word
    that selects nothing, and, unless `dry`, a missing input of a cell that is selected and not done.
    """
    while True:
        cells = list(study.cells(state))
        _check_graph(cells)
        unread = [cell for cell in cells if cell.name not in state.results and cell.is_done(study.out)]
        if not unread:
            break
        state.results |= {cell.name: cell.read(study.out) for cell in unread}
    chosen = selected(cells, only)
    folders = {cell.name: cell.folder(study.out) for cell in cells}
    for cell in chosen:
        made = [folders[name] for name in cell.before]
        for path in cell.inputs if not dry and cell.name not in state.results else ():
            if not path.exists() and not any(path.is_relative_to(folder) for folder in made):
                raise LeapformerError(f"{cell.name}: no {path}, which it needs; check the path")
    return chosen


def _check_graph(cells: Sequence[Cell]) -> None:
    names = {cell.name for cell in cells}
    if name := _repeated(cell.name for cell in cells):
        raise LeapformerError(f"two cells are called {name}; give each its own name")
    if path := _repeated(cell.path(Path()) for cell in cells if cell.result is not None):
        raise LeapformerError(f"two cells write {path}; give each its own result")
    commands = [[step for step in cell.steps if isinstance(step, Command) and not step.inline] for cell in cells]
    logs = [{cell.folder(Path()) / step.log for step in of} for cell, of in zip(cells, commands, strict=True)]
    if path := _repeated(log for of_cell in logs for log in of_cell):
        raise LeapformerError(f"two cells write the log {path}; give each its own folder or log")
    left = {cell.name: set(cell.before) for cell in cells}
    for name, needs in left.items():
        if unknown := sorted(needs - names):
            raise LeapformerError(f"{name} needs {unknown[0]}, which is no cell of the study; check the name")
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    if left:
        raise LeapformerError(f"{', '.join(left)}: no order is possible, they need each other; remove one of the needs")


def _repeated(values: Iterable[Any]) -> Any:
    """The first value that was there before; None if all differ."""
    seen = set[Any]()
    return next((value for value in values if value in seen or seen.add(value)), None)  # type: ignore[func-returns-value]


def selected(cells: Sequence[Cell], only: Collection[str]) -> list[Cell]:
    """The cells that --only asks for, with all that they need; all cells if it asks for nothing.

    A word stands for the cell of this name or, if there is none, for those in this folder or, if there are none, for
    all cells whose names contain it. Raises LeapformerError if there are none of these, either.
    """
    if not only:
        return list(cells)
    needs = {cell.name: cell.before for cell in cells}
    if unknown := [word for word in only if not any(word in name for name in needs)]:
        names = [*list(needs)[:SHOWN], *(["..."] if len(needs) > SHOWN else [])]
        raise LeapformerError(f"--only {unknown[0]}: no cell has this in its name; choose from {', '.join(names)}")
    names = list[str]()
    for word in only:
        exact = [name for name in needs if name == word] or [name for name in needs if name.startswith(f"{word}/")]
        names += exact or [name for name in needs if word in name]
    for name in names:  # which grows by what is needed
        names += [need for need in needs[name] if need not in names]
    return [cell for cell in cells if cell.name in names]


def ready(cells: Sequence[Cell], state: State, running: Sequence[Cell], jobs: int) -> list[Cell]:
    """The cells to start now, beside those that run, so that at most `jobs` run."""
    active, started = list(running), list[Cell]()
    ended = {*state.results, *state.failed, *lost_cells(cells, state)}
    begun = {cell.name for cell in running}  # by name: a cell may be described otherwise since it began
    for cell in cells:
        waits = not state.results.keys() >= {*cell.needs} or not ended >= {*cell.some_of}
        if waits or cell.name in ended | begun:
            continue
        full = sum(other.cores for other in active) + cell.cores > jobs
        if active and (full or cell.alone or any(other.alone for other in active)):
            break  # nor is a later one started, or this would never be alone
        active.append(cell)
        started.append(cell)
    return started


def lost_cells(cells: Sequence[Cell], state: State) -> dict[str, str]:
    """Why cells cannot be started any more, by name: they need others that have failed or cannot be started."""
    lost = dict[str, str]()
    while True:
        before = len(lost)
        for cell in cells:
            if cell.name not in state.results | state.failed | lost:
                gone = state.failed | lost
                lacking = [need for need in cell.needs if need in gone]
                lacking += cell.some_of if gone.keys() >= {*cell.some_of} else ()
                if lacking:
                    lost[cell.name] = f"{NOT_STARTED}, it needs {lacking[0]}"
        if len(lost) == before:
            return lost


# -------------------------------------------------------------------------------------------------------------- running
class Engine:
    """Runs a study.

    say:      prints a line for the user: cells that start, losses of launched trainings, failures.
    call:     runs a command of `leapformer` in this process; raises LeapformerError if it fails.
    jobs:     how many cells may run in parallel, each with one thread.
    launcher: how launched trainings are started.
    only:     words that select cells, see `selected`.
    dry:      print what would be run, and write nothing.
    watch:    shows how many of the cells are done.
    """

    def __init__(
        self,
        study: Study,
        *,
        say: Callable[[str], None] = lambda line: None,
        call: Callable[[Sequence[str]], None] = lambda words: None,
        jobs: int = 1,
        launcher: Launcher | None = None,
        only: Collection[str] = (),
        dry: bool = False,
        watch: Watch = unwatched,
    ) -> None:
        self.study, self.jobs, self.launcher, self.only, self.dry = study, jobs, launcher or Launcher(), only, dry
        self._say, self._call, self._watch, self._stack = say, call, watch, ExitStack()
        self._pool: ProcessPoolExecutor | None = None  # started by the first call that needs it
        self._active = dict[str, tuple[Cell, Generator[None, None, Any], ExitStack]]()  # with the locks of its folder
        self._processes = dict[str, trainings.Running]()
        self._took = dict[tuple[str, ...], list[float]]()  # seconds of each cell that was completed here, by kind
        self._told = dict[str, str]()  # what the log of a running cell said last

    def run(self) -> State:
        """Run what is selected and not done, and return what is known at the end.

        The failure of a cell does not end the study, unless it is vital; cells that depend on it are not started, and
        `failed` has the reasons. An interrupt is passed on to all processes, then raised once they have ended.

        Raises LeapformerError for wrong options and plans, a failed vital cell, and results that cannot be written.
        """
        if self.jobs < 1:
            raise LeapformerError(f"--jobs {self.jobs}: give at least 1")
        self.study.check()
        state = State()
        cells = [cell for cell in planned(self.study, state, self.only, self.dry) if cell.name not in state.results]
        if self.dry:
            for cell in cells:
                self._say("\n".join([f"# {cell}", *map(self._typed, cell.steps), ""]))
            if not cells:
                self._say("nothing is left to do")
            return state
        if cells:
            self.study.check_work()
        lock = nullcontext(make_folder(self.study.out)) if self.study.lock_cells else owned(self.study.out)
        with lock, trainings.interruptible(), self._stack:
            self.study.reserve()
            try:
                self._run(state)
            except BaseException:
                for process in self._processes.values():  # all at once: each may take its time to save
                    process.interrupt()
                for process in self._processes.values():
                    process.end()
                for _, _, locks in self._active.values():
                    locks.close()
                raise
        return state

    def _run(self, state: State) -> None:
        before, tidied = -1, set[str]()
        while True:
            cells = planned(self.study, state, self.only)
            done = sum(cell.name in state.results for cell in cells)
            if before < 0:
                before = done
                for cell in cells:
                    self._skip(cell)
            for cell in cells:  # also what was killed before it was tidied
                if cell.tidy and cell.name in state.results and cell.name not in tidied:
                    cell.tidy(cell.folder(self.study.out))
                    tidied.add(cell.name)
            self.study.report(state)
            for cell in ready(cells, state, [cell for cell, *_ in self._active.values()], self.jobs):
                self._say(f"== {done} of {len(cells)} done{self._left(cells, state)}: {cell}")
                locks = ExitStack()
                self._active[cell.name] = cell, self._work(cell, locks), locks
            if not self._active:
                if done > before:
                    self._show(done, len(cells))
                state.failed |= lost_cells(cells, state)
                return
            self._show(done, len(cells))
            while not any([self._ended(name, state) for name in list(self._active)]):  # a list: look at all of them
                self._show(done, len(cells))
                time.sleep(POLL_S)

    def _left(self, cells: Iterable[Cell], state: State) -> str:
        """Words for the remaining time, or "" until a cell of each remaining kind has been completed.

        Preparing data in seconds says nothing about the time of a training. Cells that are run each time, such as
        tables, are left out.
        """
        ended = state.results | state.failed
        kinds = [cell.kind for cell in cells if cell.name not in ended and cell.result is not None]
        if not kinds or any(kind not in self._took for kind in kinds):
            return ""
        return time_left(sum(fmean(self._took[kind]) for kind in kinds) / self.jobs)

    def _skip(self, cell: Cell) -> bool:
        """Whether a cell is done, which is said."""
        if not cell.is_done(self.study.out):
            return False
        path = cell.path(self.study.out)
        self._say(f"== {path.parent if path.name == DONE else path} is finished, skipped")
        return True

    def _show(self, done: int, total: int) -> None:
        running = [f"{cell} {self._told.get(name, '')}".strip() for name, (cell, *_) in self._active.items()]
        self._watch(done, total, ", ".join(running))

    def _ended(self, name: str, state: State) -> bool:
        """Go on with a cell; whether it has ended."""
        cell, work, locks = self._active[name]
        try:
            next(work)
            return False
        except StopIteration as end:
            value, reason = end.value, ""
        except LeapformerError as error:
            value, reason = None, str(error)
        del self._active[name]
        with locks:
            if not reason:
                cell.write(self.study.out, value)  # if this fails, it would for the others, too
        if not reason:
            if cell.result is None:
                state.results[cell.name] = value
        else:
            state.failed[name] = reason
            if cell.vital:
                self.study.report(state)
                raise LeapformerError(f"{cell} failed: {reason}")
            self._say(f"{cell} failed: {reason}")
        return True

    def _work(self, cell: Cell, locks: ExitStack) -> Generator[None, None, Any]:
        """Lock a cell's folders, and run its steps; yield while one is running, return the result.

        Raises LeapformerError.
        """
        if self.study.lock_cells:
            yield from self._lock(cell, locks)
            if self._skip(cell):
                return None
        folder, value, began = make_folder(cell.folder(self.study.out)), None, time.monotonic()
        files.sweep(folder)  # what was half written when this cell was killed
        (folder / ERRORS).unlink(missing_ok=True)
        for step in cell.steps:
            if isinstance(step, Command):
                yield from self._complete(step, cell, folder)
                continue
            try:
                value = yield from self._called(step)
            except (LeapformerError, BrokenExecutor):
                raise
            except Exception as error:  # of a function that may be a user's: other cells go on
                log = folder / ERRORS
                write_text(log, "".join(traceback.format_exception(error)))
                raise LeapformerError(f"{first_line(error)} (see {log})") from error
        value = cell.collect(folder) if cell.collect else value
        cell.check(value, self.study.out)
        self._took.setdefault(cell.kind, []).append(time.monotonic() - began)
        return value

    def _called(self, step: Call) -> Generator[None, None, Any]:
        """The value of a function, in this process or another one."""
        if self.jobs == 1 or step.inline:
            return step.function(*step.arguments)
        future = self._workers().submit(step.function, *step.arguments)
        while not future.done():
            yield
        return future.result()

    def _lock(self, cell: Cell, shared: ExitStack) -> Generator[None, None, None]:
        """Lock the folders with records until this study ends, or a shared one as long as `shared`; yield meanwhile.

        Raises LeapformerError if another process has one with records, or if the records differ.
        """
        for name, options in cell.records.items():
            yield from self._own(self.study.out / name, self._stack, waits=False)
            trainings.reserve(self.study.out / name, options, "run")
        if not cell.records and cell.result is not None:
            yield from self._own(cell.folder(self.study.out), shared, waits=True)

    def _own(self, folder: Path, stack: ExitStack, *, waits: bool) -> Generator[None, None, None]:
        end = time.monotonic() + files.GRACE_S
        while True:
            try:
                stack.enter_context(owned(folder, grace_s=0))
                return
            except InUse:
                if time.monotonic() > end and not waits:
                    raise
                if time.monotonic() > end:
                    self._say(f"== {folder}: another process is creating what is needed here; waiting for it")
                    end = math.inf
            yield

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            pool = pool_of(self.jobs, f"--jobs {self.jobs}", "finished work is kept, and the same command goes on", 1)
            self._pool = self._stack.enter_context(pool)
        return self._pool

    def _typed(self, step: Command | Call) -> str:
        """A step as a user would type it: a launched training with all words before it."""
        if isinstance(step, Call) or not step.launched:
            return str(step)
        return shlex.join([*self.launcher.prefix(typed=True), *step.words, *user_dir.option()])

    def _complete(self, step: Command, cell: Cell, folder: Path) -> Generator[None, None, None]:
        """Run a command; a launched one is started again as long as each attempt leaves a new checkpoint."""
        if self.study.commands:
            record(self.study.out / self.study.commands, self._typed(step))
        if step.inline:
            self._call(step.words)
            return
        start = self.launcher.prefix() if step.launched else started_by(step.program)
        environment = trainings.environment(step.threads or (1 if self.jobs > 1 else None))
        log, last = folder / step.log, folder / trainings.LAST
        losses = Losses(step.words, lambda line: self._say(f"  {cell.name}: {line}")) if step.launched else None

        def watch(entry: dict[str, Any]) -> None:
            if losses:
                losses(entry)
            if step.tell and (text := step.tell(entry)):
                self._told[cell.name] = text

        for left in range(self.launcher.restarts if step.launched else 0, -1, -1):
            size, before = trainings.size_of(log), age_of(last)
            with trainings.uninterrupted():
                process = trainings.Running(trainings.Process([*start, *step.words], log, watch, environment))
                self._processes[cell.name] = process
            while (status := process.poll()) is None:
                yield
            del self._processes[cell.name]
            process.close()
            if not status:
                if losses and step.longer:
                    losses.end(step.longer)
                return
            error = trainings.failure(log, size, status)
            if not left or age_of(last) == before:  # it would die at the same place again
                raise error
            self._say(f"{cell.name} goes on from its last checkpoint, it died: {error}")
