"""Lines of text through an exported model, many at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from ..support.errors import LeapformerError
from ..support.progress import Watch, part_of, unwatched
from .beam import Hypothesis, Search, go_on, translate
from .ctranslate2 import CTranslate2
from .engine import Graphs
from .folder import CTRANSLATE2, LANGUAGE, TRANSLATION, Folder, Vocabulary
from .languages import Marks, marks_of
from .text import Joined, subwords_of

T = TypeVar("T")
Chances = Sequence[np.random.Generator]
Batched = Callable[..., list[list[Hypothesis]]]  # as `beam.translate`, without the graphs
Alone = Callable[..., list[Hypothesis]]  # as `beam.go_on`, without the graphs
BATCH_TOKENS = 1_000
AHEAD = 2_000  # lines that are read before the first is translated, so that those of a batch have about one length


class TooLong(LeapformerError):
    """A line is too long for the model; `readable` holds those of its subwords that can be read."""

    def __init__(self, message: str, readable: list[str]) -> None:
        super().__init__(message)
        self.readable = readable


class Text(NamedTuple):
    """One translation of a line or a recording, or one continuation.

    pieces:    its subwords.
    score:     the sum of their log-probabilities, and of that of the end, over length ** penalty.
    alignment: if it is wanted, a pair for each of its subwords: the number of the source's subword that it attends to
               most, and its own, both from 0.
    """

    text: str
    pieces: list[str]
    score: float
    alignment: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, hypothesis: Hypothesis, target: Vocabulary, joined: Joined, told: Collection[int] = ()) -> Text:
        """The text of a hypothesis, whose subwords `joined` joins. `told`: tokens of languages, which it has not."""
        pieces = target.words([token for token in hypothesis.tokens if token not in told])
        aligned = zip(hypothesis.tokens, hypothesis.sources, strict=False)  # the end has no source
        pairs = [(source, place) for place, source in enumerate(one for token, one in aligned if token not in told)]
        return cls(joined(pieces), pieces, float(hypothesis.score), pairs)


EMPTY = Text("", [], 0.0)


class Translator:
    """An exported translation or language model; it may be shared by threads.

    translator = Translator("exported")
    for best, *others in translator.translate(["a line", "another"], nbest=3):
        print(best.text, best.score)
    """

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """Raises LeapformerError for a folder that is no export of such a model."""
        about = Folder.read(folder)
        if about.task not in (TRANSLATION, LANGUAGE):
            raise LeapformerError(f"{folder} holds a model for {about.task}; give one of text")
        self.folder = about
        if about.engine == CTRANSLATE2:
            engine = CTranslate2(about, threads)
            self._search: Batched = engine.translate
            self._go_on: Alone = engine.go_on
        else:
            graphs = Graphs(about, threads)
            self._search, self._go_on = partial(translate, graphs), partial(go_on, graphs)
        self._cut, self._cut_target, self.joined = subwords_of(about)
        self._source = about.vocabularies["target" if about.task == LANGUAGE else "source"]
        self._target = about.vocabularies["target"]

    def translate(
        self,
        lines: Iterable[str | list[str]],
        *,
        nbest: int = 1,
        prefixes: Sequence[str] = (),
        alignments: bool = False,
        batch_tokens: int = BATCH_TOKENS,
        ahead: int = AHEAD,
        search: Search | None = None,
        source: str | None = None,
        target: str | None = None,
        seed: int | np.random.Generator = 1,
        cut: bool = False,
        watch: Watch = unwatched,
    ) -> Iterator[list[Text]]:
        """The best `nbest` translations, or continuations, of each line, in the order of the lines.

        lines:        texts, or `pieces` of them.
        prefixes:     with which the translation of each line begins; lines after the last of them begin with any.
        alignments:   also of which subword of the line each one of a translation is one.
        batch_tokens: subwords of a batch of sources, with their padding; language models read line by line.
        ahead:        lines that are read at once, and sorted by length; memory grows with it.
        source, target: languages, of a model of several; None: those of the folder.
        seed:         of sampling. What is drawn depends on it and on the number of the line, not on batches.
        cut:          read what can be read of a line that is too long.
        watch:        called with the number of lines that are done, and of all, or 0 if that is unknown.

        The translation of an empty line is empty. Raises TooLong for a line that is too long for the model, and
        LeapformerError for a single text, for alignments if the folder has none, and for an unknown language.
        """
        if isinstance(lines, str):
            raise LeapformerError(f"lines {lines[:30]!r}: one text; give a list of texts")
        options, chances = search or Search(), np.random.default_rng(seed)
        marks = marks_of(self.folder, source, target)
        told = {marks.first, *marks.begin}
        if prefixes and self.folder.task == LANGUAGE:
            raise LeapformerError(
                f"prefixes: {self.folder.path} goes on with each line, which is the prefix; leave them out"
            )
        options.check(nbest)
        total, numbered = length_hint(lines), iter(lines)
        read = 0
        while some := list(islice(numbered, ahead)):
            pieces = [self._read(line, options, cut) for line in some]
            begins = [*prefixes[read : read + len(some)], *[""] * len(some)][: len(some)] if prefixes else []
            yield from (
                [Text.of(hypothesis, self._target, self.joined, told) for hypothesis in found[:nbest]] or [EMPTY]
                for found in self.hypotheses(
                    pieces,
                    options,
                    begins,
                    batch_tokens,
                    alignments,
                    chances.spawn(len(some)) if options.sampling else (),
                    part_of(watch, read, total),
                    marks,
                )
            )
            read += len(some)

    def pieces(self, line: str, where: str = "", search: Search | None = None) -> list[str]:
        """The subwords of a line. Raises TooLong if it is too long for the model; `where` begins its text.

        So is a prompt after which `search` has no token left to write.
        """
        return self._readable(self._cut(line.strip()), f"{where}{line.strip()[:30]!r}..", search or Search())

    def _readable(self, pieces: list[str], name: str, search: Search) -> list[str]:
        """The subwords of the line `name`. Raises TooLong as `pieces` does."""
        is_prompt, model = self.folder.task == LANGUAGE, self.folder.multilingual
        limit = self._longest_prompt(search) if is_prompt else self.folder.max_source
        more = 1 if model is None else len(model.before) + len(model.after)
        if limit is None or len(pieces) + more <= limit:
            return pieces
        given = f"{name} has {len(pieces) + (0 if is_prompt else more)} subwords"
        if is_prompt:  # whose end says most about how it goes on, which may then become as long
            reason = f"{given}, and the text with it at most {limit} (--max-len-b, or the model); shorten it"
            raise TooLong(reason, pieces[len(pieces) - limit // 2 :])
        raise TooLong(f"{given} with its end, and the model reads {limit}; divide it", pieces[: limit - more])

    def _longest_prompt(self, search: Search) -> int:
        """Most subwords of a prompt with one that follows."""
        if search.max_len_a >= 1:
            return self.folder.max_target - 1
        return min(math.ceil(search.max_len_b / (1 - search.max_len_a)), self.folder.max_target - 1)

    def _read(self, line: str | list[str], search: Search, cut: bool) -> list[str]:
        try:
            if isinstance(line, list):
                return self._readable(line, f"{' '.join(line[:5])[:30]!r}..", search)
            return self.pieces(line, search=search)
        except TooLong as error:
            if not cut:
                raise
            return error.readable

    def unknown(self, pieces: Sequence[str]) -> list[str]:
        """Those of the subwords that the model does not know."""
        return [piece for piece in pieces if self._source.number(piece) == self._source.unk]

    def hypotheses(
        self,
        lines: Sequence[list[str]],
        options: Search,
        prefixes: Sequence[str] = (),
        batch_tokens: int = BATCH_TOKENS,
        alignments: bool = False,
        chances: Chances = (),
        watch: Watch = unwatched,
        marks: Marks | None = None,
    ) -> list[list[Hypothesis]]:
        """All hypotheses for the `pieces` of each line; none for an empty line of a translation model.

        `chances`: of sampling, the random numbers of each line. `watch`: as of `translate`, of these lines. `marks`: of
        the languages, with which tokens begin; None: those of the folder.
        """
        if alignments:
            self.folder.align_layer()
        numbers = [self._source.numbers(pieces)[:-1] for pieces in lines]
        found: list[list[Hypothesis]] = [[] for _ in lines]
        if self.folder.task == LANGUAGE:  # a prompt may be empty
            for place, prompt in enumerate(numbers):
                found[place] = self._go_on(prompt, options, chances[place : place + 1])
                watch(place + 1, len(lines))
            return found
        before, after, first, begin = marks or marks_of(self.folder)
        around = (len(before), len(after)) if alignments else None
        sources = [[*before, *line, *after] for line in numbers]
        begins = [[*begin, *self._target.numbers(self._cut_target(prefix.strip()))[:-1]] for prefix in prefixes]
        if begin and not begins:
            begins = [begin] * len(lines)
        order = [place for place, line in enumerate(numbers) if line]
        order.sort(key=lambda place: len(sources[place]))
        watch(len(lines) - len(order), len(lines))
        while order:
            count = max(1, batch_tokens // len(sources[order[-1]]))  # the longest first: memory is largest at once
            batch, order = order[-count:], order[:-count]
            some = _those(begins, batch)
            results = self._search(_those(sources, batch), options, some, _those(chances, batch), around, first)
            for place, hypotheses in zip(batch, results, strict=True):
                found[place] = hypotheses
            watch(len(lines) - len(order), len(lines))
        return found


def _those(given: Sequence[T], places: Sequence[int]) -> Sequence[T]:
    """The values at these places, or none if there are none."""
    return [given[place] for place in places] if given else ()
