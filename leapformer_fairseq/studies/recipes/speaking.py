"""Trains text-to-speech models, and measures losses on the development set and distortion of test sentences."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from ...support.errors import LeapformerError
from ...support.lines import read_lines, write_lines
from ..trainings import Work
from .options import Parser, list_of, one_of, positive, whole
from .plans import Attention
from .recipe import ATTENTION, DataSet, Recipe, add_root

PREDICTORS = ("ratio", "lookup", "conv", "oracle")
SIZES = (":length-hidden=256", ":length-layers=3")


class TextToSpeech(Recipe):
    """LJSpeech; the base class for speech synthesised by espeak-ng."""

    more_steps = ("sweep",)
    option_lists = {
        "train": ("training", "--max-update 1000 --fp16"),
        "tts": ("leapformer tts", "--eos-threshold 0.4"),
    }

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        cls.add_data_options(parser, about)
        parser.option("--attention", "PLAN", ATTENTION, Attention, default="leap")
        parser.option(
            "--predictors", "LIST", f"length predictors for synthesis, in quotes, of {', '.join(PREDICTORS)}, where a "
            "decoder block has cosformer; conv, if it is named, is trained with the model, the others alongside it",
            list_of(one_of(*PREDICTORS)),
        )  # fmt: skip
        parser.option("--seed", "N", "of the training", whole(), default=1)
        parser.option("--pictures", "N", "spectrograms of the first N test sentences", whole(0), default=2)
        parser.option(
            "--ratios", "LIST", "sweep: decoder steps for a phoneme, in quotes", list_of(positive),
            default="0.5 0.6 0.75 1.0 1.25 1.5 1.75",
        )  # fmt: skip
        parser.option(
            "--dampenings", "LIST", "sweep: what mean durations are divided by, in quotes", list_of(positive),
            default="1.1 1.0 0.9",
        )  # fmt: skip
        parser.flag("--sizes", "sweep: also models whose length predictor is twice as wide, or has three convolutions")

    @classmethod
    def add_data_options(cls, parser: Parser, about: DataSet) -> None:
        """Add the options for the location of the data."""
        add_root(parser, about.holds)
        parser.flag("--download", "fetch what --root lacks")
        parser.option("--textgrids", "DIR", "Montreal Forced Aligner's TextGrids: phonemes with durations", Path)
        parser.option("--workers", "N", "processes that prepare the data", whole(), default=1)

    def check_data(self) -> None:
        self.need_root(f"--root (the folder that holds {self.about.holds})")

    def run_folder(self, attention: Attention) -> Path:
        return self.out / attention.run_folder(self.settings.seed)

    @property
    def speech(self) -> Path:
        return self.out / "speech"

    def check(self) -> None:
        if self.settings.sizes and "conv" not in self.settings.predictors:
            raise LeapformerError("--sizes are those of the predictor conv; name it in --predictors, too")

    # ---------------------------------------------------------------------------------------------------------- steps
    def step_prepare(self) -> None:
        s = self.settings
        more = [*(["--download"] if s.download else []), *(["--textgrids", s.textgrids] if s.textgrids else [])]
        self.shell.say(f"preparing {self.name} in {self.data}")
        self.shell.run(
            self.shell.leapformer("prepare", self.name, s.root, "--out", self.data, "--workers", s.workers, *more)
        )

    def step_train(self) -> None:
        self.train(self.settings.attention)

    def step_evaluate(self) -> None:
        attention = self.settings.attention
        self.shell.need(self.run_folder(attention) / "model", "train")
        self.losses(attention)
        self.shell.run(*self.all_spoken(attention, self.settings.predictors))
        self.score()

    def step_sweep(self) -> None:
        """Synthesise with one model and many predicted lengths: tables 1, 2, 3 and 11 of the MLA paper."""
        base, s = self.settings.attention, self.settings
        for size in ("", *(SIZES if s.sizes else ())):
            attention = Attention(base.text + size)
            self.train(attention)
            if "conv" in s.predictors:
                self.shell.run(*self.all_spoken(attention, ["conv"]))
        for option, name, values in (("ratio", "length_ratio", s.ratios), ("lookup", "length_dampening", s.dampenings)):
            for value in values:
                overrides = f"{{'length_predictor': '{option}', '{name}': {value}}}"
                self.shell.run(self.spoken(base, f"-{option}{value}", "--model-overrides", overrides))
        self.score()

    # ---------------------------------------------------------------------------------------------------------- parts
    def train(self, attention: Attention) -> None:
        if not ((self.data / "config.yaml").is_file() or self.shell.dry):
            raise LeapformerError(f"{self.data} holds no prepared data; run the step prepare first")
        run, options, seed = self.run_folder(attention), self.options("train"), str(self.settings.seed)
        # Only conv must be chosen in training: the others learn in any case and can be chosen for synthesis.
        predictor = "conv" if "conv" in self.settings.predictors else "ratio"
        lengths = ["--length-predictor", predictor] if attention.needs_length else []
        # The record of a run names ratio; without a name, the predictor is conv.
        plan, recorded = [*attention.flags, *lengths], lengths if predictor == "ratio" else []
        self.shell.say(f"training {attention.text}, seed {seed}, in {run}")
        training = self.shell.train(
            run.name, self.data, run / "model", "--task", "text_to_speech", "--config-yaml", "config.yaml",
            "--train-subset", "train", "--valid-subset", "dev", "--criterion", "tacotron2_with_length",
            "--no-epoch-checkpoints", *plan, "--seed", seed, *options,
        )  # fmt: skip
        with self.shell.folder(run, ["--attention", attention.text, "--seed", seed, *recorded, *options]):
            self.shell.run(self.shell.once(run / "model", training))

    def losses(self, attention: Attention) -> None:
        """Measure and tabulate the losses on the development set, with teacher forcing."""
        run = self.run_folder(attention)
        self.shell.say(f"losses on the development set with {attention.text}, seed {self.settings.seed}")
        note = (
            "Losses on the development set, of frames given those before: distances of frames before and behind the "
            "post-net, and the cross-entropy of the end."
        )
        forced = self.force(run / "model/checkpoint_best.pt", run / "dev")
        self.shell.run(self.shell.once(run / "dev", forced), self.table(self.name, note))

    def force(self, checkpoint: Path, out: Path) -> Work:
        examples = out / "examples.tsv"
        if not self.shell.dry:  # one example per line, so without the header
            write_lines(examples, islice(read_lines(self.data / "dev.tsv"), 1, None))
        words = ("--task", "text_to_speech", "--config-yaml", "config.yaml", "--valid-subset", "dev")
        yield from self.validate(self.data, checkpoint, out, examples, *words, "--max-tokens", 20000)

    def all_spoken(self, attention: Attention, predictors: list[str]) -> list[Work]:
        """Synthesise the test sentences, with each length predictor if the plan needs one."""
        if not attention.needs_length:
            return [self.spoken(attention, "")]
        return [
            self.spoken(attention, f"-{name}", "--model-overrides", f"{{'length_predictor': '{name}'}}")
            for name in predictors
        ]

    def spoken(self, attention: Attention, mark: str, *words: str) -> Work:
        """Synthesise the test sentences with a model; `mark` is added to the name of the folder."""
        run = self.run_folder(attention)
        out = self.speech / f"{run.name}{mark}"
        self.shell.say(f"speaking the test sentences in {out}")
        yield from self.shell.leapformer(
            "tts", "--path", run / "model/checkpoint_best.pt", "--data", self.data, "--subset", "test", "--out", out,
            "--plots", self.settings.pictures, *words, *self.options("tts"),
        )  # fmt: skip

    def score(self) -> None:
        """Score all finished systems and compare them."""
        speech = self.speech
        systems = sorted(path for path in speech.glob("*/") if path.is_dir()) if speech.is_dir() else []
        self.shell.say(f"scoring all systems in {speech}")
        options = ["--out", speech, "--baselines", "--pictures", self.settings.pictures]
        self.shell.run(self.shell.leapformer("score-speech", *(systems or [speech / "SYSTEM"]), *options))
        self.shell.say(f"done: {speech}/table.md, table.json, spectrogram_*.svg; recordings in {speech}/SYSTEM/wav")


class SynthesisedSpeech(TextToSpeech):
    """Speech of espeak-ng, which the recipe generates."""

    @classmethod
    def add_data_options(cls, parser: Parser, about: DataSet) -> None:
        for part, count in (("train", 3000), ("dev", 60), ("test", 100)):
            parser.option(f"--{part}", "N", "sentences", whole(), default=count)

    def check_data(self) -> None:
        """The recipe generates its data."""

    def step_prepare(self) -> None:
        s = self.settings
        sizes = ["--train", s.train, "--dev", s.dev, "--test", s.test]
        self.shell.say(f"synthesising speech in {self.data}")
        self.shell.run(self.shell.leapformer("corpus", "--task", "tts", "--out", self.data, *sizes))
