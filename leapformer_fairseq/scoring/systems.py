"""Reads what systems wrote for the same test set, simultaneously or not, so that their scores can be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..runtime.formats.runlog import INSTANCES_LOG, Instance, read_instances
from ..support.errors import LeapformerError
from .outputs import aligned_hypotheses, read_references
from .pieces import read_pieces
from .quality import bleu, chrf
from .report import run_latencies
from .significance import Measure, Sums, mean_of, p_value, resampled
from .talk_report import kind_of, piece_latencies

GENERATED = "generate-*.txt"


@dataclass(frozen=True)
class System:
    """Translations of a test set: a hypothesis for each sentence, its latencies by name, and the references.

    Hypotheses of whole sentences have no latencies. `references` are None if they are not with the translations.
    """

    hypotheses: Sequence[str]
    latencies: Sequence[Mapping[str, float]] = ()
    references: Sequence[str] | None = None

    def part(self, indices: Sequence[int]) -> System:
        """Some of the sentences."""
        return System(
            [self.hypotheses[i] for i in indices],
            [self.latencies[i] for i in indices] if self.latencies else (),
            None if self.references is None else [self.references[i] for i in indices],
        )


def read_systems(places: Sequence[str], references: Path | None, unit: str = "word") -> dict[str, System]:
    """Read systems by name, all with the same references.

    A place is a generate-*.txt, which needs `references`, a folder of SimulEval or `leapformer simulate`, a file of
    pieces of talks, or a folder that contains one of the first two at any depth. Systems are called as their folders,
    or as their places if that is no unique name. Raises LeapformerError if a place holds none or several, is given
    twice, or if the test sets differ.
    """
    if twice := [place for place in places if places.count(place) > 1]:
        raise LeapformerError(f"{twice[0]} is given twice; give each system once")
    lines = read_references(references) if references else None
    systems = {place: _read(place, lines, unit) for place in places}
    known = lines if lines is not None else next((one.references for one in systems.values() if one.references), None)
    for place, system in systems.items():
        if system.references is None or known is None:
            raise LeapformerError(f"{place} has no references with it; give --references")
        if [*map(str.strip, system.references)] != [*map(str.strip, known)]:
            raise LeapformerError(
                f"{place} is of another test set, its references differ; compare runs of one test set"
            )
    names = [_name(Path(place)) for place in places]
    unique = len(set(names)) == len(names)
    return {name if unique else place: system for name, (place, system) in zip(names, systems.items(), strict=True)}


def _name(place: Path) -> str:
    """The name of a place, with that of its folder if it says only how it was translated."""
    system = place.parent.name if re.fullmatch(r"k\d+|offline", place.name) else ""
    return f"{system}/{place.name}" if system else place.name


def _read(place: str, references: Sequence[str] | None, unit: str) -> System:
    path = Path(place)
    if path.is_dir() and not (path / INSTANCES_LOG).is_file():
        found = sorted([*path.glob(f"**/{GENERATED}"), *(log.parent for log in path.glob(f"**/{INSTANCES_LOG}"))])
        if len(found) != 1:
            raise LeapformerError(
                f"{place} holds {len(found)} files {GENERATED} and folders of simulations; name the one to compare"
            )
        path = found[0]
    if path.is_dir():
        return of_instances(_in_order(path, unit), unit)
    if kind_of(path) == "pieces":
        pieces = read_pieces(path, unit)
        instances = [piece.instance for piece in pieces]
        texts = [one.prediction for one in instances], [one.reference for one in instances]
        return System(texts[0], [piece_latencies(piece, unit) for piece in pieces], texts[1])
    if references is None:
        raise LeapformerError(f"{place} has no references with it; give --references")
    return System(aligned_hypotheses([path], references), (), references)


def of_instances(instances: Sequence[Instance], unit: str = "word") -> System:
    """The system of a run of SimulEval or `leapformer simulate`."""
    return System(
        [instance.prediction for instance in instances],
        run_latencies(instances, unit),
        [instance.reference for instance in instances],
    )


def measures(system: System, tokenize: str = "13a") -> tuple[dict[str, Measure], dict[str, str]]:
    """The scores of a system, BLEU and chrF first, and the signatures of these two.

    Raises LeapformerError for a tokenizer that cannot be used, and for a system without references.
    """
    if system.references is None:
        raise LeapformerError("a system without references has no scores; give them")
    quality = bleu(system.hypotheses, system.references, tokenize), chrf(system.hypotheses, system.references)
    names = dict.fromkeys(name for latencies in system.latencies for name in latencies)
    of_quality = {score.name: score.measure for score in quality if score.measure}
    of_latency = {name: mean_of([latencies.get(name) for latencies in system.latencies]) for name in names}
    return of_quality | of_latency, {score.name: score.signature for score in quality}


@dataclass(frozen=True)
class Place:
    """A folder with what a system wrote, a simulation or generated text, and how it was scored."""

    folder: Path
    tokenize: str = "13a"
    unit: str = "word"

    @classmethod
    def of(cls, folder: Path, scores: Mapping[str, Any]) -> Place:
        """The place of a scores.json of `leapformer score`."""
        found = re.search(r"\|tok:([^|]+)", scores["signatures"].get("BLEU", ""))
        return cls(folder, found[1] if found else "13a", scores.get("unit") or "word")


def p_values(baseline: Place, other: Place) -> dict[str, float]:
    """p of the difference of each score of two systems, by name; {} unless both have what they wrote for one test set.

    Text of fairseq-generate is compared with the references of a simulation in a folder beside it.
    """
    first, second = _resampled(baseline), _resampled(other)
    if first is None or second is None or first.references != second.references:
        return {}
    common = [name for name in second.values if name in first.values]
    found = {
        name: p_value(second.drawn[name] - first.drawn[name], second.values[name] - first.values[name])
        for name in common
    }
    return {name: p for name, p in found.items() if p is not None}


@dataclass(frozen=True)
class _Resampled:
    references: tuple[str, ...]
    values: Mapping[str, float]
    drawn: Mapping[str, Sums]


@lru_cache(maxsize=256)  # a curve asks again after each run
def _resampled(place: Place) -> _Resampled | None:
    """The scores of a finished run; None if there is no text, or nothing to compare it with."""
    logs = sorted(place.folder.parent.glob(f"*/{INSTANCES_LOG}"))
    generated = sorted(place.folder.glob(GENERATED))
    if (place.folder / INSTANCES_LOG).is_file():
        system = of_instances(_in_order(place.folder, place.unit), place.unit)
    elif len(generated) == 1 and logs:
        lines = [instance.reference for instance in _in_order(logs[0].parent, place.unit)]
        system = System(aligned_hypotheses(generated, lines), (), lines)
    else:
        return None
    scored = measures(system, place.tokenize)[0]
    values = {name: measure.value for name, measure in scored.items()}
    return _Resampled(tuple(line.strip() for line in system.references or ()), values, resampled(scored))


def _in_order(folder: Path, unit: str) -> list[Instance]:
    return sorted(read_instances(folder, unit), key=lambda instance: instance.index)


def by_length(systems: Mapping[str, System], measured: Sequence[str], groups: int) -> dict[str, dict[str, System]]:
    """Split systems into `groups` of nearly equal size, from the shortest sentences to the longest.

    Lengths are numbers of words of `measured`, such as the source sentences. A group is named after its range, as in
    "3-9". Raises LeapformerError if the numbers of sentences differ, or if there are fewer sentences than groups.
    """
    count = len(next(iter(systems.values())).hypotheses)
    if len(measured) != count:
        raise LeapformerError(f"--by-length has {len(measured)} lines for {count} sentences; give as many")
    if not 1 <= groups <= count:
        raise LeapformerError(f"--groups {groups}: give 1 to {count}, the number of sentences")
    words = [len(line.split()) for line in measured]
    order = sorted(range(count), key=words.__getitem__)
    parts: dict[str, dict[str, System]] = {}
    for group in range(groups):
        indices = order[group * count // groups : (group + 1) * count // groups]
        name = f"{words[indices[0]]}-{words[indices[-1]]}"
        name += f" ({group + 1})" if name in parts else ""
        parts[name] = {place: system.part(indices) for place, system in systems.items()}
    return parts
