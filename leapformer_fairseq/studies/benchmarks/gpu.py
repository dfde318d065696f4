"""Run all checks and timings on a GPU within nine minutes.

Checks: every mechanism, mask, precision and execution, outputs and gradients, against float64 on the same device, by
FlashAttention's rule: at most twice the error of plain torch at the same precision, plus a floor (see `gpu_checks`);
decoding token by token against all tokens at once; no synchronisation with the GPU; memory linear in length.

Times: medians of calls that take turns in one process, after a warm-up: on a GPU by CUDA events, from the first launch
to the end of the last kernel with a cold L2 cache; on a CPU the thread's CPU time. Ratio = time of SDPA (training: of
softmax) / time of ours. A decoding step is that of one attention block with its projections over a state, "sdpa" over a
preallocated KV cache; "graph" is a CUDA graph of it. A training step is forward and backward pass and AdamW of a stack
of pre-norm layers under bfloat16 autocast. The thresholds between implementations are varied one at a time. Products of
float32 numbers never use TF32.

A failure is reported as a row with its error. The most important cases come first; cases for which there was no time
are listed. The work is done in a separate process: if it dies, or hangs in a case, another one continues after this
case.

Needs only torch and `leapformer_fairseq.attention`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ... import PLUGIN_DIR
from ...attention.ops import dispatch
from ...scoring.pictures.results import draw_results
from ...support.errors import LeapformerError
from ...support.files import make_folder, read_json, write_json, write_text
from ...support.signature import environment
from . import gpu_checks, gpu_page, gpu_times, measure
from .gpu_cases import FAST, FULL, Task, one_line

BUDGET = 520.0  # seconds
LIMIT = 90.0  # seconds, at most, for a case and for the start of a process
GRACE = 5.0  # seconds by which the last case may exceed the budget
LOST = 3  # exit status of a process that has lost its GPU
OUT = PLUGIN_DIR.parent / "docs" / "results" / "raw" / "gpu"

Message = dict[str, Any]


def tasks(device: torch.device, fast: bool) -> list[Task]:
    """All cases, the most important first. Listing them does not use the GPU, so the waiting process can do it, too."""
    sizes = FAST if fast else FULL
    return gpu_checks.tasks(device, sizes) + gpu_times.tasks(device, sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a check failed, 2 if nothing could be run."""
    args = _parser().parse_args(arguments)
    try:
        folder = make_folder(args.out)
        if args.redraw:
            _report(folder, read_json(folder / "gpu.json", remedy="measure without --redraw first"))
            return 0
        if args.device.startswith("cuda") and not torch.cuda.is_available():
            raise LeapformerError("torch sees no GPU here; give --device cpu to try this command without one")
        results = collect(args, folder)
        return 1 if results["failed"] or not results["passed"] else 0
    except LeapformerError as error:
        _say(f"leapformer: error: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu.sh", description="check and time everything on a GPU")
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, cpu")
    parser.add_argument("--fast", action="store_true", help="tiny sizes: to try this command, not to measure")
    parser.add_argument(
        "--out", metavar="DIR", default=str(OUT), help=f"for gpu.json, gpu.md, gpu.svg (default: {OUT})"
    )
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS", help=f"default: {BUDGET:g}")
    parser.add_argument("--redraw", action="store_true", help="measure nothing; make gpu.md and gpu.svg from gpu.json")
    parser.add_argument("--seed", type=int, default=1, help="of the random inputs (default: 1)")
    return parser


# ----------------------------------------------------------------------------------------------- the process that works
def _worker(pipe: Connection, args: argparse.Namespace, first: int, until: float) -> None:
    logging.basicConfig(level=logging.WARNING)  # else fairseq, once imported, logs at its own level
    device = torch.device(args.device)
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("highest")
    pipe.send({"about": about(device)})
    with measure.some_threads() if device.type == "cpu" else contextlib.nullcontext():
        alive = work(tasks(device, args.fast), device, pipe.send, until, first, args.seed)
    sys.exit(0 if alive else LOST)


def work(
    cases: Sequence[Task],
    device: torch.device,
    emit: Callable[[Message], None],
    until: float,
    first: int = 0,
    seed: int = 1,
) -> bool:
    """Run the cases from `first` on until a time (of `time.time`) and report each; False if the GPU is lost."""
    for i, task in enumerate(cases[first:], first):
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
            gc.collect()  # tracebacks hold tensors
        alive = _release(device)
        emit({"task": i, "rows": rows, "seconds": time.perf_counter() - start})
        if not alive:
            return False
    return True


def _release(device: torch.device) -> bool:
    """Free memory; return False if an error has made the GPU unusable for this process."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.rand(1, device=device)  # a graph that failed may leave the generator unusable
        except RuntimeError:
            return False
    return True


def about(device: torch.device) -> dict[str, Any]:
    """The environment that the results depend on."""
    facts: dict[str, Any] = {**environment(), "device": str(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "memory_gib": round(properties.total_memory / 2**30),
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _driver(),
            "float32_products": torch.get_float32_matmul_precision(),
        }
    bounds = dispatch.bounds(device)
    return {**facts, "bounds": {name: getattr(bounds, name) for name in bounds.__dataclass_fields__}}


def _driver() -> str | None:
    with contextlib.suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    return None


# ----------------------------------------------------------------------------------------------- the process that waits
def collect(args: argparse.Namespace, folder: Path) -> Message:
    """Run all cases in another process, write the results after each one, and return them."""
    start = time.time()
    cases = tasks(torch.device(args.device), args.fast)
    names = [f"{task.section}: {task.case}" for task in cases]
    content: Message = {"benchmark": "gpu", "signature": "", "environment": {}, "options": vars(args).copy()}
    del content["options"]["out"], content["options"]["redraw"]
    content |= {"method": __doc__ or "", "passed": 0, "failed": 0, "seconds": 0.0, "left_out": names}
    content |= {section: [] for section in dict.fromkeys(task.section for task in cases)}
    ended: set[int] = set()
    for message in _messages(args, start + args.budget, cases):
        if "about" in message:
            content["environment"] = message["about"]
        if "rows" in message:
            i, rows = message["task"], message["rows"]
            ended.add(i)
            content["left_out"] = [name for n, name in enumerate(names) if n not in ended]
            content[cases[i].section] += rows
            wrong = sum(gpu_page.is_wrong(row) for row in rows)
            what = f" FAILED ({wrong} of {len(rows)})" if wrong else ""
            passed = timedelta(seconds=round(time.time() - start))
            _say(f"[{passed}] {i + 1}/{len(cases)} {names[i]}: {message['seconds']:.1f} s{what}")
            _write(folder, content, time.time() - start)
    _write(folder, content, time.time() - start)
    _report(folder, content)
    _say(f"{content['passed']} checks passed, {content['failed']} failed; see {folder / 'gpu.md'}")
    return content


def _messages(args: argparse.Namespace, until: float, cases: Sequence[Task]) -> Iterator[Message]:
    """Iterate over the messages of working processes; if one dies or hangs in a case, report it and start another."""
    first, deaths, context = 0, 0, get_context("spawn")
    while first < len(cases) and time.time() < until:
        pipe, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(theirs, args, first, until), daemon=True)
        process.start()
        theirs.close()
        running, began, end = False, time.time(), ""
        with contextlib.suppress(EOFError, OSError):
            while True:
                now = time.time()
                if not pipe.poll(0.5):
                    hangs, taken = now - began > LIMIT, f"took more than {now - began:.0f} s"
                    if hangs or now > until + GRACE:
                        end = taken if hangs else "was stopped at the end of the time"
                        process.kill()
                        break
                    continue
                message = pipe.recv()
                if "task" in message:
                    running, began = bool(message.get("started")), now
                    first = message["task"] + (not running)
                yield message
        process.join(GRACE)
        status = process.exitcode
        process.kill()  # it may hang in the driver
        deaths += not running and status != LOST
        if first < len(cases) and (running or deaths > 2):  # it died in a case, or three could not even start
            failure = end or f"the process ended with status {status}"
            failure = failure if running else f"no process could begin: {failure}"
            rows = [{"case": cases[first].case, "failure": failure}]
            yield {"task": first, "rows": rows, "seconds": time.time() - began}
            if not running:
                return
            first += 1


def _write(folder: Path, content: Message, seconds: float) -> None:
    """Write gpu.json and gpu.md, without a picture."""
    checks = [row for section in gpu_page.CHECKS for row in content.get(section, [])]
    content["passed"] = sum(row.get("ok") is True for row in checks)
    content["failed"] = sum(gpu_page.is_wrong(row) for row in checks)
    content["seconds"] = round(seconds, 1)
    flat = {name: value for name, value in content["environment"].items() if name != "bounds"}
    content["signature"] = "|".join(f"{name}:{value}" for name, value in {**flat, **content["options"]}.items())
    write_json(folder / "gpu.json", content, "--out")
    write_text(folder / "gpu.md", gpu_page.page(content), "--out")


def _report(folder: Path, content: Message) -> None:
    """Write gpu.svg, where matplotlib is installed and there is enough to draw, and gpu.md with it."""
    picture = ""
    if find_spec("matplotlib") is not None:
        with contextlib.suppress(LeapformerError):  # too few lengths
            picture = draw_results(folder / "gpu.json", folder / gpu_page.PICTURE)
    write_text(folder / "gpu.md", gpu_page.page(content, picture), "--out")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
