"""Cases that Python and the page's JavaScript must answer alike: `python -m tests.runtime.serve.cases` writes them.

A file of `cases/` holds inputs and the answers of Python. `test_cases.py` asks Python again, and `cases.mjs` asks the
page's modules in node.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from leapformer_fairseq.runtime.audio import UNIT_SAMPLES
from leapformer_fairseq.runtime.sentences import SentenceEnds, SentenceModel
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.segments import Segmenter, SegmentOptions
from leapformer_fairseq.runtime.simul.session import Event, Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.runtime.simul.text import EMITTERS, Detokenizer
from tests.scripted import ScriptedSystem
from tests.simul.conftest import subwords
from tests.simul.test_policy import ScriptedDraft, play

FOLDER = Path(__file__).parent / "cases"
RATE, AHEAD = 16_000, 3
Case = dict[str, Any]


def sound(parts: Iterable[tuple[float, float]]) -> np.ndarray:
    """Noise of parts of (seconds, amplitude), which JavaScript computes bit by bit alike."""
    number, samples = 1, list[float]()
    for seconds, amplitude in parts:
        for _ in range(round(seconds * RATE)):
            number = (1_103_515_245 * number + 12_345) % 2**31
            samples.append((number / 2**30 - 1) * amplitude)
    return np.array(samples, np.float32)


LOUD, SOFT, FAINT, NONE = 0.2, 0.03, 0.0005, 0.0
SPEECH = [(0.61, NONE), (2.7, LOUD), (0.63, FAINT), (2.3, SOFT), (1.4, NONE), (3.1, LOUD), (0.013, LOUD)]


class Told:
    """In place of `SentenceEnds`: the samples of ends by the unit after which they are known."""

    def __init__(self, ends: dict[str, int]) -> None:
        self.model, self._ends, self._n_units = SimpleNamespace(delay=AHEAD + 2), ends, 0

    def push(self, unit: np.ndarray) -> int | None:
        self._n_units += 1
        return self._ends.get(str(self._n_units))


def silent(ahead: int = AHEAD, threshold: float = 0.5) -> SentenceModel:
    """A network of one unit that finds nothing."""
    shapes = {"mean": 80, "std": 80, "enter_weight": (1, 320), "enter_bias": 1, "input_weight": (3, 1), "input_bias": 3,
              "state_weight": (3, 1), "state_bias": 3, "leave_weight": (2, 1), "leave_bias": 2}  # fmt: skip
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return SentenceModel(**arrays, ahead=ahead, threshold=threshold, about={})


def options_of(case: Case) -> SegmentOptions:
    return SegmentOptions(**case["segments"], sentences=silent())


def tell(segmenter: Segmenter, case: Case) -> None:
    if segmenter.options.kind == "sentence":
        segmenter._ends_of = Told(case["ends"])  # type: ignore[assignment]


# ------------------------------------------------------------------------------------------------------------ segments
ENDS = {
    "40": 22_010,
    "71": 43_200,
    "86": 52_000,
    "90": 90 * UNIT_SAMPLES - 3000,
    "150": 140 * UNIT_SAMPLES,
    "220": 220 * UNIT_SAMPLES - 4 * UNIT_SAMPLES,
}
SEGMENTS: list[Case] = [
    {"segments": {}},
    {"segments": {"pause_ms": 200, "pause_db": 10.0, "silence_db": None, "min_seconds": 1.0}},
    {"segments": {"kind": "tokens", "tokens": 5, "silence_db": -30.0}, "tokens": 5},
    {"segments": {"kind": "seconds", "max_seconds": 2.5, "history": "window"}, "forgotten": 20},
    {"segments": {"min_seconds": 0.5, "max_seconds": 1.7, "lead_ms": 240}},
    {"segments": {"kind": "sentence", "min_seconds": 0.5}, "ends": ENDS},
    {"segments": {"kind": "sentence", "min_seconds": 0.02}, "ends": ENDS},
    {"segments": {"kind": "sentence", "min_seconds": 1.5, "pause_ms": 1000}, "ends": {"40": 22_010}},
    {"segments": {}, "audio": [(3.0, NONE), (0.02, LOUD)]},
    {"segments": {"kind": "sentence", "min_seconds": 0.1}, "ends": {}, "audio": [(3.0, NONE), (0.02, LOUD)]},
    {"segments": {"lead_ms": 300}, "audio": [(3.0, 0.003), (0.5, 0.01), (2.0, LOUD), (0.7, FAINT), (0.3, SOFT)]},
    {"segments": {}, "audio": [(0.1, NONE), (0.5, LOUD)]},
]  # fmt: skip


def segments(case: Case) -> list[tuple[str, int]]:
    """The places of all audio: [place, samples], where neighbours of one place are put together."""
    segmenter, samples = Segmenter(options_of(case)), sound(case["audio"])
    tell(segmenter, case)
    given = case["tokens"], case["forgotten"]
    found = [
        one
        for at in range(0, len(samples), UNIT_SAMPLES)
        for one in segmenter.push(samples[at : at + UNIT_SAMPLES], *given)
    ]
    found += segmenter.finish(*given)
    places = itertools.groupby(found, key=lambda one: one[0].name.lower())
    return [(place, sum(len(piece) for _, piece in pieces)) for place, pieces in places]


# -------------------------------------------------------------------------------------------------------- sentence ends
STEPS = [(0.1, 0.0), (0.2, 1.0), (0.6, 0.5), (0.9, -0.75), (0.5, 2.0), (0.51, 1e30), (0.3, 0.0), (0.99, -99.0)]
SENTENCES: list[Case] = [
    {"ahead": 0, "threshold": 0.5, "steps": STEPS, "piece": 640},
    {"ahead": 8, "threshold": 0.55, "steps": STEPS, "piece": 640},
    {"ahead": 2, "threshold": 0.05, "steps": [(0.2, n / 64) for n in range(1, 17, 2)], "piece": 1300},  # halves
]


class Heard(SentenceEnds):
    """With what the network says."""

    def __init__(self, case: Case) -> None:
        super().__init__(silent(case["ahead"], case["threshold"]))
        self._told = iter(case["steps"])

    def step(self, frames: np.ndarray) -> tuple[float, float]:
        return next(self._told)


def sentences(case: Case) -> list[int | None]:
    """After each piece, the sample at which a sentence ended, or nothing."""
    ends, samples = Heard(case), np.zeros((4 * len(case["steps"]) - 1) * 160 + 400, np.float32)
    return [ends.push(samples[at : at + case["piece"]]) for at in range(0, len(samples), case["piece"])]


# ------------------------------------------------------------------------------------------------------------- policies
SCRIPT = [[], [5], [5, 6, 7], [5, 6, 8], [5, 6, 8, 9, 9], [5, 6, 8, 9, 4, 3], [5, 6, 8, 9, 4, 3, 2, 1, 7, 5]]
POLICIES: list[Case] = [
    {"policy": policy}
    for policy in (
        {"k": 1}, {"k": 3}, {"k": 2, "catch_up": 2.0}, {"k": 1, "catch_up": 0.6}, {"name": "offline"},
        {"name": "hold-n", "hold": 0}, {"name": "hold-n", "hold": 2}, {"name": "hold-n", "hold": 7},
        {"name": "local-agreement"}, {"name": "local-agreement", "agree": 4},
    )
]  # fmt: skip


def policies(case: Case) -> Case:
    """The lag of the policy, the tokens that it writes, and after how many steps each."""
    policy = PolicyOptions(**case["policy"]).make()
    draft = play(policy, ScriptedDraft(case["script"]))
    return {"lag": policy.lag, "tokens": draft.tokens, "steps": draft.steps_of}


# ----------------------------------------------------------------------------------------------------------------- text
TEXTS: list[Case] = [
    {"unit": unit, "pieces": pieces.split(), "forgets": forgets}
    for unit in EMITTERS
    for pieces, forgets in (
        ("\u2581d a s \u2581i st \u2581ein \u2581h a l l o \u2581see \u2581s a h", [5, 12]),
        ("ei n \u2581 h <unk> \u2581ha <unk> <unk> \u2581i st", [6]),
        ("<0xC5> <0xA0> \u2581ein <0xC3> <0x9F> a <0xE2> <0x82> <0xAC> \u2581 <0xC5> <0xA0> s <0xC3>", [5, 10, 12]),
    )
]  # fmt: skip


def texts(case: Case) -> list[Any]:
    """The whole text, and the new one after each token and at the end.

    Before what is forgotten: where words begin, and how many tokens it is.
    """
    detokenizer = Detokenizer(case["pieces"], subwords())
    emitter, found = EMITTERS[case["unit"]](detokenizer), [detokenizer.decode(range(len(case["pieces"])))]
    for token in range(len(case["pieces"])):
        emitter.push([token])
        found.append(emitter.flush(final=False))
        if token in case["forgets"]:
            starts = emitter.starts()
            count = max(start for start in starts if start <= emitter._n_sent)
            emitter.forget(count)
            found.append([*starts, count])
    return [*found, emitter.flush(final=True)]


# ------------------------------------------------------------------------------------------------------------- sessions
WINDOW: Case = {"kind": "seconds", "history": "window", "history_words": 2, "max_seconds": 4.0}
LETTERS: Case = {"unit": "char"}
ENDLESS = 10**9
SESSIONS: list[Case] = [
    {"policy": {"k": 2}, "drafts": True},
    {"policy": {"k": 1}, "decoding": {"early_eos": "wait", "no_repeat_ngram_size": 2, "max_len_b": 30}, "variety": 3},
    {"policy": {"k": 3, "catch_up": 2.0}, "segments": {"kind": "tokens", "tokens": 7, "lead_ms": 100}},
    {"policy": {"name": "hold-n"}, "decoding": {**LETTERS, "max_len_a": 0.02, "max_len_b": 1}, "drafts": True},
    {"policy": {"name": "local-agreement"}, "decoding": {"max_draft": 6, "max_after_read": 3},
     "segments": {"lead_ms": 240}},
    {"policy": {"name": "hold-n"}, "segments": {"min_seconds": 0.5, "max_seconds": 3.0}},
    {"policy": {"name": "offline"}, "segments": {"pause_ms": 200, "silence_db": None}},
    {"policy": {"k": 2}, "segments": {"kind": "sentence", "min_seconds": 0.5}, "ends": ENDS, "drafts": True},
    {"policy": {"k": 2}, "segments": WINDOW, "drafts": True, "ends_of": ENDLESS},
    {"policy": {"k": 1}, "segments": WINDOW, "ends_of": ENDLESS, "lagging": 4},
    {"policy": {"k": 2}, "segments": {**WINDOW, "kind": "tokens", "tokens": 25}, "ends_of": ENDLESS},
    {"policy": {"k": 1, "catch_up": 2.0}, "decoding": {**LETTERS, "no_repeat_ngram_size": 2},
     "segments": {**WINDOW, "kind": "pause", "history_words": 1}, "ends_of": ENDLESS},
]  # fmt: skip


def sessions(case: Case) -> list[tuple[Any, ...]]:
    """The events, each as a tuple, of audio that comes in pieces of several lengths."""
    of = {"variety": case["variety"], "ends": case["ends_of"], "chunk_states": case["chunk_states"]}
    system = ScriptedSystem(PolicyOptions(**case["policy"]), 28, **of)
    segments = options_of(case)
    session = Session(system, DecodingOptions(**case["decoding"]), segments, drafts=case["drafts"])
    tell(session._segmenter, case)
    samples, events, at = sound(case["audio"]), list[Event](), 0
    for number in itertools.count():
        if at >= len(samples):
            break
        size = case["sizes"][number % len(case["sizes"])]
        if number == 3 and case["lagging"]:
            session.use_lagging(case["lagging"])
        events += session.push(samples[at : at + size])
        at += size
    return [astuple(event) for event in [*events, *session.finish()]]


# --------------------------------------------------------------------------------------------------------------- files
COMMON: Case = {"audio": SPEECH, "ends": {}}
KINDS: dict[str, tuple[Callable[[Case], Any], list[Case], Case]] = {
    "segments": (segments, SEGMENTS, {**COMMON, "segments": {}, "tokens": 0, "forgotten": 0}),
    "sentences": (sentences, SENTENCES, {}),
    "policies": (policies, POLICIES, {"script": SCRIPT}),
    "texts": (texts, TEXTS, {}),
    "sessions": (sessions, SESSIONS, {**COMMON, "segments": {}, "decoding": {}, "drafts": False, "variety": 40,
                                      "ends_of": 9, "chunk_states": 9, "lagging": None, "sizes": [1000, 30_000, 7]}),
}  # fmt: skip
OPTIONS: dict[str, Any] = {"segments": SegmentOptions(), "decoding": DecodingOptions()}


def content(kind: str) -> Case:
    """What a file should hold: the cases with the answers of Python, and what is common to them."""
    answer, cases, common = KINDS[kind]
    used = {**common, **{name: asdict(OPTIONS[name]) for name in OPTIONS if name in {*common, *cases[0]}}}
    rows = [{**case, **_policy(case), "answer": answer({**common, **case})} for case in cases]
    return json.loads(json.dumps({"common": used, "cases": rows}))


def _policy(case: Case) -> Case:
    """All options of the policy, as the page gets them."""
    policy = PolicyOptions(**case["policy"]) if "policy" in case else None
    return {} if policy is None else {"policy": {"name": policy.name, **policy.values}}


def write(folder: Path = FOLDER) -> None:
    """All files, a case a line."""
    for kind in KINDS:
        found = content(kind)
        rows = ",\n".join(json.dumps(case) for case in found["cases"])
        text = f'{{"common": {json.dumps(found["common"])},\n"cases": [\n{rows}\n]}}\n'
        (folder / f"{kind}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ.setdefault("LEAPFORMER_TESTS_MADE", made)
        write()
