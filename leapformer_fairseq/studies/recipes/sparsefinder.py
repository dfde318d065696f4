"""Sparsefinder from data to curves: an entmax teacher, its graphs, projections, recall and quality against sparsity."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.lines import find_text, read_lines, write_lines
from ..trainings import Work
from . import configuration
from .options import Parser, list_of, whole
from .plans import Attention
from .recipe import DataSet, Recipe


def _stage(text: str) -> tuple[str, str]:
    """Parse TOKENS:EPOCHS."""
    tokens, _, epochs = text.partition(":")
    if not (tokens.isdigit() and epochs.isdigit() and int(tokens) and int(epochs)):
        raise argparse.ArgumentTypeError(f'{text}: give TOKENS:EPOCHS for each, as in "32:7 64:1"')
    return tokens, epochs


class Sparsefinder(Recipe):
    """Trains a model with softmax and then with entmax; the configuration selects the task."""

    steps = ("teach", "extract", "fit", "measure")
    option_lists = {
        "train": ("both trainings", "--max-tokens 1000"),
        "teacher": ("the teacher's recipe, mlm, multi30k or iwslt17", "--vocab-size 4000"),
        "extract": ("`leapformer sparsefinder extract`", "--sentences 100"),
        "fit": ("`leapformer sparsefinder fit`", "--loss query"),
        "pareto": ("`leapformer sparsefinder pareto`", "--quality-points 0"),
    }

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        parser.option("--root", "DIR", f"the data: {about.holds}; plain or with .gz", Path)
        parser.flag(
            "--train-on-valid", "mlm, without a training text: nine tenths of the validation text, the last tenth "
            "validates",
        )  # fmt: skip
        parser.option("--grid", "NAME", "section5 or c2 of the paper, union, small", default="union")
        parser.option("--seeds", "LIST", "of the projections, in quotes", list_of(whole()), default="1 2 3")
        parser.option(
            "--epochs", "LIST", "of softmax, if there is such a training, and of entmax, in quotes; by default those "
            "of the teacher's recipe", list_of(whole()),
        )  # fmt: skip
        parser.option(
            "--init", "CHECKPOINT", "the first training begins with this model, as the paper's with one trained on "
            "ParaCrawl, or with RoBERTa", Path,
        )  # fmt: skip
        parser.option("--pair", "SOURCE-TARGET", "languages of a translation")
        parser.option(
            "--stages", "LIST", 'of softmax before these, TOKENS:EPOCHS each, on pieces of so many tokens; "" for none',
            list_of(_stage),
        )  # fmt: skip
        for setting in ("block", "recipe", "softmax", "entmax"):
            parser.option(f"--{setting}", "NAME", "of the configuration")

    def check(self) -> None:
        s, wanted = self.settings, len(self.attentions())
        if s.epochs and len(s.epochs) != wanted:
            numbers = "two numbers, of softmax and of entmax" if wanted == 2 else "one number, of entmax"
            raise LeapformerError(f"--epochs {s.epochs}: give {numbers}")
        if s.train_on_valid and s.recipe != "mlm":
            raise LeapformerError("--train-on-valid is for --paper mlm and mlm_small; leave it out")
        if s.init and not (s.init.is_file() or self.shell.dry):
            raise LeapformerError(f"--init {s.init}: no such checkpoint; train it first or check the path")

    def attentions(self) -> list[Attention]:
        """The attentions of the trainings: softmax, unless the configuration starts from a model, then entmax."""
        return [Attention(name) for name in (self.settings.softmax, self.settings.entmax) if name]

    @property
    def root(self) -> Path:
        return self.out / "text" if self.settings.train_on_valid else self.settings.root

    # ---------------------------------------------------------------------------------------------------------- steps
    def step_teach(self) -> None:
        """Train the teacher in its stages; the last is the entmax model whose graphs are predicted."""
        s, warm_up = self.settings, ["--warmup-updates", "50"]
        self.need_root() if not self.shell.dry else None
        if s.train_on_valid:
            self.shell.run(self.shell.once(self.root, self.split_valid(self.root)))
        plans = [attention.text for attention in self.attentions()]
        self.shell.say(f"teacher: {', then '.join(plans)}")
        best = ["--finetune-from-model", str(s.init)] if s.init else []
        for tokens, epochs in s.stages:
            more = ["--tokens-per-sample", tokens, *(warm_up if best else []), *best]
            best = self.teach(f"stage-{tokens}", s.softmax, epochs, more)
        if s.softmax:
            best = self.teach("teacher", s.softmax, s.epochs and s.epochs[0], [*(warm_up if best else []), *best])
        configured = configuration.flags(s.configured.get("entmax-train", {}))
        self.teach("teacher", s.entmax, s.epochs and s.epochs[-1], [*best, *configured])

    def teach(self, folder: str, attention: str, epochs: object, more: list[str]) -> list[str]:
        """Train in OUT/folder with the data set's recipe; return the options that start a training from the result."""
        s, training = self.settings, shlex.join([*self.options("train"), *more])
        options = ["--root", self.root, "--out", self.out / folder, "--attention", attention]
        options += [*(["--epochs", epochs] if epochs else []), *(["--pair", s.pair] if s.pair else [])]
        options += ["--train-options", training, *self.options("teacher")]
        self.shell.run(self.shell.leapformer("recipe", s.recipe, *options))
        return ["--finetune-from-model", str(self.best(folder, attention))]

    def best(self, folder: str, attention: str) -> Path:
        return self.out / folder / Attention(attention).run_folder(1) / "model/checkpoint_best.pt"

    def step_extract(self) -> None:
        s = self.settings
        self.shell.say(f"graphs of {s.block}")
        path, out = self.best("teacher", s.entmax), self.out / "graphs"
        options = ["--path", path, "--block", s.block, "--out", out, *self.options("extract")]
        self.shell.run(self.shell.leapformer("sparsefinder", "extract", self.out / "teacher/data/binary", *options))

    def step_fit(self) -> None:
        self.shell.say("projections and centroids")
        options = ["--out", self.out / "fitted", "--seeds", *self.settings.seeds, *self.options("fit")]
        self.shell.run(self.shell.leapformer("sparsefinder", "fit", self.out / "graphs", *options))

    def step_measure(self) -> None:
        s, data, curves = self.settings, self.out / "teacher/data", self.out / "curves"
        fitted = [self.out / f"fitted/seed{seed}.pt" for seed in s.seeds]
        language = (s.pair or "").partition("-")[2]
        references = ["--references", data / f"text/raw/test.{language}"] if language else []
        self.shell.say("curves")
        self.shell.run(
            self.shell.leapformer(
                "sparsefinder", "pareto", self.out / "graphs", "--fitted", *fitted, "--out", curves, "--grid", s.grid,
                "--data", data / "binary", *references, *self.options("pareto"),
            )
        )  # fmt: skip
        self.shell.say(f"done: {curves}/curves.md, curves.csv, curves.json, recall.svg, quality.svg")

    # ----------------------------------------------------------------------------------------------------------- text
    def split_valid(self, out: Path) -> Work:
        """Split the validation text: the first nine tenths for training, the rest for validation."""
        if not self.shell.dry:
            lines = self.text("valid")
            kept = len(lines) * 9 // 10
            for name, part in {"train": lines[:kept], "valid": lines[kept:], "test": self.text("test")}.items():
                write_lines(out / f"{name}.txt", part)
        return
        yield  # makes this a generator, as a Work has to be

    def text(self, name: str) -> list[str]:
        """The lines of a text in --root, decompressed if necessary."""
        root: Path = self.settings.root
        file = find_text(root, (f"{name}.txt", f"wiki.{name}.tokens"))
        if file is None:
            raise LeapformerError(f"--root {root} holds no {name}.txt and no wiki.{name}.tokens, nor with .gz")
        return list(read_lines(file))
