"""Measures interleaved times in one process, and peak memory in fresh processes."""

from __future__ import annotations

import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from ... import register
from ...attention import TokenInfo
from ...support.memory import MIB, resident_bytes
from ...support.processes import pool_of

if TYPE_CHECKING:
    from .tables import Results, Row

MIN_ROUNDS, MAX_ROUNDS = 3, 31

T = TypeVar("T")
K = TypeVar("K")
Seconds = tuple[float, ...]  # of the parts of a measured call


def described(q: Tensor, k: Tensor) -> dict[str, TokenInfo]:
    """Tokens of queries and keys (B, H, T, D) without projections: what gates read are the vectors of all heads."""
    return {
        name: replace(TokenInfo.whole(x.shape[2], device=x.device), inputs=x.detach().transpose(1, 2).flatten(2))
        for name, x in (("query", q), ("key", k))
    }


class Case(NamedTuple):
    """A part of a benchmark: its name, and the function that measures it and returns rows by section."""

    about: str
    measure: Callable[[], Results]


def case(about: str, section: str, rows: Callable[..., list[Row]], *arguments: Any) -> Case:
    """A case whose rows all belong to one section."""
    return Case(about, lambda: {section: rows(*arguments)})


def measured(case: Case, seed: int, threads: int = 1) -> Results:
    """The rows of a case, by section, measured with so many threads."""
    with some_threads(threads):
        torch.manual_seed(seed)
        return case.measure()


class Place(NamedTuple):
    """The device and precision of a measurement; `parse` inverts `str`."""

    device: torch.device
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return str(self.device) if self.dtype == torch.float32 else f"{self.device} {name}"

    @classmethod
    def parse(cls, name: str) -> Self:
        device, _, dtype = name.partition(" ")
        return cls(torch.device(device), getattr(torch, dtype or "float32"))

    @property
    def has_aims(self) -> bool:
        """Whether aims apply: they were set for one CPU thread in float32."""
        return self.device.type == "cpu" and self.dtype == torch.float32


def exports(place: Place) -> bool:
    """Whether exported models can be created and run here, and measured at this place."""
    needed = ("onnx", "onnxscript", "onnxruntime")
    return place == Place(torch.device("cpu")) and all(find_spec(name) is not None for name in needed)


def clock(device: torch.device) -> float:
    """Seconds: with one thread of a CPU its CPU time, so that other programs do not count; otherwise wall time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    several = device.type == "cuda" or torch.get_num_threads() > 1
    return time.perf_counter() if several else time.thread_time()


def timed(device: torch.device, call: Callable[..., object], *arguments: object) -> Seconds:
    """Time a call by the `clock` of the device."""
    start = clock(device)
    call(*arguments)
    return (clock(device) - start,)


def medians(calls: Mapping[K, Callable[[], Seconds]], seconds: float, once: float = math.inf) -> dict[K, Seconds]:
    """The median of each part of each call. Calls take turns, so that all see the same state of the machine.

    After a warm-up round, there are as many rounds as fit into about `seconds`, at least 3 and at most 31. If the first
    round takes more than `once` seconds, it is the only one.
    """
    start = time.perf_counter()
    samples = {name: [call()] for name, call in calls.items()}
    if (taken := time.perf_counter() - start) <= once:
        samples = {name: [] for name in calls}
    for _ in range(min(MAX_ROUNDS, max(MIN_ROUNDS, round(seconds / taken))) if taken <= once else 0):
        for name, call in calls.items():
            samples[name].append(call())
    return {name: tuple(map(statistics.median, zip(*seconds_of, strict=True))) for name, seconds_of in samples.items()}


@contextmanager
def some_threads(count: int = 1) -> Iterator[None]:
    """Use so many threads, and an allocator as in a long-running process.

    glibc returns freed memory to the system above a threshold that rises with the largest block ever freed, up to 32
    MiB. A new process would pay for getting it back in every call, while a training process pays once.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    torch.empty(31 * MIB, dtype=torch.uint8).fill_(0)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """Call a module-level function in a new interpreter, which logs warnings only, as `leapformer` does."""
    with pool_of(1, f"{function.__name__}", "free some space, or measure less (--quick)") as pool:
        return pool.submit(function, *arguments).result()


def peak_rows(
    names: Iterable[str],
    base: str,
    labels: Callable[[str], Row],
    peak_of: Callable[..., int | None],
    *arguments: object,
    aim: Callable[[str], float | None] | None = None,
) -> list[Row]:
    """A row for each system: its labels, peak MiB, ratio to the peak of `base`, and aim.

    `peak_of` returns bytes, None if they are unknown; it is called with the name and the arguments in a fresh process.
    No rows if the peak of `base` is unknown or too small to measure.
    """
    peaks = {name: in_fresh_process(peak_of, name, *arguments) for name in names}
    of_base = peaks.get(base)
    return [
        {**labels(name), "peak_mib": peak / MIB, "ratio": peak / of_base, **({"aim": aim(name)} if aim else {})}
        for name, peak in peaks.items()
        if of_base and peak is not None
    ]


def untrained(args: Namespace, words: int, configure: Callable[[Namespace], object] | None = None) -> Any:
    """A model of the architecture `args.arch` with random weights, for a dictionary of so many words.

    `configure` sets the defaults of the architecture, by default fairseq's registered function.
    """
    register()
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    (configure or ARCH_CONFIG_REGISTRY[args.arch])(args)
    dictionary = Dictionary()
    for i in range(words):
        dictionary.add_symbol(f"w{i}")
    names = "source_dictionary", "target_dictionary", "src_dict"  # for whatever task it belongs to
    about = {**dict.fromkeys(names, dictionary), "mask_idx": 3, "get_speaker_embeddings": lambda args: None}
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, SimpleNamespace(**about))


@contextmanager
def peak_growth(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Yield a function that returns, after the block, by how many bytes it raised peak memory; None if unknown.

    On a CPU, this is the resident set of the process as reported by Linux; on a GPU, memory allocated by torch.
    """
    before = _peak_bytes(device, reset=True)
    after: int | None = None
    yield lambda: None if before is None or after is None else after - before
    after = _peak_bytes(device, reset=False)


def _peak_bytes(device: torch.device, reset: bool) -> int | None:
    if device.type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.max_memory_allocated(device)
    if reset:
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak to the current size
        except OSError:
            return None
    return resident_bytes("VmHWM")  # not getrusage, whose peak is inherited from the parent process if larger
