"""Perplexity or BLEU of a teacher with predicted graphs in place of full ones, in all layers and heads of a block.

A pattern whose edges change with later tokens cannot decode from a state: it reads the whole prefix for every token.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ...attention.sparse.pattern import NONCAUSAL
from ...models.loading import load_model
from ...modules.capture import attentions_by_block
from ...scoring.quality import bleu
from ...support.errors import LeapformerError
from ...support.lines import read_lines
from .extraction import MODELS, PURPOSE, loaded

# a, b: a translation has at most a * S + b subwords for S of its source; a pattern that lacks too many edges would not
# stop by itself.
LONGEST = 1.5, 20


class Quality(NamedTuple):
    """A score and its name (perplexity or BLEU), the model's seconds, and whether it decodes from a state.

    long, long_count: score and number of long sentences; None and 0 if they are not scored separately.
    """

    name: str
    quality: float
    seconds: float
    incremental: bool
    long: float | None = None
    long_count: int = 0


@dataclass(frozen=True)
class Scored:
    """The test: `subset` of `data`; translations need `references`, a file of detokenised lines.

    limit: only the first sentences (blocks of a masked language model).
    long:  fewest tokens of a reference, including the end symbol, whose translation is also scored separately.
    """

    checkpoint: str
    data: str
    block: str
    subset: str = "test"
    references: str | None = None
    batch: int = 8
    beam: int = 5
    limit: int | None = None
    long: int | None = None


def score(test: Scored, mechanism: str = "entmax", options: Mapping[str, Any] | None = None) -> Quality:
    """Return the quality with `mechanism` and its `options` in all layers of the block.

    Raises LeapformerError for a block that the model lacks, for translations without a reference each, and for a
    language model with a pattern whose edges depend on later tokens.
    """
    plan = {test.block.replace("-", "_") + "_attention": mechanism, NONCAUSAL.name: True}
    overrides = {"data": test.data, **plan, **(options or {})}
    model, task = load_model(test.checkpoint, MODELS, PURPOSE, overrides)
    attentions = attentions_by_block(model)
    if test.block not in attentions:
        raise LeapformerError(f"--block {test.block}: {test.checkpoint} has no such block")
    decodes = test.block != "encoder-self"
    incremental = not decodes or all(layer.mechanism.capabilities.incremental for layer in attentions[test.block])
    loaded(task, test.subset, test.data)
    translates = _translates(model)
    with torch.no_grad():
        if translates:
            return _bleu(test, model, task, incremental)
        if not incremental:
            raise LeapformerError(
                f"{mechanism}: its edges depend on later tokens, so that a language model would see what it predicts; "
                "leave it out of --mechanisms"
            )
        value, seconds = _perplexity(test, model, task)
    return Quality("perplexity", value, seconds, incremental)


def check(test: Scored) -> None:
    """Raise LeapformerError for missing data or references, before minutes are spent on scores."""
    model, task = load_model(test.checkpoint, MODELS, PURPOSE, {"data": test.data})
    loaded(task, test.subset, test.data)
    if _translates(model):
        _references(test)


def _translates(model: Any) -> bool:
    return hasattr(model, "encoder") and hasattr(model, "decoder")


def _references(test: Scored) -> list[str]:
    if test.references is None:
        raise LeapformerError("--references is missing: give the file with a detokenised reference per line, for BLEU")
    return list(read_lines(Path(test.references)))


def _samples(test: Scored, task: Any) -> Iterator[dict[str, Any]]:
    dataset = task.dataset(test.subset)
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(1)  # the same masked tokens each time
    limit = len(dataset) if test.limit is None else test.limit
    indices = [i for i in dataset.ordered_indices() if i < limit]
    for start in range(0, len(indices), test.batch):
        yield dataset.collater([dataset[i] for i in indices[start : start + test.batch]])


def _perplexity(test: Scored, model: Any, task: Any) -> tuple[float, float]:
    """Return the perplexity of masked subwords, or of all tokens of a language model, and the model's seconds."""
    total, count, seconds = 0.0, 0, 0.0
    padding = task.source_dictionary.pad()
    for sample in _samples(test, task):
        wanted = sample["target"] != padding
        masked = {} if hasattr(model, "decoder") else {"masked_tokens": wanted}
        begin = time.perf_counter()
        logits = model(**sample["net_input"], **masked)[0]
        seconds += time.perf_counter() - begin
        logits = logits if masked else logits[wanted]
        total += float(F.cross_entropy(logits.float(), sample["target"][wanted], reduction="sum"))
        count += int(wanted.sum())
    return math.exp(total / count), seconds


def _bleu(test: Scored, model: Any, task: Any, incremental: bool) -> Quality:
    references = _references(test)
    generator = task.build_generator([model], Namespace(beam=test.beam, max_len_a=LONGEST[0], max_len_b=LONGEST[1]))
    generator.model.has_incremental = incremental
    translations: dict[int, str] = {}
    lengths: dict[int, int] = {}
    seconds = 0.0
    for sample in _samples(test, task):
        begin = time.perf_counter()
        hypotheses = task.inference_step(generator, [model], sample)
        seconds += time.perf_counter() - begin
        ids = sample["id"].tolist()
        lengths |= zip(ids, sample["target"].ne(task.target_dictionary.pad()).sum(1).tolist(), strict=True)
        for index, best in zip(ids, hypotheses, strict=True):
            translations[index] = task.target_dictionary.string(best[0]["tokens"], "sentencepiece")
    if max(translations) >= len(references) or (test.limit is None and len(translations) != len(references)):
        raise LeapformerError(
            f"--references {test.references} has {len(references)} lines for {len(translations)} sentences; give the "
            f"references of {test.subset}"
        )

    def of(chosen: list[int]) -> float:
        return bleu([translations[i] for i in chosen], [references[i] for i in chosen]).value

    order = sorted(translations)
    long = [] if test.long is None else [i for i in order if lengths[i] >= test.long]
    return Quality("BLEU", of(order), seconds, incremental, of(long) if long else None, len(long))
