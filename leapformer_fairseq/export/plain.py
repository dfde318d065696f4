"""How a fairseq task prepares a plain source.

The runtime has no tasks, so tasks that add tokens are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..support.errors import LeapformerError


class _Recorder:
    """Takes the place of fairseq's generator, and records what a task would pass to it."""

    prefix: Tensor | None = None
    first: int | None = None

    def generate(
        self, models: Any, sample: Any, prefix_tokens: Any = None, constraints: Any = None, bos_token: Any = None
    ) -> list[Any]:
        self.prefix, self.first = prefix_tokens, bos_token
        return []


def sample_of(task: Any, source: Tensor) -> dict[str, Any]:
    """The batch that fairseq's `interactive` makes of a source (S,), whose last token is the end."""
    if not hasattr(task, "build_dataset_for_inference"):  # a stand-in for a task, with dictionaries only
        return {"net_input": {"src_tokens": source.unsqueeze(0), "src_lengths": torch.tensor([len(source)])}}
    dataset = task.build_dataset_for_inference([source], [len(source)])
    sample: dict[str, Any] = dataset.collater([dataset[0]])
    return sample


def check_task(task: Any, first: int | None = None) -> None:
    """Raise LeapformerError for a task that adds tokens to what a model reads or writes, such as those of languages.

    `first`: the token with which a language model's texts begin in the runtime, before the prompt; None: a translation
    model.
    """
    if not hasattr(task, "inference_step"):
        return
    words = task.source_dictionary
    source = torch.tensor([len(words) - 1] if first is not None else [len(words) - 1, words.eos()])
    recorder, name = _Recorder(), getattr(getattr(task, "args", None), "task", None) or type(task).__name__
    remedy = "exported models read and write plain lines, so use `leapformer generate`"
    try:
        sample = sample_of(task, source) if first is None else {"net_input": {"src_tokens": source.unsqueeze(0)}}
        task.inference_step(recorder, [], sample)
    except Exception as error:  # tasks fail in many ways, for instance because the languages are unknown
        raise LeapformerError(
            f"--task {name} cannot be asked what it makes of a plain line ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:100]}); {remedy}"
        ) from error
    read, prefix = sample["net_input"]["src_tokens"][0].tolist(), None if first is None else [source.tolist()]
    begins = (None, task.target_dictionary.eos()) if first is None else (first,)
    given = None if recorder.prefix is None else recorder.prefix.tolist()
    if read != source.tolist() or given != prefix or recorder.first not in begins:
        raise LeapformerError(
            f"--task {name} adds tokens, such as those of languages, to what a model reads or writes; {remedy}"
        )
