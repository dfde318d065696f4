"""Whole targets, from the first token to the last, and whole prompts: fairseq, ours, exported models, CTranslate2.

Method: the decoders of `bench decode` (6 layers, 256 wide, feed-forward 1,024, 8 heads, pre-norm, random weights, a
vocabulary of 34), one thread, float32, on a CPU. A measurement is all tokens of targets of a fixed length, one after
the other from an empty state, including the reading of the source by cross-attention (but for exported models, whose
source is in their state) and, with a beam, the reordering of the state; rows are sentences times beam. Choosing the
tokens is left out, except for CTranslate2, which searches itself and cannot be called otherwise; it also runs a stock
encoder of one layer. Its CPU time is that of the process, the others' that of the thread. All systems take turns in one
process; the median is reported. Ratio = time of fairseq / time of the other.

"fairseq" is the stock decoder, which copies its cache for every token, "CTranslate2" the same weights in C++, with a
cache that it does not copy. "softmax" and "leap" are ours, "leap (exported)" is a graph of `leapformer export` in
onnxruntime, and "leap (8 bits)" one of `leapformer export --quantize`.

Prompts: the same decoders without cross-attention read a text in one pass, to the log-probabilities of what follows
each token and the state after the last. "fairseq" is its forward pass, which leaves no state. "(exported)" is the graph
for prompts, up to 256 tokens at a time, "(exported, token by token)" that for a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...runtime.folder import CROSS, SELF
from . import ctranslate, measure
from .decode import (
    EXPORTED,
    FAIRSEQ,
    INT8,
    WIDTH,
    Case,
    disagreement,
    exported_graphs,
    make,
    random_states,
    reordered,
)
from .tables import Shown

CTRANSLATE2 = "CTranslate2"
SECONDS = 10.0  # per case
MECHANISMS_MEASURED = ("leap",)  # by default; softmax is always there
TITLE = "Whole targets: speed"
TABLES = (
    Shown("A token, on average: times as fast as fairseq", "targets", "ratio", "ms", FAIRSEQ),
    Shown("A token, on average: milliseconds", "targets", "ms", "ms", FAIRSEQ),
    Shown("A prompt: times as fast as fairseq", "prompts", "ratio", "ms", FAIRSEQ),
    Shown("A prompt: milliseconds", "prompts", "ms", "ms", FAIRSEQ),
)
LENGTHS = ((50, 50), (150, 150))
CASES = [Case(sentences, beam, *lengths) for sentences, beam in ((1, 1), (1, 5), (8, 5)) for lengths in LENGTHS]
CASES.append(Case(1, 1, 500, 500))
QUICK_CASES = [Case(1, 2, 20, 20)]
PROMPTS, QUICK_PROMPTS = (16, 64, 256, 1024), (20,)
READERS = ("leap", "gated-delta")  # exported prompts: all pairs, and a loop over tokens
__all__ = ["disagreement"]  # required by `leapformer bench`


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `targets`, on the CPU only. The mechanisms must have passed `disagreement`."""
    seconds = SECONDS / 10 if quick else SECONDS
    place = measure.Place(torch.device("cpu"))
    if place in places:
        for case in QUICK_CASES if quick else CASES:
            yield measure.case(str(case), "targets", targets, case, names, place, seconds)
        for tokens in QUICK_PROMPTS if quick else PROMPTS:
            yield measure.case(f"a prompt of {tokens:,}", "prompts", prompts, tokens, place, seconds)


@torch.no_grad()
def targets(case: Case, names: list[str], place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time whole targets in every system, in milliseconds per token; fairseq is in the first row."""
    source = torch.randn(case.source, case.sentences, WIDTH).repeat_interleave(case.beam, 1)
    calls: dict[str, Callable[[], measure.Seconds]] = {}
    for name in [FAIRSEQ, "softmax", *(name for name in names if name != "softmax")]:
        decoder = make(name, place)
        if case.beam > 1 and name != FAIRSEQ:
            decoder.set_beam_size(case.beam)
        calls[name] = partial(_in_torch, decoder, source, case)
    if "leap" in names and measure.exports(place):
        for name in EXPORTED, INT8:
            calls[name] = partial(_exported, exported_graphs("leap", quantized=name == INT8), case)
    if ctranslate.is_installed():
        calls[CTRANSLATE2] = partial(_in_ctranslate2, case)
    times = measure.medians(calls, seconds)
    (base,) = times[FAIRSEQ]
    return [
        {
            "device": str(place),
            "case": str(case),
            **case._asdict(),
            "rows": case.rows,
            "mechanism": name,
            "ms": duration / case.target * 1e3,
            "ratio": base / duration,
        }
        for name, (duration,) in times.items()
    ]


@torch.no_grad()
def prompts(tokens: int, place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time a prompt in every system, in milliseconds; fairseq is in the first row."""
    text = torch.randint(4, 30, (1, tokens))
    calls: dict[str, Callable[[], object]] = {}
    for name in FAIRSEQ, "softmax", *READERS:
        decoder = make(name, place, reads_source=False)
        calls[name] = partial(decoder, text) if name == FAIRSEQ else partial(_read, decoder, text)
        if name in READERS and measure.exports(place):
            graphs = exported_graphs(name, reads_source=False)
            calls[f"{name} (exported)"] = partial(_text, graphs, text.numpy())
            calls[f"{name} (exported, token by token)"] = partial(_token_by_token, graphs, text.numpy())
    times = measure.medians({name: partial(measure.timed, place.device, call) for name, call in calls.items()}, seconds)
    (base,) = times[FAIRSEQ]
    return [
        {
            "device": str(place),
            "case": f"{tokens:,} tokens",
            "tokens": tokens,
            "mechanism": name,
            "ms": duration * 1e3,
            "ratio": base / duration,
        }
        for name, (duration,) in times.items()
    ]


def _read(decoder: Any, text: Tensor) -> Tensor:
    log_probs: Tensor = decoder.output_layer(decoder.read(text, {})).log_softmax(-1)
    return log_probs


def _text(graphs: Any, text: np.ndarray) -> object:
    return graphs.text(text, graphs.begin(SELF, 1))


def _token_by_token(graphs: Any, text: np.ndarray) -> None:
    state, order = graphs.begin(SELF, 1), np.zeros((1, 1))
    for t in range(text.shape[1]):
        _, state = graphs.step(text[:, t : t + 1], t + 1, order, state, {})


def _in_torch(decoder: Any, source: Tensor, case: Case) -> measure.Seconds:
    tokens, state = torch.randint(4, 30, (case.rows, case.target)), dict[str, Any]()
    encoder_out = {"encoder_out": [source], "encoder_padding_mask": []}
    orders = [torch.from_numpy(reordered(case)).flatten() for _ in range(case.target)]
    start = measure.clock(source.device)
    for t, order in enumerate(orders):
        if case.beam > 1 and t:
            decoder.reorder_incremental_state_scripting(state, order)
        decoder(tokens[:, : t + 1], encoder_out=encoder_out, incremental_state=state, features_only=True)
    return (measure.clock(source.device) - start,)


def _exported(graphs: Any, case: Case) -> measure.Seconds:
    source, state = random_states(graphs, CROSS, case.sentences), graphs.begin(SELF, case.rows)
    start = measure.clock(torch.device("cpu"))
    for t in range(1, case.target + 1):
        order = reordered(case)
        _, state = graphs.step(np.random.randint(4, 30, order.shape), t, order, state, source)
    return (measure.clock(torch.device("cpu")) - start,)


def _in_ctranslate2(case: Case) -> measure.Seconds:
    model, words = _translator()
    sources = ctranslate.texts(words, case.sentences, case.source)
    start = time.process_time()
    ctranslate.translate(model, sources, case.beam, case.target)
    return (time.process_time() - start,)


@cache
def _translator() -> tuple[Any, Any]:
    """A decoder of the benchmark's size in CTranslate2, and its dictionary."""
    decoder = make(FAIRSEQ, measure.Place(torch.device("cpu")))
    return ctranslate.translator(decoder)[0], decoder.dictionary
