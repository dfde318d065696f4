"""The base of every mechanism whose similarity is a dot product of feature maps (the kernel trick).

A subclass says how queries and keys are mapped; the three forms, the state and the weights are the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from . import forms, recompute
from .base import Form, Mechanism, State
from .masks import CAUSAL, Blocks, Rows, Visible
from .registry import Option
from .step import LinearStep, Projections, Step, StepMap

NORMALIZER_FLOOR = Option(
    "normalizer_floor",
    1e-4,
    "linear attention divides by its normalizer clamped from below by this (0.1 reproduces the released LeaPformer)",
)

# Up to this many query-key pairs per feature the quadratic form is faster than cutting into chunks,
QUADRATIC_PAIRS = 200
# and, bidirectional, up to this many pairs per row and feature faster than one state (measured at widths 32 to 128).
QUADRATIC_PAIRS_PER_ROW = 0.35
# Above this many rows (queries and keys, over heads and batch) mapping them twice is cheaper than keeping features.
RECOMPUTED_ROWS = 40_000


@dataclass(frozen=True)
class Features:
    """Mapped rows of one side, `x` (B, H, T, F): the similarity of a query and a key is their dot product.

    `norm` replaces it in the normalizer where a mechanism needs that (RoPE).
    """

    x: Tensor
    norm: Tensor | None = None

    def rows(self) -> Tensor:
        """The mapped rows, (B, H, T, F)."""
        return self.x

    def scores(self, keys: Self) -> Tensor:
        """Similarities of these queries and all keys, (B, H, T, S)."""
        return forms.scores_of(self.x, keys.x)

    def kept(self, keep: Tensor) -> Features:
        """The same with rows at zero where `keep`, (B, T), is False."""
        mask = keep[:, None, :, None].to(self.x.dtype)
        return replace(self, x=self.x * mask, norm=None if self.norm is None else self.norm * mask)


@dataclass
class LinearState(State):
    """K^T V and, in the last column, the sum of the keys as the normalizer sees them, (B, H, F, E + 1)."""

    kv: Tensor


class LinearMechanism(Mechanism):
    """Maps rows to features, sums over visible keys in the asked form, divides by the normalizer.

    All sums run in float32 (float64 for double inputs) whatever the inputs are, also under autocast: a state in half
    precision stagnates after some hundred tokens. Attention dropout has no meaning here and is not applied.
    """

    forms: ClassVar[tuple[str, ...]] = ("parallel", "chunkwise", "recompute")
    #: width of mapped rows over the head dimension
    features_per_dim: ClassVar[int] = 1

    def __init__(self, head_dim: int, num_heads: int, *, normalizer_floor: float = 1e-4, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.normalizer_floor = normalizer_floor

    @abstractmethod
    def map_queries(self, x: Tensor, rows: Rows) -> Features:
        """Features of queries (B, H, T, D); row-wise."""

    @abstractmethod
    def map_keys(self, x: Tensor, rows: Rows) -> Features:
        """Features of keys (B, H, S, D); row-wise. Padding is masked by the caller."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | Blocks | None = None,
        form: Form = "auto",
        chunk: int | None = None,
    ) -> Tensor:
        query = query or Rows.whole(q.shape[2], device=q.device)
        key = key or Rows.whole(k.shape[2], device=k.device)
        if form == "auto" and not isinstance(visible, Blocks):
            form = self._choose(q, k, visible)
        with torch.autocast(q.device.type, enabled=False):
            dtype, (q, k, v) = v.dtype, (accumulated(x) for x in (q, k, v))
            if form == "parallel":
                fq, fk = self.map_queries(q, query), self._kept_keys(k, key)
                return (self._weights(fq, fk, visible) @ v).to(dtype)
            if isinstance(visible, Blocks):
                return self.blockwise(q, k, v, key, visible).to(dtype)
            if form == "recompute":
                return self._recompute(q, k, v, query, key, visible, chunk).to(dtype)
            fq, fk = self.map_queries(q, query), self._kept_keys(k, key)
            return forms.normalize(_sums(fq, fk, v, visible, chunk), self.normalizer_floor).to(dtype)

    def blockwise(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows, blocks: Blocks) -> Tensor:
        if blocks.rows == 1:
            return super().blockwise(q, k, v, rows, blocks)
        if self._few(q, k):
            return self(q, k, v, query=rows, key=rows, visible=blocks, form="parallel")
        with torch.autocast(q.device.type, enabled=False):
            dtype, (q, k, v) = v.dtype, (accumulated(x) for x in (q, k, v))
            fq, fk = self.map_queries(q, rows), self._kept_keys(k, rows)
            sums = _joint(partial(forms.block_sums, blocks=blocks.with_all_past()), fq, fk, v)
            return forms.normalize(sums, self.normalizer_floor).to(dtype)

    def _choose(self, q: Tensor, k: Tensor, visible: Visible | None) -> Form:
        rows = q.shape[2] + k.shape[2]
        if self._few(q, k, QUADRATIC_PAIRS_PER_ROW * rows if visible is None else QUADRATIC_PAIRS):
            return "parallel"
        many = q.shape[0] * q.shape[1] * rows > RECOMPUTED_ROWS
        return "recompute" if many and "recompute" in self.forms else "chunkwise"

    def _few(self, q: Tensor, k: Tensor, pairs: float = QUADRATIC_PAIRS) -> bool:
        """Whether there are fewer than so many `pairs` of a query and a key for each feature."""
        return q.shape[2] * k.shape[2] < pairs * self.head_dim * self.features_per_dim

    def _recompute(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query: Rows,
        key: Rows,
        visible: Visible | None,
        chunk: int | None,
    ) -> Tensor:
        plan = recompute.Plan(
            map_query=lambda rows, start, stop: self.map_queries(rows, query.narrow(start, stop)).rows(),
            map_key=lambda rows, start, stop: self._kept_keys(rows, key.narrow(start, stop)).rows(),
            visible=visible,
            floor=self.normalizer_floor,
            chunk=chunk,
        )
        return recompute.linear_attention(q, k, v, tuple(p for p in self.parameters() if p.requires_grad), plan)

    def _kept_keys(self, k: Tensor, rows: Rows) -> Features:
        """Mapped keys with padding at zero: the features are masked, since phi(0) is not 0 for every map."""
        features = self.map_keys(k, rows)
        return features if rows.keep is None else features.kept(rows.keep)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        *,
        query: Rows | None = None,
        key: Rows | None = None,
        visible: Visible | Blocks | None = None,
    ) -> Tensor:
        query = query or Rows.whole(q.shape[2], device=q.device)
        key = key or Rows.whole(k.shape[2], device=k.device)
        with torch.autocast(q.device.type, enabled=False):
            fq, fk = self.map_queries(accumulated(q), query), self._kept_keys(accumulated(k), key)
            return self._weights(fq, fk, visible).to(q.dtype)

    def _weights(self, fq: Features, fk: Features, visible: Visible | Blocks | None) -> Tensor:
        """The quadratic reference of every other form."""
        scores, totals = _scores(fq, fk, visible)
        return scores / totals.clamp_min(self.normalizer_floor)

    def update(self, state: State | None, k: Tensor, v: Tensor, key: Rows) -> State:
        with torch.autocast(k.device.type, enabled=False):
            k, v = accumulated(k), accumulated(v)
            features = self._kept_keys(k, key)
            return _add(state, features, v)

    def attend(self, state: State, q: Tensor, query: Rows) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            features = self.map_queries(accumulated(q), query)
            return forms.normalize(_read(state, features), self.normalizer_floor).to(q.dtype)

    def step_map(self) -> StepMap | None:
        """How the decoding step maps rows; None where there is only the general way, `extend` and `attend`."""
        return None

    def step(self, projections: Projections) -> Step | None:
        mapping = self.step_map()
        return None if mapping is None else LinearStep(mapping, self.num_heads, self.normalizer_floor, projections)

    def empty_state(self, rows: int, value_dim: int, like: Tensor) -> LinearState:
        """The state before the first key, on the device of `like`."""
        width = self.head_dim * self.features_per_dim
        return LinearState(accumulated(like).new_zeros(rows, self.num_heads, width, value_dim + 1))

    def extend(self, state: State | None, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, State]:
        if q.shape[2] == 1:
            state = self.update(state, k, v, rows)
            return self.attend(state, q, rows), state
        with torch.autocast(q.device.type, enabled=False):
            fq, fk = self.map_queries(accumulated(q), rows), self._kept_keys(accumulated(k), rows)
            sums = (_sums_of_pairs if self._few(q, k) else _sums)(fq, fk, accumulated(v), CAUSAL)
            if state is not None:
                sums = sums + _read(state, fq)
            return forms.normalize(sums, self.normalizer_floor).to(q.dtype), _add(state, fk, accumulated(v))


def accumulated(x: Tensor) -> Tensor:
    """The tensor in the precision of the sums: at least float32."""
    return x if x.dtype == torch.float64 else x.float()


def _hide(scores: Tensor, visible: Visible | Blocks | None) -> Tensor:
    """Scores (B, H, T, S) at zero where the query may not see the key."""
    if isinstance(visible, Blocks):
        visible = visible.with_all_past()
    return scores if visible is None else scores * visible.mask(scores.shape[2], scores.shape[3], scores.device)


def _scores(fq: Features, fk: Features, visible: Visible | Blocks | None) -> tuple[Tensor, Tensor]:
    """Similarities (B, H, T, S) of the queries and what they see, and the normalizer of each query, (B, H, T, 1)."""
    scores = _hide(fq.scores(fk), visible)
    total = scores if fq.norm is None or fk.norm is None else _hide(forms.scores_of(fq.norm, fk.norm), visible)
    return scores, total.sum(-1, keepdim=True)


def _sums(fq: Features, fk: Features, v: Tensor, visible: Visible | None, chunk: int | None = None) -> Tensor:
    """Sums of the values over visible keys with the normalizer in the last column, (B, H, T, E + 1)."""
    return _joint(partial(forms.chunkwise, visible=visible, chunk=chunk), fq, fk, v)


def _sums_of_pairs(fq: Features, fk: Features, v: Tensor, visible: Visible | None) -> Tensor:
    """The same, quadratic: for few rows there is less to do."""
    scores, totals = _scores(fq, fk, visible)
    return torch.cat([scores @ v, totals], -1)


def _joint(sums: Callable[[Tensor, Tensor, Tensor], Tensor], fq: Features, fk: Features, v: Tensor) -> Tensor:
    """The `sums` of the values, and the normalizer in the last column."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
        return sums(q, k, v).unflatten(0, fq.x.shape[:2])

    if fq.norm is None or fk.norm is None:
        return run(fq.rows(), fk.rows(), forms.append_ones(v))
    return torch.cat([run(fq.rows(), fk.rows(), v), run(fq.norm, fk.norm, torch.ones_like(v[..., :1]))], -1)


def _read(state: State, features: Features) -> Tensor:
    """Sums of queries over a state, the normalizer in the last column."""
    if not isinstance(state, LinearState):
        raise TypeError(f"a {type(state).__name__} does not belong to this mechanism")
    if features.norm is None:
        return features.rows() @ state.kv
    return torch.cat([features.rows() @ state.kv[..., :-1], features.norm @ state.kv[..., -1:]], -1)


def _add(state: State | None, features: Features, v: Tensor) -> LinearState:
    """The state with mapped keys and their values added; in place where no gradient is wanted, without new memory."""
    k, one_row = features.rows(), v.shape[-2] == 1
    if isinstance(state, LinearState) and one_row and features.norm is None and not torch.is_grad_enabled():
        state.kv.addcmul_(k.transpose(-1, -2), forms.append_ones(v))
        return state
    if features.norm is None:
        kv = forms.state_of(k, forms.append_ones(v))
    else:
        kv = torch.cat([forms.state_of(k, v), features.norm.sum(-2).unsqueeze(-1)], -1)
    if not isinstance(state, LinearState):
        return LinearState(kv)
    state.kv = state.kv + kv if torch.is_grad_enabled() else state.kv.add_(kv)
    return state
