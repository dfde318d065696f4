"""Translates whole talks with trained models: with pauses, without pauses, in noise, and for hours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.files import write_text
from ..engine import Call, Cell, State
from .recipe import Recipe, logged, ours

UTTERANCES = "utterances"  # the set of the sentences one by one, as a baseline
HOURS = "hours"  # the set of one long talk
# set of talks -> options of `leapformer prepare talks`
JOINED = {
    "pauses": ("--gap-s", "0.3", "1.5"),
    "no-pauses": ("--gap-s", "0", "0"),
    "overlaps": ("--gap-s", "-0.3", "0"),
    "snr20": ("--gap-s", "0.3", "1.5", "--snr-db", "20"),
    "snr10": ("--gap-s", "0.3", "1.5", "--snr-db", "10"),
    "snr0": ("--gap-s", "0.3", "1.5", "--snr-db", "0"),
    HOURS: ("--gap-s", "0", "0", "--talks", "1"),
}


class Talks(Recipe):
    """Joins the sentences of a corpus to sets of talks, and measures quality, latency, memory and time on each."""

    launched = ""
    steps = ("prepare", "evaluate")
    noun = "talks"
    goal = "report.md; tables and pictures in SET/"
    option_lists = {"curve": ("leapformer curve", "--policies alignatt --align-frames '2 4'")}

    @property
    def root(self) -> Path:
        """The folder of the corpus."""
        return Path(self.settings.root or "ROOT").absolute()

    def check_settings(self) -> None:
        s = self.settings
        if "prepare" in self.wanted or UTTERANCES in s.sets or not s.data_root:
            self.need_root()
        if "evaluate" in self.wanted and not s.checkpoints:
            raise LeapformerError("no --checkpoints given, trained models; see --help")

    def cells_prepare(self, state: State) -> list[Cell]:
        """Create the selected sets of talks; `utterances` needs none, since it is the sentences as they are."""
        s, cells = self.settings, list[Cell]()
        for name in s.sets:
            if name != UTTERANCES:
                minutes = s.long_minutes if name == HOURS else s.minutes
                words = ["--talks", s.talks, "--minutes", minutes, "--seed", s.seed, "--split", s.split]
                step = ours("prepare", "talks", self.root, "--out", self.data / name, *words, *JOINED[name])
                cells.append(Cell(f"data/{name}", (step,), None, title=f"talks: {name}"))
        return cells

    def cells_evaluate(self, state: State) -> list[Cell]:
        """Evaluate the sets one after the other, because time is measured, in a process each, because memory is."""
        sets = self.settings.sets
        report = Call(write_report, (self.out, tuple(sets)))
        return [*map(self.curve, sets), Cell("report", (report,), None, needs=tuple(sets))]

    def curve(self, name: str) -> Cell:
        """Run `leapformer curve` on a set, with one thread."""
        s, data = self.settings, self.data / name
        needs: tuple[str, ...] = (f"data/{name}",)
        inputs: tuple[Path, ...] = (data / "summary.json",)
        test = ["--talks", data, "--segment", *s.segment]
        if name == UTTERANCES:
            lists = (self.root / f"{s.split}.{part}" for part in ("source", "target"))
            test = [word for pair in zip(("--source", "--target"), lists, strict=True) for word in pair]
            needs, inputs = (), ()
        models = ["--checkpoints", *(path.absolute() for path in s.checkpoints)]
        system = ["--data-root", s.data_root or self.root, "--config-yaml", s.config_yaml]
        words = (*models, *system, *test, *self.options("curve"))
        step = logged("curve", "--out", self.out / name, *words, log=f"{name}.log", threads=1)
        return Cell(name, (step,), None, needs=needs, inputs=inputs, title=f"translating {name}")


def write_report(out: Path, sets: Sequence[str]) -> None:
    """Write a page with the tables of all sets, in Markdown."""
    parts = ["# Talks: quality, latency, memory and time\n"]
    for name in sets:
        text = (out / name / "table.md").read_text(encoding="utf-8")
        # As a section of this page, with links relative to it.
        parts.append(text.replace("# Simultaneous", f"## {name}: simultaneous", 1).replace("](", f"]({name}/"))
    write_text(out / "report.md", "\n".join(parts))
