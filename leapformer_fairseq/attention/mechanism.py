"""The contract of an attention mechanism: one function with executions that agree.

reference: the definition (`weights`): all pairs, or token by token; tests run it in float64.
scan:      segments with a state between them (`init_state`, `write`, `read`, `scan`): training, prompts, streaming.
loop:      a scan whose graph does not depend on the number of tokens: exported models.
step:      one token, with fused projections; `decoding.step_of` chooses it from the description that `kernel` returns.

To write is to add keys and values to the state; to read is to compute the output of queries from the state.

Shapes: B batch, H heads, T queries, S keys, D head dimension, E value dimension.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from types import NoneType, SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError
from .capabilities import DECODER_CROSS, Capabilities
from .kernels import Kernel, Projections
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask, seen, with_state
from .ops import dispatch, segments
from .ops.loops import over_tokens
from .ops.precision import accumulated, without_autocast
from .ops.segments import Segment
from .options import Option, in_library
from .tokens import Carry, TokenInfo, checked_keep

Execution = Literal["auto", "reference", "scan", "loop"]
EXECUTIONS: tuple[str, ...] = ("auto", "reference", "scan", "loop")
S = TypeVar("S", bound="State")


class Inputs(NamedTuple):
    """The inputs of attention; see `Mechanism.forward`."""

    q: Tensor
    k: Tensor
    v: Tensor
    query: TokenInfo
    key: TokenInfo
    mask: Mask

    @property
    def in_step(self) -> bool:
        """Whether each query sees the keys up to its own, so that a token can be written and read at a time."""
        return self.mask == CAUSAL and self.q.shape[2] == self.k.shape[2]


def shown(q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask) -> Inputs:
    """Drop keys that no query sees, and simplify the mask for a mechanism whose state keeps all that was written."""
    keys = seen(mask, q.shape[2], k.shape[2])
    return Inputs(q, k[:, :, :keys], v[:, :, :keys], query, key.narrow(0, keys), with_state(mask))


def without_unseen(x: Inputs) -> Inputs:
    """The same without keys that no query sees; itself if there are none, since the gradient of a slice is a copy."""
    return x if seen(x.mask, x.q.shape[2], x.k.shape[2]) == x.k.shape[2] else shown(*x)


def folded(x: Tensor, shared: int) -> Tensor:
    """Tokens (B * shared, H, T, D) of neighbouring batch entries as those of one sequence, (B, H, shared * T, D)."""
    if dispatch.is_one(x.shape[2]):  # fewer changes of layout in a graph
        return x.squeeze(2).unflatten(0, (-1, shared)).transpose(1, 2)
    return x.unflatten(0, (-1, shared)).transpose(1, 2).flatten(2, 3)


def unfolded(x: Tensor, shared: int, count: int) -> Tensor:
    """The inverse of `folded`, for `count` tokens T."""
    if dispatch.is_one(count):
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)
    return x.unflatten(2, (shared, -1)).transpose(1, 2).flatten(0, 1)


@dataclass
class State:
    """What a mechanism keeps of the keys and values written so far. Every tensor is batch first.

    `write`, `extend`, `loop` and `scan_` may change a state in place; `fork` it first if the old one is needed.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name; `type(state)(**tensors)` restores the state."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fork(self) -> Self:
        """An independent copy."""
        return type(self)(**{name: tensor.clone() for name, tensor in self.tensors().items()})

    def to(self, device: torch.device) -> Self:
        """An independent copy on this device."""
        return type(self)(**{name: tensor.to(device, copy=True) for name, tensor in self.tensors().items()})

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """The state of the batch entries of several states of one mechanism, which may have read different lengths.

        Raises LeapformerError where tensors grow with the text: their class must pad them.
        """
        each = [state.tensors() for state in states]
        for name, first in each[0].items():
            if any(tensors[name].shape[1:] != first.shape[1:] for tensors in each):
                raise LeapformerError(
                    f"{cls.__name__}.{name} has other sizes in other states, so they cannot be joined; define "
                    "the class method cat of this state, which pads them"
                )
        return cls(**{name: torch.cat([tensors[name] for tensors in each]) for name in each[0]})

    def of(self, kind: type[S]) -> S:
        """This state, if it is of this kind; raises TypeError for the state of another mechanism."""
        if not isinstance(self, kind):
            raise TypeError(f"a {type(self).__name__} does not belong to a mechanism with a {kind.__name__}")
        return self

    def reorder(self, order: Tensor) -> Self:
        """The state whose batch entry i is the old entry order[i]; beam search repeats, drops and permutes them."""
        return type(self)(**{name: tensor.index_select(0, order) for name, tensor in self.tensors().items()})

    def is_inference(self) -> bool:
        """Whether a tensor was made in inference mode, outside of which it must be neither changed nor saved."""
        return any(isinstance(x, Tensor) and x.is_inference() for x in vars(self).values())

    @property
    def batch_size(self) -> int:
        first: Tensor = next(iter(vars(self).values()))
        return first.shape[0]

    def nbytes(self) -> int:
        """Bytes held by the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


class Undeclared(LeapformerError, AttributeError):
    """An option is read that was not declared; `getattr` with a default gives the default."""


class Chosen(SimpleNamespace):
    """The values of a mechanism's options, by name."""

    def __getattr__(self, name: str) -> Any:
        declared = ", ".join(vars(self)) or "none"
        raise Undeclared(
            f"option {name!r} is read and was not declared; declared: {declared}; add Option({name!r}, default, help) "
            "to @register"
        )


class Mechanism(nn.Module):
    """How queries read keys and values, apart from the projections around it.

    A subclass implements `init_state`, `write` and `read`; the defaults of everything else go token by token. Override
    what must be fast: `scan` (many tokens) and `_weights`, and describe the mechanism in `kernel` for a fused decoding
    step. `capabilities` say where it can be used.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    #: of the class; an instance has its own if its options change them
    capabilities: Capabilities = Capabilities()
    #: names of the parameters that all layers of a block share
    tied: tuple[str, ...] = ()
    #: the width that values must have; None: any
    value_dim: int | None = None
    #: the longest text that it can read, in any block; None: any
    limit: int | None = None
    #: whether messages name options as in Python, not by their flags; `build` sets it
    in_python: bool = False

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        block: str | None = None,
        input_dim: int | None = None,
        **options: Any,
    ) -> None:
        """`block` is the attention block that uses it, such as "decoder-cross".

        `input_dim` is the width of the block's input for the keys (default: the width of all heads). `options` are
        those declared at registration; missing ones take their defaults. `chosen` holds all of them.
        """
        super().__init__()
        self.chosen = Chosen(**{**{option.name: option.default for option in self.options}, **options})
        self.head_dim, self.num_heads, self.dropout = head_dim, num_heads, dropout
        self.block, self.input_dim = block, head_dim * num_heads if input_dim is None else input_dim

    def receive(self, projections: Projections) -> None:
        """Receive the block's projection layers, for mechanisms that use them for something else, too.

        They belong to the block: do not register them as submodules.
        """

    def continued(self) -> dict[str, Tensor]:
        """Initial values of the parameters that this mechanism adds to the one that it extends.

        They are used when training continues from a checkpoint of that mechanism, and hardly change what it computes. A
        checkpoint must contain all of these parameters or none.
        """
        return {}

    # ----------------------------------------------------------------------------------------------------- recurrence
    @abstractmethod
    def init_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> State:
        """The state of `batch` sequences before the first key, on the device and in the precision of `like`.

        `key` contains the carry if the mechanism has one. `mask` is the mask of the queries that will read the state;
        None: they see all keys.
        """

    def loop_state(
        self, batch: int, value_dim: int, like: Tensor, key: TokenInfo | None = None, mask: Mask = None
    ) -> State | None:
        """`init_state` for `loop`, of tensors in the type of `like`; a size of 0 grows. None: no graph can hold it."""
        return self.init_state(batch, value_dim, like, key, mask) if self.capabilities.constant_state else None

    @classmethod
    def fits_graphs(cls) -> bool:
        """Whether graphs can hold its state: one of constant size, or one that its `loop_state` describes."""
        return cls.capabilities.constant_state or cls.loop_state is not Mechanism.loop_state

    @abstractmethod
    def write(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> State:
        """The state after keys (B, H, S, D) and values (B, H, S, E) were written to it."""

    @abstractmethod
    def read(self, state: State, q: Tensor, query: TokenInfo) -> Tensor:
        """The output (B, H, T, E) of queries (B, H, T, D) that see everything in the state."""

    def scan_(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        """`scan` that may change `state` in place.

        This default writes keys and reads queries in turn.
        """
        return self._visit(self.write, self.read, state, Inputs(q, k, v, query, key, mask))

    def scan(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        """Output (B, H, T, E) of queries that see `state` and, of these keys, what the mask shows them; the new state.

        The mask counts from these queries: what a ChunkMask shows begins with a chunk, and wait-k with `mask.after(n)`
        after n queries. Keys that no query sees are not written. `state` is left as it was, which costs a copy: see
        `scan_`.
        """
        return self.scan_(state.fork(), q, k, v, query, key, mask)

    def _visit(
        self, write: Callable[..., State], read: Callable[..., Tensor], state: State, x: Inputs
    ) -> tuple[Tensor, State]:
        """The default `scan`: write the keys that the next queries see in addition, then read these queries."""
        q, k, v, query, key, mask = x
        outputs = []
        for (t0, t1), (s0, s1), (a0, a1) in _visits(mask, q.shape[2], k.shape[2]):
            if s0 < s1:
                state = write(state, k[:, :, s0:s1], v[:, :, s0:s1], key.narrow(s0, s1))
            visible = state
            if a0 < a1:
                visible = write(state.fork(), k[:, :, a0:a1], v[:, :, a0:a1], key.narrow(a0, a1))
            outputs.append(read(visible, q[:, :, t0:t1], query.narrow(t0, t1)))
        return torch.cat(outputs, 2) if outputs else _nothing(q, k, v), state

    def extend(self, state: State, q: Tensor, k: Tensor, v: Tensor, tokens: TokenInfo) -> tuple[Tensor, State]:
        """`scan` of one token of self-attention: write it, then read."""
        state = self.write(state, k, v, tokens)
        return self.read(state, q, tokens), state

    def read_shared(self, state: State, q: Tensor, query: TokenInfo, shared: int) -> Tensor:
        """`read` for queries (B * shared, H, T, D), of which `shared` neighbouring batch entries share one of B states.

        In cross-attention these are the hypotheses of a sentence. They become queries of one sequence, so that each
        state is read only once.
        """
        return _as_one(lambda q, query: self.read(state, q, query), q, query, shared)

    def weights_shared(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, shared: int) -> Tensor:
        """`weights` (B * shared, H, T, S) of queries (B * shared, H, T, D), as for `read_shared`, with all keys."""
        return _as_one(lambda q, query: self.weights(q, k, query=query, key=key), q, query, shared)

    def loop(
        self, state: State, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask = None
    ) -> tuple[Tensor, State]:
        """`scan` for a graph: the number of operations does not depend on the number of tokens.

        It does depend on the number of chunks, and under a wait-k mask on the number of queries.
        """
        x = shown(q, k, v, query, key, mask)
        if x.in_step:
            return self._token_by_token(state, x)
        return self._visit(self.write_loop, self.read, state, x)

    def write_loop(self, state: State, k: Tensor, v: Tensor, key: TokenInfo) -> State:
        """`write` for a graph, for `loop`: the number of operations does not depend on the number of keys."""
        return self.write(state, k, v, key)

    def _token_by_token(self, state: State, x: Inputs) -> tuple[Tensor, State]:
        """A causal `loop`: `extend` for each token."""
        q, k, v, _, key, _ = x
        if dispatch.is_one(q.shape[2]):
            return self.extend(state, q, k, v, key)
        kind, names = type(state), list(state.tensors())
        optional = {"inputs": key.inputs, "keep": key.keep}
        further = {name: part.movedim(1, 0) for name, part in optional.items() if part is not None}

        def run(states: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], Tensor]:
            q, k, v = (part.unsqueeze(2) for part in token[:3])
            positions, *others = (part.unsqueeze(1) for part in token[3:])
            tokens = TokenInfo(positions, key.lengths, **dict(zip(further, others, strict=True)), carry=key.carry)
            out, after = self.extend(kind(**dict(zip(names, states, strict=True))), q, k, v, tokens)
            return list(after.tensors().values()), out.squeeze(2)

        tokens = [*(part.movedim(2, 0) for part in (q, k, v)), key.positions.T, *further.values()]
        after, out = over_tokens(run, list(state.tensors().values()), tokens)
        return out.movedim(0, 2), kind(**dict(zip(names, after, strict=True)))

    # ----------------------------------------------------------------------------------------------------- description
    def kernel(self) -> Kernel | None:
        """The description from which a fused decoding step is chosen (see `kernels`).

        None: the step calls `extend`, or in cross-attention `read_shared`.
        """
        return None

    # ---------------------------------------------------------------------------------------------------------- carry
    def first_carry(self, batch: int) -> Carry:
        """The carry before the first layer, for a mechanism that has one."""
        raise NotImplementedError

    def carry(self, state: State) -> Carry:
        """The carry for the next layer, given the state after all keys, for a mechanism that has a carry."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ whole sequences
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        query: TokenInfo | None = None,
        key: TokenInfo | None = None,
        mask: Mask = None,
        execution: Execution = "auto",
    ) -> Tensor:
        """Attention output (B, H, T, E) of q (B, H, T, D), k (B, H, S, D), v (B, H, S, E).

        `query` and `key` describe the tokens (positions, true lengths, padding). `key` None means no padding, and under
        a causal mask an unknown length; `query` None means the same tokens as the keys in self-attention under a causal
        or chunk mask, otherwise no padding.
        Outputs of padded queries are undefined but finite. Padded keys and values may hold anything, even NaN; a NaN in
        a later key or value may reach queries before it.

        `execution` is "reference", "scan" or "loop" (see the module), or "auto": all pairs if less work than a scan.
        Raises LeapformerError if the execution is unknown, or if the mechanism does not support its block or the mask.
        """
        if execution not in EXECUTIONS:
            raise LeapformerError(f"execution {execution!r} is unknown; choose from: {', '.join(EXECUTIONS)}")
        if not dispatch.is_traced():  # a graph would take the sizes that are compared for constants
            self._check(q, k, v, query, key, mask)
        query, key = self._described(q, k, query, key, mask)
        self.check_limit(key, self.limit)  # of the whole text: segments know only a part
        if not q.shape[0] or not q.shape[2] or not k.shape[2]:
            return _nothing(q, k, v)
        mask = with_state(mask) if self.capabilities.constant_state else mask
        x = Inputs(q, k, v, query.cleared(), key.cleared(), mask)
        if execution in ("auto", "scan") and (out := self._whole(x)) is not None:
            return out
        x = x._replace(k=_cleared(k, key), v=_cleared(v, key))
        transformed = dispatch.is_transformed()  # by torch.func, which does not support custom backward passes
        if execution in ("scan", "loop") and transformed:
            raise LeapformerError("torch.func and vmap work with execution='reference' only; choose that, or 'auto'")
        if execution == "loop":
            return self._looped(x)
        if execution == "reference" or transformed or (execution == "auto" and self._few_pairs(x)):
            return self._reference(x)
        return self._in_segments(x)

    def weights(
        self, q: Tensor, k: Tensor, *, query: TokenInfo | None = None, key: TokenInfo | None = None, mask: Mask = None
    ) -> Tensor:
        """What each key contributes to each query, (B, H, T, S): for alignments and pictures, and as the reference."""
        query, key = self._described(q, k, query, key, mask)
        with without_autocast(q.device):
            weights = self._weights(accumulated(q), accumulated(k), query, key, mask, 0.0)
        return weights.to(q.dtype)

    def check_mask(self, mask: Mask) -> None:
        """Raise LeapformerError for something else than a mask, and for one that is not supported here."""
        if not isinstance(mask, (PrefixMask, ChunkMask, NoneType)):
            raise LeapformerError(
                f"mask is a {type(mask).__name__}; give CAUSAL, PrefixMask(lagging, ratio), ChunkMask(size), or None"
            )
        reason = self.capabilities.unsupported_reason(self.block, mask)
        if reason is not None:
            raise self.refusal(f"{self.name} attention cannot be used like this: {reason}")

    def refusal(self, text: str) -> LeapformerError:
        """The error of a message that names options by their flags; by their names, if it was made by `build`."""
        return LeapformerError(in_library(text, self.options) if self.in_python else text)

    def check_limit(self, tokens: TokenInfo, limit: int | None) -> None:
        """Raise LeapformerError for positions beyond `limit`. Waits for a GPU only if there are more columns."""
        positions = tokens.positions
        if limit is None or torch.compiler.is_compiling():  # positions have no values in a graph
            return
        if positions.is_meta or not positions.numel() or (positions.is_cuda and positions.shape[1] <= limit):
            return
        longest = int(positions.max())
        if longest > limit:
            where = f"{self.name} in {self.block}" if self.block else self.name
            raise self.refusal(
                f"{where} can read {limit} tokens and got {longest}; cut the text, or give more room "
                f"({self.capabilities.limit_options})"
            )

    def _check(
        self, q: Tensor, k: Tensor, v: Tensor, query: TokenInfo | None, key: TokenInfo | None, mask: Mask
    ) -> None:
        """Raise LeapformerError for shapes, tokens or a mask that do not fit."""
        self.check_mask(mask)
        widths = {"q": self.head_dim, "k": self.head_dim, "v": self.value_dim}
        for name in (projection[0] for projection in self.capabilities.unused_projections):
            widths[name] = None  # the same tensor as the keys, or as the values
        for (name, width), x in zip(widths.items(), (q, k, v), strict=True):
            if not isinstance(x, Tensor):
                raise LeapformerError(f"{name} is a {type(x).__name__}; give a tensor (batch, heads, tokens, width)")
            if (
                x.dim() != 4
                or x.shape[0] != q.shape[0]
                or x.shape[1] != self.num_heads
                or width not in (None, x.shape[3])
            ):
                raise LeapformerError(
                    f"{name} is {tuple(x.shape)}; {self.name} was built for (batch, {self.num_heads} heads, tokens, "
                    f"{'any width' if width is None else width}), with a batch of {q.shape[0]} as in q"
                )
        if k.shape[2] != v.shape[2]:
            raise LeapformerError(f"there are {k.shape[2]} keys and {v.shape[2]} values; give as many of both")
        for name, x, tokens in (("query", q, query), ("key", k, key)):
            if tokens is not None:
                self._check_tokens(name, x, tokens)

    def _check_tokens(self, name: str, x: Tensor, tokens: TokenInfo) -> None:
        """Raise LeapformerError if `tokens` do not describe x (B, H, T, D)."""
        if not isinstance(tokens, TokenInfo):
            raise LeapformerError(
                f"{name} is a {type(tokens).__name__}; give TokenInfo.whole(count, keep), keep True at real tokens"
            )
        if tokens.positions.shape[1] != x.shape[2]:
            raise LeapformerError(
                f"{name} describes {tokens.positions.shape[1]} tokens and there are {x.shape[2]}; give as many, "
                "as by TokenInfo.narrow(start, stop)"
            )
        checked_keep(tokens.keep, (len(x), x.shape[2]))
        if tokens.inputs is not None and name == "key" and tokens.inputs.shape[-1] != self.input_dim:
            raise LeapformerError(
                f"the inputs of keys are {tokens.inputs.shape[-1]} wide, and {self.name} was built for "
                f"{self.input_dim}; build it with input_dim={tokens.inputs.shape[-1]}"
            )

    def _described(
        self, q: Tensor, k: Tensor, query: TokenInfo | None, key: TokenInfo | None, mask: Mask
    ) -> tuple[TokenInfo, TokenInfo]:
        """Fill in missing descriptions of the tokens, as `forward` says."""
        if key is None:
            key = TokenInfo.whole(k.shape[2], device=k.device)
            # In generation the length is not known, so by default nothing causal may depend on it.
            key = key.without_lengths() if mask == CAUSAL else key
        if query is None:
            same = self.same_tokens(q, k) and (mask == CAUSAL or isinstance(mask, ChunkMask))
            query = key if same else TokenInfo.whole(q.shape[2], device=q.device)
        # A mechanism that does not declare that it reads inputs must not find them here: generation has none for it.
        needs = self.capabilities
        key = key if needs.needs_inputs else replace(key, inputs=None)
        query = query if needs.needs_inputs or needs.needs_query_inputs else replace(query, inputs=None)
        return query, key

    def same_tokens(self, q: Tensor, k: Tensor) -> bool:
        """Whether queries and keys are the same tokens: if not in cross-attention, and there are as many of both."""
        return self.block != DECODER_CROSS and q.shape[2] == k.shape[2]

    # ------------------------------------------------------------------------------------- what a subclass may override
    def _weights(self, q: Tensor, k: Tensor, query: TokenInfo, key: TokenInfo, mask: Mask, dropout: float) -> Tensor:
        """`weights` in float32 or float64. This default scans token by token, with the identity matrix as values."""
        v = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:3], -1)
        state = self.init_state(len(q), v.shape[3], k, key, mask)
        return Mechanism.scan_(self, state, q, k, v, query, key, mask)[0]

    def dropping(self) -> float:
        """The dropout probability of weights, 0 outside training."""
        return self.dropout if self.training else 0.0

    def _whole(self, x: Inputs) -> Tensor | None:
        """The output by a kernel for whole sequences, which skips padding, whatever it holds; None: by other means."""
        return None

    def _few_pairs(self, x: Inputs) -> bool:
        """Whether all pairs of queries and keys are less work than the states of a scan."""
        return False

    def _reference(self, x: Inputs) -> Tensor:
        q, k, v, query, key, mask = x
        with without_autocast(q.device):
            weights = self._weights(accumulated(q), accumulated(k), query, key, mask, self.dropping())
            return (weights @ accumulated(v)).to(v.dtype)

    def _in_segments(self, x: Inputs) -> Tensor:
        """A scan from the empty state. The backward pass runs the segments of long inputs again."""
        return self._scanned(x, self._segment)

    def _looped(self, x: Inputs) -> Tensor:
        """A `loop` from the empty state. If all queries see all keys, all tokens are written at once instead."""
        at_once = x.mask is None or not self.capabilities.incremental
        return self._in_segments(x) if at_once else self.loop(self._first(x), *x)[0]

    def _first(self, x: Inputs) -> State:
        """The empty state."""
        return self.init_state(x.q.shape[0], x.v.shape[3], x.k, x.key, x.mask)

    def _scanned(self, x: Inputs, run_segment: Callable[[Any, Inputs], tuple[Tensor | None, State]]) -> Tensor:
        """The outputs of all segments, (B, H, T, ..), beginning with the empty state; see `ops.segments`."""
        q, k, v, query, key, mask = x
        first = self._first(x)
        inputs = [None if tokens.inputs is None else tokens.inputs.unsqueeze(1) for tokens in (query, key)]

        def run(at: Segment, *tensors: Any) -> tuple[Tensor | None, list[Tensor]]:
            q, of_query, k, v, of_key, *memory = tensors
            there, here = (
                replace(tokens, inputs=None if part is None else part.squeeze(1))
                for tokens, part in ((query.narrow(at.t0, at.t1), of_query), (key.narrow(at.s0, at.s1), of_key))
            )
            out, state = run_segment(type(first)(*memory), Inputs(q, k, v, there, here, at.mask))
            return out, list(state.tensors().values())

        plan, memory = segments.plan_of(q, k, mask, *self._limits(x)), list(first.tensors().values())
        return segments.scan(run, memory, [q, inputs[0]], [k, v, inputs[1]], plan, random=self.dropping() > 0)

    def _segment(self, state: State, x: Inputs) -> tuple[Tensor | None, State]:
        """`scan` of a segment, which may have no queries or no keys. Without queries the output is None."""
        if not x.q.shape[2]:
            return None, self.write(state, x.k, x.v, x.key)
        if not x.k.shape[2]:
            return self.read(state, x.q, x.query), state
        return self.scan_(state, *x)

    def _limits(self, x: Inputs) -> tuple[float, int]:
        """`kept_tokens` and `segment_tokens` of `segments.plan_of`."""
        bounds, whole = dispatch.bounds(x.q.device), x.mask is None and not self.capabilities.append
        kept = math.inf if whole else bounds.kept_numbers / x.q.shape[3]
        return kept, bounds.segment_tokens


def _cleared(x: Tensor, tokens: TokenInfo) -> Tensor:
    """Set padding to zeros: it may hold anything, and 0 times NaN would reach real tokens."""
    return x if tokens.keep is None else x.where(tokens.keep[:, None, :, None], 0)


def _nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The output (B, H, T, E) of no queries, no keys or no batch: zeros, with gradients of zero for q, k and v."""
    zero = sum(x[..., :0].sum() for x in (q, k, v))
    return torch.as_tensor(zero, dtype=v.dtype).expand(*q.shape[:3], v.shape[3]).clone()


def _as_one(run: Callable[[Tensor, TokenInfo], Tensor], q: Tensor, query: TokenInfo, shared: int) -> Tensor:
    """`run` for queries (B * shared, H, T, D), of which `shared` neighbouring batch entries become one sequence."""
    if shared == 1:
        return run(q, query)
    return unfolded(run(folded(q, shared), query.folded(shared)), shared, q.shape[2])


def _visits(mask: Mask, queries: int, keys: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """In order: queries [t0, t1) that see the same keys, keys [s0, s1) to write before they are read, and look-ahead.

    Look-ahead are keys [a0, a1) that only these queries see: they are written to a copy of the state.
    """
    if mask is None:
        yield (0, queries), (0, keys), (0, 0)
    elif isinstance(mask, PrefixMask):
        read = 0
        for t in range(queries):
            stop = mask.count(t, keys)
            yield (t, t + 1), (read, stop), (0, 0)
            read = stop
    else:
        for start in range(0, queries, mask.tokens):
            stop = min(start + mask.tokens, queries)
            middle = min(start + mask.size, stop)
            yield (start, stop), (start, middle), (middle, stop)
