"""A process that is killed ends the command that waits for it, wherever the package has processes."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import leapformer_fairseq
from leapformer_fairseq.data.lra import pathfinder
from leapformer_fairseq.data.speech import mapper
from leapformer_fairseq.studies.benchmarks.measure import in_fresh_process
from leapformer_fairseq.support.errors import LeapformerError

CODE = Path(leapformer_fairseq.__file__).parent


def dies(number: int, _: int = 0) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuses(number: int) -> int:
    raise LeapformerError(f"{number} is refused")


def mapped(function):
    with mapper(2) as run:
        return list(run(function, range(40)))


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: mapped(dies), "a process of --workers 2 was killed, perhaps out of memory; finished work is kept"),
        pytest.param(
            lambda: list(pathfinder._in_processes(dies, range(8), range(8), 2)),
            "--workers 2 was killed.* are kept",
            marks=pytest.mark.full,
        ),
        (lambda: in_fresh_process(dies, 3), "a process of dies was killed"),
    ],
    ids=["prepare", "pathfinder", "bench"],
)
def test_a_killed_process_ends_the_command(work, said):
    began = time.monotonic()
    with pytest.raises(LeapformerError, match=said) as error:
        work()
    assert "\n" not in str(error.value) and time.monotonic() - began < 60


@pytest.mark.full
def test_an_error_of_a_process_is_told_as_it_is():
    with pytest.raises(LeapformerError, match=r"^0 is refused$"):
        mapped(refuses)


def test_results_are_in_order():
    assert mapped(abs) == list(range(40))


def begins(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(100)


SPAWNED = "with pool_of(2, 'x', 'y') as pool: [pool.submit(begins, FOLDER) for _ in range(2)]; time.sleep(100)"
FORKED = "pool = Pool(2); [pool.apply_async(begins, (FOLDER,)) for _ in range(2)]; time.sleep(100)"


@pytest.mark.full
@pytest.mark.parametrize("kind", [SPAWNED, FORKED], ids=["spawned", "forked"])
def test_processes_end_with_a_killed_command(kind: str, tmp_path: Path) -> None:
    imports = "import time; from tests.support.test_processes import begins"
    imports += "; from leapformer_fairseq.support.processes import Pool, pool_of"
    code = f"{imports}\nFOLDER = {str(tmp_path)!r}\nif __name__ == '__main__':\n    {kind}"
    with subprocess.Popen([sys.executable, "-c", code], cwd=CODE.parent) as command:
        assert within(60, lambda: len(list(tmp_path.iterdir())) == 2)
        command.kill()
    assert within(20, lambda: not any(Path("/proc", path.name).is_dir() for path in tmp_path.iterdir()))


def within(seconds: float, true: Callable[[], bool]) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def test_there_is_no_other_pool():
    for path in CODE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and str(path.relative_to(CODE)) != "support/processes.py":
                called = ast.unparse(node.func).rpartition(".")[2]
                module = path.parts[-2:] != ("bounded", "placed.py")  # pooling of positions
                assert called not in ("Pool", "ProcessPoolExecutor") or not module, path
