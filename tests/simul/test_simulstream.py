"""simulstream's processor: its contract, with a stand-in for the package, and the same text as a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leapformer_fairseq.runtime.simul.segments import SegmentOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.simul import loading
from leapformer_fairseq.support.errors import LeapformerError

SECONDS = {"segment": "seconds", "min_seconds": 1, "max_seconds": 1.5}
CONFIG = {"type": "x", "speech_chunk_size": 0.5, "checkpoint": "c", "data_root": "d", "max_len_b": 20, **SECONDS}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, make_system: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a processor from a configuration; simulstream and the model are stand-ins."""

    @dataclass
    class IncrementalOutput:
        new_tokens: list[str]
        new_string: str
        deleted_tokens: list[str]
        deleted_string: str

    class SpeechProcessor:
        def __init__(self, config: SimpleNamespace) -> None:
            self.config = config

        @property
        def speech_chunk_size(self) -> float:
            return float(self.config.speech_chunk_size)

    processors = ModuleType("simulstream.server.speech_processors")
    vars(processors).update(SpeechProcessor=SpeechProcessor, SAMPLE_RATE=16_000)
    output = ModuleType("simulstream.server.speech_processors.incremental_output")
    vars(output)["IncrementalOutput"] = IncrementalOutput
    for name in ("simulstream", "simulstream.server"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (processors, output):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "leapformer_fairseq.simul.simulstream_processor", raising=False)
    from leapformer_fairseq.simul import simulstream_processor

    made: list[Any] = []
    monkeypatch.setattr(loading, "load_system", lambda *args: made.append(1) or make_system())

    def make(**changes: Any) -> Any:
        config = SimpleNamespace(**{**CONFIG, **changes})
        simulstream_processor.LeapformerProcessor.load_model(config)
        found = simulstream_processor.LeapformerProcessor(config)
        found.n_loaded = made
        return found

    return make


def played(processor: Any, samples: np.ndarray) -> tuple[str, str, list[Any]]:
    """A whole stream as simulstream plays it: text by tokens, text by strings, all outputs."""
    size = int(processor.speech_chunk_size * 16_000)
    outputs = [processor.process_chunk(samples[i : i + size]) for i in range(0, len(samples), size)]
    outputs.append(processor.end_of_stream())
    tokens, text = list[str](), ""
    for output in outputs:
        deleted = len(output.deleted_tokens)
        assert tokens[len(tokens) - deleted :] == output.deleted_tokens
        tokens = tokens[: len(tokens) - deleted] + output.new_tokens
        assert text.endswith(output.deleted_string)
        text = text[: len(text) - len(output.deleted_string)] + output.new_string
    return processor.tokens_to_string(tokens).removeprefix(" "), text, outputs


@pytest.mark.parametrize("drafts", [False, True])
def test_the_text_is_that_of_a_session(processor, make_system, speech, drafts):
    samples = speech(3.3)
    session = Session(
        make_system(), DecodingOptions(max_len_b=20), SegmentOptions("seconds", min_seconds=1, max_seconds=1.5)
    )
    expected = " ".join(event.text for event in (*session.push(samples), *session.finish()) if event.text)
    made = processor(drafts=drafts)
    for _ in range(2):  # a processor is used again
        by_tokens, by_strings, outputs = played(made, samples)
        assert by_tokens == by_strings == expected
        assert any(output.deleted_tokens for output in outputs) == drafts
        assert not outputs[-1].deleted_tokens, "simulstream would lose what the end deletes"
        made.clear()
        made.clear()
    assert made.n_loaded == [1], "the model is loaded once"


def test_a_configuration_says_what_is_kept_in_mind(processor):
    made = processor(history="window", history_words=7, segment=None)
    assert made._session.segments == SegmentOptions(
        "seconds", min_seconds=1, max_seconds=1.5, history="window", history_words=7
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"chekpoint": "x"}, "chekpoint"),
        ({"policy": "wait"}, "--policy 'wait': did you mean wait-k"),
        ({"history": "all"}, "history is 'all'; choose from segment, window"),
        ({"checkpoint": None}, "no checkpoint"),
        ({"latency_unit": "word"}, "give spm"),
        ({"max_len_b": -1}, "--max-len-b"),
    ],
)
def test_a_wrong_configuration_is_one_line(processor, changes, named):
    with pytest.raises(LeapformerError, match=named):
        processor(**changes)
