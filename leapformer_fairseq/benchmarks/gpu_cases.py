"""What `gpu` checks and times: sizes, mechanisms, masks, and a block of causal self-attention without fairseq."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..attention import CAUSAL, MECHANISMS, Mask, Mechanism, PrefixMask, Projections, State, Step, TokenInfo, build

Row = dict[str, Any]

NAMES = tuple(sorted(MECHANISMS))
MAIN = ("leap", "relu", "cosformer", "abc-mlp", "luna")  # timed first
OTHERS = tuple(name for name in NAMES if name not in (*MAIN, "softmax"))
KINDS: dict[str, Mask] = {"causal": CAUSAL, "bidirectional": None, "wait-k": PrefixMask(lagging=3, ratio=8)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Task(NamedTuple):
    """One case. `seconds` is about what it takes on a GPU; it is left out where less is left."""

    section: str
    case: str
    run: Callable[[], list[Row]]
    seconds: float = 1.0


@dataclass(frozen=True)
class Sizes:
    """Sizes of everything.

    tokens:        of a check, no multiple of any chunk; `memory` those of which the peak is taken, the second longer.
    lengths:       timed; the first ones are timed first. `batch_tokens` of all sequences together are timed at once.
    train_lengths: of the language model, of which `batch_tokens` make a batch.
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
    heads=2,
    dim=16,
    tokens=53,
    memory=(256, 1024),
    lengths=(128, 256),
    batch_tokens=256,
    layers=2,
    train_lengths=(128, 256),
    batches=(1, 8),
    contexts=(64,),
    cross=(32, 64),
    seconds=0.05,
)


def make(name: str, sizes: Sizes, device: torch.device, block: str | None = None) -> Mechanism:
    """A mechanism that can hold the longest sequence here."""
    share = -(-sizes.longest // 8)
    options: dict[str, dict[str, Any]] = {
        "cosformer": {"cosformer_length": sizes.longest},
        "abc-linformer": {"abc_max_length": sizes.longest},
        "abc-pool": {"abc_pool_size": share},
        "abc-global": {"abc_global_every": share},
        "luna": {"luna_packed": "learned"},
    }
    return build(name, sizes.dim, sizes.heads, block=block, **options.get(name, {})).to(device)


def serves(name: str, kind: str, sizes: Sizes) -> bool:
    mechanism = make(name, sizes, torch.device("cpu"))
    return mechanism.capabilities.unsupported_reason(None, KINDS[kind]) is None


def inputs(
    sizes: Sizes, kind: str, tokens: int, batch: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, (batch, heads, tokens, dim), that want gradients; under wait-k there are eight keys for a query."""
    queries = max(1, tokens // 8) if kind == "wait-k" else tokens
    shapes = ((batch, sizes.heads, count, sizes.dim) for count in (queries, tokens, tokens))
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes)
    return q, k, v


def one_line(error: BaseException) -> str:
    """An error for a cell of a table."""
    first = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {first[:200]}"


class Block(nn.Module):
    """Causal self-attention with its projections, as language models have it."""

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
        """All tokens x, (B, T, C), at once."""
        q, k, v, tokens = self._projected(x, 0)
        out = self.mechanism(q, k, v, query=tokens, key=tokens, mask=CAUSAL, execution=execution)
        return cast(Tensor, self.out(out.transpose(1, 2).flatten(2)))

    def extend(self, x: Tensor, state: State, seen: int) -> tuple[Tensor, State]:
        """Further tokens x, (B, T, C), after `seen` ones: their output, and the state after them."""
        q, k, v, tokens = self._projected(x, seen)
        out, state = self.mechanism.scan(state, q, k, v, tokens, tokens, CAUSAL)
        return self.out(out.transpose(1, 2).flatten(2)), state

    def empty(self, x: Tensor) -> State:
        """The state of sequences like x, (B, .., C), before their first token."""
        return self.mechanism.init_state(len(x), x.shape[-1] // self.heads, x, mask=CAUSAL)

    def step(self) -> Step | None:
        """The fused step."""
        return self.mechanism.step(self.projections())

    def _projected(self, x: Tensor, seen: int) -> tuple[Tensor, Tensor, Tensor, TokenInfo]:
        q, v = self._split(self.q(x)), self._split(self.v(x))
        k = v if self.mechanism.capabilities.keys_are_values else self._split(self.k(x))
        positions = torch.arange(seen + 1, seen + x.shape[1] + 1, device=x.device)
        return q, k, v, replace(TokenInfo(positions.unsqueeze(0)), inputs=x)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
