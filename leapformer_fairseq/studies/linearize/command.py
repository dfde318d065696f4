"""The training command of a student, from what its teacher's checkpoint says of the teacher's."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from ... import register
from ...compat.trust import WARM_STARTS

# What a student's training decides itself: groups of fairseq's parser, and options by name.
_OWN_GROUPS = ("distributed_training", "checkpoint", "EMA configuration")
_OWN = {
    *("task", "arch", "criterion", "optimizer", "lr_scheduler"),
    *("max_epoch", "max_update", "stop_time_hours", "lr", "stop_min_lr", "weight_decay", "adam_betas"),
    *("warmup_updates", "force_anneal", "lr_shrink"),
    *("validate_interval", "validate_interval_updates", "validate_after_updates", "disable_validation"),
    *("eval_bleu", "eval_bleu_print_samples", "eval_inference", "eval_wer"),  # they translate at each validation
    *("no_progress_bar", "log_interval", "log_format", "log_file", "aim_repo", "aim_run_hash", "tensorboard_logdir"),
    *WARM_STARTS,
    *("wandb_project", "azureml_logging", "user_dir", "profile", "reset_logging", "plasma_path"),
}


def words_of(args: Namespace) -> list[str]:
    """The options of `leapformer train` for task, model and batches as in a training with these arguments.

    Data, criterion, optimizer, schedule, checkpoints, log and processes are left to whoever adds words.
    """
    register()
    from fairseq import options

    begin = ["--task", args.task, "--arch", args.arch]
    given: dict[str, list[str]] = {}  # by dest
    while True:  # what one option says may change another's default
        parser = options.get_training_parser()
        now = [*begin, *(word for words in given.values() for word in words)]
        defaults = vars(options.parse_args_and_arch(parser, [args.data, *now]))  # the parser now knows the model's, too
        groups = (group for group in parser._action_groups if group.title in _OWN_GROUPS)
        left = _OWN | {action.dest for group in groups for action in group._group_actions}
        more = {}
        for action in parser._actions:
            value = getattr(args, action.dest, None)
            if not action.option_strings or action.dest in left or value is None or value == defaults.get(action.dest):
                continue
            if action.dest not in given and (action.nargs != 0 or action.const == value):
                more[action.dest] = list(_words(action, value))
        if not more:
            return now
        given |= more


def _words(action: argparse.Action, value: Any) -> Iterator[str]:
    yield max(action.option_strings, key=len)
    if action.nargs == 0:  # what it is without the flag is the default
        return
    # where fairseq wants one word for a list of numbers, it reads "[1, 2]"
    yield from map(str, value) if action.nargs is not None and isinstance(value, list) else [str(value)]
