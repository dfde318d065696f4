"""Streaming encoders: causal ones, and ones in chunks that see themselves, some look-ahead and everything before.

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
    """The state of a streaming encoder for one utterance; its size does not grow with the audio.

    frames:   (up to 7, n_bins), the last four convolved frames, then those that do not fill a state yet.
    fresh:    the number of the latter.
    waiting:  (m, 1, C), inputs of the first layer that wait for the rest of their chunk, or for its look-ahead.
    n_states: the number of such inputs so far, including those that were encoded.
    states:   the state of each attention layer, by its name.
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
        help="no encoder state sees later ones, so that arriving speech is encoded only once",
    )
    for name, text in (
        ("chunk", "encoder states see their whole chunk of this length and everything before it"),
        ("right-context", "look-ahead of a chunk (default: 0)"),
        ("past", "softmax sees this much before a chunk; other mechanisms see everything (default: 10000)"),
    ):
        parser.add_argument(f"--encoder-{name}-ms", type=int, metavar="MS", help=f"{text}; a multiple of {UNIT_MS}")


def fill_chunk_args(args: Namespace) -> None:
    """Fill unset options: by default, a full-context encoder."""
    for name, default in (("causal", False), ("chunk_ms", None), ("right_context_ms", None), ("past_ms", None)):
        setattr(args, f"encoder_{name}", getattr(args, f"encoder_{name}", default))


def chunks_of(args: Namespace) -> ChunkMask | None:
    """The chunk mask of an encoder with these options; None for a full-context encoder.

    Raises LeapformerError for durations that are not a multiple of a state's, and for options that exclude each other.
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
            "--encoder-causal has neither chunks nor look-ahead; leave it out, or --encoder-chunk-ms and "
            "--encoder-right-context-ms"
        )
    # A causal encoder has chunks of a single state.
    return ChunkMask(chunk or 1, ahead or 0, 10_000 // UNIT_MS if past is None else past)


def _in_states(flag: str, ms: int | None) -> int | None:
    if ms is not None and (ms < 0 or ms % UNIT_MS):
        raise LeapformerError(f"{flag} {ms}: give a multiple of {UNIT_MS}, the milliseconds of an encoder state")
    return None if ms is None else ms // UNIT_MS


def lay_out_chunks(
    x: Tensor, count: int, chunks: ChunkMask, before: int = 0, keep: Tensor | None = None
) -> tuple[Tensor, TokenInfo]:
    """Lay out the first `count` states of x (T, B, C) in chunks, each followed by a copy of its look-ahead.

    Returns states (T', B, C) and their positions, lengths and padding. `before` states came earlier. `keep` (B, T) is
    True at real states; None: all are.
    """
    indices, exists = torch.arange(count, device=x.device), None
    if chunks.ahead:
        starts = torch.arange(0, count, chunks.size, device=x.device)
        indices = (starts.unsqueeze(1) + torch.arange(chunks.tokens, device=x.device)).flatten()
        # The last chunk and its look-ahead may reach beyond the end: such copies are padding.
        exists, indices = (indices < len(x)).unsqueeze(0), indices.clamp_max(len(x) - 1)
        x = x[indices]
    if keep is None:  # positions count from 1
        return x[: len(indices)], TokenInfo(before + 1 + indices.unsqueeze(0), None, exists)
    kept = keep[:, indices]
    return x, TokenInfo(keep.long().cumsum(1)[:, indices], keep.sum(1), kept if exists is None else kept & exists)


def drop_look_ahead(x: Tensor, count: int, chunks: ChunkMask) -> Tensor:
    """Undo `lay_out_chunks`: states (count, B, C) without the copies of the look-ahead."""
    if not chunks.ahead:
        return x
    return x[chunks.own(len(x), x.device)][:count]
