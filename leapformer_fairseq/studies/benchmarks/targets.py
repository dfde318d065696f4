"""Whole targets, from the tokens of a source to the hypotheses, and whole prompts: fairseq, ours, exported models.

Method: translation models of random weights (6 + 6 layers, 256 wide, feed-forward 1,024, 8 heads, pre-norm, softmax in
the encoder, one vocabulary of 8,000 words), on a CPU, in float32 unless a name says 8 bits. A measurement is a call
that translates sentences of a fixed length into targets of a fixed length, with the encoder, the projection to the
vocabulary and the beam search of the system; rows are sentences times beam. With one thread it is the CPU time of the
process, with more wall time. All systems take turns in one process; the median is reported, or if a round takes longer
than 30 s, its only time. Ratio = time of fairseq / time of the other.

"fairseq" is its stock model in its own generator, "softmax" and "leap" are ours in the same generator; "(exported)" and
"(8 bits)" are folders of `leapformer export`, without and with `--quantize`, in onnxruntime;
"CTranslate2" and "CTranslate2 (8 bits)" are those with `--engine ctranslate2`, and have fairseq's weights. What 8 bits
gain depends on the processor's instructions: the signature says whether it has VNNI.

Lengths: sources of N tokens into targets of N tokens, exported models only. "From ... tokens on" is the shortest length
from which on leap was faster than CTranslate2 at all lengths measured.

Prompts: decoders of the same size, with a vocabulary of 34 and without cross-attention, read a text in one pass, to the
log-probabilities of what follows each token and the state after the last. "fairseq" is its forward pass, which leaves
no state. "(exported)" is the graph for prompts, up to 256 tokens at a time, "(exported, token by token)" that for a
step.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...runtime.beam import Search
from ...runtime.folder import CTRANSLATE2 as ENGINE
from ...runtime.folder import SELF
from ...runtime.translator import Translator
from . import measure
from .decode import (
    EXPORTED,
    FAIRSEQ,
    FFN,
    HEADS,
    INT8,
    LAYERS,
    LENGTHS_HELD,
    WIDTH,
    Case,
    disagreement,
    exported_graphs,
    make,
)
from .tables import Results, Shown

Systems = dict[str, Callable[[list[list[str]], Case], object]]  # what translates sources as the case says

CTRANSLATE2, CTRANSLATE2_INT8 = "CTranslate2", "CTranslate2 (8 bits)"
SOFTMAX = "softmax (exported)", "softmax (8 bits)"
PAIRS = {EXPORTED: CTRANSLATE2, INT8: CTRANSLATE2_INT8}  # compared by length
WORDS, LONGEST = 8000, 4100
SECONDS, ONCE = 10.0, 30.0  # per case; a round that is measured once
MECHANISMS_MEASURED = ("leap",)  # by default; softmax is always there
TITLE = "Whole targets: speed"
TABLES = (
    Shown("A token, on average: times as fast as fairseq", "targets", "ratio", "ms", FAIRSEQ),
    Shown("A token, on average: milliseconds", "targets", "ms", "ms", FAIRSEQ),
    Shown("By length: milliseconds a token", "lengths", "ms", "ms", CTRANSLATE2),
    Shown("leap is faster than CTranslate2 from ... tokens on", "crossings", "tokens", "tokens", EXPORTED),
    Shown("A prompt: times as fast as fairseq", "prompts", "ratio", "ms", FAIRSEQ),
    Shown("A prompt: milliseconds", "prompts", "ms", "ms", FAIRSEQ),
)
ROWS = ((1, 1), (1, 5), (8, 5))
CASES = [Case(*rows, length, length) for rows in ROWS for length in (50, 150, 500)]
QUICK_CASES = [Case(1, 2, 20, 20)]
LENGTHS = {1: (10, 20, 50, 100, 200, 500, 1000, 2000, 4000), 5: (10, 20, 50, 100, 200, 500, 1000)}  # by beam
QUICK_LENGTHS = {2: (10, 20)}
PROMPTS, QUICK_PROMPTS = (16, 64, 256, 1024), (20,)
READERS = ("leap", "gated-delta")  # in exported prompts an operator that goes from token to token
__all__ = ["disagreement"]  # required by `leapformer bench`


def cases(names: list[str], places: list[measure.Place], quick: bool, threads: int = 1) -> Iterator[measure.Case]:
    """Rows of `targets`, `lengths`, `crossings` and `prompts`, on the CPU only. The mechanisms must have passed
    `disagreement`."""
    seconds = SECONDS / 10 if quick else SECONDS
    place = measure.Place(torch.device("cpu"))
    if place not in places:
        return
    for case in QUICK_CASES if quick else CASES:
        yield measure.case(f"targets, {case}", "targets", targets, case, tuple(names), seconds, threads)
    if measure.exports(place) and "leap" in names:
        for beam, counts in (QUICK_LENGTHS if quick else LENGTHS).items():
            about = f"lengths with {beam} row{'s' * (beam > 1)}"
            yield measure.Case(about, partial(lengths, beam, counts, seconds, threads))
    if threads == 1:  # prompts have no other
        for tokens in QUICK_PROMPTS if quick else PROMPTS:
            yield measure.case(f"a prompt of {tokens:,}", "prompts", prompts, tokens, place, seconds)


@torch.no_grad()
def targets(case: Case, names: tuple[str, ...], seconds: float, threads: int) -> list[dict[str, Any]]:
    """Time whole targets in every system, in milliseconds per token; fairseq is in the first row."""
    others = exported(threads)  # before any model is told the size of a beam
    return _rows(case, {**in_torch(names), **others}, seconds, threads)


@torch.no_grad()
def lengths(beam: int, counts: tuple[int, ...], seconds: float, threads: int) -> Results:
    """Time exported models by length; `crossings` says from which one on leap is faster."""
    systems, rows = exported(threads), list[dict[str, Any]]()
    for count in counts:
        rows += _rows(Case(1, beam, count, count), systems, seconds / len(counts), threads)
    crossings = []
    for ours, theirs in PAIRS.items():
        at = {name: {row["target"]: row["ms"] for row in rows if row["mechanism"] == name} for name in (ours, theirs)}
        if at[ours] and at[theirs]:
            slower = [count for count in counts if at[ours][count] >= at[theirs][count]]
            first = next((count for count in counts if count > max(slower, default=0)), None)
            about = {"device": "cpu", "case": f"{beam} row{'s' * (beam > 1)}", "mechanism": ours, "than": theirs}
            crossings.append({**about, "tokens": "none" if first is None else first})
    return {"lengths": rows, "crossings": crossings}


def _rows(case: Case, systems: Systems, seconds: float, threads: int) -> list[dict[str, Any]]:
    sources = texts(case)
    clock = time.process_time if threads == 1 else time.perf_counter

    def timed(translate: Callable[..., object]) -> measure.Seconds:
        start = clock()
        translate(sources, case)
        return (clock() - start,)

    calls = {name: partial(timed, translate) for name, translate in systems.items()}
    times = measure.medians(calls, seconds, ONCE)
    base = times.get(FAIRSEQ)
    return [
        {
            "device": "cpu",
            "case": str(case),
            **case._asdict(),
            "rows": case.rows,
            "mechanism": name,
            "ms": duration / case.target * 1e3,
            **({"ratio": base[0] / duration} if base else {}),
        }
        for name, (duration,) in times.items()
    ]


def texts(case: Case) -> list[list[str]]:
    """Random sentences of the case, without their end."""
    numbers = torch.randint(0, WORDS, (case.sentences, case.source - 1)).tolist()
    return [[f"w{number}" for number in line] for line in numbers]


@cache
def in_torch(names: tuple[str, ...]) -> Systems:
    """fairseq's model, and ours with softmax and with each mechanism, in fairseq's generator."""
    return {
        FAIRSEQ: partial(_generated, model_of(FAIRSEQ)),
        **{name: partial(_generated, model_of(name)) for name in dict.fromkeys(("softmax", *names))},
    }


@cache
def exported(threads: int) -> Systems:
    """The model with leap as folders of `leapformer export`, and that with fairseq's weights for CTranslate2, as far as
    their engines are installed."""
    from ...export.write import export_text, quantize

    systems: Systems = {}
    with TemporaryDirectory() as path:
        if measure.exports(measure.Place(torch.device("cpu"))):
            for mechanism in "softmax", "leap":
                folder = export_text(*_with_task(model_of(mechanism)), Path(path) / mechanism, "", {})
                names = (EXPORTED, INT8) if mechanism == "leap" else SOFTMAX
                systems[names[0]] = partial(_in_runtime, Translator(folder.path, threads))
                systems[names[1]] = partial(_in_runtime, Translator(quantize(folder).path, threads))
        if find_spec("ctranslate2") is not None:
            import ctranslate2

            for name in CTRANSLATE2, CTRANSLATE2_INT8:
                model, task = _with_task(model_of("softmax"))
                rounded = name == CTRANSLATE2_INT8
                folder = export_text(model, task, Path(path) / name, "", {}, engine=ENGINE, eight_bits=rounded)
                engine = ctranslate2.Translator(str(folder.path), inter_threads=1, intra_threads=threads)
                systems[name] = partial(_in_ctranslate2, engine)
    return systems


@cache
def model_of(name: str) -> Any:
    """The model with a mechanism in the decoder; "fairseq" is the stock one, whose weights "softmax" has."""
    sizes = {
        f"{side}_{size}": value
        for side in ("encoder", "decoder")
        for size, value in (
            ("layers", LAYERS),
            ("embed_dim", WIDTH),
            ("ffn_embed_dim", FFN),
            ("attention_heads", HEADS),
        )
    }
    plan = {"encoder_self_attention": "softmax", "decoder_self_attention": name, "decoder_cross_attention": name}
    ours = {} if name == FAIRSEQ else {**plan, **LENGTHS_HELD}
    longest = {"max_source_positions": LONGEST, "max_target_positions": LONGEST}
    norms = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    args = {**sizes, **ours, **longest, **norms, "share_all_embeddings": True}
    model = measure.untrained(Namespace(arch="leapformer_nmt" if ours else "transformer", **args), WORDS).eval()
    if name == "softmax":
        model.load_state_dict(model_of(FAIRSEQ).state_dict())
    model.make_generation_fast_(need_attn=False)  # as fairseq-generate does without --print-alignment
    return model


def _with_task(model: Any) -> tuple[Any, Any]:
    source, target = model.encoder.dictionary, model.decoder.dictionary
    return model, SimpleNamespace(source_dictionary=source, target_dictionary=target)


def _generated(model: Any, sources: list[list[str]], case: Case) -> list[list[str]]:
    from fairseq.sequence_generator import SequenceGenerator

    words, length = model.decoder.dictionary, case.target
    tokens = torch.tensor([[*map(words.index, line), words.eos()] for line in sources])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.full((len(tokens),), tokens.shape[1])}}
    generator = SequenceGenerator([model], words, beam_size=case.beam, max_len_a=0, max_len_b=length, min_len=length)
    return [words.string(best["tokens"]).split() for best, *_ in generator.generate([model], sample)]


def _in_runtime(translator: Translator, sources: list[list[str]], case: Case) -> list[list[str]]:
    search = Search(case.beam, max_len_b=case.target, min_len=case.target)
    found = translator.translate(sources, search=search, batch_tokens=case.sentences * (case.source + 1))
    return [best.pieces for best, *_ in found]


def _in_ctranslate2(model: Any, sources: list[list[str]], case: Case) -> list[list[str]]:
    """Without our runtime, which would also score the end of texts that were cut."""
    least = {"min_decoding_length": case.target, "max_decoding_length": case.target}
    results = model.translate_batch(sources, beam_size=case.beam, max_input_length=0, **least)
    return [result.hypotheses[0] for result in results]


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
