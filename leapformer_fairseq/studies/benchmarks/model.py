"""Speed and FLOPs of whole text-to-speech models by attention plan, compared with fairseq's own model.

Method: models of the Modular Linearized Attention paper's size (Agostinelli & Chen, 2023, arXiv:2304.08453: 6 + 6
layers, 256 wide, feed-forward 1,024, 8 heads, 4 frames of 80 mels per step), pre-norm, random weights, one sentence,
float32 unless the device says otherwise, one thread. A plan names the mechanisms of encoder self-attention, decoder
self-attention and cross-attention, or one for all. cosFormer assumes that the target is 1.5 times as long as the
source, which is the case here.

An iteration of the encoder is one forward pass over the phonemes. Iterations of the decoder are timed as whole decodes:
all steps of a sentence one after the other from an empty state, including reading the source, but without the post-net
on the finished utterance; the rate is the number of steps divided by the total time. On a CPU it is the CPU time of the
thread, on a GPU wall time. All models take turns in one process; the median of 3 to 31 rounds is reported. Ratio = time
of fairseq / time of ours.

"fairseq" is the stock `tts_transformer`, called as its own generator does: at every step it computes attention weights
for output and runs the post-net, whose result the generator drops. "fairseq (post-net once)" does all this except the
latter, as ours does: its gain is not due to attention. Our models do not output weights. "leap (exported)" is the
graphs of `leapformer export` in onnxruntime, encoder included.

FLOPs are those of a sentence: encoder, all steps of the decoder, and the post-net on the utterance. "gflop" is a
formula for the matrix products that a plan of softmax and linear attention needs (`flops`); "counted_gflop" is what
torch's FlopCounterMode counts in the same pass, with the decoding step in PyTorch. For fairseq, for softmax and for
encoders they are equal (linear encoders of fewer than 45 phonemes would use the quadratic form, which the formula does
not cover). For linear self-attention in the decoder, in every step, layer and head of D dimensions with F features, the
counter

* misses 2 F (D + 1): adding k [v, 1] to the state is element-wise;
* counts 2 C too many, where C is the model's width: the column of ones is a channel of zero weights;
* misses 2 F of rope for every key of a source, in encoders and in cross-attention: its normalizer, whose features
  differ, is summed without a product.

A plan is not reported if its decoder, step by step, differs from its full forward pass in float64.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ...attention import LinearMechanism, find
from ...attention.ops import cpu
from ...modules import BLOCKS
from ...support.errors import LeapformerError
from . import measure
from .tables import Results, Shown

FAIRSEQ, ONCE, EXPORTED = "fairseq", "fairseq (post-net once)", "leap (exported)"
SIZES: dict[str, Any] = {
    "n_frames_per_step": 4,
    "max_source_positions": 1024,
    "max_target_positions": 1200,
    "length_predictor": "ratio",
    "length_ratio": 1.5,
}  # else those of the preset leapformer_tts
PARITY_SIZES = {
    **{f"{side}_transformer_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_embed_dim": 32 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_embed_dim": 48 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
    "prenet_dropout": 0.0,  # active at inference otherwise
}
PARITY = 1e-10
SYMBOLS = 70  # phonemes and marks
SECONDS = 0.3  # per step of a case
COUNTED_STEPS = 200  # of longer cases there is the formula only: counting takes longer than computing
MECHANISMS_MEASURED = (  # by default
    "softmax", "leap", "relu", "cosformer", "cosformer/relu/cosformer", "cosformer/softmax/cosformer",
    "softmax/softmax/cosformer", "softmax/softmax/leap",
)  # fmt: skip
TITLE = "Whole models: speed and FLOPs of text to speech"
TABLES = (
    Shown("Decoder: times as fast as fairseq", "decoders", "ratio", "it/s", FAIRSEQ),
    Shown("Decoder: steps per second", "decoders", "it/s", "it/s", FAIRSEQ),
    Shown("Encoder: times as fast as fairseq", "encoders", "ratio", "it/s", FAIRSEQ),
    Shown("Encoder: sentences per second", "encoders", "it/s", "it/s", FAIRSEQ),
    Shown("A sentence, by the formula: GFLOP", "flops", "gflop", "gflop", FAIRSEQ),
    Shown("A sentence, counted by torch: GFLOP", "flops", "counted_gflop", "counted_gflop", FAIRSEQ),
)
Models = Mapping[str, Any]


class Case(NamedTuple):
    """Phonemes of a sentence, and the decoder steps for it."""

    source: int
    steps: int

    def __str__(self) -> str:
        return f"{self.source:,} phonemes, {self.steps:,} steps"


CASES, QUICK_CASES = (Case(100, 150), Case(400, 600)), (Case(50, 75),)
# fairseq's time over that of leap, at least; it grows with the length
AIMS_PLAN, AIMS = "leap", {Case(100, 150): 1.07, Case(400, 600): 1.07}


def plan_of(name: str) -> dict[str, str]:
    """Parse a plan, "encoder/decoder/cross" or one mechanism for all: argument of the block -> mechanism.

    Raises LeapformerError for an unknown mechanism or another number of blocks.
    """
    mechanisms = name.split("/") if "/" in name else [name] * len(BLOCKS)
    if len(mechanisms) != len(BLOCKS):
        raise LeapformerError(
            f"plan {name!r} names {len(mechanisms)} blocks; give encoder/decoder/cross, e.g. softmax/softmax/leap, or "
            "one mechanism for all three"
        )
    for mechanism in mechanisms:
        find(mechanism)
    return {block.argument: mechanism for block, mechanism in zip(BLOCKS, mechanisms, strict=True)}


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `decoders`, `encoders` and `flops`. The plans must have passed `disagreement`."""
    sizes, share = (QUICK_CASES, 0.1) if quick else (CASES, 1.0)
    for place in places:
        models = cache(partial(_models, names, place))
        for case in sizes:
            yield measure.Case(f"{place}: {case}", partial(_times, case, models, place, share * SECONDS * case.steps))
    for case in sizes:
        yield measure.case(f"FLOPs: {case}", "flops", sentences, case, names)


def _models(names: list[str], place: measure.Place) -> dict[str, Any]:
    return {name: make(name, place) for name in (FAIRSEQ, ONCE, *names)}


def _times(case: Case, models: Callable[[], dict[str, Any]], place: measure.Place, seconds: float) -> Results:
    if _is_exported(models(), place):
        _exported()  # which takes long and is cached, so it must not be part of a timing
    return {
        "decoders": decoders(case, models(), place, seconds),
        "encoders": encoders(case, models(), place, seconds / 10),
    }


@torch.no_grad()
def disagreement(name: str) -> str | None:
    """Say how the decoder with this plan, step by step, differs from a single pass; None if it does not."""
    torch.manual_seed(0)
    place, steps = measure.Place(torch.device("cpu"), torch.float64), 12
    model = make(name, place, **PARITY_SIZES)
    encoder_out = model.forward_encoder(*phonemes(Case(8, steps), place.device))
    frames = decode(model, encoder_out, steps)
    previous = torch.cat([torch.zeros_like(frames[:, :1]), frames[:, :-1]], 1)
    _, _, extra = model.decoder(previous, encoder_out=encoder_out, target_lengths=torch.tensor([steps]))
    error = float((extra["feature_out"] - frames).abs().max())
    return None if error < PARITY else f"its decoder differs by {error:.1e} step by step"


def arguments(name: str, **sizes: Any) -> Namespace:
    """The options of a model with this plan; fairseq's model has softmax everywhere."""
    from ...models.tts import leapformer_tts

    stock = name in (FAIRSEQ, ONCE)
    plan = plan_of("softmax" if stock else name)
    args = Namespace(arch="tts_transformer" if stock else "leapformer_tts", **{**SIZES, **sizes}, **plan)
    leapformer_tts(args)
    return args


def make(name: str, place: measure.Place, **sizes: Any) -> Any:
    """Build a model, by default of the benchmark's size; "fairseq" is the stock one."""
    model = measure.untrained(arguments(name, **sizes), SYMBOLS, lambda args: None).to(*place).eval()
    if name == ONCE:
        model.decoder.postnet = nn.Identity()  # its generator drops the post-net's result
    elif name != FAIRSEQ:
        model.compose_attention(False)
    return model


def phonemes(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """A random sentence (1, S), and its length (1,)."""
    return torch.randint(4, 4 + SYMBOLS, (1, case.source), device=device), torch.tensor([case.source], device=device)


def decode(model: Any, encoder_out: dict[str, list[Any]], steps: int) -> Tensor:
    """Decode frames (1, T, F) before the post-net, as fairseq's generator and ours do for one sentence."""
    state: dict[str, Any] = {}
    step = encoder_out["encoder_out"][0].new_zeros(1, 1, model.decoder.out_dim)
    frames = []
    for t in range(1, steps + 1):
        so_far = torch.tensor([t], device=step.device)
        _, _, extra = model.decoder(step, encoder_out=encoder_out, incremental_state=state, target_lengths=so_far)
        step = extra["feature_out"]
        frames.append(step)
    return torch.cat(frames, 1)


@torch.no_grad()
def decoders(case: Case, models: Models, place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Measure steps per second of every decoder; fairseq's is in the first row."""
    sentence = phonemes(case, place.device)
    calls = {
        name: partial(measure.timed, place.device, decode, model, model.forward_encoder(*sentence), case.steps)
        for name, model in models.items()
    }
    if _is_exported(models, place):
        calls[EXPORTED] = partial(measure.timed, place.device, _exported(), sentence[0], case.steps)
    aims = {AIMS_PLAN: AIMS.get(case)} if place.has_aims else {}
    return _rates(measure.medians(calls, seconds), case.steps, case, place, aims)


def _is_exported(models: Models, place: measure.Place) -> bool:
    return AIMS_PLAN in models and place == measure.Place(torch.device("cpu"))


@cache
def _exported() -> Callable[[Tensor, int], object]:
    """A model with leap in onnxruntime, with one thread: a function of phonemes (1, S) and the number of steps."""
    from ...export.write import write_synthesis
    from ...runtime.folder import SYNTHESIS, Folder
    from ...runtime.spoken import Manner
    from ...runtime.voice import ExportedVoice

    model = make(AIMS_PLAN, measure.Place(torch.device("cpu"), torch.float32)).requires_grad_(False)
    with TemporaryDirectory() as folder:
        states, speaking = write_synthesis(model, Path(folder))
        voice = ExportedVoice(Folder(Path(folder), SYNTHESIS, states, {}, 0, "", {}, speaking=speaking))

    def steps(phonemes: Tensor, count: int) -> object:
        rng, never = np.random.default_rng(0), Manner(threshold=2.0, max_steps=count)
        return voice.steps(voice.graphs.read(phonemes.numpy()), never, rng)

    return steps


@torch.no_grad()
def encoders(case: Case, models: Models, place: measure.Place, seconds: float) -> list[dict[str, Any]]:
    """Measure sentences per second of every encoder; fairseq's is in the first row."""
    sentence = phonemes(case, place.device)
    calls = {
        name: partial(measure.timed, place.device, model.forward_encoder, *sentence)
        for name, model in models.items()
        if name != ONCE  # the same encoder
    }
    return _rates(measure.medians(calls, seconds), 1, case, place, {})


@torch.no_grad()
def sentences(case: Case, names: list[str]) -> list[dict[str, Any]]:
    """GFLOP per sentence of every model, by the formula and as counted; fairseq's is in the first row."""
    place, rows = measure.Place(torch.device("cpu")), []
    for name in (FAIRSEQ, *names):
        parts = {} if has_no_formula(name) else flops(arguments(name), case)
        seen = counted(make(name, place), case) if case.steps <= COUNTED_STEPS else None
        rows.append(
            {
                **_labels(case, place, name),
                **{f"{part}_gflop": count / 1e9 for part, count in parts.items()},
                "gflop": sum(parts.values()) / 1e9 if parts else None,
                "counted_gflop": None if seen is None else seen / 1e9,
            }
        )
    return rows


def has_no_formula(name: str) -> bool:
    """Whether `flops` does not cover a mechanism of this plan, such as a bounded memory."""
    mechanisms = {find(mechanism) for mechanism in plan_of(name).values()} if name != FAIRSEQ else set()
    return not all(cls.name == "softmax" or issubclass(cls, LinearMechanism) for cls in mechanisms)


def flops(args: Namespace, case: Case) -> dict[str, int]:
    """Multiplications and additions in the matrix products of one sentence, by part of the model.

    A map from n to m numbers costs 2 n m per row, a convolution of width w costs w times as much; biases, norms,
    activations and all other element-wise operations are left out. Softmax attention with D dimensions per head costs 4
    D for every visible pair of query and key. Linear attention with F features costs 2 F (D + 1) for every key, which
    is added to the state, and as much for every query, which reads it. leap costs an additional 2 h (D + 1) for each
    query and each key, for a network of h units. fairseq's own generator runs the post-net at each step, and once more
    over all.
    """
    source, steps = case
    encoder, decoder, frame = args.encoder_embed_dim, args.decoder_embed_dim, args.output_frame_dim
    frame *= args.n_frames_per_step
    # multiplications; as many additions
    convolutions = args.encoder_conv_layers * args.encoder_conv_kernel_size * encoder**2
    encoder_layer = source * (4 * encoder**2 + 2 * encoder * args.encoder_ffn_embed_dim)
    encoder_layer += _attention(args, "encoder_self", source, source, source**2)
    prenet = _chained(frame, *[args.prenet_dim] * args.prenet_layers, decoder)
    decoder_layer = steps * (6 * decoder**2 + 2 * decoder * args.decoder_ffn_embed_dim) + source * 2 * encoder * decoder
    decoder_layer += _attention(args, "decoder_self", steps, steps, steps * (steps + 1) // 2)
    decoder_layer += _attention(args, "decoder_cross", steps, source, steps * source)
    postnet = args.postnet_conv_kernel_size * _chained(
        frame, *[args.postnet_conv_dim] * (args.postnet_layers - 1), frame
    )
    refined = steps * (2 if args.arch == "tts_transformer" else 1)
    return {
        "encoder": 2 * (source * (convolutions + encoder**2) + args.encoder_transformer_layers * encoder_layer),
        "decoder": 2 * (steps * (prenet + decoder * (frame + 1)) + args.decoder_transformer_layers * decoder_layer),
        "postnet": 2 * refined * postnet,
    }


@torch.no_grad()
def counted(model: Any, case: Case) -> int:
    """FLOPs of one sentence counted by torch, with the decoding step in PyTorch.

    The counter supports attention on a GPU, but not torch's fused attention on a CPU, so we register it here.
    """

    def attention(q: Any, k: Any, v: Any, *unused: Any, **others: Any) -> int:
        return sdpa_flop_count(q, k, v)

    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}
    with cpu.turned_off(), FlopCounterMode(display=False, custom_mapping=fused) as counter:
        encoder_out = model.forward_encoder(*phonemes(case, torch.device("cpu")))
        model.decoder.postnet(decode(model, encoder_out, case.steps))
    return counter.get_total_flops()


def _attention(args: Namespace, block: str, queries: int, keys: int, pairs: int) -> int:
    """Multiplications of one layer's attention, without projections; `pairs` is the number that softmax computes."""
    name, side = getattr(args, f"{block}_attention"), block.partition("_")[0]
    width, heads = getattr(args, f"{side}_embed_dim"), getattr(args, f"{side}_attention_heads")
    dim, mechanism = width // heads, find(name)
    if not issubclass(mechanism, LinearMechanism):
        return 2 * width * pairs
    network = dim // args.leap_factor * (dim + 1) if name == "leap" else 0
    return heads * (queries + keys) * (dim * mechanism.features_per_dim * (dim + 1) + network)


def _chained(*widths: int) -> int:
    """Multiplications of consecutive maps, per token."""
    return sum(before * after for before, after in pairwise(widths))


def _rates(
    medians: dict[str, measure.Seconds],
    iterations: int,
    case: Case,
    place: measure.Place,
    aims: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    (base,) = medians[FAIRSEQ]
    return [
        {
            **_labels(case, place, name),
            "it/s": iterations / seconds,
            "ratio": base / seconds,
            "aim": aims.get(name),
        }
        for name, (seconds,) in medians.items()
    ]


def _labels(case: Case, place: measure.Place, name: str) -> dict[str, Any]:
    return {"device": str(place), "case": str(case), **case._asdict(), "mechanism": name}
