"""The package without extras, in an environment of its own: what it takes, and what then runs without PyTorch."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from leapformer_fairseq import PLUGIN_DIR, __version__

from ..exported import translation
from ..sources import copied_sources

pytestmark = pytest.mark.full

MOST = 12  # packages, ours and those that others bring included
PAGE = re.compile(r"open (http://127\.0\.0\.1:\d+/)")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel of this checkout, and what pip found that it needs."""
    if not (PLUGIN_DIR.parent / "setup.py").is_file():
        pytest.skip("the installed package has no setup.py beside it")
    source, folder = copied_sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("installation")
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run([sys.executable, *wheel], check=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=300)
    return folder


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program of the environment, away from the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(program: str, *words: object, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [installed / "venv" / "bin" / program, *map(str, words)]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=600
        )

    return run


def test_one_command_installs_what_exported_models_need(installed: Path, run, capsys, tmp_path: Path) -> None:
    (wheel,) = installed.glob("*.whl")
    site = next((installed / "venv" / "lib").glob("python*/site-packages"))

    def size() -> int:
        return sum(path.stat().st_size for path in site.rglob("*") if path.is_file())

    before, began = size(), time.perf_counter()
    done = run("pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", wheel)
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    listed = json.loads(run("pip", "list", "--format", "json", "--disable-pip-version-check").stdout)
    names = {package["name"] for package in listed} - {"pip", "setuptools", "wheel"}
    with capsys.disabled():
        print(f"\n{len(names)} packages, {seconds:.0f} s, {(size() - before) / 1e6:.0f} MB: {', '.join(sorted(names))}")
    assert "torch" not in names and len(names) <= MOST

    # What needs no PyTorch, and what says that it does.
    assert run("leapformer", "--version").stdout == f"leapformer {__version__}\n"
    assert "linearize" in run("leapformer", "--help").stdout
    assert "--json" in run("leapformer", "list", "--help").stdout
    model = site / "leapformer_fairseq" / "runtime" / "demo" / "model"
    checkpoint = ["--checkpoint", "a.pt", "--data-root", "."]
    for words in (["list"], ["train", "data"], ["stream", model.with_name("example.flac"), *checkpoint]):
        done = run("leapformer", *words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert re.search(r"the package \w+ is not installed; pip install 'leapformer-fairseq\[train\]'", done.stderr)

    demo = run("leapformer", "demo")
    assert demo.returncode == 0 and "Reference: " in demo.stdout, demo.stderr
    lines = run("python", "-m", "leapformer_fairseq.runtime", translation().exported, text="w1 w2\n\n")
    assert lines.returncode == 0 and lines.stdout.count("\n") == 2, lines.stderr
    page = [installed / "venv/bin/leapformer", "serve", "--checkpoint", model, "--port", "0", "--no-talks"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "PYTHONPATH"):
        environment.pop(name, None)
    with subprocess.Popen(page, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as process:
        assert process.stdout is not None
        try:
            found = next(found for line in process.stdout if (found := PAGE.search(line)))
            with urlopen(found[1], timeout=60) as answer:
                assert b"<html" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
