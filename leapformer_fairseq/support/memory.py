"""Memory use of this process, as Linux reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

MIB = 2**20  # bytes


def resident_bytes(field: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int | None:
    """Return resident memory (VmRSS) or its peak so far (VmHWM) in bytes; None on systems other than Linux."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
