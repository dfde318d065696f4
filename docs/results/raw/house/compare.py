"""Attention of this checkout against that of an earlier revision with the old interface, in one process.

    git worktree add /tmp/before dc6feec
    OMP_NUM_THREADS=1 python docs/results/raw/house/compare.py /tmp/before

Both packages are imported beside each other and take turns; a process reports medians of CPU time (forward and
backward) or of wall time (steps). Where large tensors lie in memory differs between processes and changes these by up
to a fifth, so each row is measured in several fresh processes, in every second one with the other version first.
Reported are medians over processes, of the ratios too, and the range of the ratios: above 1 this checkout is faster.
Peak memory is the growth of the resident set in a fresh process, with a malloc that returns what is free. Writes
core.json and times.md beside this file.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
H, D, C = 8, 32, 256
WIDE = {
    "cosformer": {"cosformer_length": 20_000},
    "abc-linformer": {"abc_max_length": 20_000},
    "abc-pool": {"abc_pool_size": 625},
    "abc-global": {"abc_global_every": 512},
}
CASES = [
    *((name, "causal", 2048, 2048, 1) for name in ("relu", "elu", "cosformer", "leap", "rope")),
    *(("leap", "causal", n, n, max(1, 2048 // n)) for n in (128, 512, 8192, 16384)),
    *(("leap", "bidirectional", n, n, max(1, 2048 // n)) for n in (128, 512, 2048, 8192)),
    ("relu", "bidirectional", 8192, 8192, 1),
    *(("leap", "wait-k", t, s, 1) for t, s in ((256, 2000), (512, 4000), (1024, 8000))),
    *((name, "causal", 4096, 4096, 1) for name in ("abc-mlp", "abc-linformer", "abc-random", "abc-window", "luna")),
    ("abc-mlp", "causal", 16384, 16384, 1),
    ("abc-mlp", "bidirectional", 2048, 2048, 1),
    ("luna", "bidirectional", 2048, 2048, 1),
    ("softmax", "causal", 512, 512, 4),
]
STEPS = ("softmax", "relu", "elu", "cosformer", "leap", "rope", "abc-mlp", "abc-random", "luna")
SECONDS, PROCESSES = 1.0, 5
MEMORY = [
    ("leap", "causal", 16384),
    ("relu", "causal", 16384),
    ("abc-mlp", "causal", 16384),
    ("leap", "bidirectional", 8192),
]


def load(folder: Path, name: str) -> Any:
    """The attention package of a checkout, under a name of its own."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder / "leapformer_fairseq")]
    sys.modules[name] = package
    return importlib.import_module(f"{name}.attention")


def prefixes(package: Any, kind: str) -> dict[str, Any]:
    """How the visible keys are told to a package."""
    if hasattr(package, "PrefixMask"):
        return {"mask": {"causal": package.CAUSAL, "wait-k": package.PrefixMask(3, 8)}.get(kind)}
    return {"visible": {"causal": package.CAUSAL, "wait-k": package.Visible(3, 8)}.get(kind)}


def passes(packages: list[Any], name: str, kind: str, t: int, s: int, batch: int) -> list[Callable[[], float]]:
    """Seconds of a forward and backward pass, for each package."""
    torch.manual_seed(0)
    q, grad = torch.randn(batch, H, t, D), torch.randn(batch, H, t, D)
    k, v = (torch.randn(batch, H, s, D) for _ in range(2))
    built = [package.build(name, D, H, **WIDE.get(name, {})) for package in packages]
    built[1].load_state_dict(built[0].state_dict(), strict=False)

    def call(mechanism: Any, where: dict[str, Any]) -> float:
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        start = time.thread_time()
        mechanism(*inputs, **where).backward(grad)
        return time.thread_time() - start

    return [lambda m=m, p=p: call(m, prefixes(p, kind)) for m, p in zip(built, packages, strict=True)]


def steps(packages: list[Any], name: str, batch: int, keys: int) -> list[Callable[[], float]]:
    """Seconds of a decoding step of self-attention with its projections, for each package."""
    found = []
    for package in packages:
        torch.manual_seed(0)
        options = {**WIDE.get(name, {}), **({"luna_packed": "learned"} if name == "luna" else {})}
        mechanism = package.build(name, D, H, input_dim=C, block="decoder-self", **options).eval()
        projections = package.Projections(*(nn.Linear(C, C) for _ in range(4)))
        getattr(mechanism, "receive", getattr(mechanism, "adopt", None))(projections)
        x, k, inputs = torch.randn(batch, C), torch.randn(batch, H, keys, D), torch.randn(batch, keys, C)
        step = mechanism.step(projections)
        if hasattr(package, "TokenInfo"):
            tokens = replace(package.TokenInfo.whole(keys).without_lengths(), inputs=inputs)
            first = mechanism.init_state(batch, D, k, mask=package.CAUSAL)
            _, state = mechanism.scan(first, k, k, k, tokens, tokens)
            call: Callable[..., Any] = step
        else:
            tokens = replace(package.Rows.whole(keys).without_lengths(), inputs=inputs)
            _, state = mechanism.extend(None, k, k, k, tokens)
            call = step.extend

        def run(call: Callable[..., Any] = call, x: Any = x, state: Any = state) -> float:
            copy = state.fork()  # or the cache of softmax would grow with the measurement
            start = time.perf_counter()
            for _ in range(10):
                call(x, copy, keys + 1)
            return (time.perf_counter() - start) / 10

        found.append(run)
    return found


def medians(calls: list[Callable[[], float]], seconds: float) -> list[float]:
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 7:
        for call, found in zip(calls, times, strict=True):
            found.append(call())
    return [statistics.median(found) for found in times]


def peak(folder: str, name: str, kind: str, length: int) -> float:
    """MiB by which the resident set grows in a forward and backward pass, in a process of its own."""
    code = (
        "import sys, torch, importlib; sys.path.insert(0, sys.argv[1]); torch.set_num_threads(1)\n"
        "import compare; from pathlib import Path\n"
        "p = compare.load(Path(sys.argv[2]), 'measured')\n"
        "measure = importlib.import_module('measured.benchmarks.measure')\n"
        "name, kind, n = sys.argv[3], sys.argv[4], int(sys.argv[5])\n"
        "for size in (64, n):\n"
        "    m = p.build(name, compare.D, compare.H, **compare.WIDE.get(name, {}))\n"
        "    q, k, v = (torch.randn(1, compare.H, size, compare.D, requires_grad=True) for _ in range(3))\n"
        "    g = torch.randn_like(q)\n"
        "    with measure.peak_growth(torch.device('cpu')) as growth:\n"
        "        m(q, k, v, **compare.prefixes(p, kind)).backward(g)\n"
        "print(growth())\n"
    )
    return int(_python("-c", code, str(HERE), folder, name, kind, str(length), MALLOC_MMAP_THRESHOLD_="65536")) / 2**20


def _python(*arguments: str, **environment: str) -> str:
    """What a fresh Python prints."""
    command = [sys.executable, *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout


def _one_row(before: str, what: str, case: str, swapped: str) -> None:
    """Measure one row in this process and print the seconds before and after."""
    torch.set_num_threads(1)
    packages = [load(Path(before), "before"), load(ROOT, "after")]
    with torch.set_grad_enabled(what == "passes"):
        calls = (passes if what == "passes" else steps)(packages, *json.loads(case))
        found = medians(calls[::-1], SECONDS)[::-1] if swapped == "True" else medians(calls, SECONDS)
    sys.stdout.write(json.dumps(found))


def _row(before: str, what: str, case: tuple[Any, ...]) -> dict[str, Any]:
    found = [json.loads(_python(__file__, before, what, json.dumps(case), str(i % 2 == 1))) for i in range(PROCESSES)]
    unit, scale = ("forward and backward, ms", 1e3) if what == "passes" else ("decoding step, us", 1e6)
    if what == "passes":
        name, kind, t, s, _ = case
        label = f"{name}, {kind} " + (f"{t:,}" if t == s else f"{t:,}/{s:,}")
    else:
        label = f"{case[0]}, {case[1]} hypotheses, {case[2]} keys"
    old, new = (statistics.median(times) * scale for times in zip(*found, strict=True))
    ratios = sorted(old / new for old, new in found)
    row = {"what": unit, "case": label, "before": old, "after": new, "ratio": statistics.median(ratios)}
    sys.stderr.write(f"{row}\n")
    return {**row, "ratios": ratios}


def main(before: str) -> None:
    rows = [_row(before, "passes", case) for case in CASES]
    rows += [_row(before, "steps", (name, batch, 200)) for batch in (1, 5, 40) for name in STEPS]
    for name, kind, length in MEMORY:
        old, new = (peak(str(folder), name, kind, length) for folder in (before, ROOT))
        case = f"{name}, {kind} {length:,}"
        rows.append({"what": "peak memory, MiB", "case": case, "before": old, "after": new, "ratio": old / new})
    revisions = [
        subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True
        ).stdout.strip()
        for folder in (before, ROOT)
    ]
    about = {
        "before": revisions[0], "after": revisions[1], "torch": torch.__version__, "python": platform.python_version(),
        "threads": 1, "processor": _processor(), "cores": os.cpu_count(), "seconds": SECONDS, "processes": PROCESSES,
    }  # fmt: skip
    (HERE / "core.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    lines = ["", "| | before | after | before / after | range |", "| --- | --- | --- | --- | --- |"]
    parts = []
    for what in dict.fromkeys(row["what"] for row in rows):
        part = [
            f"| {r['case']} | {r['before']:.3g} | {r['after']:.3g} | {r['ratio']:.2f} | {_range(r)} |"
            for r in rows
            if r["what"] == what
        ]
        parts += [f"\n## {what[0].upper()}{what[1:]}", *lines, *part]
    signature = "|".join(f"{key}:{value}" for key, value in about.items())
    (HERE / "times.md").write_text("# The core before and after\n" + "\n".join(parts) + f"\n\n`{signature}`\n")


def _range(row: dict[str, Any]) -> str:
    return f"{row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}" if "ratios" in row else ""


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    _one_row(*sys.argv[1:]) if len(sys.argv) > 2 else main(sys.argv[1])
