"""fairseq's own commands with the plugin loaded: `leapformer train ...` is `fairseq-train --user-dir <plugin> ...`.

All arguments but a --user-dir, which `main` takes, are passed on to fairseq unchanged. Only --help is ours: fairseq
prints it before it knows the flags of the model, the task and the criterion.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import PLUGIN_DIR, register
from ..studies import trainings
from ..support import user_dir
from ..support.errors import LeapformerError
from ..support.files import owned, write_text
from ..support.options import flag
from . import logs

ARCH_PREFIX = "leapformer_"
#: minimum values of options that fairseq does not check: below them it fails, or loops forever, after work has begun
LEAST = {
    **dict.fromkeys(("max_tokens", "batch_size", "max_tokens_valid", "batch_size_valid", "tokens_per_sample"), 1),
    **dict.fromkeys(("beam", "nbest", "update_freq", "log_interval", "required_batch_size_multiple"), 1),
    **dict.fromkeys(("save_interval", "validate_interval", "distributed_world_size"), 1),
    **dict.fromkeys(("num_workers", "max_update", "max_epoch", "warmup_updates", "max_len_a", "max_len_b"), 0),
    **dict.fromkeys(("clip_norm", "weight_decay", "label_smoothing", "dropout", "attention_dropout"), 0),
}
UNFINISHED = "preprocess.unfinished"  # in the folder of `preprocess`, until it has ended: its options
ENDED = "preprocess.options"  # the same file from then on
EXPORTED = ("generate", "interactive", "eval-lm")  # the commands that accept an exported model as --path


class FairseqCommand(NamedTuple):
    """A module of `fairseq_cli`, and the function of `fairseq.options` that builds its parser."""

    module: str
    parser: str


COMMANDS = {
    "train": FairseqCommand("train", "get_training_parser"),
    "generate": FairseqCommand("generate", "get_generation_parser"),
    "interactive": FairseqCommand("interactive", "get_interactive_generation_parser"),
    "eval-lm": FairseqCommand("eval_lm", "get_eval_lm_parser"),
    "validate": FairseqCommand("validate", "get_validation_parser"),
    "preprocess": FairseqCommand("preprocess", "get_preprocessing_parser"),
}


def run(name: str, arguments: list[str]) -> int:
    """Run fairseq's command `name`, or print its help with all flags of the components that `arguments` select."""
    logs.set_up()
    register()
    command = COMMANDS[name]
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    arguments = [user_dir.FLAG, str(PLUGIN_DIR), *arguments]
    sys.argv = [f"leapformer {name}", *arguments]  # fairseq's cli_main reads its arguments there
    if wants_help:
        _print_help(command, [argument for argument in arguments if argument not in ("-h", "--help")])
        return 0
    if name == "generate":
        _check_shards(arguments)
    exported = _exported_model(arguments)
    if exported is not None and name not in EXPORTED:
        raise LeapformerError(
            f"{name}: --path {exported} is a folder; exported models serve {', '.join(EXPORTED)}; give the checkpoint"
        )
    if name == "train" and not any(argument.split("=")[0] in ("--arch", "-a") for argument in arguments):
        raise LeapformerError("train needs --arch; `leapformer list` shows ours, e.g. --arch leapformer_lm")
    module: Any = importlib.import_module(f"fairseq_cli.{command.module}")
    if not isinstance(module.main, _Main):  # a second command in this process must not wrap it again
        module.main = _Main(module.main)
    with ExitStack() as stack:
        stack.enter_context(_one_line_refusals(name, stack))
        if exported is not None:
            from ..export.as_fairseq_models import exported_models

            stack.enter_context(exported_models())
        module.cli_main()
    return 0


def _exported_model(arguments: list[str]) -> str | None:
    """The first folder in --path, which must come from `leapformer export`; None if all paths are files."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--path", default="")
    path = parser.parse_known_args(arguments)[0].path
    return next((part for part in path.split(os.pathsep) if Path(part).is_dir()), None) if path else None


def _check_shards(arguments: list[str]) -> None:
    """Raise LeapformerError for ways to share a test set among jobs that fairseq-generate silently ignores."""
    shards = [word for word in zip(arguments, [*arguments[1:], ""], strict=True) if word[0].startswith("--num-shards")]
    if shards:
        count = shards[0][0].partition("=")[2] or shards[0][1]
        raise LeapformerError(
            f"fairseq-generate does not read --num-shards; give --distributed-world-size {count} --distributed-rank N, "
            "from 0, and a --results-path to each job"
        )
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if processes > 1:
        raise LeapformerError(
            f"{processes} processes would each translate everything into one file; without torchrun, start each by "
            f"itself with --distributed-world-size {processes} --distributed-rank N and its own --results-path"
        )


@contextmanager
def _one_line_refusals(name: str, stack: ExitStack) -> Iterator[None]:
    """Make fairseq refuse options in one line without pages of usage, and check the values that it does not check.

    This is also where the options of a training are known, so its folder is locked here, until `stack` is closed.
    """
    from fairseq import options

    make, parse = options.get_parser, options.parse_args_and_arch

    def get_parser(*args: Any, **kwargs: Any) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = make(*args, **kwargs)
        parser.error = trainings.refusing(name, name)  # type: ignore[assignment,method-assign]
        return parser

    def parse_args_and_arch(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)  # with parse_known=True, a tuple with the unknown arguments
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        _check_numbers(name, namespace)
        _check_beginnings(name, namespace)
        if name == "train" and not namespace.no_save and _is_first(namespace):
            _begin_in(namespace, stack)
        return parsed

    options.get_parser, options.parse_args_and_arch = get_parser, parse_args_and_arch
    try:
        yield
    finally:
        options.get_parser, options.parse_args_and_arch = make, parse


def _check_numbers(name: str, args: argparse.Namespace) -> None:
    for option, least in LEAST.items():
        value = getattr(args, option, None)
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, (int, float)) and not number >= least:  # `not`: NaN is refused, too
                raise LeapformerError(f"{name}: {flag(option)} {number}: give at least {least}")
    if getattr(args, "nbest", 1) > getattr(args, "beam", 1):
        raise LeapformerError(f"{name}: --nbest {args.nbest} needs as many hypotheses; give --beam {args.nbest}")


def _check_beginnings(name: str, args: argparse.Namespace) -> None:
    """Raise LeapformerError if the checkpoint to start from is missing: fairseq would start from random parameters."""
    for option in ("finetune_from_model", "restore_file", "continue_once"):
        path = getattr(args, option, None)
        if path and not (option == "restore_file" and path == trainings.LAST) and not _is_checkpoint(Path(path)):
            raise LeapformerError(f"{name}: {flag(option)} {path}: no such file; check the path")


def _begin_in(args: argparse.Namespace, stack: ExitStack) -> None:
    """Lock the folder of the checkpoints, and repair the last one if an earlier attempt was killed while copying it."""
    folder = stack.enter_context(owned(args.save_dir, "--save-dir"))
    trainings.mend_last(folder)


def _is_first(args: argparse.Namespace) -> bool:
    """Whether this process is the only one of a training, or the one that writes its checkpoints.

    Processes that fairseq starts itself never get here; their parent does.
    """
    torchrun = ("MASTER_ADDR", "WORLD_SIZE", "RANK")
    if all(os.environ.get(name) for name in torchrun):
        return os.environ["RANK"] == "0"
    if args.distributed_init_method:
        return not args.distributed_rank
    # With --distributed-port, SLURM starts the processes, and fairseq takes the rank from it.
    return args.distributed_port <= 0 or os.environ.get("SLURM_PROCID", "0") == "0"


def _is_checkpoint(path: Path) -> bool:
    """Whether this file exists, or shards of it, one per process."""
    return path.is_file() or any(path.parent.glob(f"{path.stem}-*{path.suffix}"))


class _Main:
    """A main function of fairseq that registers our models in the processes that fairseq starts, one per GPU.

    Such a process imports this one's script, and so our package, before fairseq reads --user-dir, and fairseq then
    believes that the plugin is loaded already. Unpickling this object in the new process therefore registers it.
    """

    def __init__(self, main: Callable[..., None]) -> None:
        self.main = main

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self.main.__module__ == "fairseq_cli.train":
            with _finished_stays_finished():
                self.main(*args, **kwargs)
        elif self.main.__module__ == "fairseq_cli.preprocess":
            with _repeatable(*args):
                self.main(*args, **kwargs)
        else:
            self.main(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _main_in_new_process, (self.main.__module__,)


def _main_in_new_process(module: str) -> Callable[..., None]:
    logs.set_up()
    register()
    return _Main(importlib.import_module(module).main)


@contextmanager
def _repeatable(args: argparse.Namespace) -> Iterator[None]:
    """Delete the dictionaries of an attempt of `preprocess` that did not end, or that would be made again as they are.

    fairseq refuses to overwrite them. A study that was killed when `preprocess` had just ended repeats it.
    """
    with owned(args.destdir, "--destdir") as folder:
        given = [Path(path).resolve() for path in (args.srcdict, args.tgtdict) if path]
        dictionaries = [path for path in folder.glob("dict*.txt") if path.resolve() not in given]
        mark, ended = folder / UNFINISHED, folder / ENDED
        about = json.dumps(vars(args), default=str, sort_keys=True)
        same = ended.is_file() and ended.read_text(encoding="utf-8") == about and _older(args, ended)
        if mark.is_file() or same:
            for path in dictionaries:
                path.unlink()
        elif dictionaries:  # of another attempt, that ended
            yield
            return
        write_text(mark, about)
        yield
        mark.replace(ended)


def _older(args: argparse.Namespace, made: Path) -> bool:
    """Whether all texts of `preprocess` are older than what it has made."""
    prefixes = ",".join(filter(None, (args.trainpref, args.validpref, args.testpref))).split(",")
    texts = (text for prefix in map(Path, prefixes) for text in prefix.parent.glob(f"{glob.escape(prefix.name)}*"))
    return all(text.stat().st_mtime_ns <= made.stat().st_mtime_ns for text in texts)


@contextmanager
def _finished_stays_finished() -> Iterator[None]:
    """Train nothing if the loaded checkpoint already has all its updates or hours.

    fairseq would do one more update and save it as the last checkpoint, and perhaps as the best. All processes of the
    training have loaded the same checkpoint, so they agree.
    """
    from fairseq_cli import train as module

    train, log, begun = module.train, logging.getLogger(__name__), False

    def train_if_unfinished(cfg: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal begun
        limits, begun = cfg.optimization, True
        updates, hours = trainer.get_num_updates(), trainer._previous_training_time / 3600
        if 0 < limits.max_update <= updates:
            reason = f"{updates} updates are done, --max-update {limits.max_update}"
        elif 0 < limits.stop_time_hours < hours:
            reason = f"{hours:.2f} hours are over, --stop-time-hours {limits.stop_time_hours}"
        else:
            return train(cfg, trainer, *args, **kwargs)
        log.info("%s is finished: %s; nothing is trained", cfg.checkpoint.save_dir, reason)
        if trainer.should_save_checkpoint_on_current_rank:
            _delete_old(cfg.checkpoint, trainer.checkpoint_suffix)
        return [None], True  # no validation losses, and stop

    module.train = train_if_unfinished
    try:
        yield
    finally:
        module.train = train
    if not begun:
        log.info("the training is finished: --max-epoch or --stop-min-lr is reached; nothing was trained")


def _delete_old(cfg: Any, suffix: str) -> None:
    """Delete the checkpoints that fairseq would not keep: it may have been killed between saving and deleting."""
    from fairseq.checkpoint_utils import checkpoint_paths

    best = rf"checkpoint\.best_{re.escape(cfg.best_checkpoint_metric)}_(\d+\.?\d*){suffix}\.pt"
    kept = {
        # With a pattern, fairseq also keeps multiples of it: leave those alone.
        rf"checkpoint_\d+_(\d+){suffix}\.pt": cfg.keep_interval_updates * (cfg.keep_interval_updates_pattern == -1),
        rf"checkpoint(\d+){suffix}\.pt": cfg.keep_last_epochs,
        best: cfg.keep_best_checkpoints,
    }
    for pattern, count in kept.items():
        paths = checkpoint_paths(cfg.save_dir, pattern=pattern)  # in descending order
        if pattern == best and not cfg.maximize_best_checkpoint_metric:
            paths.reverse()
        for path in paths[count:] if count > 0 else []:
            Path(path).unlink()


def _print_help(command: FairseqCommand, arguments: list[str]) -> None:
    from fairseq import options

    parser = getattr(options, command.parser)()
    if command.module != "preprocess":
        _add_chosen_flags(parser, arguments)
    parser.print_help()


class _Complete(Exception):
    """Ends fairseq's parsing as soon as the parser has all flags."""


def _add_chosen_flags(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Add the flags of the chosen model, task, criterion, optimizer and so on; without --arch, those of our models."""
    from fairseq import options

    choices = {action.dest: action for action in parser._actions if action.dest in ("arch", "task")}
    for action in choices.values():
        if action.default is None:  # fairseq would look up the flags of None, and fail
            action.default = argparse.SUPPRESS
    if "arch" in choices and not hasattr(parser.parse_known_args(arguments)[0], "arch"):
        title = f"Flags of our models (--arch {ARCH_PREFIX}...)"
        group = parser.add_argument_group(title, conflict_handler="resolve")
        for names, settings in _added_flags().items():
            group.add_argument(*names, **settings)
    # fairseq calls modify_parser twice, before and after it adds the flags of the chosen components.
    calls = iter((False, True))

    def stop_when_complete(_: argparse.ArgumentParser) -> None:
        if next(calls):
            raise _Complete

    with suppress(_Complete):
        options.parse_args_and_arch(parser, arguments, modify_parser=stop_when_complete)


class _Flags(dict[tuple[str, ...], dict[str, Any]]):
    """A stand-in for a parser that records the flags added to it."""

    def add_argument(self, *names: str, **settings: Any) -> None:
        self[names] = settings

    def add_argument_group(self, *_: Any, **__: Any) -> _Flags:
        return self


def _added_flags() -> _Flags:
    """The flags of our models that the stock models which they extend do not have."""
    from fairseq.models import MODEL_REGISTRY

    added = _Flags()
    for name, model in MODEL_REGISTRY.items():
        if name.startswith(ARCH_PREFIX):
            ours, stock = _Flags(), _Flags()
            model.add_args(ours)
            next(base for base in model.__mro__ if base.__module__.startswith("fairseq.")).add_args(stock)
            added.update((names, settings) for names, settings in ours.items() if names not in stock)
    return added
