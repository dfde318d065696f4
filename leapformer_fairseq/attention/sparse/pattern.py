"""Entmax over the edges of a sparsity pattern, which determines a query's keys before their scores are computed.

If a pattern contains every edge of the full entmax graph, the output equals that of full entmax (Treviso et al., 2022,
arXiv:2109.12188, section 4). A missing edge changes the weights of its query.

Shapes: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import DECODER_CROSS, DECODER_SELF, NO_STATE, Capabilities
from ..masks import Mask
from ..ops.precision import without_autocast
from ..options import Option
from ..softmax import KVCache, visible_keys
from ..tokens import TokenInfo
from .entmax import ALPHA, Entmax

WINDOW = Option(
    "sparse_window",
    0,
    "sparsity patterns in self-attention: also an edge to every token at most half of this many tokens away; odd",
)
GLOBAL = Option(
    "sparse_global",
    "none",
    "sparsity patterns in self-attention: also all edges from and to the first token, or the first and the last",
    ("none", "first", "both"),
)
SEED = Option("sparse_seed", 1, "sparsity patterns with random edges: the seed")
NONCAUSAL = Option(
    "sparse_noncausal",
    False,
    "for analysis: also allow sparsity patterns in a decoder whose edges depend on later tokens, which lets scores of "
    "whole targets see the future",
)
COMMON = (ALPHA, WINDOW, GLOBAL, NONCAUSAL)
SEES_FUTURE = (
    "an edge may depend on later tokens, so that training and scoring would see the future; take sparsefinder-distance "
    f"or -kmeans, or for analysis only {NONCAUSAL.flag}"
)


SELF_ONLY = {
    "decoder-cross": "distances between positions mean nothing between a target and its source; take a pattern that "
    "looks at queries and keys, as sparsefinder-distance, or entmax"
}


class Pattern(Entmax):
    """Base class of entmax attention with a sparsity pattern; a subclass implements `edges`."""

    capabilities = Capabilities(constant_state=False, append=False)

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        if self.chosen.sparse_window < 0:
            raise LeapformerError(f"{WINDOW.flag} {self.chosen.sparse_window}: give an odd number, or 0 for none")
        later = self.chosen.sparse_global == "both" or self.depends_on_later_tokens()
        refused = later and self.block in (DECODER_SELF, DECODER_CROSS) and not self.chosen.sparse_noncausal
        missing = self.missing() or (SEES_FUTURE if refused else "")
        # Distances between positions of a target and positions of a source have no meaning.
        by_position = self.block is None and (self.chosen.sparse_window > 0 or self.chosen.sparse_global != "none")
        prefixes = self.capabilities.prefixes and not by_position
        self.capabilities = replace(self.capabilities, incremental=not later, missing=missing, prefixes=prefixes)

    def depends_on_later_tokens(self) -> bool:
        """Whether later tokens may change an edge."""
        return not self.capabilities.incremental

    def missing(self) -> str:
        """What must be given before a model can use the pattern (see `Capabilities`)."""
        return ""

    @abstractmethod
    def edges(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """True where the pattern has an edge, broadcastable to (B, H, T, S), for keys as `_cached` returns them.

        `seen`, (B or 1, 1, T, S), is True where the mask and padding let a query see a key; other edges are ignored.
        """

    @torch.no_grad()
    def graph(
        self, q: Tensor, k: Tensor, *, query: TokenInfo | None = None, key: TokenInfo | None = None, mask: Mask = None
    ) -> Tensor:
        """The pairs over which entmax is computed, (B, H, T, S): edges, window and global tokens."""
        visible = visible_keys(q, k, None if key is None else key.keep, mask)
        with without_autocast(q.device):
            return self._allowed(q, self._cached(k), visible).expand(len(q), self.num_heads, -1, -1)

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> KVCache:
        if not self.capabilities.incremental:
            raise LeapformerError(f"{self.name} attention cannot decode token by token: {NO_STATE}")
        return super().init_state(batch, value_dim, like, key, mask)

    @torch.no_grad()
    def _allowed(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q.device) if visible is None else visible
        seen = seen.expand(-1, -1, queries, -1)
        edges = self.edges(q, k, seen)
        if self.block != DECODER_CROSS:
            edges = self._with_window(edges, seen)
        return edges & seen

    def _with_window(self, edges: Tensor, seen: Tensor) -> Tensor:
        width, ends = self.chosen.sparse_window, self.chosen.sparse_global
        if width:
            longest = max(seen.shape[2:])
            if width % 2 == 0 and width < longest:
                raise self.refusal(
                    f"{WINDOW.flag} {width} is even, so it has no middle, and shorter than the {longest} tokens; give "
                    f"{width - 1} or {width + 1}"
                )
            edges = edges | near(seen, width)
        return edges if ends == "none" else edges | at_ends(seen, ends == "both")


def positions(seen: Tensor) -> tuple[Tensor, Tensor]:
    """Positions in self-attention, 1 for the first real token: queries (B or 1, 1, T, 1), keys (B or 1, 1, 1, S).

    The queries are the last T of the S tokens.
    """
    queries, keys = seen.shape[2:]
    key = real_keys(seen).long().cumsum(-1)
    if queries > keys:
        return torch.arange(1, queries + 1, device=seen.device)[:, None], key
    return key[..., keys - queries :].mT, key


def real_keys(seen: Tensor) -> Tensor:
    """The keys that the last query may see, (B or 1, 1, 1, S): all except padding."""
    return seen[:, :, -1:]


def near(seen: Tensor, width: int) -> Tensor:
    """|i - j| <= width / 2, (B or 1, 1, T, S)."""
    query, key = positions(seen)
    return (query - key).abs() <= width // 2


def at_ends(seen: Tensor, last: bool) -> Tensor:
    """The row and column of the first real token and, with `last`, of the last one, (B or 1, 1, T, S)."""
    query, key = positions(seen)
    edges = (query == 1) | (key == 1)
    if not last:
        return edges
    end = key[..., -1:]
    return edges | (query == end) | (key == end)
