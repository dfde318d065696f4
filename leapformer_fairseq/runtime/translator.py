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
from .folder import CTRANSLATE2, LANGUAGE, TRANSLATION, Folder
from .languages import Marks, marks_of
from .text import subwords_of

Batched = Callable[..., list[list[Hypothesis]]]  # as `beam.translate`, without graphs
BATCH_TOKENS = 1_000
AHEAD = 2_000  # lines that are read before the first is translated, so that those of a batch have about one length


class Text(NamedTuple):
    """One translation of a line, or one continuation.

    pieces: its subwords.
    score:  the sum of their log-probabilities, and of that of the end, over length ** penalty.
    """

    text: str
    pieces: list[str]
    score: float


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
        source: str | None = None,
        target: str | None = None,
    ) -> Iterator[list[Text]]:
        """The best `nbest` translations, or continuations, of each line, in the order of the lines.

        lines:        texts, or `pieces` of them.
        prefixes:     with which the translation of each line begins.
        batch_tokens: subwords of a batch of sources, with their padding; language models read line by line.
        ahead:        lines that are read at once, and sorted by length; memory grows with it.
        source, target: languages, of a model of several; None: those of the folder.

        The translation of an empty line is empty. Raises LeapformerError for a line that is too long for the model, and
        for a language that it does not know.
        """
        options, marks = search or Search(), marks_of(self.folder, source, target)
        if not 1 <= nbest <= options.beam:
            raise LeapformerError(f"nbest={nbest}: a beam of {options.beam} gives 1 to {options.beam}")
        numbered = iter(lines)
        read = 0
        while some := list(islice(numbered, ahead)):
            pieces = [line if isinstance(line, list) else self.pieces(line) for line in some]
            yield from (
                [self._text(hypothesis, marks) for hypothesis in found[:nbest]] or [Text("", [], 0.0)]
                for found in self.hypotheses(pieces, options, prefixes[read : read + len(some)], batch_tokens, marks)
            )
            read += len(some)

    def pieces(self, line: str, where: str = "") -> list[str]:
        """The subwords of a line. Raises LeapformerError if it is too long for the model; `where` begins its text."""
        pieces, limit, model = self._cut(line.strip()), self.folder.max_source, self.folder.multilingual
        size = len(pieces) + (1 if model is None else len(model.before) + len(model.after))
        if limit is not None and size > limit:
            raise LeapformerError(
                f"{where}{line.strip()[:30]!r}.. has {size} subwords with its end, and the model reads {limit}; divide "
                "it"
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
        marks: Marks | None = None,
    ) -> list[list[Hypothesis]]:
        """All hypotheses for the `pieces` of each line; none for an empty line of a translation model.

        `marks`: of the languages, with which tokens begin; None: those of the folder.
        """
        numbers = [self._source.numbers(pieces)[:-1] for pieces in lines]
        if self.folder.task == LANGUAGE:  # a prompt may be empty
            return [go_on(self._graphs, prompt, options) for prompt in numbers]
        before, after, first, begin = marks or marks_of(self.folder)
        sources = [[*before, *line, *after] for line in numbers]
        begins = [[*begin, *self._target.numbers(self._cut(prefix.strip()))[:-1]] for prefix in prefixes]
        if begin and not begins:
            begins = [begin] * len(lines)
        found: list[list[Hypothesis]] = [[] for _ in lines]
        order = [place for place, line in enumerate(numbers) if line]
        order.sort(key=lambda place: len(sources[place]))
        while order:
            count = max(1, batch_tokens // len(sources[order[-1]]))  # the longest first: memory is largest at once
            batch, order = order[-count:], order[:-count]
            given = [begins[i] for i in batch] if begins else ()
            results = self._search([sources[i] for i in batch], options, given, first)
            for place, hypotheses in zip(batch, results, strict=True):
                found[place] = hypotheses
        return found

    def _text(self, hypothesis: Hypothesis, marks: Marks) -> Text:
        """Without the token of the language, as in fairseq."""
        told = {marks.first, *marks.begin}
        pieces = self._target.words([token for token in hypothesis.tokens if token not in told])
        return Text(self.joined(pieces), pieces, float(hypothesis.score))
