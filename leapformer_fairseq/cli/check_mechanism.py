"""`leapformer check-mechanism`: your own attention mechanism against the tests that all of ours pass.

The tests are those of a checkout of the repository: one that the package is used from, or the current folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from .. import PLUGIN_DIR, register
from ..support import user_dir
from ..support.errors import LeapformerError, first_line, place_in
from ..support.progress import progress
from . import calls
from .list import WIDTH, uses

OPTIONS = """
folder FOLDER           a folder that registers mechanisms, as for --user-dir
--mechanism NAME        one of them (default: all)
--quick                 some tests of each kind instead of all, in less than a minute for one mechanism
"""
SUITES = ("attention", "modules", "models", "export/test_export.py", "simul/test_exported.py")
MOST = 5  # failures, after which the run ends; a broken promise, of test_contract.py, ends it at once
LONGEST = 300  # characters of a line that says why a test failed
STOPPED = r"^!+ (stopping after|a promise is broken)"  # pytest's line about a run that ended early
_FLAGS = ("-p", "no:cacheprovider", "-p", "no:flake8")


class Failure(NamedTuple):
    """A test that failed: its place, as pytest takes it, and the lines that say why."""

    place: str
    reason: list[str]


class Outcome(NamedTuple):
    """How many tests of a mechanism passed, those that failed, and the command that runs the rest; "": all were run."""

    passed: int
    failures: list[Failure]
    rest: str = ""


def run(folder: str, mechanism: str | None, quick: bool) -> int:
    """Print what the mechanisms support and how the tests end; 1 if one failed.

    Raises LeapformerError without tests, for a folder that cannot be imported, and for a mechanism that is not in it.
    """
    with user_dir.taken([user_dir.FLAG, folder]):
        register()
        names, tests = _names(folder, mechanism), _tests()
        return max([_check(name, tests, quick) for name in names])


def _check(name: str, tests: Path, quick: bool) -> int:
    """Print what a mechanism supports and how its tests end; 1 if one failed."""
    calls.say(name)
    try:
        lines = list(support(name))
    except LeapformerError:
        raise
    except Exception as error:
        where = place_in(Path(user_dir.given()), error)
        raise LeapformerError(f"{where}{name} cannot be built: {first_line(error)}") from error
    for line in lines:
        calls.say(line)
    outcome = test(name, tests, quick)
    calls.say(f"{outcome.passed} tests passed, {len(outcome.failures)} failed")
    for line in first_failure(outcome, tests):
        calls.say(line)
    if outcome.rest:
        calls.say(f"the run ended there, before the other tests; run all with: {outcome.rest}")
    calls.say("")
    return int(bool(outcome.failures))


def _names(folder: str, mechanism: str | None) -> list[str]:
    """The mechanisms that a folder registers, or the one that was asked for."""
    from ..attention import MECHANISMS

    package = Path(user_dir.given()).name
    names = [name for name, cls in MECHANISMS.items() if cls.__module__.partition(".")[0] == package]
    if not names:
        raise LeapformerError(f"{folder} registers no mechanism; let its __init__.py import a class with @register")
    if mechanism is not None and mechanism not in names:
        raise LeapformerError(f"--mechanism {mechanism}: {folder} registers {', '.join(names)}")
    return names if mechanism is None else [mechanism]


def _tests() -> Path:
    """The folder of tests in a checkout. Raises LeapformerError if there is none, or no pytest."""
    for checkout in (PLUGIN_DIR.parent, Path.cwd()):
        if (checkout / "tests" / "toys" / "__init__.py").is_file() and (checkout / PLUGIN_DIR.name).is_dir():
            break
    else:
        raise LeapformerError(
            f"the tests are not beside the package ({PLUGIN_DIR.parent}), since it is installed without them; repeat "
            "the command in the folder of a checkout of the repository, with the whole path of your own folder"
        )
    import hypothesis  # noqa: F401  (or the command says that it is missing)
    import pytest  # noqa: F401

    return checkout / "tests"


def support(name: str) -> Iterator[str]:
    """A table of what a mechanism with its default options supports, with the reasons where it does not."""
    for what, reason in {**uses(name), **_means(name)}.items():
        first, *rest = textwrap.wrap(reason or "", WIDTH - 45, break_on_hyphens=False) or [""]
        yield f"  {what:36} {'no' if reason else 'yes':3}  {first}".rstrip()
        yield from (" " * 44 + line for line in rest)


def _means(name: str) -> dict[str, str | None]:
    """Ways to compute a mechanism, and why it lacks them."""
    from ..attention import BLOCKS, Mechanism, build

    mechanism = build(name, 16, 2, block=BLOCKS[1] if BLOCKS[1] in _blocks(name) else None, input_dim=32)
    about, kind = mechanism.capabilities, type(mechanism)
    together = any(getattr(kind, method) is not getattr(Mechanism, method) for method in ("scan_", "_segment"))
    grows = "" if kind.fits_graphs() else "its state grows; override `loop_state` with one that graphs can hold"
    carries = "" if about.carry_width is None else "graphs do not hand a carry on to the next layer"
    waits = "" if about.incremental else "no decoder can write with it token by token"
    return {
        "many tokens at once": None if together else "token by token; derive from a base class, or override `scan_`",
        "`leapformer export`, as a decoder": waits or grows or carries or None,
        "a fused decoding step": None if mechanism.kernel() else "`kernel` gives none; `extend` decodes",
    }


def _blocks(name: str) -> tuple[str, ...]:
    from ..attention import find

    return find(name).capabilities.blocks


def test(name: str, tests: Path, quick: bool) -> Outcome:
    """Run the tests of all mechanisms for this one. Raises LeapformerError if they cannot be run."""
    suites = [str(tests / suite) for suite in SUITES]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report, progress(name, "%") as watch:
        command = [sys.executable, "-m", "pytest", "-v", *_FLAGS, "-n", "0", "--tb=short"]
        command += ["--mechanism", name, *([] if quick else ["--all"]), *suites]
        paths = [str(tests.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        process = subprocess.Popen(
            [*command, f"--maxfail={MOST}", f"--junitxml={report.name}"],
            cwd=tests.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output = ""
        for line in process.stdout or ():
            output += line
            if done := re.search(r"\[ *(\d+)%\]$", line):
                watch(int(done[1]), 100)
        if process.wait() not in (0, 1):
            reason = (_said(output) or [output.strip()])[0][-300:]
            raise LeapformerError(f"the tests cannot be run: {reason}; to see more, {_again(command, tests)}")
        outcome = _outcome(ElementTree.parse(report.name).getroot())
        return outcome._replace(rest=_again(command, tests)) if re.search(STOPPED, output, re.MULTILINE) else outcome


def _outcome(report: ElementTree.Element) -> Outcome:
    """What a report in pytest's JUnit format says."""
    passed, failures = 0, list[Failure]()
    for case in report.iter("testcase"):
        if (reason := next((part for part in case if part.tag in ("failure", "error")), None)) is not None:
            failures.append(Failure(_place(case), _said(reason.text or "") or [reason.get("message", "")]))
        elif case.find("skipped") is None:
            passed += 1
    return Outcome(passed, failures)


def _said(output: str) -> list[str]:
    """The lines of pytest's output that say what is wrong, the first with the last line of the user's folder."""
    lines = re.findall(r"^E +(?:Failed: |[\w.]*LeapformerError: )?(.*\S)", output, re.MULTILINE)
    name = Path(user_dir.given()).name
    if (
        lines
        and name
        and (places := re.findall(rf"\b({re.escape(name)}/\S+\.py):(\d+): in ", output.partition("\nE ")[0]))
    ):
        lines[0] = f"{places[-1][0]}, line {places[-1][1]}: {lines[0]}"
    return lines


def _place(case: ElementTree.Element) -> str:
    """tests/attention/test_forms.py::test_name[...], of the class name tests.attention.test_forms, or with a class."""
    folders, module, *classes = re.split(r"\.(?=test_|Test)", case.get("classname", ""))
    return "::".join([f"{folders.replace('.', '/')}/{module}.py", *classes, case.get("name", "")])


def first_failure(outcome: Outcome, tests: Path) -> Iterator[str]:
    """What the first failure says, in words, and the command that repeats it."""
    if not outcome.failures:
        return
    place, reason = outcome.failures[0]
    words = re.sub(r"\[.*", "", place.rpartition("::")[2]).removeprefix("test_").replace("_", " ")
    yield f"the first failure: {words}"
    yield from ("  " + re.sub(r"tensor\(.*", "tensor(...)", line)[:LONGEST] for line in reason[:6])
    yield "repeat it with: " + _again([sys.executable, "-m", "pytest", "-q", *_FLAGS[2:], "--all", place], tests)


def _again(command: Sequence[str], tests: Path) -> str:
    """What to type to run pytest as it was run here."""
    program, *words = command
    return f"cd {shlex.quote(str(tests.parent))}; {shlex.join(user_dir.typed(program, words))}"
