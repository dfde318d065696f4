"""A training command that a study varies: parsed, checked by building its model, and written for each run."""

from __future__ import annotations

import argparse
import copy
import math
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..compat.errors_explained import explained
from ..models.averaging import describe_checkpoint
from ..modules import BLOCKS, MechanismAttention, expand_plan
from ..modules.swap import layers_of
from ..support.errors import LeapformerError
from .ablation.search import Plan, layers_text
from .trainings import BEST, LAST, PROGRAM, parse_options, refusing

PLAN_FLAGS = {block.name: f"--{block.name}-attention" for block in BLOCKS}
WHAT = "the training command"  # its name in error messages
SET_BY_RUNS = ("--save-dir", "--log-format", *PLAN_FLAGS.values())
LOG_INTERVAL = ("--log-interval", "10")  # default: short trainings must log their speed, too
_COMPARED = "runs are compared by the validation loss of checkpoint_best.pt, less is better"
_RESUMED = "an interrupted run resumes from its checkpoint_last.pt (to start from a model, --finetune-from-model)"
_REFUSED = {
    **dict.fromkeys(("no_save", "disable_validation", "maximize_best_checkpoint_metric"), _COMPARED),
    **dict.fromkeys(("restore_file", "no_last_checkpoints", "no_save_optimizer_state"), _RESUMED),
    **dict.fromkeys(("reset_dataloader", "reset_lr_scheduler", "reset_meters", "reset_optimizer"), _RESUMED),
}


@dataclass(frozen=True)
class Training:
    """A training command without the options that each run sets itself.

    arguments: the words after `leapformer train`.
    args:      the arguments as parsed by fairseq.
    """

    arguments: tuple[str, ...]
    args: Namespace

    @cached_property
    def task(self) -> Any:
        """fairseq's task, set up on the data. Raises LeapformerError if it cannot be."""
        from fairseq import tasks

        with _trying():
            return tasks.setup_task(copy.deepcopy(self.args))

    @property
    def identity(self) -> str:
        """The arguments in one line; runs can be compared only if they have the same."""
        return shlex.join(self.arguments)

    @property
    def metric(self) -> str:
        """The metric by which fairseq chooses the best checkpoint; "loss" by default."""
        return self.args.best_checkpoint_metric

    @property
    def measure(self) -> str:
        """The log's name of the metric, on the first validation set."""
        return f"{self.args.valid_subset.split(',')[0]}_{self.metric}"

    @cached_property
    def blocks(self) -> list[str]:
        """The names of the attention blocks for which the command takes a plan; needs no data."""
        names = []
        for name, flag in PLAN_FLAGS.items():
            with suppress(LeapformerError):
                _parse((*self.arguments, flag, "softmax"))
                names.append(name)
        return names if BLOCKS[0].name in names else names[:1]  # a decoder alone has no cross-attention

    def layers(self, baseline: str) -> dict[str, int]:
        """Return the model's attention blocks, {name: number of layers}, from building it with one plan everywhere.

        Raises LeapformerError if it cannot be built.
        """
        model = self.build([word for name in self.blocks for word in (PLAN_FLAGS[name], baseline)])
        counts = {}
        for block in BLOCKS:
            stack = getattr(model, block.stack, None)
            if stack is None:
                continue
            layers = layers_of(stack)
            if len(layers) and isinstance(getattr(layers[0], block.attribute, None), MechanismAttention):
                counts[block.name] = len(layers)
        return counts

    def refusal(self, plan: Plan) -> str | None:
        """Return why the model cannot be built with this plan; None if it can."""
        try:
            self.build(plan_flags(plan))
        except LeapformerError as error:
            return str(error)
        return None

    def words(self, options: Sequence[str], folder: Path) -> list[str]:
        """The words of `leapformer` for a run with more options and with checkpoints in `folder`."""
        interval = () if _gives(self.arguments, LOG_INTERVAL[0]) else LOG_INTERVAL
        return ["train", *self.arguments, *options, "--log-format", "json", "--save-dir", str(folder), *interval]

    def command(self, plan: Plan, folder: Path) -> list[str]:
        """Return the whole command of a run with this plan and with checkpoints in `folder`."""
        return [*PROGRAM, *self.words(plan_flags(plan), folder)]

    def build(self, options: Sequence[str]) -> Any:
        """Build the model with more options. Raises LeapformerError for wrong ones, and if it cannot be built."""
        args = _parse((*self.arguments, *options))
        with _trying():
            return self.task.build_model(args)


def read_training(words: Sequence[str]) -> Training:
    """Parse the words of a training: those of `leapformer train`, with or without that name, or of fairseq-train.

    The data is looked at only when a model is built. Raises LeapformerError for unknown options, a model without
    attention plans, and a training that has no end, leaves nothing to compare, or cannot be resumed.
    """
    arguments = _arguments(words)
    args = _parse(arguments)
    if not hasattr(args, BLOCKS[0].argument):
        raise LeapformerError(f"--arch {args.arch} has no attention plans; `leapformer list` shows the models that do")
    if not args.optimizer:
        raise LeapformerError("the training command needs --optimizer, e.g. --optimizer adam --lr 1e-3")
    if not (args.max_epoch or args.max_update or args.stop_time_hours > 0):
        raise LeapformerError(
            "the training command has no budget; give it --max-epoch, --max-update or --stop-time-hours"
        )
    for name, reason in _REFUSED.items():
        if getattr(args, name) not in (False, LAST):
            raise LeapformerError(f"--{name.replace('_', '-')} in the training command: {reason}; leave it out")
    return Training(arguments, args)


def best_model(folder: Path, log: str) -> dict[str, Any]:
    """What `describe_checkpoint` says of the best checkpoint of a training in `folder`, whose output is in `log` there.

    Raises LeapformerError if it left no validation loss.
    """
    path = folder / BEST
    best: dict[str, Any] = describe_checkpoint(path) if path.is_file() else {"valid_loss": None}
    if best["valid_loss"] is None or not math.isfinite(best["valid_loss"]):
        raise LeapformerError(f"no validation loss ({best['valid_loss']}) in {path}; see {folder / log}")
    return best


def plan_flags(plan: Plan) -> list[str]:
    """Return the flags that choose the plan."""
    return [word for block, names in plan.items() for word in (PLAN_FLAGS[block], layers_text(names))]


def plan_everywhere(text: str, layers: dict[str, int]) -> Plan:
    """Return the plan with the same text in every block; `layers` is {block: number of layers}."""
    return {block: tuple(expand_plan(text, count)) for block, count in layers.items()}


def _arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words after the name of the command, without the options that each run sets itself."""
    words = list(words)
    if words and Path(words[0]).name in ("fairseq-train", "leapformer"):
        words = words[1:]
    if words and words[0] == "train":
        words = words[1:]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = refusing(WHAT)  # type: ignore[assignment,method-assign]
    for flag in SET_BY_RUNS:
        parser.add_argument(flag)
    return tuple(parser.parse_known_args(words)[1])


def _gives(arguments: Sequence[str], *flags: str) -> bool:
    return any(word.partition("=")[0] in flags for word in arguments)


def _parse(arguments: tuple[str, ...]) -> Namespace:
    if not _gives(arguments, "--arch", "-a"):
        raise LeapformerError("the training command needs --arch; `leapformer list` shows ours")
    return parse_options(arguments, WHAT)


@contextmanager
def _trying() -> Iterator[None]:
    """Turn whatever fairseq raises, e.g. for missing data or pretrained models, into a LeapformerError of one line."""
    try:
        yield
    except LeapformerError:
        raise
    except Exception as error:
        explanation = explained(error)
        reason = str(explanation) if explanation else " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise LeapformerError(
            f"the training command cannot start: {reason}; `leapformer train` alone with it shows more"
        ) from error
