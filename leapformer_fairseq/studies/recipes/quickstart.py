"""Simultaneous speech translation from scratch: a corpus, training, translation for several k and offline, a report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...support.errors import LeapformerError
from ..engine import Cell, State
from .options import Parser
from .plans import Attention
from .recipe import DataSet, Recipe, logged, ours
from .speech import train_speech, translate_offline

BATCH = 4000  # frames per update, whatever the number of processes
MOST_PROCESSES = 4  # that share a batch; with more, each would have too few sentences
UPDATES = {"full": (1200, 2300), "fast": (20, 50)}  # of recognition and translation
# At most 10 tokens per second of audio, plus 10, to stop a model that loops.
LENGTH = ("--max-len-a", "0.1", "--max-len-b", "10")


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Quickstart(Recipe):
    """A small synthetic English-German speech corpus; run it with another attention and the same --out to compare."""

    steps = ("corpus", "train", "evaluate")
    launched = "(default: torchrun with a process for each core up to four, or local on one core or with a GPU)"

    @classmethod
    def add_options(cls, parser: Parser, about: DataSet) -> None:
        super().add_options(parser, about)
        parser.set_defaults(out=Path("results/quickstart"))

    @classmethod
    def own_processes(cls, settings: argparse.Namespace) -> int:
        from torch.cuda import is_available

        models = 2 if settings.softmax and settings.attention.text != "softmax" else 1
        return 1 if is_available() else max(1, min(MOST_PROCESSES, cores() // models))

    def masks(self, attention: Attention) -> Mapping[str, str]:
        return attention.wait_k_masks()

    @property
    def jobs(self) -> int:
        return cores()

    def check_settings(self) -> None:
        s = self.settings
        if self.launcher.processes * self.launcher.machines > MOST_PROCESSES:
            raise LeapformerError(f"at most {MOST_PROCESSES} processes can share the batch of {BATCH:,} frames")
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

    def trained(self, kind: str, attention: Attention) -> str:
        """The options that identify a training run."""
        s = self.settings
        mark = ["--train-k", s.train_k] if kind == "--attention" and s.train_k != "1-9" else []
        return " ".join([kind, attention.text, "--seed", str(s.seed), *(["--fast"] if s.fast else []), *mark])

    # ---------------------------------------------------------------------------------------------------------- steps
    def cells_corpus(self, state: State) -> list[Cell]:
        sizes = ["--train", 60, "--dev", 8, "--test", 8, "--vocab-size", 120] if self.settings.fast else []
        options = ["--out", self.data, "--seed", self.settings.seed, "--workers", cores(), *sizes]
        return [Cell("corpus", (ours("corpus", *options),), None, title=f"speech corpus in {self.data}")]

    def cells_train(self, state: State) -> list[Cell]:
        return [*map(self.train_recogniser, self.encoders), *map(self.train_system, self.systems)]

    def train(self, task: str, folder: Path, save: Path, updates: int, record: str, *words: object) -> Cell:
        """Small batches and a learning rate that decays to zero give the best result in a few minutes.

        Epochs are saved, to resume from, but only the last one is validated.
        """
        processes = self.launcher.processes * self.launcher.machines
        # One of several GPUs: fairseq would take all of them, each with the whole batch.
        alone = ["--distributed-world-size", "1"] if self.launcher.name == "local" else []
        step = train_speech(
            self.data, task, save, "--cosformer-length", "40", "--seed", self.settings.seed, "--max-tokens",
            BATCH // processes, "--label-smoothing", "0.1", "--dropout", "0", "--optimizer", "adam", "--adam-betas",
            "(0.9,0.98)", "--clip-norm", "10", "--lr", "3e-3", "--lr-scheduler", "polynomial_decay", "--warmup-updates",
            "100", "--total-num-update", updates, "--max-update", updates, "--no-epoch-checkpoints",
            "--validate-interval", updates, "--log-interval", "50", *alone, *words, longer="", threads=1,
        )  # fmt: skip
        result, cores_taken = f"{save.relative_to(self.out)}/done", min(cores(), self.launcher.processes)
        return Cell(folder.name, (step,), result, records={folder.name: record}, cores=cores_taken)

    def train_recogniser(self, attention: Attention) -> Cell:
        folder, updates = self.recogniser(attention), UPDATES[self.size][0]
        cell = self.train(
            "asr", folder, folder, updates, self.trained("--encoder", attention.encoder), *attention.recogniser.flags,
            "--arch", "leapformer_s2t_tiny", "--decoder-layers", "1", "--criterion",
            "label_smoothed_cross_entropy_with_ctc", "--ctc-weight", "1",
        )  # fmt: skip
        title = f"pre-training the encoder on speech recognition ({updates:,} updates)"
        return replace(cell, needs=("corpus",), title=title)

    def train_system(self, attention: Attention) -> Cell:
        """Train the translation model, initialised with the recogniser's encoder."""
        folder, updates, recogniser = self.folder(attention), UPDATES[self.size][1], self.recogniser(attention)
        # A decision every 7 states of 40 ms, which is as long as a chunk of the default encoder.
        cell = self.train(
            "st", folder, folder / "st", updates, self.trained("--attention", attention), *attention.flags, "--arch",
            "leapformer_simulst_tiny", "--waitk-lagging", self.settings.train_k, "--fixed-pre-decision-ratio", "7",
            "--load-pretrained-encoder-from", recogniser / "checkpoint_last.pt", "--criterion",
            "label_smoothed_cross_entropy",
        )  # fmt: skip
        return replace(cell, needs=(recogniser.name,), title=f"training wait-k translation ({updates:,} updates)")

    def cells_evaluate(self, state: State) -> list[Cell]:
        """Translate all test sentences, simultaneously and offline: nothing is timed, so all runs share the cores."""
        cells = [cell for system in self.systems for cell in self.translated(system)]
        step = ours("report", self.out, "--next", *self.next_steps())
        return [*cells, Cell("report", (step,), None, some_of=tuple(cell.name for cell in cells))]

    def next_steps(self) -> tuple[str, str, str]:
        s = self.settings
        return next_steps(self.out, s.attention, self.checkpoint(s.attention), self.data)

    def end(self) -> str:
        return "\n".join(["done", *self.next_steps()]) if super().end() else ""

    def checkpoint(self, attention: Attention) -> Path:
        return self.folder(attention) / "st/checkpoint_last.pt"

    def translated(self, attention: Attention) -> list[Cell]:
        """Translate simultaneously, many sentences at a time, as SimulEval would one by one, and offline."""
        run, checkpoint, data, needs = (
            self.folder(attention), self.checkpoint(attention), self.data, (self.folder(attention).name,)
        )  # fmt: skip
        cells = []
        for k in self.settings.k:
            step = logged(
                "simulate", "--source", data / "test.source", "--target", data / "test.target", "--out", run / f"k{k}",
                "--checkpoint", checkpoint, "--data-root", data, "--config-yaml", "config_st.yaml", "--waitk-lagging",
                k, *LENGTH, log=str(run / f"k{k}.log"), threads=1,
            )  # fmt: skip
            title = f"{attention.text}: simultaneous translation with k = {k}"
            cells.append(Cell(f"{run.name}/k{k}", (step,), needs=needs, title=title))
        steps = translate_offline(data, "test", checkpoint, run / "offline", "--beam", 5, *LENGTH, threads=1)
        title = f"{attention.text}: offline translation, beam 5"
        return [*cells, Cell(f"{run.name}/offline", steps, needs=needs, title=title)]


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
