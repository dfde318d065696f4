"""Speed and memory of a training step of a language model, compared with fairseq's own model.

Method: 16 layers, 512 wide, feed-forward 2,048, 8 heads, pre-norm, no dropout, a vocabulary of 8,000, 4,096 tokens per
batch, float32 unless the device says otherwise, one thread. A measurement is one forward pass with the loss and one
backward pass with all gradients. On a CPU it is the CPU time of the thread, on a GPU wall time. All models take turns
in one process; the median is reported. "fairseq" is the stock `transformer_lm`; ratio = its time / time of ours.

Memory is the peak above the model and its gradients of one such step in a fresh process; ratio = memory of ours /
memory of fairseq.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from . import attention, measure
from .tables import Shown

FAIRSEQ = "fairseq"
SIZES = {
    "decoder_layers": 16,
    "decoder_embed_dim": 512,
    "decoder_ffn_embed_dim": 2048,
    "decoder_attention_heads": 8,
    "share_decoder_input_output_embed": True,
    "dropout": 0.0,
    "cosformer_length": 8192,
}
QUICK_SIZES = {**SIZES, "decoder_layers": 2, "decoder_embed_dim": 64, "decoder_ffn_embed_dim": 128}
VOCABULARY, TOKENS = 8000, 4096
SECONDS = 150.0  # per case
MECHANISMS_MEASURED = ("softmax", "leap")  # by default
TITLE = "Training: speed and memory of a language model"
TABLES = (
    Shown("A training step: times as fast as fairseq", "times", "ratio", "seconds", FAIRSEQ),
    Shown("Peak memory of a training step: times that of fairseq", "memory", "ratio", "peak_mib", FAIRSEQ),
)


class Case(NamedTuple):
    """Tokens per sample; a batch has TOKENS in total."""

    length: int

    def __str__(self) -> str:
        return f"{self.length:,} tokens per sample"


CASES, QUICK_CASES = (Case(512), Case(4096)), (Case(256),)
# fairseq's time over that of leap, at least; and memory of leap over that of fairseq, at most
AIMS, MEMORY_AIMS = {Case(512): 1.0, Case(4096): 2.0}, {Case(4096): 1.0}


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `times` and `memory`."""
    sizes, seconds = (QUICK_CASES, SECONDS / 20) if quick else (CASES, SECONDS)
    for place in places:
        for case in sizes:
            yield measure.case(f"{place}: {case}", "times", times, case, names, place, seconds, quick)
            yield measure.case(f"{place}: memory, {case}", "memory", memory, case, names, place, quick)


def disagreement(name: str) -> str | None:
    """As `attention.disagreement`. Raises LeapformerError for a mechanism that language models do not support."""
    make(name, measure.Place(torch.device("cpu")), True, 16)
    return attention.disagreement(name)


def make(name: str, place: measure.Place, quick: bool, length: int) -> nn.Module:
    """Build a language model with one mechanism in all layers; "fairseq" is the stock one."""
    from fairseq.models.transformer_lm import base_lm_architecture

    arch = "transformer_lm" if name == FAIRSEQ else "leapformer_lm"
    args = Namespace(arch=arch, tokens_per_sample=length, **(QUICK_SIZES if quick else SIZES))
    args.decoder_self_attention = name
    model: nn.Module = measure.untrained(args, VOCABULARY, base_lm_architecture)
    return model.to(*place).train()


def times(case: Case, names: list[str], place: measure.Place, seconds: float, quick: bool) -> list[dict[str, Any]]:
    """Time a training step of every model, in seconds and tokens per second; fairseq's is in the first row."""
    calls = {
        name: partial(_step, make(name, place, quick, case.length), case, place.device) for name in (FAIRSEQ, *names)
    }
    medians = measure.medians(calls, seconds)
    (base,) = medians[FAIRSEQ]
    return [
        {
            **_labels(case, place, name),
            "seconds": step,
            "tokens_per_second": TOKENS / step,
            "ratio": base / step,
            "aim": AIMS.get(case) if name == "leap" and place.has_aims and not quick else None,
        }
        for name, (step,) in medians.items()
    ]


def memory(case: Case, names: list[str], place: measure.Place, quick: bool) -> list[dict[str, Any]]:
    """Measure peak MiB above the model and its gradients; no rows if it is unknown."""
    aimed = place.has_aims and not quick
    return measure.peak_rows(
        (FAIRSEQ, *names), FAIRSEQ, lambda name: _labels(case, place, name), peak_of_step, case, str(place), quick,
        aim=lambda name: MEMORY_AIMS.get(case) if name == "leap" and aimed else None,
    )  # fmt: skip


def peak_of_step(name: str, case: Case, place_name: str, quick: bool) -> int | None:
    """Peak bytes above the model and its gradients; to be called in a fresh process."""
    torch.set_num_threads(1)
    place = measure.Place.parse(place_name)
    model = make(name, place, quick, case.length)
    _step(model, Case(64), place.device, tokens=64)  # allocates gradients, and loads libraries
    with measure.peak_growth(place.device) as growth:
        _step(model, case, place.device)
    return growth()


def _step(model: nn.Module, case: Case, device: torch.device, tokens: int = TOKENS) -> measure.Seconds:
    """Time loss and gradients of one batch; gradients are zeroed in place, since a trainer keeps their memory."""
    model.zero_grad(set_to_none=False)
    batch = torch.randint(4, VOCABULARY, (tokens // case.length, case.length + 1), device=device)
    start = measure.clock(device)
    logits, _ = model(batch[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
    return (measure.clock(device) - start,)


def _labels(case: Case, place: measure.Place, mechanism: str) -> dict[str, Any]:
    return {"device": str(place), "case": str(case), **case._asdict(), "mechanism": mechanism}


__all__ = ["MECHANISMS_MEASURED", "TABLES", "TITLE", "cases", "disagreement"]
