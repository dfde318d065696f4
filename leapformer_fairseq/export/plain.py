"""How a fairseq task prepares a plain source, and the codes of its subwords.

The runtime has no tasks, so tasks that add tokens are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..support.errors import LeapformerError
from ..support.lines import read_lines

VERSION = "#version: 0.2"  # of subword-nmt's codes: the end of a word belongs to its last symbol, as in fastBPE


class Subwords(NamedTuple):
    """How plain text is split into the symbols of the dictionaries; none of them: at spaces.

    sentencepiece: its model.
    codes:         of BPE, a file of subword-nmt or of fastBPE.
    moses:         languages of source and target, for Moses' words before that.
    """

    sentencepiece: Path | None = None
    codes: Path | None = None
    moses: tuple[str, str] | None = None


PLAIN = Subwords()


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


def codes_of(path: Path) -> Iterator[str]:
    """The lines of a file of BPE codes in the form of subword-nmt. fastBPE's have counts, and no version.

    Raises LeapformerError for another file.
    """
    remedy = "give the codes of subword-nmt (two symbols a line) or of fastBPE (and a count)"
    for number, line in enumerate(read_lines(path, "--bpe-codes", remedy), 1):
        fields = line.split(" ")
        counted = len(fields) == 3 and fields[2].isdigit()
        if number == 1 and counted:
            yield VERSION
        if number > 1 or not line.startswith("#version:"):
            if len(fields) != 2 and not counted or not all(fields):
                raise LeapformerError(f"--bpe-codes {path}, line {number}: {line[:40]!r} are no two symbols; {remedy}")
            line = " ".join(fields[:2])
        yield line
