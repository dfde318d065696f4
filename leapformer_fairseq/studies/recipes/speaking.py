"""Trains text-to-speech models, and measures losses on the development set and distortion of test sentences."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.lines import read_lines, write_lines
from ..engine import Call, Cell, State
from .plans import Attention
from .recipe import Recipe, ours, training

SIZES = (":length-hidden=256", ":length-layers=3")


class TextToSpeech(Recipe):
    """LJSpeech; the base class for speech synthesised by espeak-ng."""

    more_steps = ("sweep",)
    option_lists = {
        "train": ("training", "--max-update 1000 --fp16"),
        "tts": ("leapformer tts", "--eos-threshold 0.4"),
    }
    goal = "speech/table.md, table.json, spectrogram_*.svg; recordings in speech/SYSTEM/wav"

    def check_data(self) -> None:
        self.need_root(f"--root (the folder that holds {self.about.holds})")

    def run_folder(self, attention: Attention) -> Path:
        return self.out / attention.run_folder(self.settings.seed)

    @property
    def speech(self) -> Path:
        return self.out / "speech"

    def check_settings(self) -> None:
        if self.settings.sizes and "conv" not in self.settings.predictors:
            raise LeapformerError("--sizes are those of the predictor conv; name it in --predictors, too")

    # ---------------------------------------------------------------------------------------------------------- steps
    def cells_prepare(self, state: State) -> list[Cell]:
        s = self.settings
        more = [*(["--download"] if s.download else []), *(["--textgrids", s.textgrids] if s.textgrids else [])]
        step = ours("prepare", self.name, s.root, "--out", self.data, "--workers", s.workers, *more)
        return [Cell("data", (step,), None, title=f"preparing {self.name} in {self.data}")]

    def cells_train(self, state: State) -> list[Cell]:
        return [self.train(self.settings.attention)]

    def cells_evaluate(self, state: State) -> list[Cell]:
        """Losses on the development set, with teacher forcing, and the test sentences with each length predictor."""
        attention = self.settings.attention
        run = self.run_folder(attention)
        note = (
            "Losses on the development set, of frames given those before: distances of frames before and behind the "
            "post-net, and the cross-entropy of the end."
        )
        examples = Call(write_examples, (self.data / "dev.tsv", run / "dev/examples.tsv"))
        words = ("--task", "text_to_speech", "--config-yaml", "config.yaml", "--valid-subset", "dev")
        checkpoint, title = run / "model/checkpoint_best.pt", f"losses on the development set with {attention.text}"
        losses = self.validate(
            self.data, checkpoint, run / "dev", run / "dev/examples.tsv", *words, "--max-tokens", 20000
        )
        dev = Cell(f"{run.name}/dev", (examples, *losses), needs=(run.name,), title=title)
        spoken = self.all_spoken(attention, self.settings.predictors)
        return [dev, self.table(run.name, [dev.name], self.name, note), *spoken, self.scored(run, "speech", spoken)]

    def cells_sweep(self, state: State) -> list[Cell]:
        """Synthesise with one model and many predicted lengths: tables 1, 2, 3 and 11 of the MLA paper."""
        base, s, cells = self.settings.attention, self.settings, list[Cell]()
        for size in ("", *(SIZES if s.sizes else ())):
            attention = Attention(base.text + size)
            cells.append(self.train(attention))
            cells += self.all_spoken(attention, ["conv"]) if "conv" in s.predictors else []
        for option, name, values in (("ratio", "length_ratio", s.ratios), ("lookup", "length_dampening", s.dampenings)):
            for value in values:
                overrides = f"{{'length_predictor': '{option}', '{name}': {value}}}"
                cells.append(self.spoken(base, f"-{option}{value}", "--model-overrides", overrides))
        return [*cells, self.scored(self.run_folder(base), "sweep", cells)]

    # ---------------------------------------------------------------------------------------------------------- parts
    def train(self, attention: Attention) -> Cell:
        run, options, seed = self.run_folder(attention), self.options("train"), str(self.settings.seed)
        # Only conv must be chosen in training: the others learn in any case and can be chosen for synthesis.
        predictor = "conv" if "conv" in self.settings.predictors else "ratio"
        lengths = ["--length-predictor", predictor] if attention.needs_length else []
        # The record of a run names ratio; without a name, the predictor is conv.
        plan, recorded = [*attention.flags, *lengths], lengths if predictor == "ratio" else []
        step = training(
            self.data, run / "model", "--task", "text_to_speech", "--config-yaml", "config.yaml", "--train-subset",
            "train", "--valid-subset", "dev", "--criterion", "tacotron2_with_length", "--no-epoch-checkpoints", *plan,
            "--seed", seed, *options, *self.keep_batch("train", options),
        )  # fmt: skip
        return Cell(
            run.name, (step,), f"{run.name}/model/done", needs=("data",), inputs=(self.data / "config.yaml",),
            records={run.name: " ".join(["--attention", attention.text, "--seed", seed, *recorded, *options])},
            title=f"training {attention.text}, seed {seed}, in {run}",
        )  # fmt: skip

    def all_spoken(self, attention: Attention, predictors: list[str]) -> list[Cell]:
        """Synthesise the test sentences, with each length predictor if the plan needs one."""
        if not attention.needs_length:
            return [self.spoken(attention, "")]
        return [
            self.spoken(attention, f"-{name}", "--model-overrides", f"{{'length_predictor': '{name}'}}")
            for name in predictors
        ]

    def spoken(self, attention: Attention, mark: str, *words: str) -> Cell:
        """Synthesise the test sentences with a model; `mark` is added to the name of the folder."""
        run = self.run_folder(attention)
        out = self.speech / f"{run.name}{mark}"
        step = ours(
            "tts", "--path", run / "model/checkpoint_best.pt", "--data", self.data, "--subset", "test", "--out", out,
            "--plots", self.settings.pictures, *words, *self.options("tts"),
        )  # fmt: skip
        title = f"speaking the test sentences in {out}"
        return Cell(f"speech/{out.name}", (step,), None, needs=(run.name,), title=title)

    def scored(self, run: Path, name: str, made: list[Cell]) -> Cell:
        """Score all finished systems and compare them."""
        speech = self.speech
        systems = sorted(path for path in speech.glob("*/") if path.is_dir()) if speech.is_dir() else []
        options = ["--out", speech, "--baselines", "--pictures", self.settings.pictures]
        step = ours("score-speech", *(systems or [speech / "SYSTEM"]), *options)
        spoken, title = tuple(cell.name for cell in made if cell.result is None), f"scoring all systems in {speech}"
        return Cell(f"{run.name}/{name}", (step,), None, some_of=spoken, title=title)


def write_examples(manifest: Path, out: Path) -> None:
    """Copy a manifest without its header: an example per line."""
    write_lines(out, islice(read_lines(manifest), 1, None))


class SynthesisedSpeech(TextToSpeech):
    """Speech of espeak-ng, which the recipe generates."""

    def check_data(self) -> None:
        """The recipe generates its data."""

    def cells_prepare(self, state: State) -> list[Cell]:
        s = self.settings
        sizes = ["--train", s.train, "--dev", s.dev, "--test", s.test]
        step = ours("corpus", "--task", "tts", "--out", self.data, *sizes)
        return [Cell("data", (step,), None, title=f"synthesising speech in {self.data}")]
