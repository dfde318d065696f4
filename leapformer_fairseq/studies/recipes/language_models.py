"""Trains language models and masked language models, one per attention and seed, and measures perplexity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...support.errors import LeapformerError
from ..engine import Cell, State
from .facts import WHOLE
from .plans import Attention
from .recipe import Steps, logged, ours
from .runs import Run, Runs

PARTS, SCORED = ("train", "valid", "test"), ("valid", "test")


class LanguageModel(Runs):
    """Word perplexity on the validation and test texts, with more or less preceding context."""

    task_options = ("--task", "language_modeling")
    option_lists = {
        "train": ("training", "--max-update 1000 --fp16"),
        "eval": ("fairseq-eval-lm", "--context-window 400"),
    }

    def masks(self, attention: Attention) -> dict[str, str]:
        return {"decoder-self": WHOLE}

    def check_data(self) -> None:
        if not (self.settings.valid and self.settings.test):
            self.need_root("--root (or else --train, --valid and --test)")

    def cells_prepare(self, state: State) -> list[Cell]:
        s, text = self.settings, self.data / "text"
        files = [word for part in PARTS if getattr(s, part) for word in (f"--{part}", getattr(s, part))]
        options = [*([s.root] if s.root or not files else []), "--out", text, *files]
        options += [f"--{flag.replace('_', '-')}" for flag in ("train_on_valid", "download") if getattr(s, flag)]
        return prepared_text(self, [self.name, *options], None)

    def model_options(self, run: Run) -> list[str]:
        return ["--decoder-self-attention", run.attention.plan]

    @property
    def marks(self) -> list[str]:
        return ["--train-on-valid"] if getattr(self.settings, "train_on_valid", False) else []

    def evaluations(self, run: Run) -> Mapping[str, list[str]]:
        options = self.options("eval")
        contexts = {f"-context{n}": [*options, "--context-window", str(n)] for n in self.settings.contexts}
        of_all = contexts or {"": options}
        return {part + context: options for part in self.settings.sets for context, options in of_all.items()}

    def evaluate(self, run: Run, checkpoint: Path, out: Path, options: list[str]) -> Steps:
        log, part = out / "eval.log", out.name.partition("-")[0]
        words = ("--path", checkpoint, "--gen-subset", part, *options)
        text = self.data / f"text/{part}.txt"
        return (
            logged("eval-lm", self.data / "binary", *words, log=log.name),
            ours("score", log, "--text", text, "--checkpoint", checkpoint, "--json", out / "scores.json"),
        )

    def notes(self) -> list[str]:
        of_all = "Words of the text, line ends included; of each run the checkpoint with the lowest validation loss."
        if not self.settings.train_on_valid:
            return [of_all]
        return [
            of_all,
            "There was no training text: the models were trained on the validation text without its last tenth and "
            "validated on that tenth. Words that only the test text has count as <unk>. So these perplexities cannot "
            "be compared with published ones.",
        ]


class OwnLanguageModel(LanguageModel):
    """Any text, in subwords."""

    def check_data(self) -> None:
        self.need_root()

    def cells_prepare(self, state: State) -> list[Cell]:
        return prepared_subwords(self, [])

    def notes(self) -> list[str]:
        return [
            "Perplexity of the subwords of the text, line ends included: comparable between models with these "
            "subwords only; of each run the checkpoint with the lowest validation loss."
        ]


def prepared_subwords(recipe: Runs, more: list[object]) -> list[Cell]:
    """Prepare text in subwords with a dictionary; `more` are options of `leapformer prepare mlm`."""
    s, text = recipe.settings, recipe.data / "text"
    return prepared_text(recipe, ["mlm", s.root, "--out", text, "--vocab-size", s.vocab_size, *more], text / "dict.txt")


def prepared_text(recipe: Runs, words: list[object], vocabulary: Path | None) -> list[Cell]:
    """Prepare text with `leapformer prepare`, and binarise it."""
    files = {part: recipe.data / f"text/{part}.txt" for part in PARTS}
    return [
        Cell("data", (ours("prepare", *words),), None, title=f"preparing {recipe.name} in {recipe.data}"),
        Cell("data/binary", recipe.binarise(recipe.data / "binary", files, vocabulary), needs=("data",)),
    ]


class MaskedLanguageModel(Runs):
    """Perplexity of the masked subwords of a test text, the same ones for every model."""

    task_options = ("--task", "masked_lm", "--criterion", "masked_lm")
    option_lists = {
        "train": ("training", "--max-update 1000 --fp16"),
        "eval": ("fairseq-validate", "--mask-prob 0.2"),
    }

    def masks(self, attention: Attention) -> dict[str, str]:
        return {"encoder-self": WHOLE}

    def check_data(self) -> None:
        self.need_root()

    def cells_prepare(self, state: State) -> list[Cell]:
        vocabulary = self.settings.vocabulary
        return prepared_subwords(self, ["--vocabulary", vocabulary] if vocabulary else [])

    def check_training(self) -> None:
        init = self.settings.init
        if init and not init.is_file():
            raise LeapformerError(f"--init {init}: no such checkpoint; train it first or check the path")

    def model_options(self, run: Run) -> list[str]:
        return ["--encoder-self-attention", run.attention.plan]

    def training_options(self, run: Run) -> list[str]:
        init = self.settings.init
        return [*(["--finetune-from-model", str(init)] if init else []), *self.options("train")]

    def evaluations(self, run: Run) -> Mapping[str, list[str]]:
        return {"test": self.options("eval")}

    def evaluate(self, run: Run, checkpoint: Path, out: Path, options: list[str]) -> Steps:
        # Text is cut into full blocks, so that no line is too long; the seed makes all models see the same masks.
        words = ("--task", "masked_lm", "--valid-subset", "test", "--sample-break-mode", "none", "--seed", 1)
        text = self.data / "text/test.txt"
        return self.validate(self.data / "binary", checkpoint, out, text, *words, *options)

    def notes(self) -> list[str]:
        return [
            "Perplexity of the masked subwords of the test text, the same ones for every model; of each run the "
            "checkpoint with the lowest validation loss."
        ]
