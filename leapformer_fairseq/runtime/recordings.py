"""Whole recordings through an exported model for speech recognition or translation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..support.errors import LeapformerError
from .audio import FRAME_MS, check_file, fbank, read_speech
from .beam import Hypothesis, Search, transcribe
from .cmvn import Cmvn, by_itself
from .engine import Graphs
from .folder import Folder
from .text import subwords_of
from .translator import EMPTY, Chances, Text


class SpeechToText:
    """An exported model that reads whole recordings; it may be shared by threads.

    model = SpeechToText("exported_speech")
    best, *others = model.texts("talk.wav", nbest=3)
    """

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        """Raises LeapformerError for a folder that is no export of such a model."""
        about = Folder.read(folder)
        if about.recordings is None:
            raise LeapformerError(f"{folder} holds a model for {about.task}; give one of whole recordings")
        self.folder, self.about, self._graphs = about, about.recordings, Graphs(about, threads)
        self._cmvn = Cmvn.of(self.about.mean, self.about.std)
        *_, self._joined = subwords_of(about)

    def texts(
        self,
        recording: str | Path,
        *,
        nbest: int = 1,
        search: Search | None = None,
        seed: int | np.random.Generator = 1,
    ) -> list[Text]:
        """The best `nbest` texts of a 16 kHz mono recording; one that is shorter than a frame has an empty text.

        `seed`: of sampling; a generator goes on from recording to recording.
        Raises LeapformerError for a recording that cannot be read, or is longer than the model reads.
        """
        options = search or Search()
        options.check(nbest)
        limit, seconds = self.folder.max_source, check_file(recording)
        if limit is not None and seconds * 1000 > (limit + 2) * FRAME_MS:
            raise LeapformerError(
                f"{recording} has {seconds:.1f} s, and the model reads {limit * FRAME_MS / 1000:g} s; divide it"
            )
        chances = np.random.default_rng(seed).spawn(1) if options.sampling else ()
        found = self.hypotheses(fbank(read_speech(recording), n_bins=self.about.n_bins), options, chances)
        target = self.folder.vocabularies["target"]
        return [Text.of(hypothesis, target, self._joined) for hypothesis in found[:nbest]] or [EMPTY]

    def hypotheses(self, frames: np.ndarray, options: Search, chances: Chances = ()) -> list[Hypothesis]:
        """All hypotheses for the filterbank frames (T, n_bins) of a recording, best first; none for no frames.

        `chances`: of sampling, the random numbers, one generator.
        """
        if not len(frames):
            return []
        normalised = frames if self._cmvn is None else self._cmvn(frames)
        normalised = by_itself(normalised, self.about.own_mean, self.about.own_std)
        return transcribe(self._graphs, normalised, options, chances)
