"""Text translation with joint subwords: trains a model and measures BLEU and chrF of detokenised text."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ...data.pairs import of_text
from ...support.errors import LeapformerError
from ...support.lines import read_lines, write_lines
from ..engine import Call, Cell, State
from .plans import Attention
from .recipe import LIMITS, Recipe, Steps, logged, ours, training

SEPARATOR = "<sep>"


class Translation(Recipe):
    """Trains and evaluates one model; the table has all runs in the folder."""

    option_lists = {
        "train": ("training", "--max-update 1000 --fp16"),
        "eval": ("fairseq-generate", "--beam 1"),
        "linearize": ("leapformer linearize", "--distill-updates 2000"),
    }

    def check_settings(self) -> None:
        if self.settings.pair:
            of_text(self.settings.pair)
        if self.settings.linearize and self.launcher.options:
            raise LeapformerError("--linearize starts its trainings itself: `leapformer linearize --launcher ...`")

    def check_data(self) -> None:
        self.need_root(f"--root (the folder that holds {self.about.holds})")

    # ------------------------------------------------------------------------------------------------------- names
    @property
    def languages(self) -> list[str]:
        source, _, target = self.settings.pair.partition("-")
        return ["--source-lang", source, "--target-lang", target]

    @property
    def target(self) -> str:
        return self.settings.pair.partition("-")[2]

    @property
    def title(self) -> str:
        """The run's attention, and how the model was made if it was not trained from scratch."""
        s = self.settings
        if not s.linearize:
            return s.attention.text
        return f"{s.attention.text}:linearized" + (f":keep={s.keep}" if s.keep else "")

    @property
    def run_folder(self) -> Path:
        return self.out / Attention(self.title).run_folder(self.settings.seed)

    def options(self, name: str) -> list[str]:
        epochs = ["--max-epoch", str(self.settings.epochs)] if name == "train" else []
        return [*epochs, *super().options(name)]

    # ---------------------------------------------------------------------------------------------------------- steps
    def prepare_options(self) -> list[str]:
        """The arguments of `leapformer prepare`: the name of the data set, and options."""
        return [self.about.prepared or self.name.partition("_")[0], *(["--download"] if self.downloads else [])]

    def cells_prepare(self, state: State) -> list[Cell]:
        text, binary, s = self.data / "text", self.data / "binary", self.settings
        name, *more = self.prepare_options()
        parts = (word for part in ("train", "valid", "test") for word in (f"--{part}pref", text / part))
        # One dictionary for both languages, so that they can share embeddings.
        binarise = logged(
            "preprocess", *self.languages, *parts, "--destdir", binary, "--joined-dictionary", "--srcdict",
            text / "spm.txt", "--workers", s.workers, log="preprocess.log",
        )  # fmt: skip
        prepare = ours("prepare", name, s.root, "--out", text, "--pair", s.pair, "--vocab-size", s.vocab_size, *more)
        return [
            Cell("data", (prepare,), None, title=f"preparing {self.name} in {self.data}"),
            Cell("data/binary", (binarise,), needs=("data",)),
        ]

    def cells_train(self, state: State) -> list[Cell]:
        s, run, binary = self.settings, self.run_folder, self.data / "binary"
        keep = ["--keep-last-epochs", s.average] if s.average else ["--no-epoch-checkpoints"]
        steps: Steps = (
            training(
                binary, run / "model", "--task", "translation", *self.languages, "--seed", s.seed, *keep,
                *self.options("train"), *self.keep_batch("train", self.options("train")), *s.attention.flags,
            ),
        )  # fmt: skip
        # The softmax model with the same options is what a linearized one is compared with, too.
        records = {run.name: " ".join(["--attention", self.title, "--seed", str(s.seed), *self.options("train")])}
        if s.linearize:
            steps = self.linearize()
            # Recorded for the model and not for the run, because rows of a table must not differ by it.
            records[f"{run.name}/model"] = " ".join(["--linearize", str(s.linearize), *self.options("linearize")])
        title, result = f"training {self.title}, seed {s.seed}, in {run}", f"{run.name}/model/done"
        return [Cell(run.name, steps, result, needs=("data/binary",), records=records, title=title)]

    def linearize(self) -> Steps:
        """Make a trained model's student this run's best checkpoint; students of a plan share the alignment."""
        s = self.settings
        out = self.out / "linearized" / s.attention.run_folder(s.seed)
        student = ours(
            "linearize", "--path", s.linearize, "--attention", s.attention.text, "--data", self.data / "binary",
            "--out", out, "--keep", s.keep, *self.options("linearize"), "--", "--seed", s.seed,
        )  # fmt: skip
        best = self.run_folder / "model/checkpoint_best.pt"  # where `evaluate` looks for a trained model
        return student, Call(shutil.copy, (out / f"keep{s.keep}/checkpoint.pt", best))

    def cells_evaluate(self, state: State) -> list[Cell]:
        s, run = self.settings, self.run_folder
        checkpoint, cells, needs = run / "model/checkpoint_best.pt", list[Cell](), [run.name]
        if s.average and not s.linearize:
            checkpoint = run / f"model/average{s.average}.pt"
            cells.append(self.average(run))
            needs.append(cells[0].name)
        place = f"{run.name}/{s.set}"
        records = {place: " ".join(["--average", str(s.average), *self.options("eval")])}
        title = f"translating the {s.set} set with {self.title}, seed {s.seed}"
        steps = self.translate(checkpoint, run / s.set)
        cells.append(Cell(place, steps, needs=tuple(needs), records=records, title=title))
        return [*cells, self.table(run.name, [place], f"{self.name}, {s.pair}", self.note())]

    def translate(self, checkpoint: Path, out: Path) -> Steps:
        """Translate the set, then compute BLEU and chrF."""
        s, text = self.settings, self.data / "text"
        translations = out / f"generate-{s.set}.txt"
        generate = logged(
            "generate", self.data / "binary", "--task", "translation", *self.languages, "--gen-subset", s.set, "--path",
            checkpoint, "--max-tokens", 8000, *LIMITS, "--bpe", "sentencepiece", "--sentencepiece-model",
            text / "spm.model", "--results-path", out, *self.options("eval"), log="generate.log",
        )  # fmt: skip
        scored, more = self.scored(translations)
        words = ("--references", text / f"raw/{s.set}.{self.target}", "--checkpoint", checkpoint)
        return generate, *more, ours("score", scored, *words, "--json", out / "scores.json")

    def scored(self, translations: Path) -> tuple[Path, Steps]:
        """The file to compare with the references, and what makes it."""
        return translations, ()

    def note(self) -> str:
        by = f"the average of the last {self.settings.average} epochs of each run"
        if not self.settings.average:
            by = "the checkpoint with the lowest validation loss of each run"
        return f"Detokenised text, one reference; translated with {by}."


class Documents(Translation):
    """Documents in windows of sentences that are translated together; only the last sentence is scored."""

    def prepare_options(self) -> list[str]:
        return [*super().prepare_options(), "--window", str(self.settings.window)]

    def scored(self, translations: Path) -> tuple[Path, Steps]:
        sentences = translations.with_name(f"sentences-{self.settings.set}.txt")
        return sentences, (Call(write_last_sentences, (translations, sentences)),)

    def note(self) -> str:
        return super().note().rstrip(".") + ", in windows of sentences, of which the last one counts."


def last_sentence(line: str) -> str:
    """Reduce a line of fairseq-generate's output that is a translated window to the text after the last separator."""
    return re.sub(rf"^(D-\d+\t[^\t]*\t).*{SEPARATOR} ?", r"\1", line)


def write_last_sentences(translations: Path, out: Path) -> None:
    """Reduce the windows in fairseq-generate's output to their last sentences."""
    write_lines(out, map(last_sentence, read_lines(translations)))
