"""Short convolutions of queries, keys and values in self-attention, for mechanisms published with them.

With a convolution, a single layer can associate a key with the value that follows it. The published models use 4 taps.
As in Yang et al., 2024, arXiv:2406.06484 and arXiv:2412.06464, there is no bias, and SiLU follows.

Shapes: B batch, H heads, T tokens, D head dimension, C channels: queries, then keys, then values of all heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...support.errors import LeapformerError
from ..capabilities import DECODER_CROSS, ENCODER_SELF
from ..kernels import RecurrentKernel
from ..linear.base import LinearState
from ..masks import CAUSAL, ChunkMask, Mask
from ..mechanism import Inputs, State, shown
from ..ops.precision import accumulated, without_autocast
from ..options import Option
from ..tokens import TokenInfo
from .normed import NormedMechanism

SHORT_CONV = Option(
    "short_conv",
    0,
    "delta rules and simple-gla, in self-attention: taps of a convolution over tokens, with SiLU, of queries, keys and "
    "values; 4 as published, 0: none. It looks back in a decoder, and to both sides in an encoder (4: 3 taps)",
)
FEWEST = 2


class ShortConvolution(nn.Module):
    """y_t = silu(sum_j w_j x_(t + j - before)), j = 0, .., before + ahead, for each channel separately.

    Zeros precede the first token and follow the last. Padding is skipped: the neighbours of a token are the nearest
    real tokens, however much padding lies between.
    """

    def __init__(self, channels: int, before: int, ahead: int = 0) -> None:
        super().__init__()
        self.before, self.ahead = before, ahead
        taps = before + 1 + ahead
        self.weight = nn.Parameter(torch.empty(taps, channels).uniform_(-(taps**-0.5), taps**-0.5))

    def forward(
        self, x: Tensor, tail: Tensor, keep: Tensor | None = None, mask: Mask = CAUSAL
    ) -> tuple[Tensor, Tensor]:
        """The convolution of tokens x (B, T, C) that follow the `tail` (B, before, C), and the next tail.

        x must be zero where `keep`, (B, T), is False. Under a causal mask no token sees one ahead of it, and under a
        ChunkMask none beyond its chunk; a chunk's copies of tokens ahead are seen in that chunk only. x may hold just
        the first channels, such as queries and keys.
        """
        count = x.shape[1]
        size, tokens = (mask.size, mask.tokens) if isinstance(mask, ChunkMask) else (count, count)
        chunks = -(-count // tokens)
        fill = chunks * tokens - count
        x = F.pad(x, (0, 0, 0, fill)).unflatten(1, (chunks, tokens))
        real = x.new_ones(1, count, dtype=torch.bool) if keep is None else keep
        real = F.pad(real, (0, fill)).unflatten(1, (chunks, tokens))
        originals, n_real = x[:, :, :size], real[:, :, :size].sum(2)  # without the copies of tokens ahead
        if keep is not None:
            if chunks > 1:
                originals = _real_first(originals.flatten(1, 2), real[:, :, :size].flatten(1, 2))
            x = _real_first(x, real)
        places = torch.arange(self.before, device=x.device)
        if chunks == 1:
            earlier, stop = tail.unsqueeze(1), n_real
        else:
            history = torch.cat([tail, originals.reshape(x.shape[0], -1, x.shape[3])], 1)
            stop = n_real.sum(1, keepdim=True)
            earlier = _gather_at(history, (n_real.cumsum(1) - n_real).unsqueeze(2) + places)
        after = [x.new_zeros(x.shape[0], chunks, self.ahead, x.shape[3])] if self.ahead else []
        rows = torch.cat([earlier, x, *after], 2)
        tail = _gather_at(rows[:, 0] if chunks == 1 else history, (stop + places).unsqueeze(1)).squeeze(1)
        y = self._weighted(rows, tokens, 0 if mask == CAUSAL else self.ahead)
        if keep is not None:
            y = _gather(y, (real.cumsum(2) - 1).clamp_min(0))
        return y.flatten(1, 2)[:, :count], tail

    def step(self, x: Tensor, tail: Tensor) -> Tensor:
        """The causal convolution of one more token x (B, C); updates the tail (B, before, C) in place."""
        rows = torch.cat([tail, x.unsqueeze(1).to(tail.dtype)], 1)
        tail.copy_(rows[:, 1:])
        return self._weighted(rows, 1, 0).squeeze(1)

    def _weighted(self, rows: Tensor, tokens: int, ahead: int) -> Tensor:
        """The convolution of `tokens` rows (.., tokens, C), which follow `before` rows; uses the first taps."""
        taps = self.weight[: self.before + 1 + ahead, : rows.shape[-1]].to(rows.dtype)
        total = rows[..., :tokens, :] * taps[0]
        for j in range(1, len(taps)):
            total = torch.addcmul(total, rows[..., j : j + tokens, :], taps[j])
        return F.silu(total)


@dataclass
class ConvolvedState(LinearState):
    """The state of the recurrence, and the last real tokens before their convolution (the tail), (B, before, C)."""

    tail: Tensor


class ConvolvedMechanism(NormedMechanism):
    """A `NormedMechanism` with the option `--short-conv`, if the subclass declares SHORT_CONV.

    Queries, keys and values of a token are convolved together, so only `scan`, not `write` and `read`, can continue a
    state. For whole sequences the convolution comes first, then the recurrence. Cross-attention has no convolution,
    because the encoder has already mixed neighbouring keys. Without a block (use as a library), the convolution is that
    of a decoder.
    """

    convolution: ShortConvolution | None

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.convolution = None
        taps = int(getattr(self.chosen, SHORT_CONV.name, 0))
        if taps and taps < FEWEST:
            raise LeapformerError(f"{SHORT_CONV.flag} {taps}: give at least {FEWEST} taps, or 0 for no convolution")
        if not taps or self.block == DECODER_CROSS:
            return
        sides = max(1, (taps - 1) // 2)
        before, ahead = (sides, sides) if self.block == ENCODER_SELF else (taps - 1, 0)
        self.convolution, self.value_dim = ShortConvolution(3 * head_dim * num_heads, before, ahead), head_dim
        if self.block is None:
            why = f"its convolution ({SHORT_CONV.flag}) is a decoder's; build it with block="
            refused = {block: f"{why}{block!r}" for block in (ENCODER_SELF, DECODER_CROSS)}
            self.capabilities = replace(self.capabilities, unsupported=refused)

    # ----------------------------------------------------------------------------------------------------- recurrence
    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> LinearState:
        state = super().init_state(batch, value_dim, like, key, mask)
        if self.convolution is None:
            return state
        channels = self.num_heads * (2 * self.head_dim + value_dim)
        return ConvolvedState(state.kv, state.kv.new_zeros(batch, self.convolution.before, channels))

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> LinearState:
        self._reject_separate()
        return super().write(state, k, v, key)

    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        self._reject_separate()
        return super().read(state, q, query)

    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, LinearState]:
        if self.convolution is None or not q.shape[2]:
            return super().scan_(state, q, k, v, query, key, mask)
        x, tail = self._convolved(shown(q, k, v, query, key, mask), state.of(ConvolvedState).tail)
        if q.shape[2] == 1:  # one token writes, then reads
            after = super().write(state, x.k, x.v, x.key)
            out = super().read(after, x.q, x.query)
        else:
            out, after = super().scan_(state, *x)
        return out.to(v.dtype), ConvolvedState(after.kv, tail)

    def extend(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, State]:
        if self.convolution is None:
            return super().extend(state, q, k, v, tokens)
        return self.scan_(state, q, k, v, tokens, tokens, CAUSAL)

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        if self.convolution is None:
            return super().loop(state, q, k, v, query, key, mask)
        x, tail = self._convolved(shown(q, k, v, query, key, mask), state.of(ConvolvedState).tail)
        if x.in_step:
            out, after = super().loop(state, *x)
        else:
            out, after = self._visit(super().write_loop, super().read, state, x)
        return out.to(v.dtype), ConvolvedState(after.of(LinearState).kv, tail)

    def kernel(self) -> RecurrentKernel | None:
        recurrence = super().kernel()
        if recurrence is None or self.convolution is None:
            return recurrence
        return replace(recurrence, convolution=self.convolution.step)

    def _reject_separate(self) -> None:
        if self.convolution is not None:
            raise self.refusal(
                f"{self.name} with {SHORT_CONV.flag} needs queries, keys and values together; call `scan`, not `write` "
                "and `read`"
            )

    # ------------------------------------------------------------------------------------------------ whole sequences
    def weights(
        self, q: Tensor, k: Tensor, *, query: TokenInfo | None = None, key: TokenInfo | None = None, mask: Mask = None
    ) -> Tensor:
        if self.convolution is None:
            return super().weights(q, k, query=query, key=key, mask=mask)
        key = key or TokenInfo.whole(k.shape[2], device=k.device)
        x, _ = self._convolved(shown(q, k, k[..., :0], query or key, key, mask))
        weights = super().weights(x.q, x.k, query=x.query, key=x.key, mask=x.mask)
        return F.pad(weights, (0, k.shape[2] - weights.shape[3])).to(q.dtype)

    def _first(self, x: Inputs) -> LinearState:
        return super().init_state(x.q.shape[0], x.v.shape[3], x.k, x.key, x.mask)  # the inputs are convolved already

    def _reference(self, x: Inputs) -> Tensor:
        return super()._reference(self._prepared(x)).to(x.v.dtype)

    def _in_segments(self, x: Inputs) -> Tensor:
        return super()._in_segments(self._prepared(x)).to(x.v.dtype)

    def _looped(self, x: Inputs) -> Tensor:
        if self.convolution is None or self._both_ways(x.mask):
            return super()._looped(self._prepared(x)).to(x.v.dtype)
        return self.loop(self.init_state(x.q.shape[0], x.v.shape[3], x.k, x.key, x.mask), *x)[0]

    def _prepared(self, x: Inputs) -> Inputs:
        return x if self.convolution is None else self._convolved(shown(*x))[0]

    def _convolved(self, x: Inputs, tail: Tensor | None = None) -> tuple[Inputs, Tensor]:
        """The inputs after the convolution, in the precision of states, and the next tail."""
        q, k, v, query, key, mask = x
        assert self.convolution is not None
        if q.shape[2] != k.shape[2]:
            raise self.refusal(
                f"{SHORT_CONV.flag} is of self-attention, in which every token is query and key; here are {q.shape[2]} "
                f"queries and {k.shape[2]} keys"
            )
        with without_autocast(q.device):
            channels = torch.cat([accumulated(y).transpose(1, 2).flatten(2) for y in (q, k, v)], 2)
            if key.keep is not None:
                channels = channels.where(key.keep.unsqueeze(2), 0)
            if tail is None:
                tail = channels.new_zeros(q.shape[0], self.convolution.before, channels.shape[2])
            channels, tail = self.convolution(channels, tail, key.keep, mask)
        sizes = [y.shape[3] for y in (q, k, v)]
        sides = channels.split([self.num_heads * size for size in sizes], 2)
        heads = (y.unflatten(2, (self.num_heads, size)) for y, size in zip(sides, sizes, strict=True))
        q, k, v = (y.transpose(1, 2) for y in heads)
        return Inputs(q, k, v, query, key, mask), tail


def _real_first(x: Tensor, real: Tensor) -> Tensor:
    """Move the `real` (.., T) tokens of x (.., T, C) to the front, in order; padding in x must be zero."""
    if torch.compiler.is_exporting():  # exported graphs cannot sort
        places, ends = torch.arange(x.shape[-2], device=x.device), real.long().cumsum(-1)
        order = (ends.unsqueeze(-2) <= places.unsqueeze(-1)).sum(-1).clamp_max(x.shape[-2] - 1)
        return _gather(x, order).where((places < ends[..., -1:]).unsqueeze(-1), 0)
    return _gather(x, real.logical_not().byte().argsort(dim=-1, stable=True))


def _gather(x: Tensor, places: Tensor) -> Tensor:
    """The tokens (.., U, C) of x (.., T, C) at `places` (.., U)."""
    return x.gather(-2, places.unsqueeze(-1).expand(*places.shape, x.shape[-1]))


def _gather_at(x: Tensor, places: Tensor) -> Tensor:
    """The tokens (B, N, U, C) of x (B, T, C) at `places` (B or 1, N, U)."""
    places = places.expand(x.shape[0], -1, -1)
    return _gather(x, places.flatten(1)).unflatten(1, places.shape[1:])
