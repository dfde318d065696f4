"""Common parts of the GPU benchmark: cases, sizes, masks, inputs, and a self-attention block without fairseq."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...attention import (
    CAUSAL,
    MECHANISMS,
    Mask,
    Mechanism,
    PrefixMask,
    Projections,
    State,
    Step,
    TokenInfo,
    build,
    step_of,
)
from ...attention.sparse.pattern import Pattern

Row = dict[str, Any]

SOFTMAX = "softmax"
# without sparsity patterns, whose edges depend on rounding; `leapformer bench sparse` measures those
NAMES = tuple(sorted(name for name, cls in MECHANISMS.items() if not issubclass(cls, Pattern)))
KINDS: dict[str, Mask] = {"causal": CAUSAL, "bidirectional": None, "wait-k": PrefixMask(lagging=3, ratio=8)}
# thresholds that force one implementation
NO_PAIRS: dict[str, Any] = {"pairs": 0, "pairs_per_token": 0}
KEPT = {**NO_PAIRS, "kept_numbers": 10**12, "kept_slot_tokens": 10**12}
AGAIN = {**NO_PAIRS, "kept_numbers": 0, "kept_slot_tokens": 0}


class Task(NamedTuple):
    """A case. `seconds` is its approximate time on a GPU; it is skipped if less time is left."""

    section: str
    case: str
    run: Callable[[], list[Row]]
    seconds: float = 1.0


@dataclass(frozen=True)
class Sizes:
    """The sizes of checks and timings.

    tokens:        per sequence in checks, not a multiple of any chunk.
    memory:        tokens of the short and the long sequence whose peak memory is compared.
    lengths:       tokens per sequence in timings, in their order; a call has `batch_tokens` in total.
    train_lengths: tokens per sequence of the language model, with `batch_tokens` per batch.
    contexts:      tokens before a decoding step.
    cross:         lengths at which all pairs are compared with chunks.
    """

    heads: int = 8
    dim: int = 64
    tokens: int = 333
    memory: tuple[int, int] = (8192, 32768)
    lengths: tuple[int, ...] = (2048, 8192, 512, 32768, 1024, 4096, 16384)
    batch_tokens: int = 32768
    layers: int = 4
    train_lengths: tuple[int, ...] = (4096, 1024, 16384)
    batches: tuple[int, ...] = (1, 8, 64)
    contexts: tuple[int, ...] = (1024, 16384)
    cross: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    seconds: float = 1.0

    @property
    def longest(self) -> int:
        return max(*self.lengths, *self.memory, *self.train_lengths, *self.contexts, *self.cross) + 1


FULL = Sizes()
FAST = Sizes(
    heads=2, dim=16, tokens=53, memory=(256, 1024), lengths=(128, 256), batch_tokens=256, layers=2,
    train_lengths=(128, 256), batches=(1, 8), contexts=(64,), cross=(32, 64), seconds=0.05,
)  # fmt: skip


def make(name: str, sizes: Sizes, device: torch.device, block: str | None = None) -> Mechanism:
    """Build a mechanism that supports the longest sequence and needs no encoder."""
    longest, share = sizes.longest, -(-sizes.longest // 8)
    unlimited = ("cosformer_length", "abc_max_length", "sinkhorn_max_length", "synthesizer_max_length")
    room = {**dict.fromkeys(unlimited, longest), "abc_pool_size": share, "abc_global_every": share}
    alone = {option.name: option.without_encoder for option in MECHANISMS[name].options}
    chosen = {option: room.get(option, value) for option, value in alone.items()}
    options: dict[str, Any] = {option: value for option, value in chosen.items() if value is not None}
    return build(name, sizes.dim, sizes.heads, block=block, **options).to(device)


def serving(kind: str, sizes: Sizes) -> list[str]:
    """The mechanisms that support a kind of mask."""
    mechanisms = {name: make(name, sizes, torch.device("cpu")) for name in NAMES}
    return [name for name, x in mechanisms.items() if x.capabilities.unsupported_reason(None, KINDS[kind]) is None]


def lengths(kind: str, tokens: int) -> tuple[int, int]:
    """Number of queries and keys; under wait-k there are eight keys per query."""
    return (max(1, tokens // 8) if kind == "wait-k" else tokens), tokens


def inputs(
    sizes: Sizes, kind: str, tokens: int, batch: int | None, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Random q, k and v, (batch, heads, tokens, dim), that require gradients; by default with `batch_tokens` tokens."""
    batch, (queries, keys) = batch or max(1, sizes.batch_tokens // tokens), lengths(kind, tokens)
    shapes = ((batch, sizes.heads, count, sizes.dim) for count in (queries, keys, keys))
    return tuple(torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes)


def one_line(error: BaseException) -> str:
    """An error message for a table cell."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:200]}"


class Block(nn.Module):
    """Causal self-attention with its projections, as in language models."""

    def __init__(self, name: str, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        width = sizes.heads * sizes.dim
        self.heads = sizes.heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, device=device) for _ in range(4))
        self.mechanism = make(name, sizes, device, block="decoder-self")
        self.mechanism.receive(self.projections())

    def projections(self) -> Projections:
        return Projections(self.q, self.out, self.k, self.v)

    def forward(self, x: Tensor, execution: Any = "auto") -> Tensor:
        """Process all tokens x, (B, T, C), in one pass."""
        q, k, v, tokens = self._projected(x, 0)
        out = self.mechanism(q, k, v, query=tokens, key=tokens, mask=CAUSAL, execution=execution)
        return cast(Tensor, self.out(out.transpose(1, 2).flatten(2)))

    def extend(self, x: Tensor, state: State, seen: int) -> tuple[Tensor, State]:
        """Process more tokens x, (B, T, C), after `seen` ones: their outputs, and the new state."""
        q, k, v, tokens = self._projected(x, seen)
        out, state = self.mechanism.scan_(state, q, k, v, tokens, tokens, CAUSAL)
        return self.out(out.transpose(1, 2).flatten(2)), state

    def empty(self, x: Tensor) -> State:
        """The initial state for sequences like x, (B, .., C)."""
        return self.mechanism.init_state(len(x), x.shape[-1] // self.heads, x, mask=CAUSAL)

    def step(self) -> Step | None:
        """The fused step."""
        return step_of(self.mechanism, self.projections())

    def _projected(self, x: Tensor, seen: int) -> tuple[Tensor, Tensor, Tensor, TokenInfo]:
        q, v = self._split(self.q(x)), self._split(self.v(x))
        k = v if self.mechanism.capabilities.keys_are_values else self._split(self.k(x))
        positions = torch.arange(seen + 1, seen + x.shape[1] + 1, device=x.device)
        return q, k, v, replace(TokenInfo(positions.unsqueeze(0)), inputs=x)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
