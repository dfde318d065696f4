"""The training command of a student, derived from the arguments in its teacher's checkpoint."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from ... import register
from ...compat.trust import WARM_STARTS

# Not inherited from the teacher: groups of fairseq's parser, and options by name.
_NOT_INHERITED_GROUPS = ("distributed_training", "checkpoint", "EMA configuration")
_NOT_INHERITED = {
    *("task", "arch", "criterion", "optimizer", "lr_scheduler"),
    *("max_epoch", "max_update", "stop_time_hours", "lr", "stop_min_lr", "weight_decay", "adam_betas"),
    *("warmup_updates", "force_anneal", "lr_shrink"),
    *("validate_interval", "validate_interval_updates", "validate_after_updates", "disable_validation"),
    *("eval_bleu", "eval_bleu_print_samples", "eval_inference", "eval_wer"),  # these translate at each validation
    *("no_progress_bar", "log_interval", "log_format", "log_file", "aim_repo", "aim_run_hash", "tensorboard_logdir"),
    *WARM_STARTS,
    *("wandb_project", "azureml_logging", "user_dir", "profile", "reset_logging", "plasma_path"),
}


def words_of(args: Namespace) -> list[str]:
    """Return the options of `leapformer train` that reproduce the task, model and batches of these arguments.

    The caller adds data, criterion, optimizer, schedule, checkpoints, log and processes.
    """
    register()
    from fairseq import options

    begin = ["--task", args.task, "--arch", args.arch]
    given: dict[str, list[str]] = {}  # by dest
    while True:  # the value of one option may change the default of another
        parser = options.get_training_parser()
        now = [*begin, *(word for words in given.values() for word in words)]
        # this also adds the model's options to the parser
        defaults = vars(options.parse_args_and_arch(parser, [args.data, *now]))
        groups = (group for group in parser._action_groups if group.title in _NOT_INHERITED_GROUPS)
        excluded = _NOT_INHERITED | {action.dest for group in groups for action in group._group_actions}
        more = {}
        for action in parser._actions:
            value, default = getattr(args, action.dest, None), defaults.get(action.dest)
            if not action.option_strings or action.dest in excluded or value is None or value == default:
                continue
            if action.dest not in given and (action.nargs != 0 or action.const == value):
                more[action.dest] = list(_words(action, value))
        if not more:
            return now
        given |= more


def _words(action: argparse.Action, value: Any) -> Iterator[str]:
    yield max(action.option_strings, key=len)
    if action.nargs == 0:  # a flag without a value
        return
    # an option of one word that holds a list is written "[1, 2]", as fairseq parses it
    yield from map(str, value) if action.nargs is not None and isinstance(value, list) else [str(value)]
