"""Sparsefinder from data to curves: an entmax teacher, its graphs, projections, recall and quality against sparsity."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.lines import find_text, read_lines, write_lines
from ..engine import Call, Cell, State
from . import configuration
from .plans import Attention
from .recipe import Recipe, ours


class Sparsefinder(Recipe):
    """Trains a model with softmax and then with entmax; the configuration selects the task."""

    steps = ("teach", "extract", "fit", "measure")
    goal = "curves/curves.md, curves.csv, curves.json, recall.svg, quality.svg"
    option_lists = {
        "train": ("both trainings", "--max-tokens 1000"),
        "teacher": ("the teacher's recipe, mlm, multi30k or iwslt17", "--vocab-size 4000"),
        "extract": ("`leapformer sparsefinder extract`", "--sentences 100"),
        "fit": ("`leapformer sparsefinder fit`", "--loss query"),
        "pareto": ("`leapformer sparsefinder pareto`", "--quality-points 0"),
    }

    def check_settings(self) -> None:
        s, wanted = self.settings, len(self.attentions())
        if s.epochs and len(s.epochs) != wanted:
            numbers = "two numbers, of softmax and of entmax" if wanted == 2 else "one number, of entmax"
            raise LeapformerError(f"--epochs {s.epochs}: give {numbers}")
        if s.train_on_valid and s.recipe != "mlm":
            raise LeapformerError("--train-on-valid is for --paper mlm and mlm_small; leave it out")
        if s.init and not (s.init.is_file() or self.dry):
            raise LeapformerError(f"--init {s.init}: no such checkpoint; train it first or check the path")

    def check_data(self) -> None:
        self.need_root()

    def attentions(self) -> list[Attention]:
        """The attentions of the trainings: softmax, unless the configuration starts from a model, then entmax."""
        return [Attention(name) for name in (self.settings.softmax, self.settings.entmax) if name]

    @property
    def root(self) -> Path:
        return self.out / "text" if self.settings.train_on_valid else self.settings.root

    # ---------------------------------------------------------------------------------------------------------- steps
    def cells_teach(self, state: State) -> list[Cell]:
        """Train the teacher in its stages; the last is the entmax model whose graphs are predicted."""
        s, warm_up, cells = self.settings, ["--warmup-updates", "50"], list[Cell]()
        if s.train_on_valid:
            cells.append(Cell("text", (Call(split_valid, (s.root, self.root)),)))
        best = ["--finetune-from-model", str(s.init)] if s.init else []
        stages = [(f"stage-{size}", s.softmax, epochs, ["--tokens-per-sample", size]) for size, epochs in s.stages]
        if s.softmax:
            stages.append(("teacher", s.softmax, s.epochs and s.epochs[0], []))
        for folder, attention, epochs, more in stages:
            cells.append(self.teach(folder, attention, epochs, [*more, *(warm_up if best else []), *best], cells))
            best = ["--finetune-from-model", str(self.best(folder, attention))]
        configured = configuration.flags(s.configured.get("entmax-train", {}))
        return [*cells, self.teach("teacher", s.entmax, s.epochs and s.epochs[-1], [*best, *configured], cells)]

    def teach(self, folder: str, attention: str, epochs: object, more: list[str], before: list[Cell]) -> Cell:
        """Train in OUT/folder with the data set's recipe."""
        s, training = self.settings, shlex.join([*self.options("train"), *more])
        options = ["--root", self.root, "--out", self.out / folder, "--attention", attention]
        options += [*(["--epochs", epochs] if epochs else []), *(["--pair", s.pair] if s.pair else [])]
        options += ["--train-options", training, *self.options("teacher"), *self.launcher.options]
        name, needs = f"{folder}/{Attention(attention).folder}", tuple(cell.name for cell in before[-1:])
        title = f"teacher: {attention}, in {self.out / folder}"
        return Cell(name, (ours("recipe", s.recipe, *options),), None, needs=needs, title=title)

    def best(self, folder: str, attention: str) -> Path:
        return self.out / folder / Attention(attention).run_folder(1) / "model/checkpoint_best.pt"

    def cells_extract(self, state: State) -> list[Cell]:
        s = self.settings
        words = ("--path", self.best("teacher", s.entmax), "--block", s.block, "--out", self.out / "graphs")
        data = self.out / "teacher/data/binary"
        step = ours("sparsefinder", "extract", data, *words, *self.options("extract"))
        needs = (f"teacher/{Attention(s.entmax).folder}",)
        return [Cell("graphs", (step,), None, needs=needs, title=f"graphs of {s.block}")]

    def cells_fit(self, state: State) -> list[Cell]:
        options = ["--out", self.out / "fitted", "--seeds", *self.settings.seeds, *self.options("fit")]
        step = ours("sparsefinder", "fit", self.out / "graphs", *options)
        return [Cell("fitted", (step,), None, needs=("graphs",), title="projections and centroids")]

    def cells_measure(self, state: State) -> list[Cell]:
        s, data = self.settings, self.out / "teacher/data"
        fitted = [self.out / f"fitted/seed{seed}.pt" for seed in s.seeds]
        language = (s.pair or "").partition("-")[2]
        references = ["--references", data / f"text/raw/test.{language}"] if language else []
        step = ours(
            "sparsefinder", "pareto", self.out / "graphs", "--fitted", *fitted, "--out", self.out / "curves", "--grid",
            s.grid, "--data", data / "binary", *references, *self.options("pareto"),
        )  # fmt: skip
        return [Cell("curves", (step,), None, needs=("fitted",))]


def split_valid(root: Path, out: Path) -> None:
    """Split the validation text: the first nine tenths for training, the rest for validation."""
    lines = _text(root, "valid")
    kept = len(lines) * 9 // 10
    for name, part in {"train": lines[:kept], "valid": lines[kept:], "test": _text(root, "test")}.items():
        write_lines(out / f"{name}.txt", part)


def _text(root: Path, name: str) -> list[str]:
    """The lines of a text in --root, decompressed if necessary."""
    file = find_text(root, (f"{name}.txt", f"wiki.{name}.tokens"))
    if file is None:
        raise LeapformerError(f"--root {root} holds no {name}.txt and no wiki.{name}.tokens, nor with .gz")
    return list(read_lines(file))
