"""Reads the output folder of a SimulEval run: `instances.log` and the agent's `compute.jsonl`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ...support.files import read_json
from .jsonl import field, number, numbers, read_objects

INSTANCES_LOG = "instances.log"
COMPUTE_LOG = "compute.jsonl"
SIMULATION = "simulate.json"  # the record of `leapformer simulate`
UNITS = ("word", "char")
PARTS = ("features", "encoder", "decoder")  # of the computation
PARTS_S = tuple(f"{part}_s" for part in PARTS)


@dataclass(frozen=True)
class Instance:
    """An utterance of a run. All times are in milliseconds.

    delays:        duration of the source heard when each unit (word or character) was written.
    elapsed:       the same plus the computation until then.
    source_length: duration of the whole source.
    """

    index: int
    prediction: str
    reference: str
    delays: tuple[float, ...]
    elapsed: tuple[float, ...]
    source_length: float


@dataclass(frozen=True)
class ComputeTotals:
    """Seconds of computation by part and seconds of audio, summed over the utterances of a run.

    prenet_s: the part of `encoder_s` for the convolutions; 0 if not measured.
    threads:  CPU threads of the measurement; None if unknown or not always the same.
    """

    features_s: float
    encoder_s: float
    decoder_s: float
    audio_s: float
    prenet_s: float = 0.0
    threads: int | None = None

    @property
    def seconds_per_second(self) -> float | None:
        """Seconds of computation per second of audio; None without audio."""
        return (self.features_s + self.encoder_s + self.decoder_s) / self.audio_s if self.audio_s else None

    @property
    def without_prenet(self) -> float | None:
        """`seconds_per_second` without the convolutions; None if they were not measured."""
        whole = self.seconds_per_second
        return whole - self.prenet_s / self.audio_s if whole and self.prenet_s else None


def read_instances(output: str | Path, unit: str = "word") -> list[Instance]:
    """Read all utterances of the run in folder `output`, and check that their delays count in `unit`.

    Raises LeapformerError if there is no log, a line is damaged, or the delays do not match the unit.
    """
    if unit not in UNITS:
        raise LeapformerError(f"unit {unit!r} is not supported; choose from {', '.join(UNITS)}")
    log = Path(output) / INSTANCES_LOG
    if not log.is_file():
        raise LeapformerError(f"no {log.name} in {log.parent}; give the --output folder of a simuleval run")
    instances = [_instance(entry, place) for place, entry in read_objects(log)]
    if not instances:
        raise LeapformerError(f"{log} holds no utterance; run simuleval first")
    for instance in instances:
        n_units = count_units(instance.prediction, unit)
        if len(instance.delays) != n_units:
            raise LeapformerError(
                f"utterance {instance.index} has {len(instance.delays)} delays for {n_units} units of kind {unit!r}; "
                "give the unit of the run (its --eval-latency-unit)"
            )
    return instances


def read_compute(output: str | Path) -> ComputeTotals | None:
    """Read the agent's computation in the run in folder `output`; None if it was not logged.

    Raises LeapformerError for a damaged log, and for tokens that took no time, which therefore was not measured.
    """
    path = Path(output) / COMPUTE_LOG
    if not path.is_file():
        return None
    totals, threads = dict.fromkeys((*PARTS_S, "audio_s", "prenet_s"), 0.0), set[int | None]()
    for place, entry in read_objects(path):
        # Logs of older versions have no prenet_s.
        seconds = {key: field({"prenet_s": 0.0, **entry}, key, number, place) for key in totals}
        if entry.get("tokens") and (untimed := [part for part in PARTS_S if not seconds[part] > 0]):
            raise LeapformerError(
                f"{place} has {entry['tokens']} tokens and {untimed[0]} 0, so this run was not timed (earlier "
                f"versions also logged runs in batches); delete {path.parent}, and the same command measures again"
            )
        totals = {key: totals[key] + seconds[key] for key in totals}
        threads.add(count if (count := entry.get("threads")) and isinstance(count, int) else None)
    return ComputeTotals(**totals, threads=threads.pop() if len(threads) == 1 else None)


def read_threads(output: str | Path) -> int | None:
    """The CPU threads of the run in folder `output`, as its log of computation or `leapformer simulate` recorded them.

    None if neither did. Raises LeapformerError for damaged files.
    """
    compute, record = read_compute(output), Path(output) / SIMULATION
    if compute is not None and compute.threads is not None:
        return compute.threads
    options = read_json(record).get("options") if record.is_file() else None
    threads = options.get("num_threads") if isinstance(options, dict) else None
    return threads if isinstance(threads, int) else None


def count_units(text: str, unit: str) -> int:
    """The number of words, or of characters without spaces.

    SimulEval does not count the spaces of a prediction in characters, but those of the reference. Here, both sides are
    counted alike.
    """
    return len(text.split()) if unit == "word" else len(text.replace(" ", ""))


def _instance(entry: dict[str, Any], place: str) -> Instance:
    instance = Instance(
        index=field(entry, "index", int, place),
        prediction=field(entry, "prediction", str, place),
        reference=field(entry, "reference", str, place),
        delays=field(entry, "delays", numbers, place),
        elapsed=field(entry, "elapsed", numbers, place),
        source_length=field(entry, "source_length", number, place),
    )
    # SimulEval writes both at once, so different lengths mean a damaged line.
    if len(instance.delays) != len(instance.elapsed):
        counts = f"{len(instance.delays)} delays but {len(instance.elapsed)} elapsed times"
        raise LeapformerError(f"{place} has {counts}; run simuleval again")
    return instance
