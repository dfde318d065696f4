"""Long Range Arena from data to tables, scores and plots."""

from __future__ import annotations

from pathlib import Path

from ...support.errors import LeapformerError
from ...support.files import read_json
from ..engine import Cell, Command, State
from .recipe import Recipe, logged, ours

BASELINE = "softmax"  # composite scores are relative to it
MAPPED = ("cosformer", "leap")  # rows of figure 3 of the LeaPformer paper


class LongRangeArena(Recipe):
    """Trains and tests every task, row and seed of a protocol, using `leapformer lra`.

    Results: accuracies beside the papers', numbers of parameters, reweighting matrices of cosFormer and LeaPformer in
    ListOps, speed and memory, composite scores, and figure 1.
    """

    launched = ""
    steps = ("prepare", "train", "tables", "maps", "bench")
    option_lists = {"train": ("all trainings", "--max-update 100")}
    goal = "results"

    def check_settings(self) -> None:
        if not (self.settings.reduced or self.settings.protocol):
            raise LeapformerError("no --protocol and no --reduced given; see --help")
        if self.settings.attention:
            from ..lra import protocols  # imports torch, which takes seconds and which few commands need

            protocol = protocols.load(self.settings.protocol or "reduced")
            protocols.check_names("attention", self.settings.attention, protocol.rows, protocol)
        if self.settings.root and not self.dry:
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
    def cells_prepare(self, state: State) -> list[Cell]:
        root = ["--root", self.settings.root] if self.settings.root else []
        words = ("prepare", *self.common, "--data", self.data, *root)
        return [_cell("data", ours("lra", *words), title=f"data in {self.data}")]

    def cells_train(self, state: State) -> list[Cell]:
        s = self.settings
        seeds = ["--seeds", *s.seeds] if s.seeds else []
        more = [f"--train-options={' '.join(self.options('train'))}", "--jobs", s.jobs]
        words = ("run", *self.common, *self.rows, "--data", self.data, "--out", self.out / "runs", *seeds, *more)
        title = f"trainings in {self.out}/runs, {s.jobs} at once"
        return [_cell("runs", ours("lra", *words), needs=("data",), title=title)]

    def cells_tables(self, state: State) -> list[Cell]:
        table = ours("lra", "table", self.out / "runs", "--out", self.results)
        params = ours("lra", "params", *self.common, *self.rows, "--out", self.results)
        return [_cell("tables", table, params, needs=("runs",), title="accuracies and parameters")]

    def cells_maps(self, state: State) -> list[Cell]:
        cells = []
        for row in MAPPED:
            checkpoint = next(iter(sorted(self.out.glob(f"runs/listops/{row}-seed*/checkpoint_best.pt"))), None)
            out = self.results / f"maps-{row}"
            if checkpoint and (f"maps-{row}" in state.results or not out.is_dir()):
                options = ["--path", checkpoint, "--data", self.data / "listops", "--input", "test", "--lines", 200]
                maps, title = ours("maps", *options, "--out", out), f"re-weighting of {row} in ListOps"
                cells.append(_cell(f"maps-{row}", maps, needs=("runs",), title=title))
        return cells

    def cells_bench(self, state: State) -> list[Cell]:
        """Measure speed and memory of the protocol's models, unless `--no-bench` is given."""
        if self.settings.no_bench:
            return []
        bench, models, cells = self.results / "lra.json", self.settings.protocol, list[Cell]()
        if "bench" in state.results or not bench.is_file() or read_json(bench).get("cases_left") != 0:
            words = ("bench", "lra", "--protocol", "luna" if models == "luna" else "leapformer", "--out", self.results)
            # A process of its own, since the memory allocator of trainings must be chosen at its start.
            title = f"speed and memory, a quarter of an hour (progress in {self.results}/bench.log)"
            step = logged(*words, log="results/bench.log", threads=1)
            cells.append(_cell("bench", step, needs=("tables",), title=title))
        rows, needs = self.settings.attention, (*(cell.name for cell in cells), "runs")
        if not rows or BASELINE in rows or any(self.out.glob(f"runs/*/{BASELINE}-seed*")):
            scores = ours("lra", "rcp", self.out / "runs", "--bench", bench, "--out", self.results)
            return [*cells, _cell("scores", scores, needs=needs)]
        title = f"no composite scores: --attention leaves out {BASELINE}, which they are relative to"
        return [*cells, _cell("scores", needs=needs, title=title)]


def _cell(name: str, *steps: Command, needs: tuple[str, ...] = (), title: str = "") -> Cell:
    """A cell that is run each time: its commands leave out what is done."""
    return Cell(name, steps, None, needs=needs, title=title)
