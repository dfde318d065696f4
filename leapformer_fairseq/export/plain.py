"""How a fairseq task prepares a plain source.

The runtime has no tasks, so it is told which tokens of languages a task adds, and tasks that add others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from fairseq.data.multilingual.multilingual_utils import LangTokStyle, get_lang_tok
from torch import Tensor

from ..runtime.folder import END, OF_SOURCE, OF_TARGET, Multilingual
from ..support.errors import LeapformerError

REMEDY = "use `leapformer generate` with the checkpoint"


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


def check_task(task: Any, first: int) -> None:
    """Raise LeapformerError for a task that adds tokens to what a language model reads, such as those of languages.

    `first`: the token with which texts begin in the runtime, before the prompt.
    """
    if not hasattr(task, "inference_step"):
        return
    source = torch.tensor([[task.source_dictionary.nspecial]])
    asked = _asked(task, lambda: {"net_input": {"src_tokens": source}})
    if asked.begin != source[0].tolist() or asked.first != first:
        raise _adds_tokens(task)


def multilingual_of(task: Any, source: str | None = None, target: str | None = None) -> Multilingual | None:
    """How a translation task tells a model the languages; None: it adds nothing to a line and to its translation.

    The task is asked what it makes of a line. `source`, `target`: the languages of a text of which nothing is said.
    Raises LeapformerError for tasks that add other tokens, and for unknown languages.
    """
    if not hasattr(task, "inference_step"):
        return None
    words, end = task.source_dictionary, task.target_dictionary.eos()
    line = torch.tensor([words.nspecial, words.eos()])
    pair = next((pair for pair in pairs_of(task) if pair[0] != pair[1]), (None, None))
    with in_languages(task, *pair):
        read, first, begin = _asked(task, lambda: sample_of(task, line))
    first = end if first is None else first
    tokens = _symbols(task)
    for side, language in ((OF_SOURCE, source), (OF_TARGET, target)):
        if language is not None and language not in tokens:
            known = f"give one of {', '.join(tokens)}" if tokens else "it is not told languages; leave it out"
            raise LeapformerError(f"--{side}-lang {language}: the model does not know this language; {known}")
    if (read, first, begin) == (line.tolist(), end, []):
        return None
    role = {words[words.eos()]: END}
    role |= {tokens.get(str(language), ""): side for side, language in zip((OF_SOURCE, OF_TARGET), pair, strict=True)}
    try:
        place = read.index(words.nspecial)
        before, after = ([role[words[token]] for token in some] for some in (read[:place], read[place + 1 :]))
        first_role, *begin_roles = (role[task.target_dictionary[token]] for token in (first, *begin))
    except (KeyError, ValueError):
        raise _adds_tokens(task) from None
    return Multilingual(tokens, before, after, first_role, begin_roles, source, target)


def pairs_of(task: Any) -> list[tuple[str, str]]:
    """The pairs of languages of a task's training; none for a task of one pair."""
    pairs = (pair.split("-")[:2] for pair in getattr(task, "lang_pairs", ()))  # as in fairseq
    return [(source, target) for source, target in pairs]


@contextmanager
def in_languages(task: Any, source: str | None, target: str | None) -> Iterator[None]:
    """Make a task of several languages prepare sources of this pair; None: as it does."""
    if source is None:
        yield
        return
    before = task.args.source_lang, task.args.target_lang
    task.args.source_lang, task.args.target_lang = source, target
    try:
        yield
    finally:
        task.args.source_lang, task.args.target_lang = before


def _symbols(task: Any) -> dict[str, str]:
    """The symbol of each language that both dictionaries have."""
    both, styles = (task.source_dictionary, task.target_dictionary), [style.value for style in LangTokStyle]
    named = [(language, get_lang_tok(language, style)) for language in getattr(task, "langs", ()) for style in styles]
    return {language: symbol for language, symbol in named if all(symbol in words for words in both)}


class _Asked(NamedTuple):
    """What a task makes of a source: the tokens `read`, that before the target (None: the end), and its `begin`."""

    read: list[int]
    first: int | None
    begin: list[int]


def _asked(task: Any, sample_of_task: Callable[[], dict[str, Any]]) -> _Asked:
    recorder = _Recorder()
    try:
        sample = sample_of_task()
        task.inference_step(recorder, [], sample)
    except Exception as error:  # tasks fail in many ways, for instance because the languages are unknown
        raise LeapformerError(
            f"--task {_name(task)} cannot be asked what it makes of a plain line ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:100]}); {REMEDY}"
        ) from error
    begin = [] if recorder.prefix is None else recorder.prefix[0].tolist()
    return _Asked(sample["net_input"]["src_tokens"][0].tolist(), recorder.first, begin)


def _adds_tokens(task: Any) -> LeapformerError:
    return LeapformerError(
        f"--task {_name(task)} adds tokens to what a model reads or writes, and not only those of languages; {REMEDY}"
    )


def _name(task: Any) -> str:
    return getattr(getattr(task, "args", None), "task", None) or type(task).__name__
