"""Translate whole talks in a session each, as `leapformer stream` does, and record output times and resource usage.

OUT/logs/NAME.jsonl is simulstream's metrics log of a talk; OUT/logs/NAME.usage.jsonl has the memory and CPU time of the
process after every USAGE_S seconds of it. A log appears when its talk is finished, so the same command resumes after
the last finished talk.
"""

from __future__ import annotations

import json
import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..runtime.audio import SAMPLE_RATE, read_blocks
from ..runtime.formats.jsonl import read_objects
from ..runtime.formats.runlog import PARTS
from ..runtime.formats.streamlog import read_stream_log
from ..runtime.formats.talks import write_talks
from ..runtime.simul.record import Recorder
from ..runtime.simul.session import Session
from ..support.errors import LeapformerError
from ..support.files import replacing
from ..support.memory import MIB, resident_bytes
from .live import load_sessions
from .simulate import spread

LOGS = "logs"
STREAM_LOG, TALK_LOG = "metrics.jsonl", "talks.jsonl"  # of all talks, for simulstream and for OmniSTEval
USAGE_S, WARM_UP_S = 10.0, 60.0

Heard = Callable[[float], object]  # is called with seconds of audio


@dataclass(frozen=True)
class TalkSimulation:
    """A session for each talk, with audio in blocks of `segment_ms`. `unit` of the log's tokens: word or char."""

    make: Callable[[], Session]
    segment_ms: int
    unit: str
    loading_s: float
    logs: Path

    def log(self, recording: Path) -> Path:
        return self.logs / f"{recording.stem}.jsonl"

    def translate(self, recording: Path, heard: Heard = lambda seconds: None) -> Path:
        """Translate a talk, write its logs and return the recording.

        Raises LeapformerError for audio that is missing, broken, not mono or not 16 kHz.
        """
        log = self.log(recording)
        with replacing(log) as shown, replacing(usage_log(log)) as used:
            shown.unlink(missing_ok=True)  # of a process that was killed
            recorder = Recorder(shown, str(recording), self.unit)
            session = self.make()
            recorder.begin(self.loading_s)
            with used.open("w", encoding="utf-8") as lines:
                try:
                    for entry in _used(session, self._hear(session, recorder, recording, heard)):
                        lines.write(json.dumps(entry) + "\n")
                finally:
                    recorder.close()
        return recording

    def _hear(self, session: Session, recorder: Recorder, recording: Path, heard: Heard) -> Iterator[None]:
        """Feed a talk to the session; yields after every block."""
        for block in read_blocks(recording, math.ceil(self.segment_ms / 1000 * SAMPLE_RATE)):
            for _ in recorder.listen(session.push(block), len(block)):
                pass
            heard(len(block) / SAMPLE_RATE)
            yield
        for _ in recorder.listen(session.finish()):
            pass
        yield


def build_talk_simulation(args: Namespace) -> TalkSimulation:
    """The simulation that the options of `leapformer simulate --talks` describe. Raises LeapformerError."""
    if args.source_segment_size < 1:
        raise LeapformerError(f"--source-segment-size {args.source_segment_size}: give milliseconds, at least 1")
    began = time.perf_counter()
    _, options, make = load_sessions(args)
    make(False)  # raises errors about the encoder now
    loading_s = time.perf_counter() - began
    return TalkSimulation(
        lambda: make(args.drafts), args.source_segment_size, options.unit, loading_s, Path(args.out, LOGS)
    )


def simulate_talks(
    args: Namespace, simulation: TalkSimulation, recordings: Sequence[Path], jobs: int, heard: Heard
) -> Iterator[Path]:
    """Translate talks in `jobs` processes; yields finished talks, in any order.

    `heard` is called for progress if there is recording process. Raises LeapformerError as `translate` does.
    """
    simulation.logs.mkdir(exist_ok=True)
    yield from spread(lambda recording: simulation.translate(recording, heard), _translator, args, recordings, jobs)


def _translator(args: Namespace) -> Callable[[Path], Path]:
    return build_talk_simulation(args).translate


def join_logs(out: Path, recordings: Sequence[Path], unit: str) -> Path:
    """Write all talks to one log for simulstream, whose path is returned, and one for OmniSTEval, counted in `unit`."""
    path = out / STREAM_LOG
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        for number, recording in enumerate(recordings):
            for _, entry in read_objects(out / LOGS / f"{recording.stem}.jsonl"):
                if "id" in entry:
                    entry["id"] = number
                elif number:
                    continue  # the model is loaded once
                file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    write_talks(out / TALK_LOG, read_stream_log(path, unit), unit)
    return path


# ----------------------------------------------------------------------------------------------------- memory and time
def usage_log(log: Path) -> Path:
    return log.with_suffix(".usage.jsonl")


def _used(session: Session, blocks: Iterator[None]) -> Iterator[dict[str, Any]]:
    """Resources used after every USAGE_S seconds of audio and at the end; each of `blocks` feeds the session."""
    began, due, noted = time.process_time(), 0.0, -1.0
    for _ in blocks:
        if session.audio_s >= due:
            noted, due = session.audio_s, (session.audio_s // USAGE_S + 1) * USAGE_S
            yield _usage(session, began)
    if session.audio_s > noted:
        yield _usage(session, began)


def _usage(session: Session, began: float) -> dict[str, Any]:
    times, held = asdict(session.times), resident_bytes()
    return {
        "audio_s": session.audio_s,
        "cpu_s": round(time.process_time() - began, 4),
        **{f"{part}_s": round(times[f"{part}_s"], 4) for part in PARTS},
        "resident_mib": None if held is None else round(held / MIB, 2),
    }


def read_usage(log: Path) -> list[dict[str, Any]]:
    """The entries of the usage log next to the log of a talk. Raises LeapformerError for a damaged one."""
    entries = read_objects(usage_log(log))
    for place, entry in entries:
        if missing := {"audio_s", "cpu_s", "resident_mib", *(f"{part}_s" for part in PARTS)} - entry.keys():
            raise LeapformerError(f"{place} has no {min(missing)}; delete {log}, and the same command makes both again")
    return [entry for _, entry in entries]


def growth(usage: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Growth of memory and computation during a talk, ignoring the first minute.

    `memory_growth_mib`: the maximum memory minus the memory after a minute. `compute_growth`: CPU seconds per second of
    audio in the last quarter of the talk, divided by those in the first, minus 1. None if the talk is too short or the
    value is unknown.
    """
    counted = [entry for entry in usage if entry["audio_s"] >= WARM_UP_S]
    growths: dict[str, float | None] = {"memory_growth_mib": None, "compute_growth": None}
    held, quarter = [entry["resident_mib"] for entry in counted], (len(counted) - 1) // 4
    if quarter * USAGE_S >= WARM_UP_S:
        first, last = pace(counted[0], counted[quarter]), pace(counted[-1 - quarter], counted[-1])
        growths["compute_growth"] = last / first - 1 if first else None
        growths["memory_growth_mib"] = None if None in held else max(held) - held[0]
    return growths


def course(usage: Sequence[dict[str, Any]], points: int = 60) -> dict[str, list[float | None]]:
    """A talk over time, in about this many `points`: `minutes` heard, `memory_mib` held, `compute`, the `pace`."""
    every = max(1, len(usage) // points)
    chosen = [*usage[::every][:-1], usage[-1]]  # not a last point of a second or two
    return {
        "minutes": [entry["audio_s"] / 60 for entry in chosen[1:]],
        "memory_mib": [entry["resident_mib"] for entry in chosen[1:]],
        "compute": [pace(*pair) for pair in pairwise(chosen)],
    }


def pace(before: dict[str, Any], after: dict[str, Any]) -> float:
    """CPU seconds per second of audio between two entries of a usage log."""
    return (after["cpu_s"] - before["cpu_s"]) / (after["audio_s"] - before["audio_s"])


def summarise_usage(out: Path, recordings: Sequence[Path]) -> dict[str, Any]:
    """Memory and time: `growth` in the longest talk, and `parts`, seconds of computation per second of all audio."""
    usage = {recording.stem: read_usage(out / LOGS / f"{recording.stem}.jsonl") for recording in recordings}
    ends = {name: entries[-1] for name, entries in usage.items()}
    longest, audio_s = max(ends, key=lambda name: ends[name]["audio_s"]), sum(end["audio_s"] for end in ends.values())
    parts = {part: sum(end[f"{part}_s"] for end in ends.values()) / audio_s for part in PARTS}
    return {"longest_talk": longest, **growth(usage[longest]), "parts": parts}
