"""Changes to fairseq's language modelling task for our models; `task.adapt` installs them, method by method."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from fairseq.tasks.language_modeling import LanguageModelingTask as Task
from torch import Tensor

from ..support.errors import LeapformerError


def load_dataset(task: Task, *args: Any, **kwargs: Any) -> Any:
    """As in fairseq, but reject blocks of less than one token, which would end in a division by zero."""
    if task.args.tokens_per_sample < 1:
        raise LeapformerError(
            f"--tokens-per-sample leaves {task.args.tokens_per_sample} new tokens per block; give at least 1, and "
            "more than --context-window"
        )
    return type(task).load_dataset(task, *args, **kwargs)


def eval_lm_dataloader(task: Task, dataset: Any, *args: Any, **kwargs: Any) -> Any:
    """As in fairseq, but reject blocks that do not fit the model.

    fairseq skips them, and if none is left reports a perplexity of 1.
    """
    limit, window = kwargs.get("max_positions"), kwargs.get("context_window", 0)
    longest = int(max(dataset.sizes, default=0)) + window
    if limit is not None and longest > limit:
        raise LeapformerError(
            f"blocks of up to {longest} tokens do not fit the model's {limit} positions and would be left out; "
            f"give --tokens-per-sample {limit} or less (a --context-window counts)"
        )
    return type(task).eval_lm_dataloader(task, dataset, *args, **kwargs)


def build_generator(task: Task, models: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
    """As in fairseq, but reject options that need a source."""
    for flag in ("print_alignment", "constraints"):
        if getattr(args, flag, None):
            raise LeapformerError(f"--{flag.replace('_', '-')}: a language model has no source for that; leave it out")
    return type(task).build_generator(task, models, args, *more, **kwargs)


def inference_step(
    task: Task, generator: Any, models: Any, sample: Any, prefix_tokens: Tensor | None = None, **more: Any
) -> Any:
    """As in fairseq, but read the prompts of a batch, up to the shortest, in one pass instead of token by token."""
    dictionary = task.source_dictionary
    first = dictionary.bos() if getattr(task.args, "add_bos_token", False) else dictionary.eos()
    prompt = sample["net_input"]["src_tokens"] if prefix_tokens is None else prefix_tokens
    # As in fairseq's task: a prompt gets the first token unless it has it, and a prefix never has it.
    if prompt.numel() and (prefix_tokens is not None or not prompt[:, 0].eq(first).all()):
        prompt = torch.cat([prompt.new_full((len(prompt), 1), first), prompt], 1)
    shortest = int(prompt.ne(dictionary.pad()).sum(1).min()) if prompt.numel() else 0
    ours = [model for model in models if hasattr(getattr(model, "decoder", None), "prompted")]
    limit = min((model.max_positions() for model in ours), default=prompt.shape[1])
    if prompt.shape[1] > limit:
        raise LeapformerError(
            f"a prompt of {prompt.shape[1]} tokens is longer than the model's {limit} positions; shorten it"
        )
    with ExitStack() as stack:
        for model in ours if shortest > 1 else ():
            stack.enter_context(model.decoder.prompted(prompt[:, :shortest]))
        return type(task).inference_step(task, generator, models, sample, prefix_tokens, **more)
