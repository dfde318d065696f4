"""Changes to a fairseq task whose model is one of ours.

`build_model` of each of our models calls `adapt` with its task. Methods are replaced in this object only; its class,
and so the tasks of other models, stay as in fairseq.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from fairseq.tasks.sentence_ranking import SentenceRankingTask
from fairseq.tasks.speech_to_text import SpeechToTextTask
from fairseq.tasks.text_to_speech import TextToSpeechTask
from fairseq.tasks.translation import TranslationTask

from ..compat.errors_explained import another_task
from ..modules.warm_start import forget_if_resumed
from ..support.errors import LeapformerError
from . import lm_task, speech_task

logger = logging.getLogger(__name__)

# fairseq's tasks that our models support, subclasses before their bases. A task that is not derived from one of them is
# not rejected: our models may work with it.
TASKS: dict[type, str] = {
    TextToSpeechTask: "text_to_speech",
    SpeechToTextTask: "speech_to_text",
    LanguageModelingTask: "language_modeling",
    MaskedLMTask: "masked_lm",
    SentencePredictionTask: "sentence_prediction",
    SentenceRankingTask: "sentence_ranking",
    TranslationTask: "translation",
}


def override(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace the method `name` of this object, and of no other, by `function`, which gets `owner` as first argument.

    `function` calls the method that it replaces as `type(owner).name`, so a second call changes nothing. The object
    can still be pickled.
    """
    setattr(owner, name, partial(function, owner))


def adapt(task: Any, args: Namespace, *served: str) -> None:
    """Adapt a task to one of our models, whose options are `args` and which supports the tasks named in `served`.

    Afterwards, no sentence is dropped from a batch, empty lines and unknown words are reported, prompts are read in one
    pass, data that fairseq would silently skip is rejected, and a resumed training needs no file of a warm start.
    Raises LeapformerError for a task that needs another model.
    """
    if not isinstance(task, FairseqTask):
        return  # a stand-in with dictionaries and nothing else, as in benchmarks
    forget_if_resumed(args)
    kind = next((name for base, name in TASKS.items() if isinstance(task, base)), None)
    if kind is not None and kind not in served:
        arch = getattr(args, "arch", None) or getattr(args, "_name", None)
        raise LeapformerError(another_task(str(arch), served, kind))
    if isinstance(task, LanguageModelingTask):
        for name in ("load_dataset", "inference_step", "eval_lm_dataloader", "build_generator"):
            override(task, name, getattr(lm_task, name))
    if isinstance(task, SpeechToTextTask):
        for name in ("load_dataset", "build_dataset_for_inference"):
            override(task, name, getattr(speech_task, name))
    if isinstance(task, TranslationTask):
        override(task, "inference_step", inference_step)
    override(task, "get_batch_iterator", get_batch_iterator)
    if type(task).get_interactive_tokens_and_lengths is FairseqTask.get_interactive_tokens_and_lengths:  # of text
        override(task, "get_interactive_tokens_and_lengths", get_interactive_tokens_and_lengths)


def get_batch_iterator(task: FairseqTask, dataset: FairseqDataset, *args: Any, **kwargs: Any) -> Any:
    """As in fairseq, but batches leave nothing out, and a resumed training run has the same ones.

    fairseq creates batches once, for the epoch in which the process starts: a resumed run would have others.
    """
    override(dataset, "batch_by_size", batch_by_size)
    epoch = kwargs.get("epoch", 1)
    cached = task.can_reuse_epoch_itr(dataset) and not (
        kwargs.get("disable_iterator_cache")
        or kwargs.get("update_epoch_batch_itr")
        or getattr(task.cfg, "rebuild_batches", False)
    )
    if epoch == 1 or not cached or dataset in task.dataset_to_epoch_iter:
        return type(task).get_batch_iterator(task, dataset, *args, **kwargs)
    # The batches of the first epoch; the iterator shuffles them by its epoch.
    iterator = type(task).get_batch_iterator(task, dataset, *args, **{**kwargs, "epoch": 1})
    iterator.epoch = epoch
    dataset.set_epoch(epoch)
    return iterator


def batch_by_size(dataset: FairseqDataset, indices: Any, *args: Any, **kwargs: Any) -> list[np.ndarray]:
    """fairseq's batches, and one with the sentences that they leave out.

    fairseq drops the rest of a data set unless it is a multiple of `--required-batch-size-multiple`, by default 8.
    """
    indices = np.asarray(indices, dtype=np.int64)
    if not len(indices):
        return []
    batches = list(type(dataset).batch_by_size(dataset, indices, *args, **kwargs))
    rest = indices[~np.isin(indices, np.concatenate([*batches, indices[:0]]))]
    return [*batches, rest] if len(rest) else batches


def inference_step(
    task: TranslationTask, generator: Any, models: Any, sample: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """As in fairseq, but the translation of an empty source is empty; a model would make something up."""
    translations = type(task).inference_step(task, generator, models, sample, *args, **kwargs)
    words, sources = task.source_dictionary, sample["net_input"]["src_tokens"]
    has_words = (sources.ne(words.pad()) & sources.ne(words.eos())).any(1)
    for number, hypotheses in enumerate(translations):
        if hypotheses and not has_words[number]:
            best = hypotheses[0]
            end = best["tokens"].new_tensor([task.target_dictionary.eos()])
            scores = torch.zeros_like(best["positional_scores"][:1])
            empty = {**best, "tokens": end, "score": scores[0], "positional_scores": scores, "alignment": []}
            translations[number] = [empty]
    return translations


def get_interactive_tokens_and_lengths(
    task: FairseqTask, lines: list[str], encode_fn: Callable[[str], str]
) -> tuple[Any, Any]:
    """As in fairseq, with a warning for lines that are empty or contain unknown words."""
    words = task.source_dictionary
    for line in lines:
        pieces = encode_fn(line).split()
        unknown = [piece for piece in dict.fromkeys(pieces) if words.index(piece) == words.unk()]
        if not pieces:
            what = "its translation is empty" if isinstance(task, TranslationTask) else "the model gets nothing to read"
            logger.warning("an empty line: %s", what)
        elif unknown:
            logger.warning(
                "%r: not in the dictionary: %s; prepare the text as in training", line[:80], " ".join(unknown[:5])
            )
    return type(task).get_interactive_tokens_and_lengths(task, lines, encode_fn)
