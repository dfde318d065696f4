"""Few threads, so that parallel test workers do not compete, and a fixed seed for every test."""

import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the trainings that tests start, whose last digits depend on it

if os.environ.get("LEAPFORMER_TOYS"):  # before the tests that run over the register are collected
    from .toys import buckets, cubic, decay, delta, slots  # noqa: F401


# Minutes each: they begin first, so that no worker is left alone with one at the end.
LONGEST = (
    "e2e/test_quickstart",
    "recipes/",
    "e2e/",
    "test_toys",
    "test_distributed",
    "export/",
    "agents/",
    "attention/test_fuzz",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which parallel workers are to take them."""

    def place(item: pytest.Item) -> int:
        return next((at for at, part in enumerate(LONGEST) if f"tests/{part}" in item.nodeid), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)


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
    """The trainings that a command starts, which a test calls in this process, are forks; see `warm`."""
    from . import warm

    with warm.forks():
        yield
