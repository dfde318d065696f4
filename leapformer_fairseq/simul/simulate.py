"""Simulate a policy on a test set without SimulEval: the same predictions and delays, in SimulEval's log format.

Wait-k with a streaming encoder is decoded in batches of whole utterances, everything else one utterance after the
other, as in the agent.
"""

from __future__ import annotations

import io
import json
import math
import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..runtime.audio import SAMPLE_RATE, check_file, read_speech
from ..runtime.formats.runlog import COMPUTE_LOG, INSTANCES_LOG, Instance, read_instances
from ..runtime.simul.options import decoding_options
from ..runtime.simul.stream import DecodingOptions, System, TranslationStream
from ..support.errors import LeapformerError
from ..support.files import moved, replacing
from ..support.lines import read_lines
from ..support.processes import pool_of
from .batch import serves_batches, translate_batch
from .live import open_system

T = TypeVar("T")
R = TypeVar("R")
BATCH_SECONDS = 200.0  # of audio decoded together, padding included


@dataclass(frozen=True)
class Utterance:
    """A line of the test set; `index` counts from 0."""

    index: int
    audio: Path
    reference: str


@dataclass(frozen=True)
class Outcome:
    """The result for an utterance; `compute` is the stream's report, None if it was decoded in a batch.

    `left_out_s`: seconds of silence before its first sound that were left out.
    """

    utterance: Utterance
    instance: Instance
    compute: dict[str, float] | None
    left_out_s: float = 0.0


@dataclass(frozen=True)
class Simulation:
    """A policy and the conditions of its test: audio in segments of `segment_ms`, delays counted per `unit`.

    `threads`: of each process that translates. `alone`: utterances are never decoded in batches, so that their
    computation can be timed.
    """

    system: System
    options: DecodingOptions
    segment_ms: int
    unit: str
    threads: int = 1
    alone: bool = False

    @property
    def batched(self) -> bool:
        """Whether utterances are decoded in batches; their computation is not timed then."""
        return not self.alone and serves_batches(self.system, self.options)

    def portions(self, utterances: Sequence[Utterance]) -> list[list[Utterance]]:
        """The units of work: batches of similar length, or single utterances."""
        if not self.batched:
            return [[utterance] for utterance in utterances]
        portions: list[list[Utterance]] = []
        lengths = {utterance.index: check_file(utterance.audio) for utterance in utterances}
        for utterance in sorted(utterances, key=lambda utterance: -lengths[utterance.index]):
            if not portions or (len(portions[-1]) + 1) * lengths[portions[-1][0].index] > BATCH_SECONDS:
                portions.append([])
            portions[-1].append(utterance)
        return portions

    def translate(self, portion: Sequence[Utterance]) -> list[Outcome]:
        """Translate a portion. Raises LeapformerError for audio that is missing, broken, not mono or not 16 kHz."""
        recordings = [read_speech(utterance.audio) for utterance in portion]
        if not self.alone and serves_batches(self.system, self.options):
            streams = translate_batch(self.system, self.options, recordings)
            return [_untimed(self._listen(*which)) for which in zip(portion, recordings, streams, strict=True)]
        streams = [TranslationStream(self.system, self.options) for _ in portion]
        return [self._listen(*which) for which in zip(portion, recordings, streams, strict=True)]

    def _listen(self, utterance: Utterance, samples: np.ndarray, stream: TranslationStream) -> Outcome:
        """Feed a recording to a stream as SimulEval would, and record what it writes and when."""
        size = math.ceil(self.segment_ms / 1000 * SAMPLE_RATE)
        units, delays, elapsed = list[str](), list[float](), list[float]()
        began = time.perf_counter()
        for start in range(0, len(samples), size):
            stream.push(samples[start : start + size])
            finished = stream.advance(source_finished=start + size >= len(samples))
            text = stream.flush(final=finished)
            new = text.split() if self.unit == "word" else list(text.replace(" ", ""))
            heard = _milliseconds(min(start + size, len(samples)))
            units += new
            delays += [heard] * len(new)
            elapsed += [heard + 1000 * (time.perf_counter() - began)] * len(new)
        instance = Instance(
            index=utterance.index,
            prediction=(" " if self.unit == "word" else "").join(units),
            reference=utterance.reference,
            delays=tuple(delays),
            elapsed=tuple(elapsed),
            source_length=_milliseconds(len(samples)),
        )
        compute = {**stream.report(), "threads": self.threads}
        return Outcome(utterance, instance, compute, stream.beginning.n_left_out / SAMPLE_RATE)


def _untimed(outcome: Outcome) -> Outcome:
    """An outcome without its computation times, which include other utterances of the batch."""
    return replace(outcome, instance=replace(outcome.instance, elapsed=outcome.instance.delays), compute=None)


def build_simulation(args: Namespace) -> Simulation:
    """The simulation that the options of `leapformer simulate` describe. Raises LeapformerError."""
    if args.source_segment_size < 1:
        raise LeapformerError(f"--source-segment-size {args.source_segment_size}: give milliseconds, at least 1")
    options = decoding_options(args)
    system = open_system(args, args.device)
    return Simulation(system, options, args.source_segment_size, args.eval_latency_unit, args.num_threads)


def read_utterances(source: str | Path, target: str | Path) -> list[Utterance]:
    """The test set from two lists, with a recording and its reference per line.

    Raises LeapformerError for lists that are missing, empty or of different lengths, and for missing recordings.
    """
    recordings, references = _read_list("--source", source), _read_list("--target", target)
    if len(recordings) != len(references):
        raise LeapformerError(
            f"--source lists {len(recordings)} recordings, --target {len(references)} references; give one for each"
        )
    if not recordings:
        raise LeapformerError(f"--source {source} lists no recording; give one a line")
    recordings = [str(moved(recording, Path(source).parent)) for recording in recordings]
    for line, recording in enumerate(recordings, 1):
        if not Path(recording).is_file():
            raise LeapformerError(f"--source {source}, line {line}: no audio file at {recording!r}; check the list")
    return [Utterance(i, Path(recordings[i]), references[i]) for i in range(len(recordings))]


def simulate(
    args: Namespace, simulation: Simulation, utterances: Sequence[Utterance], jobs: int = 1
) -> Iterator[Outcome]:
    """Translate in `jobs` processes; outcomes arrive in any order. Raises LeapformerError as `translate` does."""
    for outcomes in spread(simulation.translate, _translator, args, simulation.portions(utterances), jobs):
        yield from outcomes


def _translator(args: Namespace) -> Callable[[list[Utterance]], list[Outcome]]:
    return build_simulation(args).translate


def spread(
    work: Callable[[T], R], build: Callable[[Namespace], Callable[[T], R]], args: Namespace, portions: Sequence[T],
    jobs: int,
) -> Iterator[R]:  # fmt: skip
    """Distribute portions of work over `jobs` processes; results arrive in any order if there is more than 1.

    `build(args)`, a module-level function, returns the function that does the `work` in each process. Raises what both
    raise.
    """
    if jobs == 1:
        yield from map(work, portions)
        return
    with pool_of(jobs, f"--jobs {jobs}", "give fewer, and the same command resumes") as pool:
        # `build` comes with each portion, as it imports fairseq.
        for future in as_completed([pool.submit(_do, build, args, portion) for portion in portions]):
            yield future.result()


_work: Callable[[Any], Any] | None = None  # of a worker process


def _do(build: Callable[[Namespace], Callable[[T], R]], args: Namespace, portion: T) -> R:
    """Process a portion in a worker. Ctrl-C interrupts it; the command ends workers that are waiting."""
    global _work
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _work = _work or build(args)
        result: R = _work(portion)
        return result
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


# ------------------------------------------------------------------------------------------------------------ the log
def log_outcome(folder: Path, outcome: Outcome) -> None:
    """Append an utterance to SimulEval's log in `folder`, and its computation to the agent's log."""
    instance = outcome.instance
    more = {"prediction_length": len(instance.delays), "source": [str(outcome.utterance.audio)]}
    _append(folder / INSTANCES_LOG, {**asdict(instance), **more})
    if outcome.compute is not None:
        _append(folder / COMPUTE_LOG, outcome.compute)


def logged(folder: Path, unit: str) -> set[int]:
    """The utterances in the log in `folder`; lines left incomplete by a killed run are removed.

    Raises LeapformerError if the log is damaged.
    """
    for log in (folder / INSTANCES_LOG, folder / COMPUTE_LOG):
        content = log.read_bytes() if log.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            _rewrite(log, whole)
    return {instance.index for instance in read_instances(folder, unit)} if _lines(folder / INSTANCES_LOG) else set()


def put_in_order(folder: Path) -> None:
    """Sort the log in `folder` by utterance, as SimulEval writes it."""
    log = folder / INSTANCES_LOG
    lines = sorted(_lines(log), key=lambda line: json.loads(line)["index"])
    _rewrite(log, b"".join(lines))


def _lines(log: Path) -> list[bytes]:
    return list(io.BytesIO(log.read_bytes())) if log.is_file() else []


def _append(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")


def _rewrite(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(content)


def _read_list(option: str, path: str | Path) -> list[str]:
    return [line.strip() for line in read_lines(path, option, "give a file with a line each")]


def _milliseconds(samples: int) -> float:
    return samples * 1000 / SAMPLE_RATE
