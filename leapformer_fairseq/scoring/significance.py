"""Paired bootstrap resampling of BLEU and chrF: whether systems differ by more than the choice of test sentences.

Koehn, 2004 (W04-3250), as sacreBLEU implements it. It covers the choice of test sentences, not the training seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from ..support.errors import LeapformerError
from .generation import aligned_hypotheses, read_references

SAMPLES = 1_000


@dataclass(frozen=True)
class Compared:
    """A score of a system, half of its 95 % interval, and p of the difference to the baseline, which has none."""

    system: str
    metric: str
    score: float
    interval: float
    p: float | None


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], tokenize: str = "13a", samples: int = SAMPLES
) -> tuple[list[Compared], dict[str, str]]:
    """Compare systems with the first of them on the same sentences; returns the scores and sacreBLEU's signatures.

    The seed is fixed (sacreBLEU's 12345), so the same texts give the same p. Raises LeapformerError for fewer than two
    systems or too few samples.
    """
    if len(systems) < 2:
        raise LeapformerError(f"{len(systems)} system to compare; give a baseline and at least one other")
    if samples < 100:
        raise LeapformerError(f"--samples {samples}: give at least 100; p is a share of them")
    test = PairedTest(
        [(name, list(lines)) for name, lines in systems.items()],
        {"BLEU": BLEU(tokenize=tokenize, references=[list(references)]), "chrF": CHRF(references=[list(references)])},
        None,
        "bs",
        samples,
    )
    signatures, table = test()
    names = cast(list[str], table.pop("System"))
    found = cast(dict[str, list[Any]], table)  # sacreBLEU's results
    baseline = next(iter(systems.values()))
    compared = []
    for metric, results in found.items():
        for name, lines, result in zip(names, systems.values(), results, strict=True):
            p = None if result.p_value is None else float(result.p_value)
            if p is not None and list(lines) == list(baseline):
                p = 1.0  # sacreBLEU counts no resample with a greater difference than 0, and takes that for certainty
            name = name.removeprefix("Baseline: ")
            compared.append(Compared(name, metric.removesuffix("2"), float(result.score), float(result.ci), p))
    return compared, {metric.removesuffix("2"): str(signature) for metric, signature in signatures.items()}


def by_length(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], measured: Sequence[str], groups: int
) -> dict[str, tuple[dict[str, list[str]], list[str]]]:
    """Systems and references in `groups` of nearly equal size, from the shortest sentences to the longest.

    `measured` has the sentences whose words count, such as the sources; groups are named after their number of words,
    as in "3-9". Raises LeapformerError if there are not as many sentences, or fewer than groups.
    """
    if len(measured) != len(references):
        raise LeapformerError(f"--by-length has {len(measured)} lines for {len(references)} references; give as many")
    if not 1 <= groups <= len(measured):
        raise LeapformerError(f"--groups {groups}: give 1 to {len(measured)}, the number of sentences")
    words = [len(line.split()) for line in measured]
    order = sorted(range(len(words)), key=words.__getitem__)
    found: dict[str, tuple[dict[str, list[str]], list[str]]] = {}
    for group in range(groups):
        places = order[group * len(order) // groups : (group + 1) * len(order) // groups]
        name = f"{words[places[0]]}-{words[places[-1]]}"
        name += f" ({group + 1})" if name in found else ""
        chosen = {system: [lines[i] for i in places] for system, lines in systems.items()}
        found[name] = chosen, [references[i] for i in places]
    return found


def read_systems(places: Sequence[str], references: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The translations of runs by name, and the references, one per line.

    A path is a generate-*.txt, or a folder that contains one at any depth. Raises LeapformerError if there is none or
    several, if two have the same name, and if there are more or fewer sentences than references.
    """
    lines = read_references(references)
    systems: dict[str, list[str]] = {}
    for place in places:
        files = sorted(Path(place).glob("**/generate-*.txt")) if Path(place).is_dir() else [Path(place)]
        if len(files) != 1:
            raise LeapformerError(f"{place} holds {len(files)} files generate-*.txt; name the one to compare")
        name = Path(place).name if Path(place).is_dir() else place
        if name in systems:
            raise LeapformerError(f"{place}: another system is called {name}; name its generate-*.txt instead")
        systems[name] = aligned_hypotheses(files[:1], lines)
    return systems, lines


def as_rows(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """A row for each system, with all its scores."""
    rows: dict[str, dict[str, Any]] = {}
    for one in compared:
        row = rows.setdefault(one.system, {"system": one.system})
        row[one.metric] = {"score": one.score, "interval": one.interval, "p": one.p}
    return list(rows.values())
