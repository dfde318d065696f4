"""ABC with a fixed control: a token's position alone determines its slot."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..capabilities import DECODER_SELF, Capabilities
from ..options import Option, per_block
from ..registry import register
from ..tokens import TokenInfo
from .base import EMPTY_SLOTS, SLOTS, set_limit
from .sums import SlotSums


class Placed(SlotSums):
    """Every token is written into one slot or none: phi_i = e_j or 0."""

    capabilities = Capabilities(prefixes=False, normalized=False)
    positional = True

    @abstractmethod
    def places(self, tokens: TokenInfo) -> Tensor:
        """The slot of each token, from 0; any other number means none. (B or 1, H or 1, S)."""

    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        slots = torch.arange(self.slots, device=k.device)
        return (self.places(tokens).unsqueeze(-1) == slots).to(k.dtype)


@register("abc-random", SLOTS, EMPTY_SLOTS, Option("abc_seed", 1, "abc-random: seed of the slots drawn"))
class Random(Placed):
    """Random control (ABC-RD): token i is written into a random slot j, phi_i = e_j; slots are sums.

    Head, position and seed determine the slot, so it is the same for all sentences, in training and generation, and
    after loading. (Peng et al., 2022, arXiv:2110.02488, section A.2.)
    """

    def places(self, tokens: TokenInfo) -> Tensor:
        heads = torch.arange(self.num_heads, device=tokens.positions.device).unsqueeze(-1)
        streams = _scrambled(heads + (self.chosen.abc_seed << 16))
        return _scrambled(streams + tokens.positions.unsqueeze(1)) % self.slots


def _scrambled(x: Tensor) -> Tensor:
    """A pseudo-random 32-bit number for each integer: the finalizer of MurmurHash3."""
    low = 0xFFFFFFFF
    x = x & low
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & low
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & low
    return x ^ (x >> 16)


class Segmented(Placed):
    """Cuts a text into segments, one for each slot.

    Their length is the option `size`. If that is 0, it is the sentence's length divided by the number of slots, rounded
    up, which decoder self-attention cannot know.
    """

    size: ClassVar[Option]

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.flag = self.size.flag
        self.segment = per_block(self.flag, getattr(self.chosen, self.size.name), self.block, least=0)
        self.positional = self.segment > 0
        if not self.segment:
            reason = f"{self.flag} 0 needs the length of the whole sequence; {self._remedy}"
            self.capabilities = replace(self.capabilities, append=False, unsupported={DECODER_SELF: reason})

    @property
    def _remedy(self) -> str:
        return f"give {self.flag} a number for decoder-self, as in 0/16/0"

    def _length(self, tokens: TokenInfo) -> int | Tensor:
        """Tokens of a segment: one number, or one for each sentence, (B or 1, 1)."""
        if self.segment:
            return self.segment
        if tokens.lengths is None:
            raise self.refusal(f"{self.name} was asked for tokens of unknown length; {self._remedy}")
        return -(-tokens.lengths.long().clamp_min(1) // self.slots).unsqueeze(1)


POOL_SIZE = Option(
    "abc_pool_size",
    "0/0/0",
    "abc-pool: tokens that share a slot, one number or ENCODER/DECODER/CROSS; 0 is the sentence's length divided by "
    "the slots, and not supported in decoder-self",
)


@register("abc-pool", SLOTS, EMPTY_SLOTS, POOL_SIZE)
class Pool(Segmented):
    """Compressive mean pooling: token i is written into slot j = ceil(i / c) with weight 1 / c, phi_i = e_j / c.

    c is `abc_pool_size`, which limits texts to n c tokens, or, if that is 0, the sentence's length divided by n,
    rounded up. (Rae et al., 2020, arXiv:1911.05507; Peng et al., 2022, arXiv:2110.02488, section A.3.)
    """

    size = POOL_SIZE

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        if self.segment:
            set_limit(self, self.segment * self.slots, f"{self.flag}, {SLOTS.flag}")

    def places(self, tokens: TokenInfo) -> Tensor:
        self.check_limit(tokens, self.limit)
        return ((tokens.positions - 1).clamp_min(0) // self._length(tokens)).unsqueeze(1)

    def control(self, k: Tensor, tokens: TokenInfo) -> Tensor:
        length = self._length(tokens)
        return super().control(k, tokens) / (length if isinstance(length, int) else length[..., None, None])


GLOBAL_EVERY = Option(
    "abc_global_every",
    "0/1/0",
    "abc-global: every N-th token is global, from the first until all slots are taken, one number or "
    "ENCODER/DECODER/CROSS; 0 spreads them over the sentence, and is not supported in decoder-self",
)


@register("abc-global", SLOTS, EMPTY_SLOTS, GLOBAL_EVERY)
class Global(Segmented):
    """Local-to-global attention: only global tokens are seen, phi_i = e_j if token i is the j-th of them, else 0.

    Every `abc_global_every`-th token is global, from the first until all slots are taken. (Beltagy et al., 2020,
    arXiv:2004.05150; Peng et al., 2022, arXiv:2110.02488, section A.1.)
    """

    capabilities = Capabilities(prefixes=False)  # normalized, as a slot holds one token
    size = GLOBAL_EVERY

    def places(self, tokens: TokenInfo) -> Tensor:
        before, length = (tokens.positions - 1).clamp_min(0), self._length(tokens)
        return torch.where(before % length == 0, before // length, -1).unsqueeze(1)
