"""Streaming encoders: causal, or in chunks that see themselves and everything before them.

Shapes: T encoder states (40 ms each) of B utterances, C width.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..attention import ChunkMask, State, TokenInfo
from ..runtime.audio import UNIT_MS
from ..support.errors import LeapformerError


@dataclass
class ArrivingSource:
    """The state of an encoder for one utterance whose frames are arriving; nothing in it grows with the audio.

    frames:  (up to 7, n_bins), the last four that were convolved, then those that are too few for a state.
    fresh:   the number of frames that were not convolved yet.
    waiting: (m, 1, C), convolved frames that wait for the rest of their chunk, or for its look-ahead.
    n_states: the number of convolved frames so far.
    states:  the state of each attention layer.
    """

    frames: Tensor | None = None
    fresh: int = 0
    waiting: Tensor | None = None
    n_states: int = 0
    states: dict[str, State] = field(default_factory=dict)

    def fork(self) -> ArrivingSource:
        """An independent copy."""
        states = {name: state.fork() for name, state in self.states.items()}
        return ArrivingSource(self.frames, self.fresh, self.waiting, self.n_states, states)


def add_chunk_args(parser: ArgumentParser) -> None:
    """Declare the options of streaming encoders, without defaults."""
    parser.add_argument(
        "--encoder-causal",
        action="store_true",
        help="no encoder state sees what comes after it, so that arriving speech is encoded once",
    )
    for name, text in (
        ("chunk", "encoder states see all of their chunk of this length and what was before it"),
        ("right-context", "a chunk also sees this much after it (default: 0)"),
        ("past", "softmax sees this much before a chunk; other mechanisms see all of it (default: 10000)"),
    ):
        parser.add_argument(f"--encoder-{name}-ms", type=int, metavar="MS", help=f"{text}; a multiple of {UNIT_MS}")


def fill_chunk_args(args: Namespace) -> None:
    """Set the defaults: an encoder that sees whole utterances."""
    for name, default in (("causal", False), ("chunk_ms", None), ("right_context_ms", None), ("past_ms", None)):
        setattr(args, f"encoder_{name}", getattr(args, f"encoder_{name}", default))


def chunks_of(args: Namespace) -> ChunkMask | None:
    """The chunk mask of an encoder with these arguments; None: it sees whole utterances.

    Raises LeapformerError for lengths that are not a whole number of states, or that contradict each other.
    """
    causal = args.encoder_causal
    chunk, ahead, past = (
        _in_states(f"--encoder-{name}-ms", value)
        for name, value in (
            ("chunk", args.encoder_chunk_ms),
            ("right-context", args.encoder_right_context_ms),
            ("past", args.encoder_past_ms),
        )
    )
    if not causal and not chunk:
        if ahead or past is not None:
            raise LeapformerError(
                "--encoder-right-context-ms and --encoder-past-ms belong to an encoder in chunks; give "
                "--encoder-chunk-ms, too"
            )
        return None
    if causal and (chunk or ahead):
        raise LeapformerError(
            "--encoder-causal sees no chunk and nothing ahead; leave it out, or --encoder-chunk-ms and "
            "--encoder-right-context-ms"
        )
    return ChunkMask(chunk or 1, ahead or 0, 10_000 // UNIT_MS if past is None else past)


def _in_states(flag: str, ms: int | None) -> int | None:
    if ms is not None and (ms < 0 or ms % UNIT_MS):
        raise LeapformerError(f"{flag} {ms}: give a multiple of {UNIT_MS}, the milliseconds of an encoder state")
    return None if ms is None else ms // UNIT_MS


def laid_out(
    x: Tensor, count: int, chunks: ChunkMask, before: int = 0, keep: Tensor | None = None
) -> tuple[Tensor, TokenInfo]:
    """The first `count` states of (T, B, C) in chunks, each with a copy of its look-ahead, and their positions.

    The result is (T', B, C). `before` states came earlier. `keep` (B, T) is True at real states; None: all are.
    """
    places, there = torch.arange(count, device=x.device), None
    if chunks.ahead:
        starts = torch.arange(0, count, chunks.size, device=x.device)
        places = (starts.unsqueeze(1) + torch.arange(chunks.tokens, device=x.device)).flatten()
        there, places = (places < len(x)).unsqueeze(0), places.clamp_max(len(x) - 1)
        x = x[places]
    if keep is None:
        return x[: len(places)], TokenInfo(before + 1 + places.unsqueeze(0), None, there)
    kept = keep[:, places]
    return x, TokenInfo(keep.long().cumsum(1)[:, places], keep.sum(1), kept if there is None else kept & there)


def taken_back(x: Tensor, count: int, chunks: ChunkMask) -> Tensor:
    """States in chunks (T', B, C) without the copies of the look-ahead, (count, B, C)."""
    if not chunks.ahead:
        return x
    return x[chunks.own(len(x), x.device)][:count]
