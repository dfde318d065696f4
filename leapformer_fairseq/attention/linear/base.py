"""The base of mechanisms whose similarity is a dot product of mapped queries and keys (the kernel trick).

A subclass defines the feature map; executions, state and weights are the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...support.errors import LeapformerError
from ..kernels import LinearKernel
from ..masks import ChunkMask, Mask, with_state
from ..mechanism import Inputs, Mechanism, State, folded, shown, unfolded, without_unseen
from ..ops import dispatch, linear, recurrent, scan
from ..ops.precision import accumulated, in_float32, right_angle, without_autocast
from ..ops.recurrent import Written
from ..options import Option
from ..tokens import TokenInfo

NORMALIZER_FLOOR = Option(
    "normalizer_floor",
    1e-4,
    "linear attention divides by its normalizer clamped from below by this (0.1 reproduces the released LeaPformer)",
    above=0,
)


@dataclass(frozen=True)
class Features:
    """Mapped queries or keys, `x` (B, H, T, F): the similarity of a query and a key is their dot product.

    `norm` replaces `x` in the normalizer, for mechanisms that use other features there (RoPE).
    """

    x: Tensor
    norm: Tensor | None = None

    @property
    def count(self) -> int:
        """F, the number of features of a token."""
        return self.x.shape[-1]

    def expanded(self) -> Tensor:
        """The features as one tensor, (B, H, T, F); a subclass may hold them in factors."""
        return self.x

    def scores(self, keys: Self) -> Tensor:
        """Similarities of these queries with all keys, (B, H, T, S)."""
        return linear.scores(self.x, keys.x)

    def kept(self, keep: Tensor) -> Features:
        """The features with zeros where `keep` (B, T) is False."""
        mask = keep[:, None, :, None].to(self.x.dtype)
        return replace(self, x=self.x * mask, norm=None if self.norm is None else self.norm * mask)


def checked_features(method: str, features: Features, count: int, like: Tensor) -> Features:
    """The features that `method` returned for `like` (B, H, T, D).

    Raises LeapformerError for another type, shape or number than declared.
    """
    if not isinstance(features, Features):
        raise LeapformerError(f"{method} returned a {type(features).__name__}; return Features(x), x (B, H, T, F)")
    check_shape(f"{method} gives features", features.x, like)
    check_count(method, features.count, count)
    if features.norm is not None:
        check_count(f"norm of {method}", features.norm.shape[-1], count)
    return features


def check_shape(given: str, x: object, like: Tensor, *widths: int) -> None:
    """Raise LeapformerError unless x is (B, H, T, W) for `like` (B, H, T, D), with one of these widths W; none: any.

    `given` says in the message what x is. Not in graphs, which would take the sizes for constants.
    """
    if dispatch.is_traced():
        return
    lead = tuple(like.shape[:3])
    fits = isinstance(x, Tensor) and x.dim() == 4 and x.shape[:3] == lead and (not widths or x.shape[3] in widths)
    if not fits:
        shape = tuple(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
        numbers = ", ".join(map(str, lead))
        wanted = " or ".join(f"({numbers}, {width})" for width in dict.fromkeys(widths)) or f"({numbers}, features)"
        raise LeapformerError(f"{given}: {shape}; return {wanted}, (batch, heads, tokens, width)")


def check_count(method: str, given: int, declared: int) -> None:
    """Raise LeapformerError if `method` gives another number of features than the mechanism declares."""
    if given != declared:
        raise LeapformerError(
            f"{method} gives {given} features of a token, but self.features is {declared}; set self.features = ... to "
            "their number in __init__, after super().__init__(...)"
        )


@dataclass
class LinearState(State):
    """K^T V and, in the last column, the sum of the keys' features in the normalizer: (B, H, F, E + 1).

    Mechanisms without a normalizer do not have this column: (B, H, F, E).
    """

    kv: Tensor


@dataclass
class SeparateState(State):
    """A `LinearState` as graphs hold it: K^T V (B, H, F, E) and the sums of the normalizer (B, H, F, 1).

    Operators of graphs are fast for values whose width is a multiple of 32.
    """

    kv: Tensor
    normalizer: Tensor

    @classmethod
    def of_joined(cls, state: State) -> SeparateState:
        """The same sums as a state of this kind; itself if it is one."""
        if isinstance(state, SeparateState):
            return state
        kv = _kv(state)
        return cls(kv[..., :-1], kv[..., -1:])

    def joined(self) -> LinearState:
        return LinearState(torch.cat([self.kv, self.normalizer], -1))

    def followed(
        self, keys: Written, fq: Tensor, floor: float, norms: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, SeparateState]:
        """The weighted means (B, H, T, E) that queries read while `keys` are written, and the state after the last.

        Token by token, keys first. fq: features (B, H, T, F) of the queries. norms: other features of keys and queries
        in the normalizer.
        """
        k, q = (keys.k, fq) if norms is None else norms
        ones = keys._replace(k=k, v=keys.v.new_ones(*keys.v.shape[:3], 1))
        kv, sums = recurrent.loop(self.kv, keys, fq)
        normalizer, totals = recurrent.loop(self.normalizer, ones, q)
        return sums / totals.clamp_min(floor), SeparateState(kv, normalizer)

    def read(self, fq: Tensor, floor: float, norm: Tensor | None = None, shared: int = 1) -> Tensor:
        """The weighted means (B * shared, H, T, E) that queries with these features read; see `Mechanism.read_shared`.

        norm: other features in the normalizer.
        """
        if dispatch.is_one(shared):
            return (fq @ self.kv) / ((fq if norm is None else norm) @ self.normalizer).clamp_min(floor)
        means = self.read(folded(fq, shared), floor, None if norm is None else folded(norm, shared))
        return unfolded(means, shared, fq.shape[2])


class LinearMechanism(Mechanism):
    """Maps tokens to features, sums over the visible keys, and divides by the normalizer.

    Sums are float32 (float64 for double inputs) for inputs of any precision, also under autocast. Attention dropout is
    not applied: there are no probabilities to drop.
    """

    #: number of features per head dimension
    features_per_dim: ClassVar[int] = 1

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.features = head_dim * self.features_per_dim
        self.normalizer_floor = float(getattr(self.chosen, NORMALIZER_FLOOR.name, NORMALIZER_FLOOR.default))

    @abstractmethod
    def map_queries(self, x: Tensor, tokens: TokenInfo) -> Features:
        """Features of queries (B, H, T, D); each token is mapped independently."""

    @abstractmethod
    def map_keys(self, x: Tensor, tokens: TokenInfo) -> Features:
        """Features of keys (B, H, S, D); each token is mapped independently. The caller masks padding."""

    def feature_map(self) -> LinearKernel | None:
        """The description of both maps, with which kernels compute them; None: they are computed in PyTorch."""
        return None

    def kernel(self) -> LinearKernel | None:
        return self.feature_map() if still_described(type(self), "feature_map", "map_queries", "map_keys") else None

    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> LinearState:
        return LinearState(accumulated(like).new_zeros(batch, self.num_heads, self.features, value_dim + 1))

    def loop_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> SeparateState:
        return SeparateState.of_joined(self.init_state(batch, value_dim, like, key, mask))

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> LinearState:
        x = Inputs(k[:, :, :0], k, v, key.narrow(0, 0), key, None)
        if k.shape[2] > 1 and (done := self._by_kernel(state, x)) is not None:
            return done[1]
        with without_autocast(k.device):
            return LinearState(_added(_kv(state), self._keys(k, key), v))

    @in_float32
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        if isinstance(state, SeparateState):
            return self.read_shared(state, q, query, 1)
        return linear.normalize(_read(_kv(state), self._queries(q, query)), self.normalizer_floor)

    def read_shared(self, state: State, q: Tensor, query: TokenInfo, shared: int) -> Tensor:
        if not isinstance(state, SeparateState):
            return super().read_shared(state, q, query, shared)
        with without_autocast(q.device):
            features = self._queries(q, query)
            means = state.read(features.expanded(), self.normalizer_floor, features.norm, shared)
        return means.to(q.dtype)

    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, LinearState]:
        if not q.shape[2]:
            return super().scan_(state, q, k, v, query, key, mask)  # type: ignore[return-value]
        return self._segment(state, shown(q, k, v, query, key, mask))  # type: ignore[return-value]

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        x, before = Inputs(q, k, v, query, key, with_state(mask)), SeparateState.of_joined(state)
        if not x.in_step:  # all pairs: in a graph this is faster than a loop over tokens
            out, joined = self._by_pairs(before.joined().kv, x)
            return out, SeparateState.of_joined(joined)
        with without_autocast(q.device):
            fq, fk = self._queries(q, query), self._keys(k, key)
            norms = None if fq.norm is None or fk.norm is None else (fk.norm, fq.norm)
            keys = Written(fk.expanded(), accumulated(v))
            out, after = before.followed(keys, fq.expanded(), self.normalizer_floor, norms)
        return out.to(v.dtype), after

    def write_loop(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> SeparateState:
        return SeparateState.of_joined(self.write(state.of(SeparateState).joined(), k, v, key))

    def _segment(self, state: State, x: Inputs) -> tuple[Tensor | None, LinearState]:
        q, k, v, query, key, mask = x
        if (done := self._by_kernel(state, x)) is not None:
            return done
        kv = _kv(state)
        if mask is not None and q.shape[2] and k.shape[2] and self._few_pairs(x):
            return self._by_pairs(kv, x)
        with without_autocast(q.device):
            fk = self._keys(k, key)
            if not q.shape[2]:
                return None, LinearState(_added(kv, fk, v))
            fq = self._queries(q, query)
            mapped = x._replace(q=fq.expanded(), k=fk.expanded())
            if fq.norm is None and scan_runs(state, mapped):  # maps that are not described
                return scanned(state, mapped, scan.IDENTITY, self.normalizer_floor)
            sums, kv = _sums(kv, fq, fk, v, mask)
            return linear.normalize(sums, self.normalizer_floor, v.dtype), LinearState(kv)

    def _whole(self, x: Inputs) -> Tensor | None:
        done = self._by_kernel(None, without_unseen(x), lasts=False)
        return None if done is None else done[0]

    def _by_kernel(self, state: State | None, x: Inputs, lasts: bool = True) -> tuple[Tensor, LinearState] | None:
        """`_segment` by the kernel in C, which maps the vectors itself; None: it does not. A state of None is empty.

        lasts: False: the second result has no numbers.
        """
        described = self.kernel()
        features = None if described is None or not scan_runs(state, x) else scan_map(described, x)
        return None if features is None else scanned(state, x, features, self.normalizer_floor, lasts)

    def _by_pairs(self, kv: Tensor, x: Inputs) -> tuple[Tensor, LinearState]:
        """`scan`, but comparing all pairs of these queries and keys."""
        q, k, v, query, key, mask = x
        with without_autocast(q.device):
            fq, fk = self._queries(q, query), self._keys(k, key)
            scores, totals = _scores(fq, fk, mask)
            sums = torch.cat([scores @ accumulated(v), totals], -1) + _read(kv, fq)
            if isinstance(mask, ChunkMask):  # copies for look-ahead are not written to the state
                fk = fk.kept(mask.own(k.shape[2], k.device).unsqueeze(0))
            kv = _added(kv, fk, v)
            return linear.normalize(sums, self.normalizer_floor, v.dtype), LinearState(kv)

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        scores, totals = _scores(self._queries(q, query), self._keys(k, key), mask)
        return scores / totals.clamp_min(self.normalizer_floor)

    def _few_pairs(self, x: Inputs) -> bool:
        return dispatch.few_pairs(x.q, x.k, x.mask, self.features)

    def _queries(self, q: Tensor, tokens: TokenInfo) -> Features:
        """Features of queries."""
        return checked_features("map_queries", self.map_queries(accumulated(q), tokens), self.features, q)

    def _keys(self, k: Tensor, tokens: TokenInfo) -> Features:
        """Features of keys, zero at padding. Features are masked, not keys: phi(0) is not 0 for every map."""
        features = checked_features("map_keys", self.map_keys(accumulated(k), tokens), self.features, k)
        return features if tokens.keep is None else features.kept(tokens.keep)


def still_described(kind: Any, by: str, *methods: str) -> bool:
    """Whether the method `by` describes these methods of a class: a subclass may have changed one of them since."""
    names = (by, *methods)
    first, *others = (next(i for i, owner in enumerate(kind.__mro__) if name in vars(owner)) for name in names)
    return first <= min(others)


def scan_runs(state: State | None, x: Inputs) -> bool:
    """Whether the kernel for whole sequences is there and can read these inputs and the state; None: an empty one."""
    return scan.runs(*map(accumulated, x[:3]), *([] if state is None else [_kv(state)]))


def scan_map(kernel: LinearKernel, x: Inputs) -> scan.Map | None:
    """How the kernel for whole sequences maps these tokens as described; None if it knows no such map or gradient."""
    if kernel.rotation is not None or any(not network.hidden for network in kernel.networks):
        return None
    features = scan.Map(kernel.activation)
    if kernel.proportion is not None:
        sides = (kernel.proportion(side.positions, side.lengths) for side in (x.query, x.key))
        query_turns, key_turns = (_turns(side.to(accumulated(x.q).dtype)) for side in sides)
        if query_turns.requires_grad or key_turns.requires_grad:  # by predicted lengths
            return None
        return features._replace(turns=(query_turns, key_turns))
    if kernel.networks:
        queries, keys = kernel.networks
        networks = queries.packed(), keys.packed()
        return features._replace(networks=networks, hidden=queries.hidden, raw=kernel.raw)
    return features


def scanned(
    state: State | None,
    x: Inputs,
    features: scan.Map,
    floor: float | None = None,
    lasts: bool = True,
    **gates: Tensor | None,
) -> tuple[Tensor, LinearState]:
    """What queries read (B, H, T, E), and the last state, by the kernel for whole sequences; see `ops.scan`."""
    q, k, v = map(accumulated, x[:3])
    first = None if state is None else _kv(state)
    out, last = scan.scan(q, k, v, x.mask, features, floor=floor, keep=x.key.keep, first=first, lasts=lasts, **gates)
    return out if floor is None else out.to(x.v.dtype), LinearState(last)


def _turns(proportions: Tensor) -> Tensor:
    """Cosine and sine of tokens, (B or 1, 1, T, 2), given their proportions (B or 1, T)."""
    angles = proportions.unsqueeze(1) * right_angle(proportions.dtype)
    return torch.stack([angles.cos(), angles.sin()], -1)


def _kv(state: State) -> Tensor:
    return state.of(LinearState).kv


def _scores(fq: Features, fk: Features, mask: Mask) -> tuple[Tensor, Tensor]:
    """Similarities (B, H, T, S), 0 where a query does not see a key, and the normalizer of each query, (B, H, T, 1)."""
    visible = with_state(mask)

    def masked(scores: Tensor) -> Tensor:
        return scores if visible is None else scores * visible.mask(scores.shape[2], scores.shape[3], scores.device)

    scores = masked(fq.scores(fk))
    total = scores if fq.norm is None or fk.norm is None else masked(linear.scores(fq.norm, fk.norm))
    return scores, total.sum(-1, keepdim=True)


def _sums(kv: Tensor, fq: Features, fk: Features, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Sums (B, H, T, E + 1) of queries over the state `kv` and the keys that they see; the new state.

    The last column of the sums is the normalizer.
    """
    v = accumulated(v)
    if mask is None:
        kv = _added(kv, fk, v)
        return _read(kv, fq), kv

    def run(q: Tensor, k: Tensor, v: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        ratio = 1 if isinstance(mask, ChunkMask) else mask.ratio
        return recurrent.sums(q, Written(k, v), first, mask, dispatch.chunk_of(v.device, ratio))

    if fq.norm is None or fk.norm is None:
        return run(fq.expanded(), fk.expanded(), linear.append_ones(v), kv)
    parts = (
        run(fq.expanded(), fk.expanded(), v, kv[..., :-1]),
        run(fq.norm, fk.norm, torch.ones_like(v[..., :1]), kv[..., -1:]),
    )
    sums, states = zip(*parts, strict=True)
    return torch.cat(sums, -1), torch.cat(states, -1)


def _read(kv: Tensor, fq: Features) -> Tensor:
    """Sums (B, H, T, E + 1) of queries over a state; the last column is the normalizer."""
    if fq.norm is None:
        return linear.read_state(fq.expanded(), kv)
    sums = linear.read_state(fq.expanded(), kv[..., :-1])
    return torch.cat([sums, linear.read_state(fq.norm, kv[..., -1:])], -1)


def _added(kv: Tensor, fk: Features, v: Tensor) -> Tensor:
    """The state after mapped keys and their values are added to it; in place if gradients are disabled."""
    v, k = accumulated(v), fk.expanded()
    if v.shape[2] == 1 and not torch.is_grad_enabled():  # allocates no tensor of the state's size
        kv[..., :-1].addcmul_(k.mT, v)
        kv[..., -1:].add_((k if fk.norm is None else fk.norm).mT)
        return kv
    if fk.norm is None:
        new = linear.state_of(k, linear.append_ones(v))
    else:
        new = torch.cat([linear.state_of(k, v), fk.norm.sum(-2).unsqueeze(-1)], -1)
    return kv + new if torch.is_grad_enabled() else kv.add_(new)
