"""CTranslate2, an engine in C++ for transformers with softmax attention, run on an exported folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..support.errors import LeapformerError
from .beam import Hypothesis, Search
from .folder import LANGUAGE, Folder

BLANK = "<blank>"  # its name of padding


class CTranslate2:
    """A translation or language model. Texts are those of its own beam search, scores those of fairseq's."""

    def __init__(self, folder: Folder, threads: int = 1) -> None:
        """Raises LeapformerError if it is not installed, and for a damaged folder."""
        try:
            import ctranslate2
        except ImportError as error:
            raise LeapformerError(
                f"{folder.path} needs CTranslate2; pip install 'leapformer-fairseq[ctranslate2]'"
            ) from error
        for name in folder.files:
            folder.file(name)
        self.folder = folder
        kind = ctranslate2.Generator if folder.task == LANGUAGE else ctranslate2.Translator
        try:
            self._model: Any = kind(str(folder.path), inter_threads=1, intra_threads=threads)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise LeapformerError(f"{folder.path} cannot be read by CTranslate2 ({reason}); export it again") from error

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        options: Search,
        prefixes: Sequence[Sequence[int]] = (),
        chances: Sequence[Any] = (),
        around: tuple[int, int] | None = None,
        first: int | None = None,
    ) -> list[list[Hypothesis]]:
        """As `beam.translate`, without alignments and `chances`; targets follow the end of sentence."""
        source, target = (self.folder.vocabularies[side] for side in ("source", "target"))
        given = [source.words(list(numbers)) for numbers in sources]
        limits = [max(1, self._limit(numbers, options)) for numbers in sources]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        # A call has one limit for all of its sentences.
        for limit, places in groupby(sorted(zip(limits, range(len(sources)), strict=True)), itemgetter(0)):
            some = [place for _, place in places]
            begins = [target.words(list(prefixes[place])) for place in some] if prefixes else None
            results = self._model.translate_batch(
                [given[place] for place in some],
                target_prefix=begins,
                num_hypotheses=options.beam,
                min_decoding_length=min(options.min_len, limit),
                max_decoding_length=limit,
                max_input_length=0,
                return_scores=True,
                **self._search(options),
            )
            for place, result in zip(some, results, strict=True):
                texts, scores = result.hypotheses, result.scores
                # It counts neither a prefix nor the end of a text that the limit cuts.
                if prefixes or any(len(text) == limit for text in texts):
                    again = self._model.score_batch([given[place]] * len(texts), texts, max_input_length=0)
                    scores = [sum(each.log_probs) / (len(each.log_probs) ** options.penalty) for each in again]
                found[place] = _best(map(Hypothesis, map(target.numbers, texts), scores))
        return found

    def go_on(self, prompt: Sequence[int], options: Search, chances: Sequence[Any] = ()) -> list[Hypothesis]:
        """As `beam.go_on`, without `chances`."""
        words, language, limit = self.folder.vocabularies["target"], self.folder.language, self._limit(prompt, options)
        assert language is not None
        begin = [words.symbols[number] for number in (language.first, *prompt[:limit])]
        texts: list[list[str]] = [[]]
        if (more := limit + 1 - len(begin)) > 0:
            (result,) = self._model.generate_batch(
                [begin],
                num_hypotheses=options.beam,
                min_length=min(max(options.min_len - len(prompt), 0), more),
                max_length=more,
                include_prompt_in_result=False,
                # As in fairseq. With a beam, the others' probabilities would be those without it, and another order.
                suppress_sequences=[[BLANK]] if options.beam == 1 else None,
                **self._search(options),
            )
            texts = result.sequences
        # Its scores lack those of the prompt, and of the end of a text that the limit cuts.
        whole = [[*begin, *text, words.symbols[words.eos]] for text in texts]
        scored = self._model.score_batch(whole, max_batch_size=1, max_input_length=0)
        return _best(
            Hypothesis(list(map(words.number, text[1:])), sum(each.log_probs) / (len(text) - 1) ** options.penalty)
            for text, each in zip(whole, scored, strict=True)
        )

    def _limit(self, given: Sequence[int], options: Search) -> int:
        """The most tokens of a text without its end."""
        return int(min(len(given) * options.max_len_a + options.max_len_b, self.folder.max_target - 1))

    def _search(self, options: Search) -> dict[str, Any]:
        """Raises LeapformerError for what it has not, or draws by random numbers of its own."""
        for option, given in (
            ("--sampling", options.sampling),
            ("--temperature", options.temperature != 1),
            ("--unkpen", options.unk_penalty),
        ):
            if given:
                raise LeapformerError(f"{option}: {self.folder.path} is for CTranslate2; export it with --engine onnx")
        return {
            "beam_size": options.beam,
            "length_penalty": options.penalty,
            "no_repeat_ngram_size": options.no_repeat_ngram_size,
        }


def _best(found: Iterable[Hypothesis]) -> list[Hypothesis]:
    return sorted(found, key=lambda one: -one.score)
