"""Signatures of results: code, libraries and machine, in the manner of sacreBLEU's signatures of scores."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import PLUGIN_DIR, __version__

# name in the signature -> distribution
LIBRARIES = {"torch": "torch", "fairseq": "fairseq-fixed", "simuleval": "simuleval", "sacrebleu": "sacrebleu"}


def environment() -> dict[str, str | int | None]:
    """The versions and machine that a result depends on, and the threads of this process; None for what is unknown."""
    return {
        "leapformer_fairseq": __version__,
        "commit": _commit(PLUGIN_DIR),
        "python": platform.python_version(),
        **{name: version_of(distribution) for name, distribution in LIBRARIES.items()},
        "cpu": _cpu(),
        "threads": _threads(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }


def signature(**options: object) -> str:
    """Return the environment and `options`, such as a seed, on one line: `leapformer_fairseq:0.1.0|commit:...|seed:1`.

    Pass `threads` (None if unknown) if another process computed the result.
    """
    return "|".join(f"{name}:{value}" for name, value in {**environment(), **options}.items())


def version_of(distribution: str) -> str | None:
    """The version of an installed library; None without it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    """The git commit of the code in `folder`, with "-dirty" if files were changed; None outside a checkout of it."""
    try:
        # A package installed inside another project's checkout must not report that project's commit.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        return _git(folder, "describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    vnni = any(line.startswith("flags") and "_vnni" in line for line in lines)  # instructions for products of 8 bits
    return f"{names[0]}{' with VNNI' * vnni}" if names else platform.processor() or platform.machine()


def _threads() -> int:
    torch = sys.modules.get("torch")  # not worth importing: without torch, no computation used its threads
    return torch.get_num_threads() if torch else os.cpu_count() or 1
