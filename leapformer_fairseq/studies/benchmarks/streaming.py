"""Computation of simultaneous translation while speech arrives, by encoder and mechanism.

Method: models of the papers' size (12 + 6 layers, 256 wide, 8 heads, feed-forward 1,024) with random weights and a
vocabulary of 1,000, filterbank frames of noise, one thread, float32. Speech arrives 280 ms at a time; from the third
segment on, one token is written after each, and at the end three more. We measure the computation for a whole
utterance, encoder and decoder: on a CPU the CPU time of the thread, on a GPU wall time. All systems take turns in one
process; the median is reported. Ratio = time of softmax encoded anew / time of the system.

"anew" is an encoder that sees whole utterances, as in the papers: it is rerun over all audio received so far whenever
speech arrives. "causal" and "chunks" (of 280 ms) are streaming encoders: every frame is encoded once. Softmax in chunks
sees 10 s of the past. "exported" are the graphs of `leapformer export` in onnxruntime, where that is installed.

Growth is the computation per second of speech in the longest utterance over that in the shortest. The cost of a token
is that of a decoder step after this much speech, over the same after one second.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from ...runtime.simul.exported import ExportedEngine
from ...runtime.simul.stream import Engine
from ...runtime.simul.times import ComputeTimes
from ...simul.engine import engine_for
from . import attention, measure
from .tables import Results, Shown

STEP_MS, LAGGING, VOCABULARY, BINS, EOS = 280, 3, 1000, 80, 2
BASE, EXPORTED = "softmax, anew", "leap, chunks"  # the system that is also measured in onnxruntime
EXPORTED_AIMS = {28.0: 20.0}  # times as fast, at least
STATE_FRAMES, POSITIONS = 4, 1024
Begin = Callable[[], Engine]  # of an utterance


class System(NamedTuple):
    """A mechanism for all three blocks, and options that say how the encoder processes arriving speech."""

    mechanism: str
    encoder: dict[str, Any]


def systems_of(names: list[str]) -> dict[str, System]:
    """The systems to measure: each mechanism with three kinds of encoder."""
    ways: dict[str, dict[str, Any]] = {
        "anew": {},
        "causal": {"encoder_causal": True},
        "chunks": {"encoder_chunk_ms": STEP_MS},
    }
    return {f"{name}, {way}": System(name, options) for name in names for way, options in ways.items()}


MECHANISMS_MEASURED = ("softmax", "leap")
SECONDS = 30.0  # per case
TITLE = "Streaming: computation while speech arrives"
TABLES = (
    Shown("A whole utterance: times as fast as softmax encoded anew", "utterances", "ratio", "seconds", BASE),
    Shown("Computation for a second of speech, longest over shortest utterance", "growth", "ratio", "ms", BASE),
    Shown("A token, times what it costs after one second of speech", "tokens", "ratio", "ms", "softmax, causal"),
)

CASES, QUICK_CASES = (5.6, 11.2, 28.0, 60.2), (1.4, 2.8)  # seconds, multiples of a step
LONGEST_ANEW = 30.0  # encoding anew takes minutes beyond
# of leap in a causal encoder: times as fast, at least; growth and the cost of a token, at most
AIMED, AIMS = "leap, causal", {5.6: 2.0, 11.2: 3.5, 28.0: 10.0}
GROWTH_AIM, TOKEN_AIM = 1.1, 1.1


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `utterances`, `growth` and `tokens`. The mechanisms must have passed `disagreement`."""
    lengths, seconds = (QUICK_CASES, SECONDS / 20) if quick else (CASES, SECONDS)
    systems = systems_of(list(dict.fromkeys(["softmax", *names])))
    for place in places:
        models = cache(partial(_begins, systems, place))
        measured: list[dict[str, Any]] = []
        for length in lengths:
            yield measure.Case(f"{place}: {length} s", partial(_spoken, length, models, place, seconds, measured))
        yield measure.case(f"{place}: growth", "growth", growth, measured, place)
        yield measure.Case(f"{place}: a token", partial(_written, max(lengths), models, place, seconds / 10))


def _begins(systems: dict[str, System], place: measure.Place) -> dict[str, Begin]:
    """A function for each system that begins an utterance; models are built here."""
    models = {name: make(system, place) for name, system in systems.items()}
    begins: dict[str, Begin] = {name: begin(model) for name, model in models.items()}
    if EXPORTED in models and measure.exports(place):
        begins[f"{EXPORTED}, exported"] = begin_exported(models[EXPORTED])
    return begins


def begin(model: Any) -> Begin:
    """Return a function that begins an utterance with a model in PyTorch."""
    return lambda: engine_for(model)(model, EOS)


def begin_exported(model: Any) -> Begin:
    """Export a model, and return a function that begins an utterance in onnxruntime with one thread."""
    from ...export.write import write_speech
    from ...runtime.engine import Graphs
    from ...runtime.folder import SPEECH, Folder

    with TemporaryDirectory() as path:
        states, about = write_speech(model.requires_grad_(False), STATE_FRAMES, STEP_MS // 10, Path(path))
        graphs = Graphs(Folder(Path(path), SPEECH, states, {}, POSITIONS, "", {}, about))
    return lambda: ExportedEngine(graphs, about, EOS, ComputeTimes())


def _spoken(
    length: float, models: Callable[[], dict[str, Begin]], place: measure.Place, seconds: float, measured: list[Any]
) -> Results:
    """Rows of `utterances`, also added to `measured`, from which `growth` is computed at the end."""
    rows = utterances(length, models(), place, seconds)
    measured += rows
    return {"utterances": rows}


def _written(length: float, models: Callable[[], dict[str, Begin]], place: measure.Place, seconds: float) -> Results:
    return {"tokens": tokens(length, models(), place, seconds)}


def disagreement(name: str) -> str | None:
    """As `attention.disagreement`. Raises LeapformerError for a mechanism that these models do not support."""
    for system in systems_of([name]).values():
        make(system, measure.Place(torch.device("cpu")))
    return attention.disagreement(name)


def make(system: System, place: measure.Place) -> Any:
    """Build a model of the papers' size."""
    plans = {f"{block}_attention": system.mechanism for block in ("encoder_self", "decoder_self", "decoder_cross")}
    args = Namespace(arch="leapformer_s2t", input_feat_per_channel=BINS, input_channels=1, **plans, **system.encoder)
    model = measure.untrained(args, VOCABULARY).to(*place).eval()
    model.make_generation_fast_(need_attn=False)
    return model


def utterances(length: float, begins: dict[str, Begin], place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time an utterance of `length` seconds in every system; those that encode anew only up to half a minute."""
    frames = noise(length)
    calls: dict[str, Callable[[], measure.Seconds]] = {
        name: partial(measure.timed, place.device, translate, begin, frames)
        for name, begin in begins.items()
        if length <= LONGEST_ANEW or not name.endswith("anew")
    }
    times = {name: duration for name, (duration,) in measure.medians(calls, seconds).items()}
    base = times.get(BASE)
    return [
        {
            **_labels(name, place),
            "case": f"{length:g} s",
            "length": length,
            "seconds": duration,
            "per_second": duration / length,
            "ratio": None if base is None else base / duration,
            "aim": aims_of(name).get(length) if place.has_aims else None,
        }
        for name, duration in times.items()
    ]


def aims_of(name: str) -> dict[float, float]:
    """The aims of a system, by seconds of speech."""
    return {AIMED: AIMS, f"{EXPORTED}, exported": EXPORTED_AIMS}.get(name, {})


def noise(seconds: float) -> np.ndarray:
    """Random frames (T, n_bins)."""
    return torch.randn(round(seconds * 100), BINS).numpy()


def translate(begin: Begin, frames: np.ndarray) -> Engine:
    """Process a whole utterance as a wait-k agent does."""
    engine = begin()
    size = STEP_MS // 10
    for step, start in enumerate(range(0, len(frames), size), 1):
        engine.feed(frames[start : start + size])
        if step >= LAGGING:
            _write(engine)
    engine.finish()
    for _ in range(LAGGING):
        _write(engine)
    return engine


def growth(rows: list[dict[str, Any]], place: measure.Place) -> list[dict[str, Any]]:
    """The computation per second of speech in the longest utterance of each system over that in the shortest."""
    growths = []
    for name in dict.fromkeys(row["mechanism"] for row in rows):
        points = sorted((row["length"], row["per_second"]) for row in rows if row["mechanism"] == name)
        (short, first), (long, last) = points[0], points[-1]
        growths.append(
            {
                **_labels(name, place),
                "case": "longest to shortest",
                "from": short,
                "to": long,
                "ms": last * 1e3,
                "ratio": last / first,
                "aim": GROWTH_AIM if name == AIMED and place.has_aims else None,
                "at_most": True,
            }
        )
    return growths


def tokens(length: float, begins: dict[str, Begin], place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time a token after `length` seconds of speech, in milliseconds; ratio: to one after a second."""
    calls = {}
    for name, begin in begins.items():
        if not name.endswith("anew"):
            for heard in (1.12, length):
                engine = begin()
                engine.feed(noise(heard))
                _write(engine)
                calls[name, heard] = partial(measure.timed, place.device, _write, engine)
    times = {key: duration for key, (duration,) in measure.medians(calls, seconds).items()}
    return [
        {
            **_labels(name, place),
            "case": f"after {length:g} s",
            "ms": times[name, length] * 1e3,
            "ratio": times[name, length] / times[name, 1.12],
            "aim": TOKEN_AIM if name == AIMED and place.has_aims else None,
            "at_most": True,
        }
        for name in begins
        if (name, length) in times
    ]


def _write(engine: Engine) -> None:
    """Write the best token."""
    engine.commit(engine.best(engine.ready, range(EOS + 1)))


def _labels(name: str, place: measure.Place) -> dict[str, Any]:
    return {"device": str(place), "mechanism": name}
