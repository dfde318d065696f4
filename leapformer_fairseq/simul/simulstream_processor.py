"""simulstream (1.0) with our models: its inference, server, scoring and proxy accept this class.

A configuration of its speech processor is

    type: leapformer_fairseq.simul.simulstream_processor.LeapformerProcessor
    speech_chunk_size: 0.5
    detokenizer_type: simuleval
    latency_unit: spm
    checkpoint: st/checkpoint_best.pt
    data_root: DATA

with any further option of `leapformer stream`, dashes written as underscores, and `drafts: true` for words that may be
taken back. Tokens are words with sentencepiece's mark before them, so that simulstream keeps the spaces.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from simulstream.server.speech_processors import SAMPLE_RATE, SpeechProcessor
from simulstream.server.speech_processors.incremental_output import IncrementalOutput

from ..runtime.simul.options import add_segment_options, add_system_options
from ..runtime.simul.session import Session
from ..runtime.simul.shown import Change, Shown, text_of
from ..runtime.simul.stream import DecodingOptions
from ..support.errors import LeapformerError
from .live import load_sessions

THEIRS = ("type", "speech_chunk_size", "detokenizer_type", "latency_unit")  # what simulstream reads


class LeapformerProcessor(SpeechProcessor):
    """A `Session` for each stream. The model is loaded once per process; simulstream runs its sessions in threads."""

    _loading: ClassVar[threading.Lock] = threading.Lock()
    _loaded: ClassVar[dict[str, tuple[DecodingOptions, Callable[[bool], Session]]]] = {}

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__(config)
        self._args = _arguments(config)
        self.load_model(config)
        self.clear()

    @classmethod
    def load_model(cls, config: SimpleNamespace) -> None:
        """Load the model. Raises LeapformerError for incompatible options."""
        args = _arguments(config)
        with cls._loading:
            if str(vars(args)) not in cls._loaded:
                cls._loaded[str(vars(args))] = load_sessions(args)[1:]

    def clear(self) -> None:
        """Begin the next stream."""
        options, make = self._loaded[str(vars(self._args))]
        self._session = make(self._args.drafts)
        self._shown = Shown(options.unit)

    def process_chunk(self, waveform: np.ndarray) -> IncrementalOutput:
        """Process samples in [-1, 1] at 16 kHz, (T,).

        A chunk that is shorter than the others is the last: simulstream loses what `end_of_stream` deletes, so drafts
        are taken back here.
        """
        last = len(waveform) < int(self.speech_chunk_size * SAMPLE_RATE)
        return _output(self._shown.changed(self._session.push(waveform), ends=last))

    def end_of_stream(self) -> IncrementalOutput:
        """The rest of the translation."""
        return _output(self._shown.changed(self._session.finish(), ends=True))

    def tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens as text, with the space before the first word, because simulstream joins outputs with this method."""
        return text_of(tokens)

    def set_source_language(self, language: str) -> None:
        """No effect: a model has one pair of languages, whatever is chosen on the page."""

    def set_target_language(self, language: str) -> None:
        """As `set_source_language`."""


def _output(change: Change) -> IncrementalOutput:
    return IncrementalOutput(list(change.new), change.strings[0], list(change.deleted), change.strings[1])


def _arguments(config: SimpleNamespace) -> argparse.Namespace:
    """The options of a configuration with our defaults. Raises LeapformerError for unknown and missing ones."""
    parser = argparse.ArgumentParser(argument_default=None)
    given = dict(vars(config))
    files = given.get("policy_file") or []
    given["policy_file"] = files = [files] if isinstance(files, str) else files
    words = [word for file in files for word in ("--policy-file", file)]
    add_system_options(parser, [*words, "--policy", given.get("policy", "")])
    add_segment_options(parser)
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--device", default="cpu")
    actions = {action.dest: action for action in parser._actions if action.dest != "help"}
    args = argparse.Namespace(**{name: action.default for name, action in actions.items()})
    for name, value in given.items():
        if name in THEIRS:
            continue
        if name not in actions:
            raise LeapformerError(f"the speech processor's configuration has {name!r}; known are {', '.join(actions)}")
        action = actions[name]
        if action.choices is not None and value not in (*action.choices, action.default):
            raise LeapformerError(f"{name} is {value!r}; choose from {', '.join(map(str, action.choices))}")
        setattr(args, name, value)
    for name, action in actions.items():
        if action.required and getattr(args, name) is None:
            raise LeapformerError(f"the speech processor's configuration has no {name}; add it")
    if getattr(config, "latency_unit", "spm") != "spm":
        raise LeapformerError(f"latency_unit is {config.latency_unit!r}; give spm, or spaces between words are lost")
    return args
