"""Lines of text through an exported model, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ..support.errors import LeapformerError
from .beam import Hypothesis, Search, go_on, translate
from .ctranslate2 import CTranslate2
from .engine import Graphs
from .folder import CTRANSLATE2, LANGUAGE, TRANSLATION, Folder, Vocabulary
from .text import Joined, subwords_of

Batched = Callable[[Sequence[Sequence[int]], Search, Sequence[Sequence[int]]], list[list[Hypothesis]]]
BATCH_TOKENS = 1_000
AHEAD = 2_000  # lines that are read before the first is translated, so that those of a batch have about one length


class Text(NamedTuple):
    """One translation of a line or a recording, or one continuation.

    pieces: its subwords.
    score:  the sum of their log-probabilities, and of that of the end, over length ** penalty.
    """

    text: str
    pieces: list[str]
    score: float

    @classmethod
    def of(cls, hypothesis: Hypothesis, target: Vocabulary, joined: Joined) -> Text:
        """The text of a hypothesis, whose subwords `joined` joins."""
        pieces = target.words(hypothesis.tokens)
        return cls(joined(pieces), pieces, float(hypothesis.score))


NOTHING = Text("", [], 0.0)  # the translation of an empty source


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
            self._search: Batched = CTranslate2(about, threads).translate
        else:
            self._graphs = Graphs(about, threads)
            self._search = partial(translate, self._graphs)
        self._cut, self.joined = subwords_of(about)
        self._source = about.vocabularies["target" if about.task == LANGUAGE else "source"]
        self._target = about.vocabularies["target"]

    def translate(
        self,
        lines: Iterable[str | list[str]],
        *,
        nbest: int = 1,
        prefixes: Sequence[str] = (),
        batch_tokens: int = BATCH_TOKENS,
        ahead: int = AHEAD,
        search: Search | None = None,
    ) -> Iterator[list[Text]]:
        """The best `nbest` translations, or continuations, of each line, in the order of the lines.

        lines:        texts, or `pieces` of them.
        prefixes:     with which the translation of each line begins.
        batch_tokens: subwords of a batch of sources, with their padding; language models read line by line.
        ahead:        lines that are read at once, and sorted by length; memory grows with it.

        The translation of an empty line is empty. Raises LeapformerError for a line that is too long for the model.
        """
        options = search or Search()
        options.check(nbest)
        numbered = iter(lines)
        read = 0
        while some := list(islice(numbered, ahead)):
            pieces = [line if isinstance(line, list) else self.pieces(line) for line in some]
            yield from (
                [Text.of(hypothesis, self._target, self.joined) for hypothesis in found[:nbest]] or [NOTHING]
                for found in self.hypotheses(pieces, options, prefixes[read : read + len(some)], batch_tokens)
            )
            read += len(some)

    def pieces(self, line: str, where: str = "") -> list[str]:
        """The subwords of a line. Raises LeapformerError if it is too long for the model; `where` begins its text."""
        pieces, limit = self._cut(line.strip()), self.folder.max_source
        if limit is not None and len(pieces) >= limit:
            raise LeapformerError(
                f"{where}{line.strip()[:30]!r}.. has {len(pieces) + 1} subwords with its end, and the model reads "
                f"{limit}; divide it"
            )
        return pieces

    def unknown(self, pieces: Sequence[str]) -> list[str]:
        """Those of the subwords that the model does not know."""
        return [piece for piece in pieces if self._source.number(piece) == self._source.unk]

    def hypotheses(
        self,
        lines: Sequence[list[str]],
        options: Search,
        prefixes: Sequence[str] = (),
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[list[Hypothesis]]:
        """All hypotheses for the `pieces` of each line; none for an empty line of a translation model."""
        sources = [self._source.numbers(pieces) for pieces in lines]
        if self.folder.task == LANGUAGE:  # a prompt may be empty
            return [go_on(self._graphs, source[:-1], options) for source in sources]
        begins = [self._target.numbers(self._cut(prefix.strip()))[:-1] for prefix in prefixes]
        found: list[list[Hypothesis]] = [[] for _ in lines]
        order = [place for place, source in enumerate(sources) if len(source) > 1]
        order.sort(key=lambda place: len(sources[place]))
        while order:
            count = max(1, batch_tokens // len(sources[order[-1]]))  # the longest first: memory is largest at once
            batch, order = order[-count:], order[:-count]
            results = self._search([sources[i] for i in batch], options, [begins[i] for i in batch] if begins else ())
            for place, hypotheses in zip(batch, results, strict=True):
                found[place] = hypotheses
        return found
