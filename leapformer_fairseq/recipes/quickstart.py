"""Simultaneous speech translation from scratch: a corpus, training, SimulEval for several k and offline, a report."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..trainings import Work
from .options import Parser, list_of, whole
from .plans import Attention
from .recipe import ATTENTION, DataSet, Recipe
from .speech import simulate, train_speech, translate_offline

SENTENCES = {"full": 100, "fast": 3}  # that are translated
# At most 10 tokens per second of audio, plus 10, to stop a model that loops.
LENGTH = ("--max-len-a", "0.1", "--max-len-b", "10")
LAGGING = r"[1-9]\d*(-[1-9]\d*)?(,offline)?"


def _lagging(text: str) -> str:
    if not re.fullmatch(LAGGING, text):
        raise argparse.ArgumentTypeError(f"{text}: give a number from 1, or a range as in 1-9, or 1-9,offline")
    return text


class Quickstart(Recipe):
    """A small synthetic English-German speech corpus; run it with another attention and the same --out to compare."""

    steps = ("corpus", "train", "evaluate")

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        parser.option(
            "--attention", "PLAN", f"{ATTENTION}. By default the encoder reads speech in chunks, each frame once. leap "
            "alone: the encoder sees the whole source and is rerun at every step. leap:encoder-causal: it sees no "
            "later frame", Attention, default="leap:encoder-chunk-ms=280",
        )  # fmt: skip
        parser.flag("--softmax", "also train softmax, whose encoder sees the whole source, in parallel on another core")
        parser.option("--k", "LIST", "k of wait-k to evaluate, in quotes", list_of(whole()), default="1 3 5 9")
        parser.option(
            "--train-k", "RANGE", "k of training: a number, or a range to draw from for every batch, also 1-9,offline",
            _lagging, default="1-9",
        )  # fmt: skip
        parser.option("--seed", "N", "of the corpus and of training", whole(0), default=1)
        parser.set_defaults(out=Path("results/quickstart"))
        parser.flag("--fast", "about two minutes: a tiny corpus and few updates; the scores mean nothing")

    def check(self) -> None:
        s = self.settings
        self.size = "fast" if s.fast else "full"
        self.data = self.out / "corpus"
        self.systems = [s.attention]
        if s.softmax and s.attention.text != "softmax":
            self.systems.append(Attention("softmax"))
        # Plans with the same encoder share the recogniser, of which only the encoder is used later.
        self.encoders = list({system.encoder: system for system in self.systems}.values())

    def folder(self, attention: Attention) -> Path:
        mark = "" if self.settings.train_k == "1-9" else f"-k{self.settings.train_k}"
        return self.out / f"{attention.folder}{mark}"

    def recogniser(self, attention: Attention) -> Path:
        return self.out / f"asr-{attention.encoder.folder}"

    def trained(self, kind: str, attention: Attention) -> list[str]:
        """The words that identify a training run."""
        s = self.settings
        mark = ["--train-k", s.train_k] if kind == "--attention" and s.train_k != "1-9" else []
        return [kind, attention.text, "--seed", str(s.seed), *(["--fast"] if s.fast else []), *mark]

    # ---------------------------------------------------------------------------------------------------------- steps
    def step_corpus(self) -> None:
        sizes = ["--train", 60, "--dev", 8, "--test", 8, "--vocab-size", 120] if self.settings.fast else []
        self.shell.say(f"speech corpus in {self.data}")
        options = ["--out", self.data, "--seed", self.settings.seed, *sizes]
        self.shell.run(self.shell.leapformer("corpus", *options))

    def step_train(self) -> None:
        # One thread for each: these models are too small to benefit from two.
        self.shell.run(*map(self.train_recogniser, self.encoders), at_once=len(self.encoders), threads=1)
        self.shell.run(*map(self.train_system, self.systems), at_once=len(self.systems), threads=1)

    def train(self, task: str, folder: Path, save: Path, updates: int, *words: str) -> Work:
        """Small batches and a learning rate that decays to zero give the best result in a few minutes."""
        training = train_speech(
            self.shell, folder.name, self.data, task, save, "--cosformer-length", "40", "--seed",
            str(self.settings.seed), "--max-tokens", "4000", "--dropout", "0.05", "--label-smoothing", "0.1",
            "--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--clip-norm", "10", "--lr-scheduler",
            "polynomial_decay", "--warmup-updates", "100", "--total-num-update", str(updates), "--max-update",
            str(updates), "--no-epoch-checkpoints", "--log-interval", "50", *words,
        )  # fmt: skip
        yield from self.shell.once(save, training)

    def train_recogniser(self, attention: Attention) -> Work:
        folder, updates = self.recogniser(attention), 80 if self.settings.fast else 1500
        self.shell.say(f"pre-training the encoder on speech recognition ({updates} updates)")
        with self.shell.folder(folder, self.trained("--encoder", attention.encoder)):
            yield from self.train(
                "asr", folder, folder, updates, *attention.recogniser.flags, "--arch", "leapformer_s2t_tiny",
                "--decoder-layers", "1", "--lr", "3e-3", "--criterion", "label_smoothed_cross_entropy_with_ctc",
                "--ctc-weight", "1",
            )  # fmt: skip

    def train_system(self, attention: Attention) -> Work:
        """Train the translation model, initialised with the recogniser's encoder."""
        folder, updates = self.folder(attention), 80 if self.settings.fast else 3200
        begin = self.recogniser(attention) / "checkpoint_last.pt"
        self.shell.say(f"training wait-k translation ({updates} updates)")
        with self.shell.folder(folder, self.trained("--attention", attention)):
            yield from self.train(
                "st", folder, folder / "st", updates, *attention.flags, "--arch", "leapformer_simulst_tiny", "--lr",
                "2e-3", "--waitk-lagging", self.settings.train_k, "--fixed-pre-decision-ratio", "7",
                "--load-pretrained-encoder-from", str(begin), "--criterion", "label_smoothed_cross_entropy",
            )  # fmt: skip

    def step_evaluate(self) -> None:
        """Run simultaneous translation one by one, because time is measured; offline translation in parallel."""
        for system in self.systems:
            run = self.folder(system)
            end = ["--end-index", str(SENTENCES[self.size])]
            for k in self.settings.k:
                out = run / f"k{k}"
                self.shell.say(f"{system.text}: simultaneous translation with k = {k}")
                work = simulate(self.shell, self.data, "test", self.checkpoint(system), k, out, *end, *LENGTH)
                self.shell.run(self.shell.once(out, work))
        self.shell.run(*map(self.translate, self.systems), at_once=len(self.systems))
        self.shell.say("report")
        self.shell.run(self.shell.leapformer("report", self.out))
        self.shell.say(f"done: {self.out}/report.md, {self.out}/scores.json, {self.out}/curve.png")

    def checkpoint(self, attention: Attention) -> Path:
        return self.folder(attention) / "st/checkpoint_last.pt"

    def translate(self, attention: Attention) -> Work:
        """Translate offline."""
        self.shell.say(f"{attention.text}: offline translation, beam 5")
        out, checkpoint = self.folder(attention) / "offline", self.checkpoint(attention)
        work = translate_offline(self.shell, self.data, "test", checkpoint, out, "--beam", 5, *LENGTH)
        yield from self.shell.once(out, work)
