"""The papers' speed figures: encoding and decoding with bounded memories, decoder steps with and without reused sums.

Method: random weights and inputs without padding, one thread, float32 unless the device says otherwise. On a CPU it is
the CPU time of the thread, on a GPU wall time. All systems take turns in one process; the median is reported. Ratio =
time of softmax / time of ours. "softmax" is ours, with torch's scaled dot-product attention and a preallocated cache;
the papers' softmax is slower, as "fairseq" shows for decoding.

* Encoding (ABC, table 6; Peng et al., 2022, arXiv:2110.02488): a forward pass of RoBERTa-base (12 layers, 768 wide)
  with 512 tokens per sentence, with 16 sentences on a GPU as in the paper, and 2 on a CPU, without the output layer.
  Memory is the peak above the model and its inputs in a fresh process; ratio = ours / that of softmax.
* Decoding (ABC, figure 1): 16 sentences, greedy, a decoder of transformer-base (6 layers, 512 wide, feed-forward 2,048,
  8 heads) without the output layer, with as many target tokens as source states. The time per token is the mean over
  the tokens at one, three, five and seven eighths of the length. Slots and features in cross- and causal attention are
  the paper's. State: bytes of all layers at the end.
* Steps (MLA, figures 17 to 21, section 7.10; Agostinelli & Chen, 2023, arXiv:2304.08453): one token of decoder self- or
  cross-attention with its projections and one head, by width and number of keys, for 1 and 125 sentences. "reuse" keeps
  K^T V and adds the token's own key and value, where there are any; "naive" keeps keys and values and multiplies them
  anew for every token. A step that reuses is in C on a CPU, up to a width of 1,023. We did not have these figures: what
  they compare is known, their values are not; widths and lengths are ours.

A mechanism is not reported if one of its executions differs from its reference in float64.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...attention import Mechanism, Projections, TokenInfo, build, step_of
from ...attention.capabilities import DECODER_CROSS, DECODER_SELF
from ...attention.softmax import CachedMechanism
from . import decode, measure
from .attention import disagreement  # noqa: F401  (what `leapformer bench` asks)
from .tables import Shown

BASE = "softmax"
# the systems, in the order of the tables: name -> mechanism, options
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: (BASE, {}),
    **{
        f"{name}, {slots}": (name, {"abc_slots": str(slots), "abc_max_length": 512})
        for name in ("abc-linformer", "abc-mlp")
        for slots in (64, 128)
    },
}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: (BASE, {}),
    decode.FAIRSEQ: (decode.FAIRSEQ, {}),
    "abc-mlp, 32/8": ("abc-mlp", {"abc_slots": "32/8/32"}),
    "rfa, 256/128": ("rfa", {"rfa_features": "256/128/256"}),
    "t2r, 32/4": ("t2r", {"t2r_features": "32/4/32"}),
}
NAIVE, REUSE = "naive", "reuse"
DECODER_BLOCKS, STEPS = (DECODER_SELF, DECODER_CROSS), ("relu", "cosformer")
MECHANISMS_MEASURED = (BASE, "abc-linformer", "abc-mlp", "rfa", "t2r", *STEPS)
TOKENS, SENTENCES = 512, {"cpu": 2, "cuda": 16}
ROWS, LENGTHS, QUICK_LENGTHS = 16, (64, 256, 512, 1024, 2048), (16, 32)
DECODER_SIZES: dict[str, Any] = {"width": 512, "ffn": 2048}
PLACES_MEASURED = (1 / 8, 3 / 8, 5 / 8, 7 / 8)  # of a decoded length
# sentences -> widths, and numbers of keys
STEP_SIZES = {1: ((128, 256, 512, 1024), (64, 256, 1024, 4096)), 125: ((128, 256, 512), (64, 256, 1024))}
QUICK_STEP_SIZES: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {1: ((64,), (32,)), 2: ((64,), (32,))}
SECONDS = 20.0  # per case
TITLE = "The papers' figures of speed"
TABLES = (
    Shown("Encoding (ABC, table 6): times as fast as softmax", "encoding", "ratio", "ms", BASE),
    Shown("Encoding (ABC, table 6): memory, times that of softmax", "memory", "ratio", "peak_mib", BASE),
    Shown("Decoding (ABC, figure 1): times as fast as softmax", "decoding", "ratio", "ms", BASE),
    Shown("Decoding (ABC, figure 1): bytes of state", "decoding", "state_bytes", "state_bytes", BASE),
    Shown("Steps with one head (MLA, figures 17 to 21): times as fast as softmax", "steps", "ratio", "us", BASE),
)
Rows = list[dict[str, Any]]


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `encoding`, `memory`, `decoding` and `steps`; softmax is always measured."""
    lengths, seconds = (QUICK_LENGTHS, SECONDS / 20) if quick else (LENGTHS, SECONDS)
    for place in places:
        yield measure.case(f"{place}: encoding", "encoding", encoding, names, place, quick, seconds)
        yield measure.case(f"{place}: memory of encoding", "memory", memory, names, place, quick)
        for length in lengths:
            about = f"{place}: decoding {length:,} tokens"
            yield measure.case(about, "decoding", decoding, names, length, place, seconds)
        for case in _step_cases(quick):
            about = f"{place}: a step of {_step_case(*case)}"
            yield measure.case(about, "steps", steps, names, *case, place, seconds / 4)


@torch.no_grad()
def encoding(names: list[str], place: measure.Place, quick: bool, seconds: float) -> Rows:
    """Time a forward pass of every encoder, in milliseconds."""
    calls = {
        name: partial(measure.timed, place.device, _encode, encoder(name, place, quick), sentences(place, quick))
        for name in _chosen(ENCODERS, names)
    }
    return _compared(measure.medians(calls, seconds), _encoding_case(place, quick), place)


def memory(names: list[str], place: measure.Place, quick: bool) -> Rows:
    """Measure peak MiB of a forward pass of every encoder; no rows if it is unknown."""
    chosen = _chosen(ENCODERS, names)
    about = {"device": str(place), "case": _encoding_case(place, quick)}
    labels = lambda name: {**about, "mechanism": name}  # noqa: E731
    return measure.peak_rows(chosen, BASE, labels, peak_of_encoding, str(place), quick)


def peak_of_encoding(name: str, place_name: str, quick: bool) -> int | None:
    """Peak bytes above the model; to be called in a fresh process."""
    torch.set_num_threads(1)
    place = measure.Place.parse(place_name)
    model, tokens, peak = encoder(name, place, quick), sentences(place, quick), None
    with torch.no_grad():
        for batch in (tokens[:1, :16], tokens):  # the first call loads libraries, which must not count
            with measure.peak_growth(place.device) as growth:
                _encode(model, batch)
            peak = growth()
    return peak


def encoder(name: str, place: measure.Place, quick: bool) -> Any:
    """Build RoBERTa-base with a system's attention; two small layers in quick runs."""
    kind, options = ENCODERS[name]
    arch = "leapformer_mlm_tiny" if quick else "leapformer_mlm"
    args = Namespace(arch=arch, encoder_self_attention=kind, tokens_per_sample=TOKENS, **options)
    return measure.untrained(args, 30).to(*place).eval()


def sentences(place: measure.Place, quick: bool) -> Tensor:
    """Random tokens (B, T)."""
    shape = (2, 64) if quick else (SENTENCES[place.device.type], TOKENS)
    return torch.randint(4, 30, shape, device=place.device)


@torch.no_grad()
def decoding(names: list[str], length: int, place: measure.Place, seconds: float) -> Rows:
    """Time a token of every decoder, in milliseconds, and measure the final state in bytes."""
    chosen = _chosen(DECODERS, names)
    times: dict[str, float] = dict.fromkeys(chosen, 0.0)
    for share in PLACES_MEASURED:
        case = decode.Case(ROWS, 1, max(1, int(length * share)), length)
        calls = {name: decoder(name, case, place)[1] for name in chosen}
        for name, (duration,) in measure.medians(calls, seconds / len(PLACES_MEASURED)).items():
            times[name] += duration / len(PLACES_MEASURED)
    rows = _compared({name: (duration,) for name, duration in times.items()}, f"{length:,} tokens", place)
    end = decode.Case(ROWS, 1, length, length)
    for row in rows:
        state, call = decoder(row["mechanism"], end, place)
        call()  # the first token writes the state of cross-attention
        row["state_bytes"] = decode.held_bytes(state)
    return rows


def decoder(name: str, case: decode.Case, place: measure.Place) -> tuple[dict[str, Any], Callable[[], measure.Seconds]]:
    """The state of a decoder with `case.target` tokens, and a function that decodes one more."""
    kind, options = DECODERS[name]
    decoder = decode.make(kind, place, **DECODER_SIZES, **options)
    source = torch.randn(case.source, case.rows, DECODER_SIZES["width"], device=place.device, dtype=place.dtype)
    state: dict[str, Any] = {}
    decode.fill(decoder, state, case, source)
    return state, partial(decode.token, decoder, state, source, case)


class Past(NamedTuple):
    """A decoder block with one head, a token x (B, C) for it, and the keys and values it sees, (B, 1, S, C)."""

    block: str
    projections: Projections
    x: Tensor
    keys: Tensor
    values: Tensor


class Anew(CachedMechanism):
    """A linear mechanism that caches keys and values, and computes K^T V anew for every query."""

    def __init__(self, linear: Mechanism) -> None:
        super().__init__(linear.head_dim, linear.num_heads, block=linear.block)
        self.linear = linear

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, dropout: float) -> Tensor:
        tokens = _tokens(self.block, k)
        state = self.linear.write(self.linear.init_state(len(q), v.shape[3], k), k, v, tokens)
        return self.linear.read(state, q, tokens.without_lengths().narrow(k.shape[2] - 1, k.shape[2]))


@torch.no_grad()
def steps(
    names: list[str], block: str, batch: int, width: int, length: int, place: measure.Place, seconds: float
) -> Rows:
    """Time one token of a decoder block, in microseconds, with sums computed anew ("naive") and kept ("reuse")."""
    past = past_of(block, batch, width, length, place)
    calls = {BASE: one_step(BASE, REUSE, past)}
    for kind in (kind for kind in STEPS if kind in names):
        calls |= {f"{kind}, {way}": one_step(kind, way, past) for way in (NAIVE, REUSE)}
    timed = {name: partial(measure.timed, place.device, call) for name, call in calls.items()}
    return _compared(measure.medians(timed, seconds), _step_case(block, batch, width, length), place, "us", 1e6)


def past_of(block: str, batch: int, width: int, length: int, place: measure.Place) -> Past:
    """Random weights, a random token, and random keys and values that it sees."""
    q, out, k, v = (nn.Linear(width, width).to(*place) for _ in range(4))
    projections = Projections(q, out, k, v) if block == DECODER_SELF else Projections(q, out)
    like = torch.zeros(0, device=place.device, dtype=place.dtype)
    keys, values = (like.new_empty(batch, 1, length, width).normal_() for _ in range(2))
    return Past(block, projections, like.new_empty(batch, width).normal_(), keys, values)


def one_step(kind: str, way: str, past: Past) -> Callable[[], Tensor]:
    """A function that processes one more token; in self-attention, each call writes its key and value again."""
    batch, _, length, width = past.keys.shape
    options = {"cosformer_length": length + 1} if kind == "cosformer" else {}
    mechanism: Mechanism = build(kind, width, 1, block=past.block, **options).to(past.x).eval()
    mechanism = Anew(mechanism) if way == NAIVE else mechanism
    state = mechanism.init_state(batch, width, past.keys)
    state = mechanism.write(state, past.keys, past.values, _tokens(past.block, past.keys))
    position = length + (past.block == DECODER_SELF)
    return partial(step_of(mechanism, past.projections), past.x, state, position)


def _tokens(block: str | None, keys: Tensor) -> TokenInfo:
    """The tokens of keys (B, H, S, D): of a source, whose length is known, or of a target, whose length is not."""
    tokens = measure.described(keys, keys)["key"]
    return tokens if block == DECODER_CROSS else tokens.without_lengths()


def _step_cases(quick: bool) -> Iterator[tuple[str, int, int, int]]:
    """Block, sentences, width and number of keys."""
    for batch, (widths, lengths) in (QUICK_STEP_SIZES if quick else STEP_SIZES).items():
        for block in DECODER_BLOCKS:
            for width in widths:
                yield from ((block, batch, width, length) for length in lengths)


def _step_case(block: str, batch: int, width: int, length: int) -> str:
    return f"{block}, {batch} x {length:,}, width {width:,}"


def _chosen(systems: dict[str, tuple[str, dict[str, Any]]], names: list[str]) -> list[str]:
    """The systems whose mechanism is in `names`, and the baselines."""
    return [name for name, (kind, _) in systems.items() if kind in (BASE, decode.FAIRSEQ, *names)]


def _encoding_case(place: measure.Place, quick: bool) -> str:
    batch, length = sentences(place, quick).shape
    return f"{batch} x {length} tokens"


def _compared(
    times: dict[str, measure.Seconds], case: str, place: measure.Place, unit: str = "ms", per_second: float = 1e3
) -> Rows:
    """Rows with the time of every system in a unit, and the ratio to softmax."""
    return [
        {
            "device": str(place),
            "case": case,
            "mechanism": name,
            unit: duration * per_second,
            "ratio": times[BASE][0] / duration,
        }
        for name, (duration,) in times.items()
    ]


def _encode(model: Any, tokens: Tensor) -> None:
    model(tokens, features_only=True)
