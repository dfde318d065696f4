"""Base class of the recurrent mechanisms: a state that decays, or in which new values replace old ones.

A subclass defines the features of queries, what keys write, and the output computed from what queries read.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...support.errors import LeapformerError
from ..capabilities import ENCODER_SELF
from ..linear.base import (
    NORMALIZER_FLOOR,
    LinearState,
    SeparateState,
    check_count,
    check_shape,
    scan_runs,
    scanned,
)
from ..masks import CAUSAL, ChunkMask, Mask, PrefixMask, visible, with_state
from ..mechanism import Inputs, Mechanism, State, shown, without_unseen
from ..ops import dispatch, linear, recurrent, scan
from ..ops.precision import accumulated, in_float32, without_autocast
from ..ops.recurrent import Written
from ..ops.unit import unit
from ..tokens import TokenInfo

# Factor on the token limit below which the delta rule saves intermediates: to recompute them, it must solve a system
# again. Measured on a CPU, 8 heads of 32: 1.17 times as fast at 8,192 tokens, slower at 16,384.
KEPT_SOLUTIONS = 1.5
SMALLEST = 1e-5  # added to the mean square when an output is scaled to unit RMS
# Most tokens for which all pairs are compared. Log-decays cumulated over more tokens lose digits in float32.
LONGEST_BLOCK = 128


class RecurrentMechanism(Mechanism):
    """S_s = e^{g_s} S_(s-1) + k_s u_s^T, read as q_t S_n(t); see `ops.recurrent`.

    A full-context encoder reads in both directions. Without the delta rule, a key contributes
    (q_i . k_j) e^{-|c_i - c_j|}, where c are the cumulated log-decays (Afzal et al., 2025, arXiv:2502.16249,
    section 3). With the delta rule, the results of two scans in opposite directions are added. Everywhere else the
    recurrence is the same in training, prompts and steps. States and sums are float32 (float64 for double inputs).
    Attention dropout has no meaning here and is not applied.
    """

    #: the output is divided by the sum of a query's weights; otherwise by its root mean square
    averages: ClassVar[bool]
    #: whether a value replaces what its key read before (delta rule): then, and only then, `written` gives a strength
    replaces: ClassVar[bool] = False
    #: queries per block, in which all pairs are compared
    block_queries: ClassVar[int] = 64

    def __init__(self, head_dim: int, num_heads: int, **options: Any) -> None:
        super().__init__(head_dim, num_heads, **options)
        self.features = head_dim  # F, unless a subclass has more
        self.normalizer_floor = float(getattr(self.chosen, NORMALIZER_FLOOR.name, NORMALIZER_FLOOR.default))

    @abstractmethod
    def queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        """Features (B, H, T, F) of queries (B, H, T, D)."""

    @abstractmethod
    def written(self, k: Tensor, v: Tensor, tokens: TokenInfo) -> Written:
        """What keys (B, H, S, D) and values (B, H, S, E) write. The caller masks padding."""

    def scan_map(self, x: Inputs) -> scan.Map | None:
        """How the kernel for whole sequences maps queries and keys; None: in PyTorch, by `queries` and `written`.

        With a map, `log_decay` and `strengths` are what else `written` gives.
        """
        return None

    def log_decay(self, k: Tensor, tokens: TokenInfo) -> Tensor | None:
        """Log-decays (B, H, S, 1 or F) for keys (B, H, S, D); None: nothing is forgotten."""
        return None

    def strengths(self, k: Tensor, tokens: TokenInfo) -> Tensor | None:
        """Strengths of the delta rule (B, H, S, 1), in the precision of k; None: values are added."""
        return None

    def gated(self, out: Tensor, q: Tensor, tokens: TokenInfo) -> Tensor:
        """The output (B, H, T, E), given weighted means or sums scaled to unit RMS: an output gate goes here."""
        return out

    def polish(self, read: Tensor, q: Tensor, tokens: TokenInfo) -> Tensor:
        """The output (B, H, T, E), given `weights` @ values: the last stage of the reference."""
        return read if self.averages else self.gated(self._normalized(read), q, tokens)

    # ----------------------------------------------------------------------------------------------------- recurrence
    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> LinearState:
        shape = (batch, self.num_heads, self.features, value_dim + self.averages)
        return LinearState(accumulated(like).new_zeros(shape))

    def loop_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> State:
        state = self.init_state(batch, value_dim, like, key, mask)
        return SeparateState.of_joined(state) if self.averages else state

    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> LinearState:
        with without_autocast(k.device):
            kv, keys = state.of(LinearState).kv, self._writing(k, v, key)
            if k.shape[2] == 1:
                return LinearState(recurrent.written(kv, keys))
            return _contiguous(recurrent.sums(keys.k[:, :, :0], keys, kv, None, self.block_queries)[1])

    @in_float32
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        if isinstance(state, SeparateState):
            return self.read_shared(state, q, query, 1)
        sums = linear.read_state(self._queries(q, query), state.of(LinearState).kv)
        return self.gated(self._normalized(sums), q, query)

    def read_shared(self, state: State, q: Tensor, query: TokenInfo, shared: int) -> Tensor:
        if not isinstance(state, SeparateState):
            return super().read_shared(state, q, query, shared)
        with without_autocast(q.device):
            return state.read(self._queries(q, query), self.normalizer_floor, shared=shared).to(q.dtype)

    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, LinearState]:
        if not q.shape[2]:
            return super().scan_(state, q, k, v, query, key, mask)  # type: ignore[return-value]
        x = shown(q, k, v, query, key, mask)
        out, after = self._segment(state, x)
        return self._output(out, x), _contiguous(after.kv)

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        x = shown(q, k, v, query, key, mask)
        if not x.in_step:
            return super().loop(state, *x)
        with without_autocast(q.device):
            queries, keys = self._queries(q, query), self._writing(x.k, x.v, x.key, alone=True)
            if self.averages:
                out, after = SeparateState.of_joined(state).followed(keys, queries, self.normalizer_floor)
                return out.to(v.dtype), after
            kv, sums = recurrent.loop(state.of(LinearState).kv, keys, queries)
        return self._output_of_sums(sums, x), LinearState(kv)

    def write_loop(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> State:
        with without_autocast(k.device):
            if not isinstance(state, SeparateState):
                return LinearState(recurrent.loop(state.of(LinearState).kv, self._writing(k, v, key))[0])
            keys = self._writing(k, v, key, alone=True)
            return state.followed(keys, keys.k, self.normalizer_floor)[1]

    # ------------------------------------------------------------------------------------------------ whole sequences
    def _segment(self, state: State, x: Inputs) -> tuple[Tensor, LinearState]:
        """Weighted means, or sums scaled to unit RMS, and the state after the segment."""
        if (done := self._by_kernel(state, x)) is not None:
            return done
        with without_autocast(x.q.device):
            kv = state.of(LinearState).kv
            sums, scale, kv = recurrent.scaled_sums(*self._sides(x), kv, x.mask, self._block(x))
            return self._normalized(sums, scale, x.v.dtype), LinearState(kv)

    def _sums(self, state: State, x: Inputs, backward: bool = False) -> tuple[Tensor, LinearState]:
        """The sums that queries read, and the state after the segment."""
        with without_autocast(x.q.device):
            kv = state.of(LinearState).kv
            sums, kv = recurrent.sums(*self._sides(x, backward), kv, x.mask, self._block(x))
            return sums, LinearState(kv)

    def _sides(self, x: Inputs, backward: bool = False) -> tuple[Tensor, Written]:
        """Features of queries, and what keys write; `backward`: for a scan from the last token to the first."""
        keys = self._writing(x.k, x.v, x.key)
        return self._queries(x.q, x.query), keys.before_decay() if backward else keys

    def _whole(self, x: Inputs) -> Tensor | None:
        done = None if self._both_ways(x.mask) else self._by_kernel(None, without_unseen(x), lasts=False)
        return None if done is None else self._output(done[0], x)

    def _by_kernel(self, state: State | None, x: Inputs, lasts: bool = True) -> tuple[Tensor, LinearState] | None:
        with without_autocast(x.q.device):
            if (found := self._for_kernel(state, x)) is None:
                return None
            features, (_, _, decay, strength) = found
            floor = self.normalizer_floor if self.averages else None
            out, after = scanned(state, x, features, floor, lasts, decay=decay, strength=strength)
            return out if self.averages else self._normalized(out), after

    def _sums_by_kernel(self, x: Inputs, backward: bool) -> Tensor | None:
        """`_read_all` by the kernel in C, which maps the vectors itself; None: it does not."""
        if (found := self._for_kernel(None, x)) is None:
            return None
        features, (_, v, decay, strength) = found
        v = linear.append_ones(v) if self.averages else v
        if backward and decay is not None:
            if decay.shape[-1] > 1:
                return None
            v = v * decay.exp()  # for `Written.before_decay`: the keys are not mapped yet
        return scanned(None, x._replace(v=v), features, None, False, decay=decay, strength=strength)[0]

    def _for_kernel(self, state: State | None, x: Inputs) -> tuple[scan.Map, Written] | None:
        """How the kernel in C maps vectors, and keys that are not mapped; None: it cannot compute with these."""
        if not scan_runs(state, x) or (features := self.scan_map(x)) is None:
            return None
        k, v = map(accumulated, x[1:3])
        keys = Written(k, v, self.log_decay(k, x.key), self.strengths(k, x.key))
        if not scan.knows(x.mask, keys.decay):
            return None
        return features, keys if x.key.keep is None else keys.quiet(x.key.keep[:, None, :, None])

    def _in_segments(self, x: Inputs) -> Tensor:
        if self._both_ways(x.mask):
            return self._output_of_sums(self._read_all(x._replace(mask=CAUSAL)) + self._later_sums(x), x)
        if self._is_at_once(x):
            return self._output_of_sums(self._read_all(x), x)
        return self._output(self._scanned(x, self._segment), x)

    def _read_all(self, x: Inputs, backward: bool = False) -> Tensor:
        """The sums that queries read, starting from the empty state."""
        with without_autocast(x.q.device):
            if (sums := self._sums_by_kernel(x, backward)) is not None:
                return sums
            if self._is_at_once(x):
                return recurrent.at_once(*self._sides(x, backward), x.mask)
        return self._scanned(x, partial(self._sums, backward=backward))

    def _looped(self, x: Inputs) -> Tensor:
        if not self._both_ways(x.mask) or x.q.shape[2] != x.k.shape[2]:
            return super()._looped(x)
        with without_autocast(x.q.device):
            queries, keys = self._sides(x)
            first = self._first(x).of(LinearState).kv
            _, forward = recurrent.loop(first.clone(), keys, queries)
            later = keys.each(lambda part: part.flip(2))
            later = later if self.replaces else later.before_decay()
            _, backward = recurrent.loop(first, later, queries.flip(2), reads_first=not self.replaces)
        return self._output_of_sums(forward + backward.flip(2), x)

    def _output_of_sums(self, sums: Tensor, x: Inputs) -> Tensor:
        """The output, given the sums that queries read."""
        with without_autocast(x.q.device):
            return self._output(self._normalized(sums), x)

    def _normalized(self, sums: Tensor, scale: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Weighted means (`linear.normalize`), or sums scaled to unit RMS: neither grows with the number of keys."""
        if self.averages:
            return linear.normalize(sums, self.normalizer_floor, dtype, scale)
        return unit(sums if scale is None else sums * scale, 1 / sums.shape[-1], SMALLEST)

    def _output(self, out: Tensor, x: Inputs) -> Tensor:
        """The output, in the precision of the values, given normalized sums."""
        if self.averages:
            return out.to(x.v.dtype)
        with without_autocast(x.q.device):
            return self.gated(accumulated(out), accumulated(x.q), x.query).to(x.v.dtype)

    def _later_sums(self, x: Inputs) -> Tensor:
        """Sums over the keys after each query; with the delta rule, its own key is included, too.

        A scan from the last token to the first. Without the delta rule, each token first reads what later tokens wrote,
        then writes, and then its decay applies: two tokens are separated by the decays of all tokens but the earlier
        one, as in a scan from the first.
        """
        q, k, v = (y.flip(2) for y in x[:3])
        query, key = x.query.reversed(), x.key.reversed()
        if self.replaces:
            return self._read_all(Inputs(q, k, v, query, key, CAUSAL)).flip(2)
        count = q.shape[2] - 1
        if not count:
            return x.v.new_zeros(())
        later = Inputs(
            q[:, :, 1:], k[:, :, :count], v[:, :, :count], query.narrow(1, count + 1), key.narrow(0, count), CAUSAL
        )
        return F.pad(self._read_all(later, backward=True).flip(2), (0, 0, 0, 1))

    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        # In float64, because log-decays are cumulated over the whole sequence.
        mask, queries = with_state(mask), self._queries(q, query).double()
        keys = self._writing(k, k[..., :0], key).each(Tensor.double)
        if isinstance(mask, ChunkMask) and mask.ahead:  # copies of tokens ahead do not change the state
            if dispatch.is_transformed():
                raise LeapformerError(
                    f"{self.name}: torch.func and vmap do not work with chunks that look ahead; take chunks without, "
                    "or torch.autograd"
                )
            identity = torch.eye(k.shape[2], dtype=queries.dtype, device=k.device)
            keys = keys._replace(v=identity.expand(*k.shape[:3], -1))
            first = queries.new_zeros(*k.shape[:2], self.features, k.shape[2])
            weights = recurrent.sums(queries, keys, first, mask, self.block_queries)[0]
        elif self._both_ways(mask):
            places = torch.arange(q.shape[2], device=q.device)
            later = keys.each(lambda y: y.flip(2))
            later, behind = (later, places + 1) if self.replaces else (later.before_decay(), places)
            weights = recurrent.pairs(queries, keys, places + 1)
            weights = weights + recurrent.pairs(queries.flip(2), later, behind).flip(2, 3)
        else:
            weights = recurrent.pairs(queries, keys, visible(mask, q.shape[2], k.shape[2], q.device))
        if self.averages:
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(self.normalizer_floor)
        return weights.to(q.dtype)

    def _reference(self, x: Inputs) -> Tensor:
        with without_autocast(x.q.device):
            sums = accumulated(super()._reference(x))
            return self.polish(sums, accumulated(x.q), x.query).to(x.v.dtype)

    def _queries(self, q: Tensor, tokens: TokenInfo) -> Tensor:
        """Features of queries, in the precision of states."""
        features = self.queries(accumulated(q), tokens)
        check_shape("queries gives", features, q)
        check_count("queries", features.shape[-1], self.features)
        return features

    def _writing(self, k: Tensor, v: Tensor, tokens: TokenInfo, alone: bool = False) -> Written:
        """What keys write, in the precision of states; padding writes nothing and causes no decay.

        `alone`: without the column of ones of the normalizer.
        """
        keys = self.written(accumulated(k), accumulated(v), tokens)
        if not isinstance(keys, Written):
            raise LeapformerError(f"written returned a {type(keys).__name__}; return Written(k, v, decay, strength)")
        check_shape("written gives keys", keys.k, k)
        check_count("written", keys.k.shape[-1], self.features)
        check_shape("written gives values", keys.v, k, v.shape[3])
        if keys.decay is not None:
            check_shape("written gives a log-decay", keys.decay, k, 1, self.features)
        if keys.strength is not None:
            check_shape("written gives a strength", keys.strength, k, 1)
        if (keys.strength is not None) != self.replaces:
            given, other = ("no", "give one") if self.replaces else ("a", "give none")
            raise LeapformerError(
                f"written gives {given} strength, but replaces is {self.replaces}; {other}, or set replaces = "
                f"{not self.replaces} in the class"
            )
        if self.averages and not alone:
            keys = keys._replace(v=linear.append_ones(keys.v))
        return keys if tokens.keep is None else keys.kept(tokens.keep[:, None, :, None])

    def _both_ways(self, mask: Mask) -> bool:
        return mask is None and self.block == ENCODER_SELF

    def _limits(self, x: Inputs) -> tuple[float, int]:
        kept, size = super()._limits(x)
        return kept * KEPT_SOLUTIONS if self.replaces else kept, size

    def _is_at_once(self, x: Inputs) -> bool:
        """Whether all is read at once: no state before or after, no segments that the backward pass runs again."""
        (batch, heads, queries), keys = x.q.shape[:3], x.k.shape[2]
        if isinstance(x.mask, ChunkMask) and x.mask.ahead:
            return False  # a query does not see a prefix of the keys
        if scan.runs(*map(accumulated, x[:3])):
            return batch * heads * (queries + keys) <= self._limits(x)[0]
        return dispatch.few_pairs(x.q, x.k, x.mask, self.features) and max(queries, keys) <= LONGEST_BLOCK

    def _block(self, x: Inputs) -> int:
        """Queries per block; a block has `ratio` times as many keys."""
        ratio = x.mask.ratio if isinstance(x.mask, PrefixMask) else 1
        return max(1, self.block_queries // ratio)


def _contiguous(kv: Tensor) -> LinearState:
    """The last state of a scan as its own contiguous tensor: kernels need that, and the other states are freed."""
    return LinearState(kv.contiguous())
