"""The stages that convert a trained softmax model to other attention; finished stages are not repeated.

OUT/align holds the training of the replaced blocks, OUT/order.json the order in which blocks are replaced, OUT/keepN
the student with N blocks that keep the teacher's attention. All trainings are fairseq commands.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...criterions.taught import checked
from ...models.averaging import describe_checkpoint, load_checkpoint, save_checkpoint, total_updates
from ...models.stock import adopt
from ...modules import BLOCKS
from ...support.errors import LeapformerError
from ...support.files import make_folder, read_json, write_json
from ...support.signature import signature
from .. import trainings
from ..ablation.search import layers_text
from ..engine import Call, Cell, Command, State, Study
from ..recipes.plans import Attention
from ..trainings import BEST
from .command import words_of
from .pair import Pair, load_pair, mechanisms
from .report import KNOWN, NEEDED, ORDER, RESULT, write_report
from .selection import Names, Swap, choose, kept, measured

TASKS = ("language_modeling", "translation", "speech_to_text", "text_to_speech")
ALIGN, CHOOSE, DISTILL, TASK = "align", "choose", "distill", "task"
START, CHECKPOINT = "start.pt", "checkpoint.pt"
# Shares of the teacher's updates. On sentences (Multi30k, hedgehog), an update of alignment takes 1.08 times as long as
# one of the teacher's training, and an update of distillation 1.63 times: together a third of the teacher's time.
ALIGN_SHARE, DISTILL_SHARE = 0.05, 0.17
LEAST_SHARE = 10  # updates; with fewer, the checkpoint was converted, not trained
OPTIONS = (
    "--num-workers", "1", "--required-batch-size-multiple", "1", "--skip-invalid-size-inputs-valid-test",
    "--log-format", "json",
)  # fmt: skip
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


class Linearize(Study):
    """Trains a student of a teacher, which is the teacher itself if the plan is the teacher's.

    say:   prints a line for each block that was chosen.
    table: the page with the table of all students in the folder, once this one is finished.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        """Raises LeapformerError for an unsuitable teacher, plan or number."""
        self.settings, self.out, self._say, self.table = settings, settings.out, say, ""
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
        self._words_of_student = cache(lambda stays: self._words(self._plans(stays)))
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

    # ---------------------------------------------------------------------------------------------------------- study
    def reserve(self) -> None:
        """Raise LeapformerError if the folder holds students of another teacher, plan or alignment."""
        s = self.settings
        record = ["--path", str(s.path), "--attention", s.attention.text, *self._numbers(ALIGN, s.align_weights)]
        trainings.reserve(self.out, " ".join(record), "run")

    def kept(self, state: State) -> Names | None:
        """The blocks that keep the teacher's attention; None if they have not been chosen yet."""
        s = self.settings
        if not self.replaced or (not s.keep and s.max_distance is None):
            return frozenset()
        if CHOOSE not in state.results:
            return None
        return kept([Swap(*swap) for swap in state.results[CHOOSE]["swaps"]], s.keep, s.max_distance)

    def folder(self, state: State) -> str:
        """The student's, below that of the study; "" if it is not known yet."""
        stays = self.kept(state)
        return "" if stays is None else f"keep{len(stays)}"

    def cells(self, state: State) -> list[Cell]:
        """Align all blocks, choose those that stay, distil, and describe the student."""
        stays, folder = self.kept(state), self.folder(state)
        if not self.replaced:
            path = f"{folder}/{CHECKPOINT}"
            return [Cell(folder, (Call(self._save, (self.settings.path, self.out / path)),), path)]
        cells = [self._stage(ALIGN, self.everywhere, self.settings.path)]
        if self.settings.keep or self.settings.max_distance is not None:
            whole = lambda order: len(order["swaps"]) == len(self.replaced)  # noqa: E731
            choosing = (Call(self._choose),)
            cells.append(Cell(CHOOSE, choosing, ORDER, fields=KNOWN, whole=whole, needs=(ALIGN,), vital=True))
        if stays is None:
            return cells
        start = self.out / ALIGN / BEST
        if stays:
            start = self.out / folder / START
            assembling, after = (Call(self._assemble, (stays, start)),), (cells[-1].name,)
            cells.append(Cell(f"{folder}/start", assembling, f"{folder}/{START}", needs=after, vital=True))
        for name in self.stages:
            cells.append(self._stage(f"{folder}/{name}", self._words_of_student(stays), start, cells[-1].name))
            start = self.out / folder / name / BEST
        finishing = (Call(self._save, (start, self.out / folder / CHECKPOINT)), Call(self._result, (folder, stays)))
        after = (cells[-1].name,)
        cells.append(Cell(folder, finishing, f"{folder}/{RESULT}", fields=NEEDED, needs=after, vital=True))
        return cells

    def report(self, state: State) -> None:
        """Compare the students in the folder once this one is finished.

        Raises LeapformerError if its own folder holds one that was distilled with other options.
        """
        folder = self.folder(state)
        if not folder or not self.replaced:
            return
        record = [*self._numbers(DISTILL, self.settings.distillation_weight), *self._numbers(TASK)]
        trainings.reserve(make_folder(self.out / folder), " ".join(record), "run")
        if folder in state.results:
            self.table = write_report(self.out)

    # --------------------------------------------------------------------------------------------------------- stages
    @property
    def stages(self) -> list[str]:
        """The trainings of a student after the alignment."""
        return [DISTILL, *([TASK] if self.updates[TASK] else [])]

    def _save(self, start: Path, path: Path) -> None:
        """Write the parameters of `start` with the teacher's criterion, as after a normal training."""
        state = load_checkpoint(start)
        state["cfg"]["criterion"] = self.teacher["cfg"]["criterion"]
        state["cfg"]["model"].criterion = self.args.criterion
        save_checkpoint({**state, "last_optimizer_state": None}, path)

    def _stage(self, name: str, words: Sequence[str], start: Path, *needs: str) -> Cell:
        """Train a stage, in the folder `name`, from the parameters of `start`."""
        s, stage = self.settings, name.rpartition("/")[2]
        updates = self.updates[stage]
        # Distillation with weight 0 is the teacher's own loss.
        weight = str(s.distillation_weight if stage == DISTILL else 0.0)
        loss = ["leapformer_distillation", "--distillation-weight", weight]
        if stage == ALIGN:
            loss = ["leapformer_alignment", "--align-weights", str(s.align_weights)]
        rate = {ALIGN: s.align_rate, DISTILL: s.distill_rate, TASK: s.task_rate}[stage]
        training = (
            "train", self.data, "--save-dir", str(self.out / name), *OPTIONS, *words, "--criterion",
            *loss, "--teacher", str(s.path), "--finetune-from-model", str(start), "--optimizer", "adam", "--adam-betas",
            "(0.9,0.98)", "--weight-decay", "0", "--clip-norm", "1", "--lr-scheduler", "cosine", "--lr", str(rate),
            "--min-lr", str(min(1e-5, rate)), "--warmup-updates", str(min(50, updates // 10)), "--max-update",
            str(updates), "--log-interval", "50", "--no-epoch-checkpoints", "--save-interval-updates",
            str(max(1, updates // CHECKS)), "--keep-interval-updates", "1", "--ddp-backend", "legacy_ddp",
            *s.train_options,
        )  # fmt: skip
        return Cell(name, (Command(training, "train.log", launched=True),), needs=needs, vital=True)

    def _choose(self) -> dict[str, Any]:
        """Replace one block after the other, each time the one that costs least; ORDER keeps the steps so far."""
        path = self.out / ORDER
        new: dict[str, Any] = {"swaps": [], "first_layer": 1, "signature": signature()}
        order = read_json(path, KNOWN) if path.is_file() else new
        swaps = [Swap(*swap) for swap in order["swaps"]]
        pair = self._pair(self.out / ALIGN / BEST)
        for swap in choose(pair, pair.batches(self.settings.sentences), swaps):
            swaps.append(swap)
            order["swaps"] = swaps
            write_json(path, order)
            self._say(f"{len(swaps)} of {len(self.replaced)}: {swap.block}, distance {swap.distance:.4f}")
        return order

    def _assemble(self, stays: Names, path: Path) -> None:
        """Write the aligned student with the teacher's parameters in the blocks `stays`."""
        aligned = load_checkpoint(self.out / ALIGN / BEST)
        prefixes = tuple(self.prefixes[name] for name in stays)
        model = {name: value for name, value in aligned["model"].items() if not name.startswith(prefixes)}
        model |= {name: value for name, value in self.teacher["model"].items() if name.startswith(prefixes)}
        save_checkpoint({**aligned, "model": model, "last_optimizer_state": None}, path)

    def _result(self, folder: str, stays: Names) -> dict[str, Any]:
        """Return plan, distances, losses, updates and seconds of the finished student."""
        pair, replaced = self._pair(self.out / ALIGN / BEST), frozenset(self.replaced) - stays
        folders = {ALIGN: self.out / ALIGN, **{name: self.out / folder / name for name in self.stages}}
        logs = {name: trainings.entries(stage / "train.log") for name, stage in folders.items()}
        last = _best(logs[self.stages[-1]])
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
    adopt(state)
    args = (state.get("cfg") or {}).get("model")
    arch, task = (getattr(args, name, None) for name in ("arch", "task"))
    if not isinstance(args, Namespace) or not str(arch).startswith("leapformer_") or task not in TASKS:
        raise LeapformerError(
            f"--path {path} holds architecture {arch!r} of task {task!r}; give one of ours (`leapformer list`), or a "
            f"transformer of fairseq's, for {', '.join(TASKS)}"
        )
    return state


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
