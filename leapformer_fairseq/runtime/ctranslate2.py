"""CTranslate2, an engine in C++ for transformers with softmax attention, run on an exported folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..support.errors import LeapformerError
from .beam import Hypothesis, Search
from .folder import Folder

BLANK = "<blank>"  # its name of padding


class CTranslate2:
    """A translation model. Texts are those of its own beam search, which counts lengths as fairseq does."""

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
        try:
            self._model: Any = ctranslate2.Translator(str(folder.path), inter_threads=1, intra_threads=threads)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise LeapformerError(f"{folder.path} cannot be read by CTranslate2 ({reason}); export it again") from error

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        options: Search,
        prefixes: Sequence[Sequence[int]] = (),
        first: int | None = None,
    ) -> list[list[Hypothesis]]:
        """As `beam.translate`; targets follow the end of sentence."""
        source, target = (self.folder.vocabularies[side] for side in ("source", "target"))
        limits = [int(len(given) * options.max_len_a + options.max_len_b) for given in sources]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        # A call has one limit for all of its sentences.
        for limit, places in groupby(sorted(zip(limits, range(len(sources)), strict=True)), itemgetter(0)):
            some = [place for _, place in places]
            begins = [target.words(list(prefixes[place])) for place in some] if prefixes else None
            results = self._model.translate_batch(
                [source.words(list(sources[place])) for place in some],
                target_prefix=begins,
                beam_size=options.beam,
                num_hypotheses=options.beam,
                length_penalty=options.penalty,
                min_decoding_length=options.min_len,
                max_decoding_length=min(limit, self.folder.max_target - 1) + 1,
                max_input_length=0,
                return_scores=True,
            )
            for place, result in zip(some, results, strict=True):
                scored = zip(result.hypotheses, result.scores, strict=True)
                found[place] = [Hypothesis(target.numbers(pieces), score) for pieces, score in scored]
        return found
