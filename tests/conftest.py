"""The two tiers of tests, their order, one thread for each worker, and a fixed seed for every test."""

import gc
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from leapformer_fairseq import register
from leapformer_fairseq.attention.ops import cpu
from leapformer_fairseq.support import user_dir

from . import covering, made
from .composing import compose_quickly
from .patience import Patience

torch.set_num_threads(1)
compose_quickly()
# A loader that was left in the middle, as by a command that fails, waits so long for each of its workers.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.5
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the trainings that tests start, whose last digits depend on it
PATIENCE = Patience(900.0)  # the longest test of the full tier takes five minutes
COSTS = Path(__file__).with_name("costs.json")  # seconds of each file of tests, written by --costs

if user_dir.given():  # before the tests that run over the register are collected
    register()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the full tier: whole products of cases, and long runs")
    parser.addoption("--mechanism", help="only tests with this attention mechanism as a parameter")
    parser.addoption("--costs", action="store_true", help=f"write the seconds of each file to {COSTS.name}")


def pytest_configure(config: pytest.Config) -> None:
    covering.whole_products = config.getoption("--all")
    config.add_cleanup(made.begin())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for; order files by cost, so that no worker is left with a long one."""
    whole, mechanism = config.getoption("--all"), config.getoption("--mechanism")
    left_out = [
        item
        for item in items
        if (not whole and item.get_closest_marker("full")) or (mechanism and not _has(item, mechanism))
    ]
    if gone := {*left_out}:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in gone]
    costs = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.is_file() else {}
    items.sort(key=lambda item: -costs.get(_file_of(item.nodeid), 10.0))  # a new file may be a long one
    if mechanism:
        items.sort(key=lambda item: not _is_contract(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    PATIENCE.begin()
    try:
        return (yield)
    finally:
        PATIENCE.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With --maxfail, one promise of a --mechanism that is broken ends the run: it says best what is wrong."""
    report = yield
    options = item.config.option
    if report.failed and options.mechanism and options.maxfail and _is_contract(item):
        item.session.shouldfail = "a promise is broken"
    return report


def pytest_collection_finish() -> None:
    """Tests and modules stay to the end: the garbage collector need not look through them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--costs"):
        return
    seconds = Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[_file_of(report.nodeid)] += report.duration
    # Files of less than a second fill the gaps at the end, in any order.
    lines = {file: round(cost) for file, cost in sorted(seconds.items(), key=lambda one: -one[1])}
    COSTS.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def _has(item: pytest.Item, mechanism: str) -> bool:
    """Whether the name of a mechanism is, or is in, a parameter of a test."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(mechanism in re.split(r"[^\w-]+", repr(value)) for value in values)


def _is_contract(item: pytest.Item) -> bool:
    return _file_of(item.nodeid).endswith("test_contract.py")


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed writes down the stack of calls for each other device
    np.random.seed(0)


@pytest.fixture
def in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernels in C: PyTorch computes everything, as on a GPU."""
    monkeypatch.setenv(cpu.SWITCH, "0")


@pytest.fixture(autouse=True)
def no_log_into_the_past() -> None:
    """A command that a test runs in this process logs to that test's standard error, which is closed by now."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test leaves where pytest was started changes the tests after it."""
    start = request.config.invocation_params.dir
    before = set(start.glob("[!.]*"))  # .hypothesis is to stay
    yield
    left = set(start.glob("[!.]*")) - before
    assert not left, f"left behind: {', '.join(map(str, sorted(left)))}"


@pytest.fixture(scope="module")
def forked_trainings() -> Iterator[None]:
    """The trainings that a command starts, which a test calls in this process, are forks; see `forks`."""
    from . import forks

    with forks.forks():
        yield
