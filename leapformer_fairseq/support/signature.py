"""The signature of a result: which code, libraries and machine it came from, as sacreBLEU does for scores."""

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
    """What a result depends on besides its own options; None for what is not installed or cannot be known.

    `threads` are those of this process.
    """
    return {
        "leapformer_fairseq": __version__,
        "commit": _commit(PLUGIN_DIR),
        "python": platform.python_version(),
        **{name: _version(distribution) for name, distribution in LIBRARIES.items()},
        "cpu": _cpu(),
        "threads": _threads(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
    }


def signature(**options: object) -> str:
    """The environment, and `options` such as a seed, in one line: `leapformer_fairseq:0.1.0|commit:...|seed:1`.

    Give `threads` where another process than this one did what the result is of: its number, or None if unknown.
    """
    return "|".join(f"{name}:{value}" for name, value in {**environment(), **options}.items())


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    """The git commit of the code in `folder`, with "-dirty" after changes; None outside a checkout of it."""
    try:
        # a package installed below some other project's checkout is not tracked there
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
    return names[0] if names else platform.processor() or platform.machine()


def _threads() -> int:
    """Those of torch where it has been used: a signature is no reason to import it."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else os.cpu_count() or 1
