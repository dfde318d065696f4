"""Long Range Arena from data to tables, scores and plots."""

from __future__ import annotations

import os
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.files import read_json
from .options import Parser, list_of, whole
from .recipe import DataSet, Recipe

BASELINE = "softmax"  # composite scores are relative to it
MAPPED = ("cosformer", "leap")  # rows of figure 3 of the LeaPformer paper


class LongRangeArena(Recipe):
    """Trains and tests every task, row and seed of a protocol, using `leapformer lra`.

    Results: accuracies beside the papers', numbers of parameters, reweighting matrices of cosFormer and LeaPformer in
    ListOps, speed and memory, composite scores, and figure 1.
    """

    steps = ("prepare", "train", "tables", "maps", "bench")
    option_lists = {"train": ("all trainings", "--max-update 100")}

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        parser.flag("--reduced", "shorter ListOps and easier Pathfinder, generated: minutes of a core a training")
        parser.option("--protocol", "NAME", "leapformer, luna, corrected, or a YAML file like theirs")
        parser.option("--root", "DIR", f"{about.holds}; not for --reduced", Path)
        parser.option("--tasks", "LIST", "in quotes (by default all of the protocol)", list_of(), default=[])
        parser.option("--attention", "LIST", "rows of the protocol, in quotes (by default all)", list_of(), default=[])
        parser.option("--seeds", "LIST", "in quotes (by default the protocol's)", list_of(whole()), default=[])
        parser.option("--quirks", "NAMES", "published flaws, with commas, or none (by default the protocol's)")
        parser.option("--jobs", "N", "trainings at once, one thread each", whole(), default=os.cpu_count() or 1)
        parser.flag(
            "--no-bench", "leave out speed and memory, which take a quarter of an hour of a quiet machine, and the "
            "scores",
        )  # fmt: skip

    def check(self) -> None:
        if not (self.settings.reduced or self.settings.protocol):
            raise LeapformerError("no --protocol and no --reduced given; see --help")
        if self.settings.attention:
            from ..lra import protocols  # imports torch, which takes seconds and which few commands need

            protocol = protocols.load(self.settings.protocol or "reduced")
            protocols.check_names("attention", self.settings.attention, protocol.rows, protocol)
        if self.settings.root and not self.shell.dry:
            self.need_root()

    @property
    def common(self) -> list[str]:
        """The options for the protocol, its tasks and its quirks."""
        s = self.settings
        tasks = ["--tasks", *s.tasks] if s.tasks else []
        return ["--protocol", s.protocol or "reduced", *tasks, *(["--quirks", s.quirks] if s.quirks else [])]

    @property
    def rows(self) -> list[str]:
        return ["--attention", *self.settings.attention] if self.settings.attention else []

    @property
    def results(self) -> Path:
        return self.out / "results"

    # ---------------------------------------------------------------------------------------------------------- steps
    def lra(self, *words: object) -> None:
        self.shell.run(self.shell.leapformer("lra", *words))

    def step_prepare(self) -> None:
        root = ["--root", self.settings.root] if self.settings.root else []
        self.shell.say(f"data in {self.data}")
        self.lra("prepare", *self.common, "--data", self.data, *root)

    def step_train(self) -> None:
        s = self.settings
        seeds = ["--seeds", *s.seeds] if s.seeds else []
        more = [f"--train-options={' '.join(self.options('train'))}", "--jobs", s.jobs]
        self.shell.say(f"trainings in {self.out}/runs, {s.jobs} at once")
        self.lra("run", *self.common, *self.rows, "--data", self.data, "--out", self.out / "runs", *seeds, *more)

    def step_tables(self) -> None:
        self.shell.say("accuracies and parameters")
        self.lra("table", self.out / "runs", "--out", self.results)
        self.lra("params", *self.common, *self.rows, "--out", self.results)

    def step_maps(self) -> None:
        for row in MAPPED:
            checkpoint = next(iter(sorted(self.out.glob(f"runs/listops/{row}-seed*/checkpoint_best.pt"))), None)
            out = self.results / f"maps-{row}"
            if checkpoint and not out.is_dir():
                self.shell.say(f"re-weighting of {row} in ListOps")
                options = ["--path", checkpoint, "--data", self.data / "listops", "--input", "test", "--lines", 200]
                self.shell.run(self.shell.leapformer("maps", *options, "--out", out))

    def step_bench(self) -> None:
        """Measure speed and memory of the protocol's models, unless `--no-bench` is given."""
        if self.settings.no_bench:
            return
        bench, models = self.results / "lra.json", "luna" if self.settings.protocol == "luna" else "leapformer"
        self.shell.say(f"speed and memory, a quarter of an hour (progress in {self.results}/bench.log)")
        if not bench.is_file() or read_json(bench).get("cases_left") != 0:
            command = ("bench", "lra", "--protocol", models)
            # A process of its own, since the memory allocator of trainings must be chosen at its start.
            log = self.results / "bench.log"
            self.shell.run(self.shell.logged(log, *command, "--out", self.results, threads=1))
        rows = self.settings.attention
        if not rows or BASELINE in rows or any(self.out.glob(f"runs/*/{BASELINE}-seed*")):
            self.lra("rcp", self.out / "runs", "--bench", bench, "--out", self.results)
        else:
            self.shell.say(f"no composite scores: --attention leaves out {BASELINE}, which they are relative to")
        self.shell.say(f"done: {self.results}")
