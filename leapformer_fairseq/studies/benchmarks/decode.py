"""Speed of a decoding step of whole fairseq decoders, and of one self-attention block.

Method: decoders of 6 layers, 256 wide, feed-forward 1,024, 8 heads, pre-norm, random weights, one thread, float32
unless the device says otherwise, without the projection to the vocabulary (the same for all). A measurement is one
token with `target` tokens in the state and after `source` encoder states, called as fairseq's generator does; with a
beam it includes reordering the state (`reorder_incremental_state`). Rows are sentences times beam. On a CPU it is the
CPU time of the thread, on a GPU wall time. All systems take turns in one process; the median is reported.

"fairseq" is the stock decoder, which copies its cache for every token. "softmax" is ours: one product for queries, keys
and values, a preallocated cache, and sources shared by the hypotheses of a sentence. Mechanisms are measured with the
compiled step and, "leap (torch)", without it. "leap (exported)" is a graph of `leapformer export` in onnxruntime, where
that is installed, and "leap (8 bits)" one of `leapformer export --quantize`; both always reorder. Ratio = time of
fairseq / time of ours. State: bytes of all layers.

One block: self-attention with its projections, one token after `keys` others; ratio = time of our softmax with its
preallocated cache / time of the other.

A mechanism is not reported if its decoder, token by token, differs from its full forward pass in float64.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...attention import CAUSAL, MECHANISMS, OPTIONS, build
from ...attention.ops import cpu
from ...attention.sparse.pattern import Pattern
from ...models.transformer import Decoder
from ...modules import MechanismAttention, fill_attention_args, state_bytes
from . import measure
from .tables import Shown

LAYERS, WIDTH, FFN, HEADS = 6, 256, 1024, 8
LONGEST = 8192  # tokens of a target
FAIRSEQ, TORCH, EXPORTED, INT8 = "fairseq", "leap (torch)", "leap (exported)", "leap (8 bits)"
SECONDS = 6.0  # per case
PARITY = {torch.float64: 1e-10, torch.float32: 1e-4}  # the step in C computes in single precision
# room for the longest case, and no encoder
LENGTHS_HELD = {
    "cosformer_length": LONGEST,
    "abc_max_length": LONGEST,
    "abc_pool_size": "0/1024/0",
    **{name: option.without_encoder for name, option in OPTIONS.items() if option.without_encoder is not None},
}
DECODER = {"decoder-self", "decoder-cross"}
# by default; softmax is always there
MECHANISMS_MEASURED = tuple(
    sorted(
        name
        for name, mechanism in MECHANISMS.items()
        if name != "softmax" and set(mechanism.capabilities.blocks) >= DECODER and not issubclass(mechanism, Pattern)
    )
)
TITLE = "Decoding: speed and state"
TABLES = (
    Shown("A token of the whole decoder: times as fast as fairseq", "decoders", "ratio", "ms", FAIRSEQ),
    Shown("State of the whole decoder: bytes", "decoders", "state_bytes", "state_bytes", FAIRSEQ),
    Shown("A step of one block: times as fast as a preallocated cache", "blocks", "ratio", "us", "softmax"),
)


class Case(NamedTuple):
    """Sentences times beam, target tokens in the state, source states."""

    sentences: int
    beam: int
    target: int
    source: int

    @property
    def rows(self) -> int:
        return self.sentences * self.beam

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.target:,}/{self.source:,}"


LENGTHS = ((10, 50), (50, 150), (150, 500), (500, 500), (1000, 1000), (150, 4000), (4000, 4000))
CASES = [
    *(Case(1, 1, *lengths) for lengths in LENGTHS),
    *(Case(1, 5, *lengths) for lengths in LENGTHS),
    *(Case(8, 5, *lengths) for lengths in LENGTHS if max(lengths) <= 1000),
]
QUICK_CASES = [Case(1, 1, 10, 50), Case(2, 2, 100, 100)]
KEYS = (16, 32, 60, 64, 80, 110, 150, 265, 500, 1000, 4000)
QUICK_KEYS = (32, 256)
BLOCK_ROWS = (1, 5, 40)
# time of fairseq's decoder over that of leap, at least
AIMS = {
    (1, 10, 50): 1.1, (1, 150, 500): 1.3, (1, 1000, 1000): 3.0, (1, 4000, 4000): 9.0,
    (5, 10, 50): 1.2, (5, 150, 500): 1.7, (5, 1000, 1000): 9.0, (5, 4000, 4000): 25.0,
    (40, 10, 50): 1.05, (40, 150, 500): 4.0, (40, 1000, 1000): 35.0,
}  # fmt: skip
EXPORTED_AIMS = {(1, 150, 500): 6.0, (5, 150, 500): 6.0, (40, 150, 500): 7.0}
# what is measured as one block, with its options, beside softmax; in PyTorch leap is measured again
BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "leap": ("leap", {}),
    TORCH: ("leap", {}),
    "gated-delta": ("gated-delta", {}),
    "abc-mlp, 8 slots": ("abc-mlp", {"abc_slots": 8}),
    "abc-mlp, 32 slots": ("abc-mlp", {"abc_slots": 32}),
    # those that hand a carry on, whose first option is its length
    **{
        f"{name}, 16 rows": (name, {cls.options[0].name: 16})
        for name, cls in MECHANISMS.items()
        if cls.capabilities.carry_width is not None
    },
}
# rows -> keys from which on one block is faster than softmax with a preallocated cache
BLOCK_AIMS = {
    TORCH: {1: 265, 5: 110, 40: 80},
    "leap": {1: 60, 5: 60, 40: 60},
    "gated-delta": {1: 64, 5: 64, 40: 64},
    "abc-mlp, 8 slots": {1: 64, 5: 64, 40: 64},
    "abc-mlp, 32 slots": {1: 150, 5: 150, 40: 150},
}


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `decoders` and `blocks`. The mechanisms must have passed `disagreement`."""
    seconds = SECONDS / 10 if quick else SECONDS
    for place in places:
        for case in QUICK_CASES if quick else CASES:
            yield measure.case(f"{place}: {case}", "decoders", decoders, case, names, place, seconds)
        for rows in BLOCK_ROWS:
            for count in QUICK_KEYS if quick else KEYS:
                about = f"{place}: one block, {rows} rows, {count:,} keys"
                yield measure.case(about, "blocks", blocks, rows, count, place, seconds / 10)


def disagreement(name: str) -> str | None:
    """Say how the decoder with this mechanism, token by token, differs from a single pass; None if it does not.

    Checked in float64, and in float32, which uses the C step that is timed.
    """
    errors = {dtype: _worst(name, dtype) for dtype in PARITY}
    return next(
        (
            f"its decoder differs by {errors[dtype]:.1e} token by token"
            for dtype in PARITY
            if errors[dtype] > PARITY[dtype]
        ),
        None,
    )


def _worst(name: str, dtype: torch.dtype) -> float:
    """The largest difference between features computed token by token and in a single pass."""
    torch.manual_seed(0)
    decoder = make(name, measure.Place(torch.device("cpu"), dtype), layers=2)
    tokens, source = torch.randint(4, 20, (2, 12)), torch.randn(9, 2, WIDTH, dtype=dtype)
    encoder_out = {"encoder_out": [source], "encoder_padding_mask": []}
    with torch.no_grad():
        expected, _ = decoder(tokens, encoder_out=encoder_out, features_only=True)
        state: dict[str, Any] = {}
        parts = [
            decoder(tokens[:, : t + 1], encoder_out=encoder_out, incremental_state=state, features_only=True)[0]
            for t in range(tokens.shape[1])
        ]
    return float((torch.cat(parts, 1) - expected).abs().max())


@torch.no_grad()
def decoders(case: Case, names: list[str], place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time a token of every decoder, in milliseconds, and measure its state in bytes; fairseq is in the first row."""
    systems = [FAIRSEQ, "softmax", *(name for name in names if name != "softmax")]
    systems += [TORCH] if "leap" in names and place.device.type == "cpu" else []
    source = torch.randn(case.source, case.sentences, WIDTH, device=place.device, dtype=place.dtype)
    source = source.repeat_interleave(case.beam, 1)
    states: dict[str, dict[str, Any]] = {name: {} for name in systems}
    calls: dict[str, Callable[[], measure.Seconds]] = {}
    for name in systems:
        decoder = make("leap" if name == TORCH else name, place)
        if case.beam > 1 and name != FAIRSEQ:
            decoder.set_beam_size(case.beam)
        fill(decoder, states[name], case, source)
        calls[name] = partial(token, decoder, states[name], source, case, name == TORCH)
    sizes: dict[str, int] = {}
    if "leap" in names and measure.exports(place):
        for name in EXPORTED, INT8:
            calls[name], sizes[name] = exported(case, name == INT8)
    times = measure.medians(calls, seconds)
    # After the timing: the first token writes the state of cross-attention.
    sizes |= {name: held_bytes(state) for name, state in states.items()}
    (base,), aims = times[FAIRSEQ], {"leap": AIMS, EXPORTED: EXPORTED_AIMS}
    return [
        {
            "device": str(place),
            "case": str(case),
            **case._asdict(),
            "rows": case.rows,
            "mechanism": name,
            "ms": ms * 1e3,
            "ratio": base / ms,
            "state_bytes": sizes[name],
            "aim": aims[name].get((case.rows, case.target, case.source)) if name in aims and place.has_aims else None,
        }
        for name, (ms,) in times.items()
    ]


def make(
    name: str,
    place: measure.Place,
    layers: int = LAYERS,
    width: int = WIDTH,
    ffn: int = FFN,
    reads_source: bool = True,
    **options: Any,
) -> Any:
    """Build a decoder, by default of the benchmark's size; "fairseq" is the stock one."""
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
    from fairseq.models.transformer.transformer_legacy import base_architecture

    args = Namespace(
        encoder_embed_dim=width,
        decoder_embed_dim=width,
        decoder_layers=layers,
        decoder_ffn_embed_dim=ffn,
        decoder_attention_heads=HEADS,
        decoder_normalize_before=True,
        share_decoder_input_output_embed=True,
        decoder_self_attention=name,
        decoder_cross_attention=name,
    )
    base_architecture(args)
    fill_attention_args(args)
    vars(args).update({**LENGTHS_HELD, **options})
    config = TransformerConfig.from_namespace(args)
    words = Dictionary()
    for i in range(30):
        words.add_symbol(f"w{i}")
    embedding = nn.Embedding(len(words), width, words.pad())
    decoder = (TransformerDecoderBase if name == FAIRSEQ else Decoder)(config, words, embedding, not reads_source)
    decoder = decoder.to(*place).eval()
    for module in decoder.modules():  # as fairseq-generate does without --print-alignment
        if hasattr(module, "make_generation_fast_"):
            module.make_generation_fast_(name="", need_attn=False)
    return decoder


def fill(decoder: Any, state: dict[str, Any], case: Case, like: Tensor) -> None:
    """Fill the state with `case.target` random keys and values, without running the decoder over them."""
    shape = (case.rows, HEADS, case.target, like.shape[2] // HEADS)
    for layer in decoder.layers:
        k, v = like.new_empty(shape).normal_(), like.new_empty(shape).normal_()
        if isinstance(layer.self_attn, MechanismAttention):
            for attention in (layer.self_attn, layer.encoder_attn):
                attention.memory(state).queries = case.target
            mechanism = layer.self_attn.mechanism
            tokens = measure.described(k, k)["key"].without_lengths()
            first = mechanism.init_state(len(k), v.shape[3], k, mask=CAUSAL)
            _, layer.self_attn.memory(state).state = mechanism.scan_(first, k, k, v, tokens, tokens, CAUSAL)
        else:
            past = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": None}
            layer.self_attn._set_input_buffer(state, past)


@cache
def exported_graphs(name: str, reads_source: bool = True, quantized: bool = False) -> Any:
    """The graph of a decoder's step in onnxruntime, with one thread; without a source, also that for prompts."""
    from ...export.tracing import quantize_graph
    from ...runtime.engine import Graphs
    from ...runtime.folder import LANGUAGE, STEP, TRANSLATION, Folder

    states, graphs = _traced(name, reads_source)
    with TemporaryDirectory() as path:
        for file, content in graphs.items():
            (Path(path) / file).write_bytes(content)
        if quantized:
            quantize_graph(Path(path) / STEP)
        folder = Folder(Path(path), TRANSLATION if reads_source else LANGUAGE, states, {}, LONGEST, "", {})
        return Graphs(folder, names=tuple(graphs))


@cache
def _traced(name: str, reads_source: bool) -> tuple[Any, dict[str, bytes]]:
    """The shapes of a decoder's states, and its graphs, cached because tracing takes long."""
    from ...export.write import write_prompt, write_step
    from ...runtime.folder import PROMPT, STEP

    decoder = make(name, measure.Place(torch.device("cpu")), reads_source=reads_source).requires_grad_(False)
    with TemporaryDirectory() as path:
        states = write_step(decoder, Path(path))
        if not reads_source:
            write_prompt(decoder, Path(path))
        return states, {file: (Path(path) / file).read_bytes() for file in (STEP, *([] if reads_source else [PROMPT]))}


def exported(case: Case, quantized: bool) -> tuple[Callable[[], measure.Seconds], int]:
    """A function that times one more token of the exported decoder, and the size of its states in bytes."""
    from ...runtime.folder import CROSS, SELF

    graphs = exported_graphs("leap", quantized=quantized)
    states = {side: random_states(graphs, side, rows) for side, rows in ((SELF, case.rows), (CROSS, case.sentences))}

    def step() -> measure.Seconds:
        order = reordered(case)
        tokens = np.random.randint(4, 30, order.shape)
        start = measure.clock(torch.device("cpu"))
        _, states[SELF] = graphs.step(tokens, case.target + 1, order, states[SELF], states[CROSS])
        return (measure.clock(torch.device("cpu")) - start,)

    return step, sum(value.numpy().nbytes for side in states.values() for value in side.values())


def random_states(graphs: Any, side: str, rows: int) -> dict[str, Any]:
    """Random states of a kind of attention, in place of those after a source or target."""
    shapes = graphs.folder.states[side].items()
    return {name: graphs.value(np.random.rand(rows, *shape).astype(np.float32)) for name, shape in shapes}


def reordered(case: Case) -> np.ndarray:
    """A random order of the hypotheses, (sentences, beam): each continues one of the same sentence."""
    groups = np.arange(case.rows).reshape(-1, case.beam)
    return np.take_along_axis(groups, np.random.randint(0, case.beam, groups.shape), 1)


def held_bytes(state: dict[str, Any]) -> int:
    """Bytes of a decoder's incremental state, ours or in fairseq's buffers."""
    buffers = [x for held in state.values() if isinstance(held, dict) for x in held.values() if x is not None]
    return state_bytes(state) + sum(x.numel() * x.element_size() for x in buffers)


@torch.no_grad()
def blocks(rows: int, keys: int, place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Time a step of one self-attention block, in microseconds; our softmax is in the first row."""
    from fairseq.modules import MultiheadAttention

    past = torch.randn(keys, rows, WIDTH, device=place.device, dtype=place.dtype)
    calls: dict[str, Callable[[], measure.Seconds]] = {}
    for name, (kind, options) in {"softmax": ("softmax", {}), **BLOCKS}.items():
        if name == TORCH and place.device.type != "cpu":
            continue
        stock = MultiheadAttention(WIDTH, HEADS, self_attention=True)
        mechanism = build(kind, WIDTH // HEADS, HEADS, **options)
        block = MechanismAttention(stock, mechanism, CAUSAL).to(*place).eval()
        state: dict[str, Any] = {}
        block(past, past, past, incremental_state=state)
        calls[name] = partial(_step, block, past[:1], state, name == TORCH)
    times = measure.medians(calls, seconds)
    (base,) = times["softmax"]
    return [
        {
            "device": str(place),
            "case": f"{rows} rows, {keys:,} keys",
            "rows": rows,
            "keys": keys,
            "mechanism": name,
            "us": us * 1e6,
            "ratio": base / us,
            "aim": 1.0 if keys >= BLOCK_AIMS.get(name, {}).get(rows, float("inf")) and place.has_aims else None,
        }
        for name, (us,) in times.items()
    ]


def _tokens(case: Case, device: torch.device) -> Tensor:
    # One more than in the state: the decoder reads only the last one.
    return torch.randint(4, 30, (case.rows, case.target + 1), device=device)


def token(decoder: Any, state: dict[str, Any], source: Tensor, case: Case, in_torch: bool = False) -> measure.Seconds:
    """Time one more token, with reordering of the state if there is a beam; `in_torch` turns the C step off."""
    tokens, encoder_out = _tokens(case, source.device), {"encoder_out": [source], "encoder_padding_mask": []}
    order = None
    if case.beam > 1:
        order = torch.from_numpy(reordered(case)).flatten().to(source.device)
    with cpu.turned_off() if in_torch else nullcontext():
        start = measure.clock(source.device)
        if order is not None:
            decoder.reorder_incremental_state_scripting(state, order)
        decoder(tokens, encoder_out=encoder_out, incremental_state=state, features_only=True)
        return (measure.clock(source.device) - start,)


def _step(block: MechanismAttention, x: Tensor, state: dict[str, Any], in_torch: bool) -> measure.Seconds:
    with cpu.turned_off() if in_torch else nullcontext():
        start = measure.clock(x.device)
        block(x, x, x, incremental_state=state)
        return (measure.clock(x.device) - start,)
