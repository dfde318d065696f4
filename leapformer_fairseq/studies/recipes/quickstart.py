"""Simultaneous speech translation from scratch: a corpus, training, translation for several k and offline, a report."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..trainings import Work
from .options import Parser, list_of, whole
from .plans import Attention
from .recipe import ATTENTION, DataSet, Recipe
from .speech import train_speech, translate_offline

if TYPE_CHECKING:
    from ...attention import Mask

BATCH = 4000  # frames per update, whatever the number of processes
MOST_PROCESSES = 4  # that share a batch; with more, each would have too few sentences
UPDATES = {"full": (1200, 2300), "fast": (20, 50)}  # of recognition and translation
# At most 10 tokens per second of audio, plus 10, to stop a model that loops.
LENGTH = ("--max-len-a", "0.1", "--max-len-b", "10")
LAGGING = r"[1-9]\d*(-[1-9]\d*)?(,offline)?"


def _lagging(text: str) -> str:
    if not re.fullmatch(LAGGING, text):
        raise argparse.ArgumentTypeError(f"{text}: give a number from 1, or a range as in 1-9, or 1-9,offline")
    return text


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Quickstart(Recipe):
    """A small synthetic English-German speech corpus; run it with another attention and the same --out to compare."""

    steps = ("corpus", "train", "evaluate")
    launched = "(default: torchrun with a process for each core up to four, or local on one core or with a GPU)"

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        parser.option(
            "--attention", "PLAN", f"{ATTENTION}. By default LeaPformer with forget gates, whose encoder reads speech "
            "in chunks, each frame once. gated-leap alone: the encoder sees the whole source and is rerun at every "
            "step. leap:encoder-causal: no gates, and it sees no later frame", Attention,
            default="gated-leap:encoder-chunk-ms=280",
        )  # fmt: skip
        parser.flag("--softmax", "also train softmax, whose encoder sees the whole source, on the other cores")
        parser.option("--k", "LIST", "k of wait-k to evaluate, in quotes", list_of(whole()), default="1 3 5 9")
        parser.option(
            "--train-k", "RANGE", "k of training: a number, or a range to draw from for every batch, also 1-9,offline",
            _lagging, default="1-9",
        )  # fmt: skip
        parser.option("--seed", "N", "of the corpus and of training", whole(0), default=1)
        parser.set_defaults(out=Path("results/quickstart"))
        parser.flag("--fast", "a minute: a tiny corpus and few updates; the scores mean nothing")

    @classmethod
    def own_processes(cls, settings: argparse.Namespace) -> int:
        from torch.cuda import is_available

        models = 2 if settings.softmax and settings.attention.text != "softmax" else 1
        return 1 if is_available() else max(1, min(MOST_PROCESSES, cores() // models))

    def masks(self, attention: Attention) -> Mapping[str, Mask]:
        return attention.wait_k_masks()

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
        options = ["--out", self.data, "--seed", self.settings.seed, "--workers", cores(), *sizes]
        self.shell.run(self.shell.leapformer("corpus", *options))

    def step_train(self) -> None:
        # One thread for each process: these models are too small to benefit from two.
        at_once = max(1, cores() // self.shell.launcher.processes)
        self.shell.run(*map(self.train_recogniser, self.encoders), at_once=at_once, threads=1)
        self.shell.run(*map(self.train_system, self.systems), at_once=at_once, threads=1)

    def train(self, task: str, folder: Path, save: Path, updates: int, *words: str) -> Work:
        """Small batches and a learning rate that decays to zero give the best result in a few minutes.

        Epochs are saved, to resume from, but only the last one is validated.
        """
        share = BATCH // (self.shell.launcher.processes * self.shell.launcher.machines)
        training = train_speech(
            self.shell, folder.name, self.data, task, save, "--cosformer-length", "40", "--seed",
            str(self.settings.seed), "--max-tokens", str(max(1000, share)), "--label-smoothing", "0.1", "--dropout",
            "0", "--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--clip-norm", "10", "--lr", "3e-3",
            "--lr-scheduler", "polynomial_decay", "--warmup-updates", "100", "--total-num-update", str(updates),
            "--max-update", str(updates), "--no-epoch-checkpoints", "--validate-interval", str(updates),
            "--log-interval", "50", *words,
        )  # fmt: skip
        yield from self.shell.once(save, training)

    def train_recogniser(self, attention: Attention) -> Work:
        folder, updates = self.recogniser(attention), UPDATES[self.size][0]
        self.shell.say(f"pre-training the encoder on speech recognition ({updates:,} updates)")
        with self.shell.folder(folder, self.trained("--encoder", attention.encoder)):
            yield from self.train(
                "asr", folder, folder, updates, *attention.recogniser.flags, "--arch", "leapformer_s2t_tiny",
                "--decoder-layers", "1", "--criterion", "label_smoothed_cross_entropy_with_ctc", "--ctc-weight", "1",
            )  # fmt: skip

    def train_system(self, attention: Attention) -> Work:
        """Train the translation model, initialised with the recogniser's encoder."""
        folder, updates = self.folder(attention), UPDATES[self.size][1]
        begin = self.recogniser(attention) / "checkpoint_last.pt"
        self.shell.say(f"training wait-k translation ({updates:,} updates)")
        # A decision every 7 states of 40 ms, which is as long as a chunk of the default encoder.
        with self.shell.folder(folder, self.trained("--attention", attention)):
            yield from self.train(
                "st", folder, folder / "st", updates, *attention.flags, "--arch", "leapformer_simulst_tiny",
                "--waitk-lagging", self.settings.train_k, "--fixed-pre-decision-ratio", "7",
                "--load-pretrained-encoder-from", str(begin), "--criterion", "label_smoothed_cross_entropy",
            )  # fmt: skip

    def step_evaluate(self) -> None:
        """Translate all test sentences, simultaneously and offline: nothing is timed, so all runs share the cores."""
        works = []
        for system in self.systems:
            self.shell.say(f"{system.text}: simultaneous translation with k = {', '.join(map(str, self.settings.k))}")
            works += [self.simulate(system, k) for k in self.settings.k]
            works.append(self.translate(system))
        self.shell.run(*works, at_once=cores(), threads=1)
        self.shell.say("report")
        s = self.settings
        last = next_steps(self.out, s.attention, self.checkpoint(s.attention), self.data)
        self.shell.run(self.shell.leapformer("report", self.out, "--next", *last))
        self.shell.say("done\n" + "\n".join(last))

    def checkpoint(self, attention: Attention) -> Path:
        return self.folder(attention) / "st/checkpoint_last.pt"

    def simulate(self, attention: Attention, k: int) -> Work:
        """Translate simultaneously, many sentences at a time, as SimulEval would one by one."""
        run, out = self.folder(attention), self.folder(attention) / f"k{k}"
        work = self.shell.logged(
            run / f"k{k}.log", "simulate", "--source", self.data / "test.source", "--target",
            self.data / "test.target", "--out", out, "--checkpoint", self.checkpoint(attention), "--data-root",
            self.data, "--config-yaml", "config_st.yaml", "--waitk-lagging", k, *LENGTH,
        )  # fmt: skip
        yield from self.shell.once(out, work)

    def translate(self, attention: Attention) -> Work:
        """Translate offline."""
        self.shell.say(f"{attention.text}: offline translation, beam 5")
        out, checkpoint = self.folder(attention) / "offline", self.checkpoint(attention)
        work = translate_offline(self.shell, self.data, "test", checkpoint, out, "--beam", 5, *LENGTH)
        yield from self.shell.once(out, work)


def next_steps(out: Path, attention: Attention, checkpoint: Path, data: Path) -> tuple[str, str, str]:
    """Lines that say what was trained, how to translate live, and how to train a model of one's own.

    Commands are to be typed in the current folder.
    """
    out, checkpoint, data, program = map(_shown, (out, checkpoint, data, Path(sys.executable).with_name("leapformer")))
    return (
        f"trained: {attention.title}, in {checkpoint}; see {out}/report.md, scores.json, curve.svg",
        f"live:    {program} serve --checkpoint {checkpoint} --data-root {data} --config-yaml config_st.yaml",
        f"own:     {program} recipe speech --train train.tsv --dev dev.tsv --test test.tsv --out results/own",
    )


def _shown(path: Path) -> Path:
    """The path, relative to the current folder if it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
