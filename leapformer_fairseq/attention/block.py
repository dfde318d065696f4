"""An attention block: projections, heads, a mechanism, and the memory between the steps of generation.

`AttentionBlock` serves two layouts of tokens: `Attention` is the layer for models of one's own, (B, T, C), and
`modules.MechanismAttention` has the interface of fairseq's MultiheadAttention, (T, B, C).

Shapes: B batch, T queries, S keys, C width of the block, H heads, D head dimension; inside, tensors are (B, H, T, D).
Keep masks are True at real tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError
from .decoding import step_of
from .decoding.rows import RowsStep
from .decoding.step import Step
from .kernels import Projections
from .layers import is_hooked, is_plain, within
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask, numbers_of
from .mechanism import Execution, Mechanism, State
from .tokens import TokenInfo


@dataclass
class Memory:
    """What one attention block keeps between decoding steps.

    step:      the decoding step; None with gradients, or if a layer is more than its weights (see `decoding_step`).
    lengths:   (B,), the lengths of the targets as known when the memory was created; they never change.
    state:     the mechanism's state.
    mask:      the mask of the queries that read the state, from the first to the last.
    queries:   number of query columns so far.
    padded:    (B,), how many of these were padding; None: none.
    written:   number of source columns written to `state` (cross-attention; the same for all sentences).
    shared:    number of neighbouring batch entries that share one state (in cross-attention, a sentence's hypotheses).
    positions: (B, T) or (1, T), positions of the next queries if the caller sets them; None: they are counted.
    rows:      what computes a graph's step instead of the mechanism, if there is such.
    keys:      keys (B, H, S, D) of the source and what is known of them, for weights, where the source is not at hand.
    """

    step: Step | None
    lengths: Tensor | None = None
    state: State | None = None
    mask: Mask = None
    queries: int = 0
    padded: Tensor | None = None
    written: int = 0
    shared: int = 1
    positions: Tensor | None = None
    rows: RowsStep | None = None
    keys: tuple[Tensor, TokenInfo] | None = None

    def fused(self, device: torch.device) -> Step | None:
        """The fused step; None with gradients or autocast, since it works in place."""
        if self.step is None or torch.is_grad_enabled() or torch.is_autocast_enabled(device.type):
            return None
        return self.step

    def tokens(self, count: int, keep: Tensor | None, device: torch.device) -> TokenInfo:
        """The next `count` query columns."""
        if self.positions is not None:
            return TokenInfo(self.positions, self.lengths, keep)
        if keep is None and self.padded is None:
            return TokenInfo(
                torch.arange(self.queries + 1, self.queries + count + 1, device=device)[None], self.lengths
            )
        seen = torch.full((1,), self.queries, device=device)
        seen = seen if self.padded is None else seen - self.padded
        return TokenInfo.following(seen, count, keep).of_length(self.lengths)

    def advance(self, count: int, keep: Tensor | None = None) -> None:
        self.queries += count
        if keep is not None:
            padded = (~keep).sum(1)
            self.padded = padded if self.padded is None else self.padded + padded

    def reorder(self, order: Tensor) -> Memory:
        """The memory whose batch entry i is the old entry order[i]."""
        padded, lengths = (x if x is None else x.index_select(0, order) for x in (self.padded, self.lengths))
        state = self.state
        if state is not None and self.shared > 1:
            # Hypotheses change places only within their sentence, so states move only when a sentence is finished.
            if len(order) != self.shared * state.batch_size:
                state = state.reorder(order.view(-1, self.shared)[:, 0] // self.shared)
        elif state is not None:
            state = state.reorder(order)
        return replace(self, state=state, padded=padded, lengths=lengths)

    def leave_inference(self) -> None:
        """Copy the state if it was made in inference mode and the mode is another now."""
        if self.state is not None and not torch.is_inference_mode_enabled() and self.state.is_inference():
            self.state = self.state.fork()

    def fork(self) -> Memory:
        return replace(self, state=None if self.state is None else self.state.fork())

    def to(self, device: torch.device) -> Memory:
        """The memory on another device, without its step, which holds weights of the old one."""
        state = None if self.state is None else self.state.to(device)
        return replace(self, state=state, padded=None if self.padded is None else self.padded.to(device), step=None)

    def tensors(self) -> dict[str, Tensor]:
        """All that is kept, by name; the tensors of the state as `state.NAME`."""
        state = {} if self.state is None else self.state.tensors()
        padded = {} if self.padded is None else {"padded": self.padded}
        numbers = {"queries": torch.tensor(self.queries), "written": torch.tensor(self.written)}
        numbers["mask"] = torch.tensor(numbers_of(self.mask), dtype=torch.long)
        return {**{f"state.{name}": x for name, x in state.items()}, **numbers, **padded}

    @staticmethod
    def cat(memories: Sequence[Memory]) -> Memory:
        """The memory of all sequences of several memories, which may have read different numbers of queries."""
        states = [memory.state for memory in memories if memory.state is not None]
        first, last = memories[0], max(memory.queries for memory in memories)
        missing = [torch.full((state.batch_size,), last - m.queries) for m, state in zip(memories, states, strict=True)]
        device = next(iter(states[0].tensors().values())).device
        padded = torch.cat(
            [x.to(device) + (0 if m.padded is None else m.padded) for m, x in zip(memories, missing, strict=True)]
        )
        return replace(
            first,
            state=type(states[0]).cat(states),
            queries=last,
            padded=padded if bool(padded.any()) else None,
            written=max(memory.written for memory in memories),
        )


class Where(TypedDict):
    """The tokens of queries and keys, and the mask between them."""

    query: TokenInfo
    key: TokenInfo
    mask: Mask


_PREPARING = threading.Lock()


class AttentionBlock(nn.Module):
    """Projects, splits heads, calls one mechanism, and keeps its state in a `Memory`.

    A subclass sets the projections `q_proj`, `k_proj`, `v_proj` and `out_proj`, then calls `use`. It may override what
    it knows about a pass: `lengths`, `execution`, `shared_by`, `described`, `observe` and `hand_on`.
    """

    #: whether inputs are (B, T, C); otherwise (T, B, C)
    batch_first: ClassVar[bool] = True
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def use(self, mechanism: Mechanism, crosses: bool) -> None:
        """Set the mechanism. `crosses`: keys come from another sequence (cross-attention)."""
        self.mechanism, self.crosses, self.num_heads = mechanism, crosses, mechanism.num_heads
        for name in mechanism.capabilities.unused_projections:
            getattr(self, name).requires_grad_(False)
        mechanism.receive(self._projections())
        self._prepared: tuple[list[tuple[int, int]], Step | None] | None = None
        self._types = [type(module) for module in within(mechanism)]

    # ------------------------------------------------------------------------------- what a subclass knows about a pass
    def lengths(self) -> Tensor | None:
        """Lengths (B,) of the targets, true or predicted; None if unknown."""
        return None

    def execution(self) -> Execution:
        """How the mechanism is executed."""
        return "auto"

    def shared_by(self) -> int:
        """Number of neighbouring batch entries that may have the same source."""
        return 1

    def described(self, tokens: TokenInfo, x: Tensor, as_keys: bool = True) -> TokenInfo:
        """The tokens of x, with it as their inputs if the mechanism reads the inputs of keys, or of queries."""
        needs = self.mechanism.capabilities
        return self._with_inputs(tokens, x) if (needs.needs_inputs if as_keys else needs.needs_query_inputs) else tokens

    def observe(self, q: Tensor, k: Tensor, where: Where) -> None:
        """Called with the inputs of the mechanism for whole sequences."""

    def hand_on(self, state: State) -> None:
        """Called with the state of a source that was just read."""

    # ------------------------------------------------------------------------------------------------ whole sequences
    def attend(
        self, query: Tensor, key: Tensor, query_info: TokenInfo, key_info: TokenInfo, mask: Mask, wanted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The output for whole sequences, and the weights (B, H, T, S) if they are `wanted`, or None."""
        where: Where = {"query": query_info, "key": key_info, "mask": mask}
        k, v = self.project_keys(key, key_info)
        q = k if "q_proj" in self.mechanism.capabilities.unused_projections else self.project_queries(query, query_info)
        self.observe(q, k, where)
        weights = self.mechanism.weights(q, k, **where) if wanted else None
        return self.project_out(self.read_all(q, k, v, where)), weights

    def read_all(self, q: Tensor, k: Tensor, v: Tensor, where: Where) -> Tensor:
        """What queries read, (B, H, T, D), from whole sequences."""
        return self.mechanism(q, k, v, **where, execution=self.execution())

    # ------------------------------------------------------------------------------------------------------ generation
    def scan(self, state: State | None, x: Tensor, tokens: TokenInfo, mask: Mask) -> tuple[Tensor, State]:
        """Self-attention of the next tokens x, after `state` (None: there are none before); output and new state."""
        q, (k, v) = self.project_queries(x, tokens), self.project_keys(x, tokens)
        state = self.first_state(k, v, tokens, mask) if state is None else state
        run = self.mechanism.loop if self.execution() == "loop" else self.mechanism.scan_
        out, state = run(state, q, k, v, tokens, tokens, mask)
        return self.project_out(out), state

    def by_step(self, x: Tensor, memory: Memory) -> Tensor | None:
        """The output for one more token by the prepared step, which in self-attention writes it before it reads.

        None: there is no step or no state, or there are several tokens or padding; nothing is changed then.
        """
        step = memory.fused(x.device) if memory.padded is None and self._columns(x) == 1 else None
        if step is None or memory.state is None:
            return None
        out = self._as_column(step(self._column(x), memory.state, memory.queries + 1, memory.lengths))
        memory.queries += 1
        return out

    def self_step(self, x: Tensor, keep: Tensor | None, memory: Memory, mask: Mask) -> Tensor:
        """Self-attention over the next tokens: one, or several, such as a prompt."""
        memory.leave_inference()
        count = self._columns(x)
        prompt, plain = None, keep is None and memory.padded is None
        if count > 1 and plain and mask == CAUSAL and self.execution() != "loop":
            step = memory.fused(x.device)
            prompt = None if step is None else step.prompt(x, memory.state, self._heads)
        if prompt is not None:
            heads, memory.state = prompt
            memory.mask = mask
            memory.advance(count)
            return self.project_out(heads)
        if memory.state is None:
            first = self.described(memory.tokens(0, None, x.device), x)
            memory.state = self.mechanism.init_state(self._rows(x), self.value_dim, x, first, mask)
            memory.mask = mask
        # A step reads all that was written, so it knows no limit on the past.
        limited = isinstance(mask, ChunkMask) and mask.past is not None
        out = None if keep is not None or limited else self.by_step(x, memory)
        if out is None:
            tokens = self.described(memory.tokens(count, keep, x.device), x)
            out, memory.state = self.scan(memory.state, x, tokens, mask)
            memory.advance(count, keep)
        return out

    def cross_step(
        self,
        query: Tensor,
        source: Tensor,
        keep: Tensor | None,
        memory: Memory,
        mask: Mask,
        wanted: bool,
        target_keep: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-attention of the next tokens. The source is written to the state once, or as far as wait-k allows.

        `keep` is that of the source, `target_keep` that of the next tokens: None under wait-k.
        """
        memory.leave_inference()
        weights = None
        if wanted:
            tokens = self._next_queries(query, target_keep, memory)
            weights = self._step_weights(query, tokens, source, keep, memory, mask)
        outputs = []
        # Under wait-k, one query at a time, since each sees more of the source than the one before.
        for part in (query,) if mask is None else query.split(1, self._dim):
            state = self._source_state(memory, source, keep, mask)
            outputs.append(self._read(part, state, memory, target_keep))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, self._dim), weights

    def rows_step(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]:
        """The output (B, C) for the next tokens x (B, C), one of each batch entry, with the few operators of a graph.

        In self-attention they are written to the memory's state, in cross-attention they read it. The second result
        are the weights (B, H, 1, S) if the memory has the keys.
        """
        state = memory.state
        assert state is not None
        if memory.rows is not None:
            out, memory.state = memory.rows(x, state)
            return self.out_proj(out.flatten(1)), None
        needs, tokens = self.mechanism.capabilities, memory.tokens(1, None, x.device)
        if needs.needs_inputs or needs.needs_query_inputs:
            tokens = replace(tokens, inputs=x.unsqueeze(1))

        def heads(projection: nn.Linear) -> Tensor:
            return projection(x).view(-1, self.num_heads, 1, projection.out_features // self.num_heads)

        q, weights = heads(self.q_proj), None
        if self.crosses:
            out = self.mechanism.read_shared(state, q, tokens, memory.shared)
            if memory.keys is not None:
                weights = self.mechanism.weights_shared(q, memory.keys[0], tokens, memory.keys[1], memory.shared)
        else:
            v = heads(self.v_proj)
            k = v if needs.keys_are_values else heads(self.k_proj)
            out, memory.state = self.mechanism.loop(state, q, k, v, tokens, tokens, CAUSAL)
        return self.out_proj(out.flatten(1)), weights

    def _next_queries(self, query: Tensor, keep: Tensor | None, memory: Memory) -> TokenInfo:
        """What is known of the next tokens, which are queries of cross-attention; `keep` is theirs."""
        return self.described(memory.tokens(self._columns(query), keep, query.device), query, as_keys=False)

    def _step_weights(
        self, query: Tensor, tokens: TokenInfo, source: Tensor, keep: Tensor | None, memory: Memory, mask: Mask
    ) -> Tensor:
        """Cross-attention weights (B, H, T, S) of the next tokens."""
        key = self.described(TokenInfo.whole(self._columns(source), keep, source.device), source)
        mask = mask.after(memory.queries) if isinstance(mask, PrefixMask) else None
        q, (k, _) = self.project_queries(query, tokens), self.project_keys(source, key)
        return self.mechanism.weights(q, k, query=tokens, key=key, mask=mask)

    def _source_state(self, memory: Memory, source: Tensor, keep: Tensor | None, mask: Mask) -> State:
        """The state, after writing the source columns that the next query may see."""
        count = self._columns(source)
        if memory.padded is not None and isinstance(mask, PrefixMask):
            raise LeapformerError("under wait-k, sessions at different steps cannot be joined; join them at equal ones")
        stop = mask.count(memory.queries, count) if isinstance(mask, PrefixMask) else count
        if memory.state is None or stop > memory.written:
            if memory.state is None:
                memory.shared, memory.mask = self._shared(source, keep), mask
            keep = None if keep is None else keep[:: memory.shared]
            source = source[:: memory.shared] if self.batch_first else source[:, :: memory.shared]
            tokens = self.described(TokenInfo.whole(count, keep, source.device), source).narrow(memory.written, stop)
            k, v = self.project_keys(source.narrow(self._dim, memory.written, stop - memory.written), tokens)
            state = self.first_state(k, v, tokens, None) if memory.state is None else memory.state
            memory.state, memory.written = self.mechanism.write(state, k, v, tokens), stop
        self.hand_on(memory.state)
        return memory.state

    def _read(self, query: Tensor, state: State, memory: Memory, keep: Tensor | None) -> Tensor:
        """Cross-attention of more tokens to a state of the source; `keep` is theirs."""
        out = self.by_step(query, memory) if keep is None else None
        if out is None:
            tokens = self._next_queries(query, keep, memory)
            heads = self.mechanism.read_shared(state, self.project_queries(query, tokens), tokens, memory.shared)
            out = self.project_out(heads)
            memory.advance(self._columns(query), keep)
        return out

    def _shared(self, source: Tensor, keep: Tensor | None) -> int:
        """How many neighbouring batch entries have the same source: all that may have it, otherwise 1."""
        n = self.shared_by()
        if n == 1 or self._rows(source) % n:
            return 1
        sides = [self._batch_first(source)] if keep is None else [self._batch_first(source), keep]
        groups = (side.unflatten(0, (-1, n)) for side in sides)
        return n if all(torch.equal(group, group[:, :1].expand_as(group)) for group in groups) else 1

    def first_state(self, k: Tensor, v: Tensor, key: TokenInfo, mask: Mask) -> State:
        """The state before any token."""
        return self.mechanism.init_state(k.shape[0], v.shape[3], k, key, mask)

    def decoding_step(self) -> Step | None:
        """The mechanism's decoding step, prepared again whenever a weight has changed.

        A step knows only the weights of layers, so this is None if a layer has a hook, an adapter or a
        parametrisation, or is pruned or quantised.
        """
        projections = self._projections()
        if self.crosses:
            projections = projections._replace(k=None, v=None)
        linear = [projection for projection in projections if projection is not None]
        if not all(map(is_plain, linear)):
            return None
        modules = within(self.mechanism)
        if [type(module) for module in modules] != self._types or any(map(is_hooked, modules)):
            return None
        parts = [*linear, *modules]
        parameters = [parameter for part in parts for parameter in part._parameters.values() if parameter is not None]
        stamp = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        prepared = self._prepared  # read once, since another thread may drop it
        if prepared is None or prepared[0] != stamp:
            with _PREPARING:  # one step for all sessions that begin at the same moment, since it copies the weights
                prepared = self._prepared
                if prepared is None or prepared[0] != stamp:
                    prepared = self._prepared = stamp, step_of(self.mechanism, projections)
        return prepared[1]

    def new_memory(self) -> Memory:
        """The memory before the first token."""
        return Memory(None if torch.is_grad_enabled() else self.decoding_step(), self.lengths())

    def train(self, mode: bool = True) -> Any:
        """Also drop the prepared step; the next generation prepares a new one.

        The versions of parameters do not reveal every change: fairseq's optimizers write to `parameter.data`. Such a
        change comes with a training step, which calls `train` or makes a pass with gradients.
        """
        self._prepared = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        # The prepared step holds functions, which cannot be pickled; it can be prepared again.
        return {**self.__dict__, "_prepared": None}

    def graph_step(self) -> RowsStep | None:
        """What computes a graph's step instead of the mechanism, if there is such."""
        return None if self.crosses else RowsStep.of(self.mechanism, self._projections())

    # ----------------------------------------------------------------------------------------------------- projections
    def project_queries(self, x: Tensor, tokens: TokenInfo) -> Tensor:
        """Queries (B, H, T, D) of the tokens of x."""
        return self._heads(self.q_proj(x))

    def project_keys(self, x: Tensor, tokens: TokenInfo) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, D) of the tokens of x."""
        v = self._heads(self.v_proj(x))
        return v if self.mechanism.capabilities.keys_are_values else self._heads(self.k_proj(x)), v

    def project_out(self, heads: Tensor) -> Tensor:
        """The block's output, given the heads' (B, H, T, E)."""
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return self.out_proj(heads.permute(*order).flatten(2))

    def _projections(self) -> Projections:
        return Projections(self.q_proj, self.out_proj, self.k_proj, self.v_proj)

    # ---------------------------------------------------------------------------------------------------------- layout
    def _heads(self, x: Tensor) -> Tensor:
        """A projection of tokens to (B, H, T, D)."""
        order = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        return x.unflatten(-1, (self.num_heads, -1)).permute(*order)

    @property
    def value_dim(self) -> int:
        """The width of the values of a head."""
        return self.v_proj.out_features // self.num_heads

    @property
    def _dim(self) -> int:
        """The dimension of tokens."""
        return 1 if self.batch_first else 0

    def _columns(self, x: Tensor) -> int:
        """The number of tokens, not by `len`, which would become a constant in a graph."""
        return x.shape[self._dim]

    def _rows(self, x: Tensor) -> int:
        """The batch size."""
        return x.shape[1 - self._dim]

    def _column(self, x: Tensor) -> Tensor:
        """The only token, (B, C)."""
        return x[:, 0] if self.batch_first else x[0]

    def _as_column(self, x: Tensor) -> Tensor:
        """(B, C) as tokens."""
        return x.unsqueeze(self._dim)

    def _batch_first(self, x: Tensor) -> Tensor:
        """The tokens as (B, T, C)."""
        return x if self.batch_first else x.transpose(0, 1)

    def _with_inputs(self, tokens: TokenInfo, x: Tensor) -> TokenInfo:
        return replace(tokens, inputs=self._batch_first(x))
