"""Whether the tests notice one-line mistakes: applies each mutant to a copy and runs the tests that concern it.

    bash scripts/mutants.sh [--only PATTERN] [--tier all] [--out FILE]

A mutant is an entry of a YAML file beside this one: `name`, `file` (in the package), `old` and `new` (the text before
and after, which differ in one line; `old` occurs once), `kind`, `batch`, and `tests` (files, folders or single tests).

A process that has imported PyTorch and fairseq, but not this package, forks for each mutant; the fork puts the copy
first on sys.path and in PYTHONPATH, so that commands started by tests import the mutant, too. The modification time of
a mutated file is unique: Python never takes the bytecode of another version for its own.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = "leapformer_fairseq"
FIELDS = {"name", "file", "old", "new", "kind", "tests", "batch"}
PATIENCE = 5.0  # a mutant that takes so many times as long as the tests without it hangs
STARTS = "tests/cli/test_main.py::TestSlowLibrariesAreImportedWhereTheyAreUsed"  # new interpreters
LEAST_S = 120.0  # no mutant is given less
NEW_YEAR = 1_000_000_000  # modification times of mutated files count from here


@dataclass(frozen=True)
class Mutant:
    """A mistake in one line. `name`: FOLDER/WHAT; `batch`: 1 before tests of whole kinds were written, then 2, ..."""

    name: str
    file: str
    old: str
    new: str
    kind: str
    tests: tuple[str, ...]
    batch: int = 1

    def applied(self, text: str) -> str:
        """The mutated file. Raises ValueError unless the mutant fits it and is still Python."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: the old text occurs {text.count(self.old)} times in {self.file}")
        mutated = text.replace(self.old, self.new)
        before, after = text.splitlines(), mutated.splitlines()
        if len(before) != len(after) or sum(a != b for a, b in zip(before, after, strict=True)) != 1:
            raise ValueError(f"{self.name}: old and new have to differ in one line")
        if self.file.endswith(".py"):
            ast.parse(mutated)
        return mutated


def load(folder: Path = HERE) -> list[Mutant]:
    """All mutants, in the order of the files. Raises ValueError for entries that are none."""
    mutants = list[Mutant]()
    for path in sorted(folder.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
            if not entry.keys() <= FIELDS or not FIELDS - {"batch"} <= entry.keys():
                raise ValueError(f"{path.name}: {entry.get('name')} has the fields {sorted(entry)}")
            mutants.append(Mutant(**{**entry, "tests": tuple(entry["tests"]), "name": f"{path.stem}/{entry['name']}"}))
    if twice := [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1]:
        raise ValueError(f"{twice[0]} occurs twice")
    return mutants


# --------------------------------------------------------------------------------------------------------------- copies
class Copy:
    """A copy of the files that git knows or does not ignore, in which one file at a time is mutated."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def mutate(self, mutant: Mutant) -> None:
        path = self.folder / PACKAGE / mutant.file
        path.write_text(mutant.applied(path.read_text(encoding="utf-8")), encoding="utf-8")
        self.count += 1
        os.utime(path, (NEW_YEAR + self.count, NEW_YEAR + self.count))

    def restore(self, mutant: Mutant) -> None:
        shutil.copy2(ROOT / PACKAGE / mutant.file, self.folder / PACKAGE / mutant.file)
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)  # examples that failed with this mutant


# ---------------------------------------------------------------------------------------------------------------- tests
class Recorder:
    """A plugin of pytest: which test failed first, how long each file took, and which copy was imported."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.seconds: dict[str, float] = {}
        self.ran = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration
        self.ran += report.when == "call"
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (collection)")


def run_tests(copy: Copy, tests: Sequence[str], options: Sequence[str], limit: float | None) -> dict[str, Any]:
    """Run pytest in a fork, in the copy: `exit` (None after `limit` seconds), `failed`, `seconds` by file, `ran`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=copy.folder.parent) as scratch:
        answer, output = Path(scratch, "answer.json"), Path(scratch, "output.txt")
        child = os.fork()
        if child == 0:
            _in_fork(copy.folder, Path(scratch), answer, output, [*options, *tests])
        ended, status = _waited(child, limit)
        found = json.loads(answer.read_text(encoding="utf-8")) if answer.is_file() else {}
        if ended and not found:
            raise SystemExit(f"pytest died ({status}) with {' '.join(tests)}:\n{output.read_text()[-3000:]}")
        tail = output.read_text(encoding="utf-8", errors="replace")[-3000:]
    took = time.monotonic() - began
    return {"exit": None, "failed": [], "seconds": {}, "ran": 0, **found, "output": tail, "took": took}


def _waited(child: int, limit: float | None) -> tuple[bool, int]:
    began = time.monotonic()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return True, os.waitstatus_to_exitcode(status)
        if limit is not None and time.monotonic() - began > limit:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # with all that the tests have started in its group
            os.waitpid(child, 0)
            return False, -signal.SIGKILL
        time.sleep(0.05)


def _in_fork(copy: Path, scratch: Path, answer: Path, output: Path, arguments: list[str]) -> NoReturn:
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, file, file)):
        os.dup2(source, number)
    (scratch / "t").mkdir()
    # Libraries of mutated kernels stay out of the user's cache; that of the others is compiled once.
    cache = str(copy.parent / "cache")
    os.environ.update(PYTHONPATH=str(copy), TMPDIR=str(scratch / "t"), OMP_NUM_THREADS="1", XDG_CACHE_HOME=cache)
    tempfile.tempdir = None
    os.chdir(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT), str(HERE)))]
    import pytest

    recorder, code = Recorder(), 3
    try:
        code = int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[recorder]))
        package = sys.modules.get(PACKAGE)
        if package is not None and not str(package.__file__).startswith(str(copy)):
            raise RuntimeError(f"{package.__file__} was imported")
    finally:
        result = {"exit": code, "failed": recorder.failed, "seconds": recorder.seconds, "ran": recorder.ran}
        if sys.exc_info()[0] is None:
            answer.write_text(json.dumps(result), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


# -------------------------------------------------------------------------------------------------------------- results
class Results:
    """The file of results, complete after each mutant."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {"control": {}, "mutants": {}}
        if path.is_file():
            self.content = json.loads(path.read_text(encoding="utf-8"))

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(self.path)


def control(results: Results, copies: list[Copy], mutants: Iterable[Mutant], options: Sequence[str]) -> None:
    """Run all tests concerned without a mutant, unless the results say that they passed. Exits where they fail."""
    known: dict[str, float] = results.content["control"]
    tests = sorted({test for mutant in mutants for test in mutant.tests} - known.keys())
    if tests:
        print(f"without a mutant: {len(tests)} files", flush=True)
    works = [partial(run_tests, tests=[one], options=options, limit=None) for one in tests]
    for place, found in in_forks(works, copies):
        if found is None or found["exit"] != 0:
            raise SystemExit(f"{tests[place]} fails without a mutant: {found}")
        known[tests[place]] = round(found["took"], 1)
        results.save()


def in_forks(works: Sequence[Callable[[Copy], Any]], copies: list[Copy]) -> Iterator[tuple[int, Any]]:
    """The place of each work and what it returns, or None if it failed; each in a fork that has a copy for itself."""
    left, active = deque(enumerate(works)), dict[int, tuple[int, Copy, Path]]()
    while left or active:
        while left and copies:
            (place, work), copy = left.popleft(), copies.pop()
            answer = copy.folder.with_suffix(".json")
            child = os.fork()
            if child == 0:
                try:
                    answer.write_text(json.dumps(work(copy)), encoding="utf-8")
                except BaseException as error:
                    print(error, file=sys.stderr, flush=True)
                    os._exit(1)
                os._exit(0)
            active[child] = place, copy, answer
        child, status = os.wait()
        place, copy, answer = active.pop(child)
        copy.count += 1
        copies.append(copy)
        yield place, None if status else json.loads(answer.read_text(encoding="utf-8"))


def judged(copy: Copy, mutant: Mutant, options: Sequence[str], limit: float) -> dict[str, Any]:
    """What became of a mutant: `result` (killed, survived or timeout), `by`, `seconds`, `tests`."""
    began = time.monotonic()
    copy.mutate(mutant)
    try:
        found = run_tests(copy, mutant.tests, ["-x", *options], limit)
    finally:
        copy.restore(mutant)
    # 4: pytest could not even import a conftest.py, which it can without the mutant.
    result = {None: "timeout", 0: "survived", 1: "killed", 2: "killed", 4: "killed"}.get(found["exit"])
    if result is None:
        raise SystemExit(f"{mutant.name}: pytest ended with {found['exit']}:\n{found['output']}")
    by = found["failed"][0] if found["failed"] else ""
    return {"result": result, "by": by, "seconds": round(time.monotonic() - began, 1), "tests": list(mutant.tests)}


def table(mutants: Sequence[Mutant], found: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of the mutants that were run, the counts, and the survivors."""
    shown = [mutant for mutant in mutants if mutant.name in found]
    lines = ["| mutant | kind | batch | result | seconds | by |", "| --- | --- | --- | --- | --- | --- |"]
    for mutant in shown:
        one = found[mutant.name]
        by = one["by"].partition("[")[0].removeprefix("tests/")
        lines.append(f"| {mutant.name} | {mutant.kind} | {mutant.batch} | {one['result']} | {one['seconds']} | {by} |")
    noticed = sum(found[mutant.name]["result"] != "survived" for mutant in shown)
    lines += ["", f"{noticed} of {len(shown)} mutants were noticed."]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------------------------------- main
def self_check(options: Sequence[str]) -> None:
    """That mutants are imported, by tests and by the commands that these start, and that no mutant is no failure."""
    broken = {
        "attention/masks.py": ("from __future__ import annotations", "tests/attention/test_registry.py"),
        "runtime/simul/text.py": ("from __future__ import annotations", "tests/simul/test_text.py"),
        "cli/user_dir.py": ("from __future__ import annotations", f"{STARTS}::test_user_dir_prints_one_line"),
    }
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder, "copy"))
        for file, (old, test) in broken.items():
            mutant = Mutant(file, file, old, f"{old}; raise ImportError('mutant')", "import", (test,))
            before = run_tests(copy, [test], ["-x", *options], None)
            after = judged(copy, mutant, options, 60.0)
            print(f"{file}: exit status {before['exit']} without, {after} with an error at import", flush=True)
            if before["exit"] != 0 or after["result"] != "killed":
                raise SystemExit(f"the tests of {file} do not run in the copy\n{before['output']}")


def warm_up() -> None:
    """Import what takes seconds, but nothing of this package."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import sacrebleu  # noqa: F401
    import torch

    torch.set_num_threads(1)
    ours = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    if ours:
        raise SystemExit(f"{ours[0]} was imported before the fork")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of mutants, as in 'agents/*'")
    parser.add_argument("--batch", type=int, help="mutants of this batch")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument(
        "--tier", choices=("default", "all"), default="default", help="which tests: all, or the default"
    )
    parser.add_argument("--tests", nargs="+", help="these tests instead of those that the mutants name")
    parser.add_argument("--without", metavar="PATTERN", help="leave these tests out, as in 'tests/test_every_*'")
    parser.add_argument("--lists", type=Path, default=HERE, metavar="DIR", help="where the mutants are listed")
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants.json", help="JSON; a table lies beside it")
    parser.add_argument("--survivors-of", type=Path, metavar="FILE", help="only mutants that survived in these results")
    parser.add_argument("--self-check", action="store_true", help="check that copies are what is tested, and end")
    args = parser.parse_args()
    options = ["--all"] if args.tier == "all" else []
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warm_up()
    if args.self_check:
        self_check(options)
        return
    mutants = [
        one for one in load(args.lists) if fnmatch.fnmatch(one.name, args.only) and args.batch in (None, one.batch)
    ]
    if args.survivors_of:
        before = json.loads(args.survivors_of.read_text(encoding="utf-8"))["mutants"]
        mutants = [one for one in mutants if before.get(one.name, {}).get("result") == "survived"]
    if args.tests:
        mutants = [Mutant(**{**vars(one), "tests": tuple(args.tests)}) for one in mutants]
    if args.without:
        rest = [tuple(t for t in one.tests if not fnmatch.fnmatch(t, args.without)) for one in mutants]
        mutants = [Mutant(**{**vars(one), "tests": tests}) for one, tests in zip(mutants, rest, strict=True) if tests]
    results = Results(args.out)
    waiting = [one for one in mutants if one.name not in results.content["mutants"]]
    for mutant in waiting:
        mutant.applied((ROOT / PACKAGE / mutant.file).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder, str(number))) for number in range(args.jobs if waiting else 0)]
        control(results, copies, waiting, options)
        known = results.content["control"]
        limits = [max(LEAST_S, PATIENCE * sum(known[test] for test in mutant.tests)) for mutant in waiting]
        works = [
            partial(judged, mutant=mutant, options=options, limit=limit)
            for mutant, limit in zip(waiting, limits, strict=True)
        ]
        for place, found in in_forks(works, copies):
            if found is None:  # what went wrong is printed, the same command tries again
                continue
            results.content["mutants"][waiting[place].name] = found
            results.save()
            print(f"{found['result']:9} {found['seconds']:6.1f} s  {waiting[place].name}  {found['by']}", flush=True)
    page = table(mutants, results.content["mutants"])
    args.out.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
