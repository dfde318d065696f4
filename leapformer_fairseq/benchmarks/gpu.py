"""Checks and times everything on a GPU within nine minutes, so that the first one at hand gives results at once.

Checks: every mechanism, mask, precision and execution, outputs and gradients, against float64 on the same device, by
FlashAttention's rule: at most twice the error of plain torch at the same precision, and a floor (see `gpu_checks`);
decoding token by token against all tokens at once; that nothing waits for the GPU; memory that is linear in length.

Times: medians of calls that take turns in one process, wall time on a GPU, the thread's CPU time on a CPU, after a
warm-up. Ratio = time of SDPA (training: of softmax) / time of ours. A decoding step is that of one attention block with
its projections over a state, "sdpa" over a preallocated KV cache; "graph" is a CUDA graph of it. A training step is
forward and backward pass and AdamW of a stack of pre-norm layers under bfloat16 autocast. The bounds between
implementations are varied one at a time.

What fails is a row with its error. The most important things come first; what there was no time for is listed. The work
is done in a process of its own: if that dies, or hangs in a case, another one goes on after this case.

Needs torch and `leapformer_fairseq.attention` alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from .. import PLUGIN_DIR
from ..attention.ops import dispatch
from ..errors import LeapformerError
from ..files import made_folder, write_json, write_text
from ..signature import environment
from . import gpu_checks, gpu_page, gpu_times, measure
from .gpu_cases import FAST, FULL, Task, one_line

BUDGET = 520.0  # seconds
LIMIT = 90.0  # seconds of one case, at most
GRACE = 8.0  # seconds over the budget that a case may take to end
LOST = 3  # exit status of a process that cannot use its GPU any more
OUT = PLUGIN_DIR.parent / "docs" / "results" / "gpu"

Message = dict[str, Any]


def tasks(device: torch.device, fast: bool) -> list[Task]:
    """All cases, the most important first. Making the list uses no GPU."""
    sizes = FAST if fast else FULL
    return gpu_checks.tasks(device, sizes) + gpu_times.tasks(device, sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The status is 1 if a check failed, 2 if nothing could be done."""
    args = _parser().parse_args(arguments)
    if args.worker is not None:
        return _worker(args)
    try:
        folder = made_folder(args.out)
        if args.device.startswith("cuda") and not torch.cuda.is_available():
            raise LeapformerError("torch sees no GPU here; give --device cpu to try this command without one")
        found = collect(args, folder)
        return 1 if found["failed"] or not found["passed"] else 0
    except LeapformerError as error:
        _say(f"leapformer: error: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu.sh", description="check and time everything on a GPU")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu")
    parser.add_argument("--fast", action="store_true", help="tiny sizes: to try this command, not to measure")
    parser.add_argument("--out", metavar="DIR", default=str(OUT), help=f"for gpu.json and gpu.md (default: {OUT})")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS", help=f"default: {BUDGET:g}")
    parser.add_argument("--seed", type=int, default=1, help="of the random inputs (default: 1)")
    parser.add_argument("--worker", type=int, metavar="PIPE", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser


# ----------------------------------------------------------------------------------------------- the process that works
def _worker(args: argparse.Namespace) -> int:
    device = torch.device(args.device)
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    with os.fdopen(args.worker, "w", encoding="utf-8") as pipe:

        def emit(message: Message) -> None:
            pipe.write(json.dumps(message, default=str) + "\n")
            pipe.flush()

        emit({"about": about(device)})
        with measure.one_thread() if device.type == "cpu" else contextlib.nullcontext():
            alive = work(tasks(device, args.fast), device, emit, args.until, args.first, args.seed)
    return 0 if alive else LOST


def work(
    cases: Sequence[Task],
    device: torch.device,
    emit: Callable[[Message], None],
    until: float,
    first: int = 0,
    seed: int = 1,
) -> bool:
    """Run the cases from `first` on until a time, by `time.time`, and tell of each; False if the GPU is lost."""
    for i in range(first, len(cases)):
        task = cases[i]
        if time.time() + (task.seconds if device.type == "cuda" else 0) > until:
            emit({"task": i, "left out": True})
            continue
        emit({"task": i, "started": True})
        start = time.perf_counter()
        try:
            torch.manual_seed(seed)
            rows = task.run()
        except Exception as error:
            rows = [{"case": task.case, "failure": one_line(error)}]
        if any("failure" in row for row in rows):
            gc.collect()  # what tracebacks hold
        alive = _release(device)
        emit({"task": i, "rows": rows, "seconds": time.perf_counter() - start})
        if not alive:
            return False
    return True


def _release(device: torch.device) -> bool:
    """Give memory back; False where an error has made the GPU useless for this process."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.rand(1, device=device)  # a graph that failed may leave the generator unusable
        except RuntimeError:
            return False
    return True


def about(device: torch.device) -> dict[str, Any]:
    """What the results depend on."""
    found: dict[str, Any] = {**environment(), "device": str(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "memory_gib": round(properties.total_memory / 2**30),
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _driver(),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    bounds = dispatch.bounds(device)
    return {**found, "bounds": {name: getattr(bounds, name) for name in bounds.__dataclass_fields__}}


def _driver() -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.split()
        return found[0] if found else None
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    return None


# ----------------------------------------------------------------------------------------------- the process that waits
def collect(args: argparse.Namespace, folder: Path) -> Message:
    """Have all cases run, and write what there is after every section; gives what was written."""
    start = time.time()
    cases = tasks(torch.device(args.device), args.fast)
    options = {"device": args.device, "fast": args.fast, "budget": args.budget, "seed": args.seed}
    content: Message = {"benchmark": "gpu", "signature": "", "environment": {}, "options": options}
    content |= {"method": __doc__ or "", "passed": 0, "failed": 0, "seconds": 0.0, "left_out": []}
    content |= {section: [] for section in dict.fromkeys(task.section for task in cases)}
    done, section = -1, ""
    for message in _messages(args, start + args.budget, cases):
        if "about" in message:
            content["environment"] = message["about"]
            continue
        i = done = message["task"]
        task = cases[i]
        progress = f"[{timedelta(seconds=round(time.time() - start))}] {i + 1}/{len(cases)} {task.section}: {task.case}"
        if message.get("started"):
            if task.section != section and section:
                _write(folder, content, time.time() - start)
            section = task.section
        elif message.get("left out"):
            content["left_out"].append(f"{task.section}: {task.case}")
        else:
            rows = message["rows"]
            content[task.section] += rows
            wrong = [row for row in rows if row.get("ok") is False or "failure" in row]
            what = f" FAILED ({len(wrong)} of {len(rows)})" if wrong else ""
            _say(f"{progress}: {message['seconds']:.1f} s{what}")
    content["left_out"] += [f"{task.section}: {task.case}" for task in cases[done + 1 :]]
    _write(folder, content, time.time() - start)
    _say(f"{content['passed']} checks passed, {content['failed']} failed; see {folder / 'gpu.md'}")
    return content


def _messages(args: argparse.Namespace, until: float, cases: Sequence[Task]) -> Iterator[Message]:
    """What the working process tells; a case in which it dies or hangs is told of here, and another process goes on."""
    first, deaths = 0, 0
    while first < len(cases):
        end, running, began = "died without a case", None, time.time()
        read, write = os.pipe()
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--worker", str(write)]
        command += ["--first", str(first), "--until", str(until), "--device", args.device, "--seed", str(args.seed)]
        process = subprocess.Popen([*command, *(["--fast"] if args.fast else [])], pass_fds=[write])
        os.close(write)
        for message in _lines(read):
            now = time.time()
            if message is None:  # nothing new
                hangs = running is not None and now - began > LIMIT
                if not hangs and now < until + GRACE:
                    continue
                end = f"took more than {now - began:.0f} s" if hangs else "was stopped at the end of the time"
                process.kill()
                break
            if "task" in message:
                running = message["task"] if message.get("started") else None
                first, began = message["task"] + (running is None), now
            yield message
        status = process.wait()
        os.close(read)
        if running is not None:
            failure = (
                end if status < 0 and end.startswith(("took", "was")) else f"the process ended with status {status}"
            )
            yield {
                "task": running,
                "rows": [{"case": cases[running].case, "failure": failure}],
                "seconds": time.time() - began,
            }
            first = running + 1
        elif first < len(cases) and status != LOST:
            deaths += 1
            if deaths > 2:  # it cannot even begin
                yield {
                    "task": first,
                    "rows": [{"case": cases[first].case, "failure": f"no process could begin: {status}"}],
                    "seconds": 0.0,
                }
                return


def _lines(pipe: int) -> Iterator[Message | None]:
    """JSON from a pipe, line by line until it is closed; None every half a second in which nothing came."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(0.5):
                yield None
                continue
            data = os.read(pipe, 2**16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)


def _write(folder: Path, content: Message, seconds: float) -> None:
    """gpu.json and gpu.md."""
    checks = [row for section in gpu_page.CHECKS for row in content.get(section, [])]
    content["passed"] = sum(row.get("ok") is True for row in checks)
    content["failed"] = sum(gpu_page.is_wrong(row) for row in checks)
    content["seconds"] = round(seconds, 1)
    flat = {name: value for name, value in content["environment"].items() if name != "bounds"}
    content["signature"] = "|".join(f"{name}:{value}" for name, value in {**flat, **content["options"]}.items())
    write_json(folder / "gpu.json", content, "--out")
    write_text(folder / "gpu.md", gpu_page.page(content), "--out")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
