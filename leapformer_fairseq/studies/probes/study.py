"""A grid of probes over mechanisms, learning rates and seeds; the result of each training is kept and reused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn

from ...attention import OPTIONS, find
from ...attention.registry import create
from ...scoring.pictures.scores import probes_figure
from ...scoring.table import Column, Table
from ...support.errors import LeapformerError
from ...support.files import locked_folder, write_json, write_text
from .. import engine
from ..engine import Call, Cell, State
from . import RATES
from .model import HEADS, WIDTH, ProbeModel
from .tasks import PROBES, Probe

ROWS, TEST_ROWS, TEST_SEED = 48, 200, 99
WARM_UP = 100
RECORD = "probes.json"


class Run(NamedTuple):
    """One training of a mechanism, such as `leap` or `gated-delta:gate-init=published`, on a probe."""

    probe: str
    attention: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        attention = self.attention.translate(str.maketrans("/,*:=", "+____"))
        return f"{self.probe}-{attention}-{self.rate:g}-{self.seed}"


@dataclass(frozen=True)
class Study(engine.Study):
    """The grid. `updates` overrides the number of each probe.

    The folder `out` gets the runs, results.json, table.md and probes.svg, each with the `signature` of the measurement.
    """

    probes: Sequence[str]
    attentions: Sequence[str]
    rates: Sequence[float] = RATES
    seeds: Sequence[int] = (1, 2, 3)
    updates: int | None = None
    out: Path = Path()
    signature: str = ""

    def check(self) -> None:
        """Raise LeapformerError for unknown or unsupported names, and for numbers that are not above 0."""
        for option, values in (("--updates", [self.updates]), ("--rates", self.rates)):
            for value in values:
                if value is not None and not 0 < value < math.inf:
                    raise LeapformerError(f"{option} {value:g}: give a number above 0")
        for name in self.probes:
            if name not in PROBES:
                raise LeapformerError(f"--probes {name}: choose from {', '.join(PROBES)}")
        for attention in self.attentions:
            name, options = parsed(attention)
            for probe in self.probes:
                about = PROBES[probe]
                reason = find(name).capabilities.unsupported_reason(about.block, about.mask)
                if reason is None:  # building it checks the values of its options
                    mechanism = create(name, WIDTH // HEADS, HEADS, block=about.block, **options)
                    reason = mechanism.capabilities.unsupported_reason(about.block, about.mask)
                if reason is not None:
                    raise LeapformerError(f"{name} cannot be probed by {probe}: {reason}")

    def reserve(self) -> None:
        """Raise LeapformerError if the folder holds another study."""
        locked_folder(self.out, RECORD, {"updates": self.updates}, "study of probes", self.signature)

    def cells(self, state: State) -> list[Cell]:
        """A call for each training."""
        return [
            Cell(run.name, (Call(_measured, (run, self.updates)),), f"runs/{run.name}.json", fields=("scores",))
            for run in dict.fromkeys(self.runs())  # an option may have a value twice
        ]

    def report(self, state: State) -> None:
        """Write the results, the tables and the picture once all trainings have ended well."""
        if not self.is_whole(state):
            return
        summaries, signature = self.summaries(state), self.signature
        write_json(self.out / "results.json", {"signature": signature, "study": _described(self), "found": summaries})
        lines = ["# Probes", "", *self.tables(state), f"Signature: `{signature}`", ""]
        write_text(self.out / "table.md", "\n".join(lines))
        about = {probe: PROBES[probe].about for probe in summaries}
        probes_figure(summaries, about).save(self.out / "probes.svg")

    def is_whole(self, state: State) -> bool:
        """Whether all trainings have ended well, so that there is a table."""
        return all(run.name in state.results for run in self.runs())

    def summaries(self, state: State) -> dict[str, list[dict[str, Any]]]:
        """For each probe, the attentions' best rates and their scores, in %."""
        scores = {run: state.results[run.name]["scores"] for run in self.runs()}
        return {probe: _summary(self, probe, scores) for probe in self.probes}

    def tables(self, state: State) -> list[str]:
        """The lines of a table for each probe."""
        return [line for probe, rows in self.summaries(state).items() for line in _table(self, probe, rows)]

    def runs(self) -> list[Run]:
        return [
            Run(probe, attention, rate, seed)
            for probe in self.probes
            for attention in self.attentions
            for seed in self.seeds
            for rate in self.rates
        ]


def parsed(attention: str) -> tuple[str, dict[str, Any]]:
    """Parse a mechanism and its options, e.g. `luna:luna-length=8`. Raises LeapformerError for unknown ones."""
    name, *pairs = attention.split(":")
    known = {option.name for option in find(name).options}
    options: dict[str, Any] = {}
    for pair in pairs:
        flag, _, value = pair.partition("=")
        key = flag.replace("-", "_")
        if key not in known:
            flags = ", ".join(OPTIONS[option].flag.removeprefix("--") for option in sorted(known))
            raise LeapformerError(f"{attention}: {name} has no option {flag}; it has {flags or 'none'}")
        kind = type(OPTIONS[key].default)
        try:
            options[key] = value in ("", "True") if kind is bool else kind(value)
        except ValueError:
            raise LeapformerError(f"{attention}: {flag} {value!r}: give a number") from None
    return name, options


def train(run: Run, updates: int | None = None) -> dict[str, float]:
    """Train with one thread, and return the share of right answers for each tested size, {size: share}.

    AdamW without weight decay; the rate rises for 100 updates and follows a cosine to zero; gradients are clipped to
    norm 1. If the training diverges, all shares are 0.
    """
    torch.set_num_threads(1)
    probe = PROBES[run.probe]
    name, options = parsed(run.attention)
    torch.manual_seed(run.seed)
    generator, model = torch.Generator().manual_seed(run.seed), ProbeModel(probe, name, **options)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=run.rate, weight_decay=0.0, betas=(0.9, 0.98))
    count = updates or probe.updates
    for update in range(count):
        rate = run.rate * min(1, (update + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * update / count))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model.loss(probe.draw(ROWS, probe.trained[update % len(probe.trained)], generator))
        if not loss.isfinite():
            return {str(size): 0.0 for size in probe.tested}
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    model.eval()
    return {str(size): model.right(_test(probe, place)) for place, size in enumerate(probe.tested)}


def _test(probe: Probe, place: int) -> Any:
    return probe.draw(TEST_ROWS, probe.tested[place], torch.Generator().manual_seed(TEST_SEED))


def _measured(run: Run, updates: int | None) -> dict[str, Any]:
    return {"run": run._asdict(), "scores": train(run, updates)}


def _described(study: Study) -> dict[str, Any]:
    return {"rates": list(study.rates), "seeds": list(study.seeds), "updates": study.updates}


def _summary(study: Study, probe: str, scores: Mapping[Run, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return each attention's best rate, by the mean over seeds and sizes, and the seeds' scores with it, in %."""
    rows = []
    for attention in study.attentions:
        by_rate = {rate: [scores[Run(probe, attention, rate, seed)] for seed in study.seeds] for rate in study.rates}
        best = max(study.rates, key=lambda rate: mean(share for shares in by_rate[rate] for share in shares.values()))
        sizes = {
            size: {
                "mean": 100 * mean(shares[size] for shares in by_rate[best]),
                "least": 100 * min(shares[size] for shares in by_rate[best]),
                "most": 100 * max(shares[size] for shares in by_rate[best]),
            }
            for size in by_rate[best][0]
        }
        rows.append({"attention": attention, "rate": best, "sizes": sizes})
    return rows


def _table(study: Study, probe: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    about = PROBES[probe]
    shown = [
        {
            "attention": row["attention"],
            "rate": row["rate"],
            **{size: {"mean": x["mean"], "min": x["least"], "max": x["most"]} for size, x in row["sizes"].items()},
        }
        for row in rows
    ]
    columns = [Column("attention"), Column("rate", form="g"), *(Column(size, form=".0f") for size in rows[0]["sizes"])]
    note = (
        f"Right answers in %, mean (least–most) of {len(study.seeds)} seeds with the best of {len(study.rates)} rates, "
        f"after {study.updates or about.updates} updates; trained at {', '.join(map(str, about.trained))}."
    )
    return [f"## {probe}: {about.about}", "", note, "", Table(shown, columns).markdown(), ""]
