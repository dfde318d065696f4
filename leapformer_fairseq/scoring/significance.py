"""Paired bootstrap resampling of BLEU and chrF: whether a difference could be due to the choice of test sentences.

Koehn, 2004 (W04-3250), as sacreBLEU implements it. Differences between training seeds are not covered.
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
from .outputs import aligned_hypotheses, read_references

SAMPLES = 1_000


@dataclass(frozen=True)
class Compared:
    """A score of a system, half of its 95 % interval, and p of the difference to the baseline; None for the latter."""

    system: str
    metric: str
    score: float
    interval: float
    p: float | None


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], tokenize: str = "13a", samples: int = SAMPLES
) -> tuple[list[Compared], dict[str, str]]:
    """Compare systems with the first one on the same sentences; return the scores and sacreBLEU's signatures.

    The seed is fixed (sacreBLEU's 12345), so equal texts give equal p. Raises LeapformerError for fewer than two
    systems or fewer than 100 samples.
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
    names = cast(list[str], table.pop("System"))  # the first is "Baseline: NAME"
    results_of = cast(dict[str, list[Any]], table)
    baseline = next(iter(systems.values()))
    compared = []
    for metric, results in results_of.items():
        for name, lines, result in zip(names, systems.values(), results, strict=True):
            p = None if result.p_value is None else float(result.p_value)
            if p is not None and list(lines) == list(baseline):
                p = 1.0  # sacreBLEU finds no resample with a difference above 0, and returns a p near 0
            name = name.removeprefix("Baseline: ")
            # sacreBLEU's name "chrF2" has beta in it; tables here say chrF.
            compared.append(Compared(name, metric.removesuffix("2"), float(result.score), float(result.ci), p))
    return compared, {metric.removesuffix("2"): str(signature) for metric, signature in signatures.items()}


def by_length(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], measured: Sequence[str], groups: int
) -> dict[str, tuple[dict[str, list[str]], list[str]]]:
    """Split systems and references into `groups` of nearly equal size, from the shortest sentences to the longest.

    Lengths are numbers of words of `measured`, such as the source sentences. A group is named after its range, as in
    "3-9". Raises LeapformerError if the numbers of sentences differ, or if there are fewer sentences than groups.
    """
    if len(measured) != len(references):
        raise LeapformerError(f"--by-length has {len(measured)} lines for {len(references)} references; give as many")
    if not 1 <= groups <= len(measured):
        raise LeapformerError(f"--groups {groups}: give 1 to {len(measured)}, the number of sentences")
    words = [len(line.split()) for line in measured]
    order = sorted(range(len(words)), key=words.__getitem__)
    parts: dict[str, tuple[dict[str, list[str]], list[str]]] = {}
    for group in range(groups):
        indices = order[group * len(order) // groups : (group + 1) * len(order) // groups]
        name = f"{words[indices[0]]}-{words[indices[-1]]}"
        name += f" ({group + 1})" if name in parts else ""
        chosen = {system: [lines[i] for i in indices] for system, lines in systems.items()}
        parts[name] = chosen, [references[i] for i in indices]
    return parts


def read_systems(places: Sequence[str], references: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Read the translations of runs, by name, and the references, one per line.

    A place is a generate-*.txt, or a folder that contains one at any depth. Raises LeapformerError if there is none or
    several, if two systems have the same name, or if there are more or fewer sentences than references.
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
    for result in compared:
        row = rows.setdefault(result.system, {"system": result.system})
        row[result.metric] = {"score": result.score, "interval": result.interval, "p": result.p}
    return list(rows.values())
