"""The stages that convert a trained softmax model to other attention; finished stages are not repeated.

OUT/align holds the training of the replaced blocks, OUT/order.json the order in which blocks are replaced, OUT/keepN
the student with N blocks that keep the teacher's attention. All trainings are fairseq commands.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...criterions.taught import checked
from ...models.averaging import describe_checkpoint, load_checkpoint, save_checkpoint, total_updates
from ...modules import BLOCKS
from ...support.errors import LeapformerError
from ...support.files import read_json, write_json
from ...support.signature import signature
from ..ablation.search import layers_text
from ..recipes.plans import Attention
from ..recipes.shell import Shell
from ..trainings import Work, entries
from .command import words_of
from .pair import Pair, load_pair, mechanisms
from .selection import Names, Swap, choose, kept, measured

TASKS = ("language_modeling", "translation", "speech_to_text", "text_to_speech")
ALIGN, DISTILL, TASK = "align", "distill", "task"
BEST, ORDER, START, CHECKPOINT, RESULT = "checkpoint_best.pt", "order.json", "start.pt", "checkpoint.pt", "result.json"
KNOWN = ("swaps", "first_layer")  # keys of ORDER; files without first_layer count layers from 0, so their names differ
# Shares of the teacher's updates. On sentences (Multi30k, hedgehog), an update of alignment takes 1.08 times as long as
# one of the teacher's training, and an update of distillation 1.63 times: together a third of the teacher's time.
ALIGN_SHARE, DISTILL_SHARE = 0.05, 0.17
LEAST_SHARE = 10  # updates; with fewer, the checkpoint was converted, not trained
CHECKS = 5  # validations per stage


@dataclass(frozen=True)
class Settings:
    """The teacher, the student's plan, and the stages.

    path:         the teacher's checkpoint.
    attention:    the student's plan.
    data:         the data folder; None for that of the teacher's training.
    keep:         number of blocks that keep the teacher's attention.
    max_distance: keep as few blocks as possible with at most this distance; overrides `keep`.
    *_updates:    updates of a stage; None for a share of the teacher's.
    *_rate:       peak learning rate of a stage.
    sentences:    validation sentences from which blocks are chosen.
    """

    path: Path
    attention: Attention
    out: Path
    data: Path | None
    keep: int
    max_distance: float | None
    align_updates: int | None
    distill_updates: int | None
    task_updates: int
    align_rate: float
    distill_rate: float
    task_rate: float
    distillation_weight: float
    align_weights: float
    sentences: int
    train_options: Sequence[str]


class Linearize:
    """Trains students of one teacher with one plan."""

    def __init__(self, settings: Settings, shell: Shell) -> None:
        """Raises LeapformerError for an unsuitable teacher, plan or number."""
        self.settings, self.shell, self.out = settings, shell, settings.out
        checked("--align-weights", settings.align_weights)
        checked("--distillation-weight", settings.distillation_weight, 1)
        _check_numbers(settings)
        self.teacher = _teacher(settings.path)
        self.args: Namespace = self.teacher["cfg"]["model"]
        self.data = str(settings.data or self.args.data)
        self.about = describe_checkpoint(settings.path)
        done = total_updates(self.teacher)
        self.updates = {
            ALIGN: settings.align_updates or round(ALIGN_SHARE * done),
            DISTILL: settings.distill_updates or round(DISTILL_SHARE * done),
            TASK: settings.task_updates,
        }
        plans = zip((block.argument for block in BLOCKS), settings.attention.blocks, strict=True)
        self.everywhere = self._words(dict(plans))
        pair = self._pair()
        self.mechanisms, self.prefixes = mechanisms(pair.student), pair.prefixes()
        self.replaced = {block.name: block.teacher.mechanism.name for block in pair.blocks}
        if not 0 <= settings.keep < max(1, len(self.replaced)):
            raise LeapformerError(
                f"--keep {settings.keep}: {len(self.replaced)} blocks are replaced; give 0 to {len(self.replaced) - 1}"
            )
        few = {f"--{name}-updates": getattr(settings, f"{name}_updates") is None for name in (ALIGN, DISTILL)}
        if round(ALIGN_SHARE * done) < LEAST_SHARE and any(few.values()):
            raise LeapformerError(
                f"--path {settings.path} counts {done} updates of training, of which a share is too few; give "
                + " and ".join(f"{flag} N" for flag, missing in few.items() if missing)
            )

    def run(self) -> Path:
        """Run all stages and return the student's folder. With the teacher's own plan, the student is the teacher."""
        s = self.settings
        record = ["--path", str(s.path), "--attention", s.attention.text, *self._numbers(ALIGN, s.align_weights)]
        with self.shell.folder(self.out, record):
            if not self.replaced:
                self.shell.say("the teacher has this plan; there is nothing to replace")
                save_checkpoint({**self.teacher, "last_optimizer_state": None}, self.out / "keep0" / CHECKPOINT)
                return self.out / "keep0"
            self.shell.run(self._stage(ALIGN, self.out, self.everywhere, s.path))
            stays = self._chosen()
            folder = self.out / f"keep{len(stays)}"
            record = [*self._numbers(DISTILL, s.distillation_weight), *self._numbers(TASK)]
            with self.shell.folder(folder, record):
                self._student(folder, stays)
        return folder

    # --------------------------------------------------------------------------------------------------------- stages
    def _student(self, folder: Path, stays: Names) -> None:
        """Distil the aligned student, with the teacher's attention in the blocks `stays`."""
        start, plans = self.out / ALIGN / BEST, self._plans(stays)
        if stays:
            start = folder / START
            if not start.is_file():
                self._assemble(stays, start)
        stages = [DISTILL, *([TASK] if self.updates[TASK] else [])]
        for name in stages:
            self.shell.run(self._stage(name, folder, self._words(plans), start))
            start = folder / name / BEST
        if self.shell.dry:
            return
        if not (folder / CHECKPOINT).is_file():  # with the teacher's criterion, as after a normal training
            state = load_checkpoint(start)
            state["cfg"]["criterion"] = self.teacher["cfg"]["criterion"]
            state["cfg"]["model"].criterion = self.args.criterion
            save_checkpoint({**state, "last_optimizer_state": None}, folder / CHECKPOINT)
        if not (folder / RESULT).is_file():
            write_json(folder / RESULT, self._result(folder, stays, stages))

    def _stage(self, name: str, folder: Path, words: Sequence[str], start: Path) -> Work:
        """Train a stage from the parameters of `start`, unless it is finished."""
        s, updates = self.settings, self.updates[name]
        # Distillation with weight 0 is the teacher's own loss.
        weight = str(s.distillation_weight if name == DISTILL else 0.0)
        loss = ["leapformer_distillation", "--distillation-weight", weight]
        if name == ALIGN:
            loss = ["leapformer_alignment", "--align-weights", str(s.align_weights)]
        rate = {ALIGN: s.align_rate, DISTILL: s.distill_rate, TASK: s.task_rate}[name]
        training = self.shell.train(
            name, Path(self.data), folder / name, *words, "--criterion", *loss, "--teacher", str(s.path),
            "--finetune-from-model", str(start), "--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--weight-decay",
            "0", "--clip-norm", "1", "--lr-scheduler", "cosine", "--lr", str(rate), "--min-lr", str(min(1e-5, rate)),
            "--warmup-updates", str(min(50, updates // 10)), "--max-update", str(updates), "--log-interval", "50",
            "--no-epoch-checkpoints", "--save-interval-updates", str(max(1, updates // CHECKS)),
            "--keep-interval-updates", "1", "--ddp-backend", "legacy_ddp", *s.train_options, more="",
        )  # fmt: skip
        yield from self.shell.once(folder / name, training)

    def _chosen(self) -> Names:
        """Return the blocks that keep the teacher's attention; the steps that lead to them are kept in ORDER."""
        s, record = self.settings, self.out / ORDER
        if self.shell.dry or (not s.keep and s.max_distance is None):
            return frozenset()
        swaps = [Swap(*swap) for swap in read_json(record, KNOWN)["swaps"]] if record.is_file() else []
        if len(swaps) < len(self.replaced):
            self.shell.say("replacing one block after the other, each time the one that costs least")
            pair = self._pair(self.out / ALIGN / BEST)
            for swap in choose(pair, pair.batches(s.sentences), swaps):
                swaps.append(swap)
                write_json(record, {"swaps": swaps, "first_layer": 1, "signature": signature()})
                self.shell.say(f"{len(swaps)} of {len(self.replaced)}: {swap.block}, distance {swap.distance:.4f}")
        return kept(swaps, s.keep, s.max_distance)

    def _assemble(self, stays: Names, path: Path) -> None:
        """Write the aligned student with the teacher's parameters in the blocks `stays`."""
        aligned = load_checkpoint(self.out / ALIGN / BEST)
        prefixes = tuple(self.prefixes[name] for name in stays)
        model = {name: value for name, value in aligned["model"].items() if not name.startswith(prefixes)}
        model |= {name: value for name, value in self.teacher["model"].items() if name.startswith(prefixes)}
        save_checkpoint({**aligned, "model": model, "last_optimizer_state": None}, path)

    def _result(self, folder: Path, stays: Names, stages: Sequence[str]) -> dict[str, Any]:
        """Return plan, distances, losses, updates and seconds of the finished student."""
        pair, replaced = self._pair(self.out / ALIGN / BEST), frozenset(self.replaced) - stays
        logs = {name: _log((self.out if name == ALIGN else folder) / name) for name in (ALIGN, *stages)}
        last = _best(logs[stages[-1]])
        return {
            "teacher": str(self.settings.path),
            "task": self.args.task,
            "attention": self.settings.attention.text,
            "plan": self._plans(stays),
            "kept": sorted(stays),
            "replaced": sorted(replaced),
            "distance": {
                "aligned": measured(pair, pair.batches(self.settings.sentences), [replaced])[0],
                "distilled": last["distance"],
            },
            "loss": {"teacher": self.about["valid_loss"], "student": last["loss"]},
            "updates": {"teacher": self.about["updates"], **{name: self.updates[name] for name in logs}},
            "seconds": {name: _seconds(log) for name, log in logs.items()},
            "signature": signature(),
        }

    # ---------------------------------------------------------------------------------------------------------- words
    def _words(self, plans: dict[str, str]) -> list[str]:
        """Return the options of a training with these plans, {argument: plan}."""
        s = self.settings
        return [*words_of(Namespace(**{**vars(self.args), **plans, "data": self.data})), *s.attention.options]

    def _plans(self, stays: Names) -> dict[str, str]:
        """Return the plans of the student's blocks, {argument: plan}."""
        names = {block: list(layers) for block, layers in self.mechanisms.items()}
        for name in stays:
            block, _, layer = name.rpartition(".")
            names[block][int(layer) - 1] = self.replaced[name]
        return {block.argument: layers_text(names[block.name]) for block in BLOCKS if block.name in names}

    def _numbers(self, stage: str, *more: object) -> list[str]:
        """Return what identifies a stage: its name, updates, learning rate, `more`, and the options of training."""
        rate = getattr(self.settings, f"{stage}_rate")
        return [stage, *map(str, (self.updates[stage], rate, *more)), *self.settings.train_options]

    def _pair(self, checkpoint: Path | None = None) -> Pair:
        words = [self.data, *self.everywhere, *self.settings.train_options]
        return load_pair(words, str(self.settings.path), checkpoint)


def _check_numbers(settings: Settings) -> None:
    """Raise LeapformerError for a plan with too many blocks, and for numbers that would train nothing."""
    plans = settings.attention.plan.split("/")
    if len(plans) > len(BLOCKS):
        raise LeapformerError(f"--attention {settings.attention.text}: {len(plans)} plans; give ENCODER/DECODER/CROSS")
    for name, least in (("align_updates", 1), ("distill_updates", 1), ("task_updates", 0), ("sentences", 1)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise LeapformerError(f"--{name.replace('_', '-')} {value}: give at least {least}")
    for name in ("align_rate", "distill_rate", "task_rate"):
        if not 0 < getattr(settings, name) < math.inf:
            raise LeapformerError(f"--{name.replace('_', '-')} {getattr(settings, name)}: give a number above 0")


def _teacher(path: Path) -> dict[str, Any]:
    """Load a checkpoint. Raises LeapformerError unless its model can be a teacher."""
    if not path.is_file():
        raise LeapformerError(f"--path {path}: no such file; give the checkpoint of a trained model")
    state = load_checkpoint(path)
    args = (state.get("cfg") or {}).get("model")
    arch, task = (getattr(args, name, None) for name in ("arch", "task"))
    if not isinstance(args, Namespace) or not str(arch).startswith("leapformer_") or task not in TASKS:
        raise LeapformerError(
            f"--path {path} holds architecture {arch!r} of task {task!r}; give one of ours (`leapformer list`) for "
            + ", ".join(TASKS)
        )
    return state


def _log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the log of a stage's training."""
    return entries(folder / "train.log")


def _best(log: list[dict[str, Any]]) -> dict[str, float]:
    """Return loss and distance of the validation with the smallest loss."""
    validations = []
    for entry in log:
        name = next((key for key in entry if key.endswith("_distance") and not key.startswith("train")), None)
        if name is not None:
            subset = name.removesuffix("distance")
            validations.append({"loss": float(entry[f"{subset}loss"]), "distance": float(entry[name])})
    return min(validations, key=lambda validation: validation["loss"])


def _seconds(log: list[dict[str, Any]]) -> float:
    """Return the seconds of all updates of a stage; fairseq reports them per epoch."""
    return sum(float(entry["train_train_wall"]) for entry in log if "train_train_wall" in entry)
