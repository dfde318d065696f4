"""A module with the interface of fairseq's MultiheadAttention whose attention is computed by a mechanism.

`Memory` is what it keeps between decoding steps, in fairseq's `incremental_state`.

Shapes: inputs and outputs are time first, (T, B, C), as in fairseq; inside, tensors are (B, H, T, D). Padding masks of
the interface are True at padding; keep masks inside are True at real tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..attention import ChunkMask, Mask, Mechanism, PrefixMask, Projections, State, Step, TokenInfo, step_of
from ..attention.layers import is_hooked, is_plain
from ..attention.mechanism import Execution
from .context import PassContext, StackFacts
from .state_dict import remember_slots, upgrade

IncrementalState = dict[str, Any]


@dataclass
class Memory:
    """What one attention block keeps between decoding steps.

    step:      the decoding step; None with gradients, or if a layer is more than its weights (see `_step`).
    lengths:   (B,), the lengths of the targets as known when the memory was created; they never change.
    state:     the mechanism's state.
    queries:   number of query columns so far.
    padded:    (B,), how many of these were padding; None: none.
    written:   number of source columns written to `state` (cross-attention; the same for all sentences).
    shared:    number of neighbouring batch entries that share one state (in cross-attention, a sentence's hypotheses).
    positions: (B, T) or (1, T), positions of the next queries if the caller sets them; None: they are counted.
    """

    step: Step | None
    lengths: Tensor | None = None
    state: State | None = None
    queries: int = 0
    padded: Tensor | None = None
    written: int = 0
    shared: int = 1
    positions: Tensor | None = None

    def fused(self, device: torch.device) -> Step | None:
        """The fused step; None with gradients or autocast, since it works in place."""
        if self.step is None or torch.is_grad_enabled() or torch.is_autocast_enabled(device.type):
            return None
        return self.step

    def tokens(self, count: int, keep: Tensor | None, device: torch.device) -> TokenInfo:
        """The next `count` query columns."""
        if self.positions is not None:
            return TokenInfo(self.positions, self.lengths, keep)
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
            sentences = order.view(-1, self.shared)[:, 0] // self.shared
            state = state if len(sentences) == state.batch_size else state.reorder(sentences)
        elif state is not None:
            state = state.reorder(order)
        return replace(self, state=state, padded=padded, lengths=lengths)

    def fork(self) -> Memory:
        return replace(self, state=None if self.state is None else self.state.fork())


def forget_source(incremental_state: IncrementalState) -> None:
    """Drop the states of cross-attention after the encoder was run again: the next step reads the source again."""
    for memory in _memories(incremental_state):
        if memory.written:
            memory.state, memory.written = None, 0


def fork_state(incremental_state: IncrementalState) -> IncrementalState:
    """An independent copy of a decoder's state, to which the caller can return after a trial step."""
    return {key: held.fork() if isinstance(held, Memory) else held for key, held in incremental_state.items()}


def state_bytes(incremental_state: IncrementalState) -> int:
    """Bytes that the states of swapped attention hold in a decoder's state."""
    return sum(memory.state.nbytes() for memory in _memories(incremental_state) if memory.state is not None)


def _memories(incremental_state: IncrementalState) -> Iterator[Memory]:
    return (held for held in incremental_state.values() if isinstance(held, Memory))


_PREPARING = threading.Lock()


class Where(TypedDict):
    """The tokens of queries and keys, and the mask between them."""

    query: TokenInfo
    key: TokenInfo
    mask: Mask


class MechanismAttention(FairseqIncrementalState, nn.Module):
    """Projects, splits heads, calls one mechanism, and keeps its state in fairseq's `incremental_state`.

    `like` is the stock attention that this module replaces. Its projections are reused, so its checkpoints load and
    only `mechanism.*` is new. `mask` limits what a query may see, in training and generation alike: CAUSAL in decoder
    self-attention, a wait-k prefix in simultaneous cross-attention, chunks in streaming encoders, None otherwise.
    `context` describes the current pass of the encoder or decoder; without one, there is no carry.
    """

    _get_full_incremental_state_key: Callable[[str], str]  # defined by FairseqIncrementalState

    def __init__(
        self,
        like: MultiheadAttention,
        mechanism: Mechanism,
        mask: Mask = None,
        context: PassContext | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = like.embed_dim, like.num_heads, like.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = like.q_proj, like.k_proj, like.v_proj, like.out_proj
        self.self_attention, self.encoder_decoder_attention = like.self_attention, like.encoder_decoder_attention
        self.mechanism, self._mask = mechanism, mask
        self.context = PassContext(StackFacts()) if context is None else context
        self.passes_carry = mechanism.capabilities.carry_width is not None and context is not None
        for name in mechanism.capabilities.unused_projections:
            getattr(self, name).requires_grad_(False)
        mechanism.receive(self._projections())
        remember_slots(mechanism)
        self.compose_weights, self.weights_in_training = True, False
        self._prepared: tuple[list[tuple[int, int]], Step | None] | None = None
        self._types = {name: type(module) for name, module in mechanism.named_modules()}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (T, B, C), and weights (B, T, S), (H, B, T, S) with `need_head_weights`, or None.

        Weights are computed on request, which is quadratic; in training only if `weights_in_training` is set. A pass
        with options computes them only if these ask for weights, and only in layers called with `need_head_weights`.
        `attn_mask` is ignored: `mask` applies, or the schedule in the options of the pass.
        """
        if torch.is_grad_enabled():
            self._prepared = None  # weights are about to change (see `train`)
        wanted = (need_weights or need_head_weights) and self._composes(need_head_weights)
        if isinstance(self.mask, ChunkMask):
            out, weights = self._in_chunks(query, _keep(key_padding_mask), wanted)
        elif incremental_state is None:
            out, weights = self._whole(query, key, _keep(key_padding_mask), wanted)
        elif static_kv or self.encoder_decoder_attention:
            out, weights = self._cross_step(query, key, key_padding_mask, self.memory(incremental_state), wanted)
        else:
            out, weights = self._self_step(query, _keep(key_padding_mask), self.memory(incremental_state)), None
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(1)
        return out, weights

    def _whole(self, query: Tensor, key: Tensor, keep: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Attention over whole sequences: training, scoring, encoders."""
        key_info = self._described(TokenInfo.whole(key.shape[0], keep, key.device), key)
        if self.self_attention and self.mask is not None:
            key_info = key_info.of_length(self.context.value("lengths"))
        query_info = key_info
        if not self.self_attention:
            query_info = TokenInfo.whole(query.shape[0], device=query.device).of_length(self.context.value("lengths"))
            query_info = self._with_inputs(query_info, query)
        where: Where = {"query": query_info, "key": key_info, "mask": self.mask}
        k, v = self._kv(key)
        q = k if "q_proj" in self.mechanism.capabilities.unused_projections else self._q(query)
        self._show(q, k, where)
        weights = self.mechanism.weights(q, k, **where) if wanted else None
        if not self.passes_carry or self.mask is not None:
            return self._out(self.mechanism(q, k, v, **where, execution=self._execution)), weights
        state = self.mechanism.write(self._first_state(k, v, key_info), k, v, key_info)
        self.context.carry = self.mechanism.carry(state)
        return self._out(self.mechanism.read(state, q, query_info)), weights

    def _composes(self, asked_of_this_layer: bool) -> bool:
        """Whether requested weights are computed, according to the options of the pass or else the model's settings."""
        options = self.context.value("options")
        if options is not None:
            return options.weights and asked_of_this_layer
        return self.weights_in_training if self.training else self.compose_weights

    def _show(self, q: Tensor, k: Tensor, where: Where) -> None:
        """Call this thread's watcher, if there is one, with q, k and their tokens."""
        watcher = self.context.watchers.get(self.slot) if self.context.watchers else None
        if watcher is not None:
            watcher(q, k, **where)

    def _in_chunks(self, x: Tensor, keep: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Encoder self-attention over whole utterances, or over the next chunks of an utterance that is arriving."""
        tokens, states = self.context.value("tokens"), self.context.states
        tokens = self._described(TokenInfo.whole(len(x), keep, x.device) if tokens is None else tokens, x)
        where: Where = {"query": tokens, "key": tokens, "mask": self.mask}
        q, (k, v) = self._q(x), self._kv(x)
        if states is not None:
            state = states.get(self.slot) or self._first_state(k, v, tokens)
            out, states[self.slot] = self._scan(state, q, k, v, **where)
            return self._out(out), None
        self._show(q, k, where)
        weights = self.mechanism.weights(q, k, **where) if wanted else None
        return self._out(self.mechanism(q, k, v, **where, execution=self._execution)), weights

    @property
    def _execution(self) -> Execution:
        options = self.context.value("options")
        return "auto" if options is None else options.execution

    @property
    def _scan(self) -> Callable[..., tuple[Tensor, State]]:
        return self.mechanism.loop if self._execution == "loop" else self.mechanism.scan

    def _self_step(self, query: Tensor, keep: Tensor | None, memory: Memory) -> Tensor:
        """Decoder self-attention over the next tokens: one, or a prompt."""
        if memory.state is None:
            first = self._described(memory.tokens(0, None, query.device), query)
            value_dim = self.v_proj.out_features // self.num_heads
            memory.state = self.mechanism.init_state(query.shape[1], value_dim, query, first, self.mask)
        count = query.shape[0]  # not `len`, which would become a constant in a graph
        step = memory.fused(query.device) if count == 1 and keep is None and memory.padded is None else None
        if step is not None:
            out = step(query[0], memory.state, memory.queries + 1, memory.lengths).unsqueeze(0)
        else:
            tokens = self._described(memory.tokens(count, keep, query.device), query)
            q, (k, v) = self._q(query), self._kv(query)
            out, memory.state = self._scan(memory.state, q, k, v, tokens, tokens)
            out = self._out(out)
        memory.advance(count, keep)
        return out

    def _cross_step(
        self, query: Tensor, key: Tensor, padding: Tensor | None, memory: Memory, wanted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-attention of the next tokens. The source is written to the state once, or as far as wait-k allows."""
        weights = self._step_weights(query, key, _keep(padding), memory) if wanted else None
        outputs = []
        # Under wait-k, one query at a time, since each sees more of the source than the one before.
        for part in query.split(len(query) if self.mask is None else 1):
            state = self._source_state(memory, key, padding)
            outputs.append(self._attend(part, state, memory))
            memory.advance(len(part))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), weights

    def _step_weights(self, query: Tensor, key: Tensor, keep: Tensor | None, memory: Memory) -> Tensor:
        """Cross-attention weights (B, H, T, S) of the next tokens."""
        tokens = memory.tokens(len(query), None, query.device)
        source = self._described(TokenInfo.whole(len(key), keep, key.device), key)
        mask = self.mask.after(memory.queries) if isinstance(self.mask, PrefixMask) else None
        return self.mechanism.weights(self._q(query), self._kv(key)[0], query=tokens, key=source, mask=mask)

    def _source_state(self, memory: Memory, key: Tensor, padding: Tensor | None) -> State:
        """The state, after writing the source columns that the next query may see."""
        stop = self.mask.count(memory.queries, len(key)) if isinstance(self.mask, PrefixMask) else len(key)
        if memory.state is None or stop > memory.written:
            keep = _keep(padding)
            if memory.state is None:
                memory.shared = self._shared(key, keep)
            key, keep = key[:, :: memory.shared], None if keep is None else keep[:: memory.shared]
            source = self._described(TokenInfo.whole(len(key), keep, key.device), key).narrow(memory.written, stop)
            k, v = self._kv(key[memory.written : stop])
            state = self._first_state(k, v, source) if memory.state is None else memory.state
            memory.state, memory.written = self.mechanism.write(state, k, v, source), stop
        if self.passes_carry:
            self.context.carry = self.mechanism.carry(memory.state)
        return memory.state

    def _attend(self, query: Tensor, state: State, memory: Memory) -> Tensor:
        """Cross-attention of more tokens to a state of the source."""
        step = memory.fused(query.device) if len(query) == 1 else None
        if step is not None:
            return step(query[0], state, memory.queries + 1, memory.lengths).unsqueeze(0)
        tokens = self._with_inputs(memory.tokens(len(query), None, query.device), query)
        return self._out(self.mechanism.read_shared(state, self._q(query), tokens, memory.shared))

    def _shared(self, key: Tensor, keep: Tensor | None) -> int:
        """How many neighbouring batch entries have the same source: the beam size if they all do, otherwise 1."""
        n = self.context.beam_size
        if n == 1 or key.shape[1] % n:
            return 1
        sides = [key.transpose(0, 1)] if keep is None else [key.transpose(0, 1), keep]
        groups = (side.unflatten(0, (-1, n)) for side in sides)
        return n if all(torch.equal(group, group[:, :1].expand_as(group)) for group in groups) else 1

    def _described(self, tokens: TokenInfo, x: Tensor) -> TokenInfo:
        """The tokens, with their inputs x (T, B, C) and the carry if the mechanism needs them."""
        if self.mechanism.capabilities.needs_inputs:
            tokens = replace(tokens, inputs=x.transpose(0, 1))
        if not self.passes_carry or self.context.carry is None:
            return tokens
        return replace(tokens, carry=self.context.carry.for_batch(x.shape[1]))

    def _with_inputs(self, tokens: TokenInfo, query: Tensor) -> TokenInfo:
        """The queries of cross-attention, with their inputs (T, B, C) if the mechanism needs them."""
        needed = self.mechanism.capabilities.needs_query_inputs
        return replace(tokens, inputs=query.transpose(0, 1)) if needed else tokens

    def empty_state(self, batch: int) -> State:
        """The state before anything is written, for mechanisms without a carry."""
        like = self.v_proj.weight.new_zeros(batch, 1, self.v_proj.in_features)
        tokens = TokenInfo(torch.ones(1, 0, dtype=torch.long), inputs=like[:, :0])
        value_dim = self.v_proj.out_features // self.num_heads
        return self.mechanism.init_state(batch, value_dim, like, tokens, self.mask if self.self_attention else None)

    def write_source(self, state: State, source: Tensor, tokens: TokenInfo) -> State:
        """Write more of a source (S, B, C) to the state of cross-attention, as a graph can do it."""
        return self.mechanism.write_loop(state, *self._kv(source), self._described(tokens, source).cleared())

    def _first_state(self, k: Tensor, v: Tensor, key: TokenInfo) -> State:
        return self.mechanism.init_state(len(k), v.shape[3], k, key, self.mask if self.self_attention else None)

    def _projections(self) -> Projections:
        return Projections(self.q_proj, self.out_proj, self.k_proj, self.v_proj)

    def _step(self) -> Step | None:
        """The mechanism's decoding step, prepared again whenever a weight has changed.

        A step knows only the weights of layers, so this is None if a layer has a hook, an adapter or a
        parametrisation, or is pruned or quantised.
        """
        projections = self._projections()
        if self.encoder_decoder_attention:
            projections = projections._replace(k=None, v=None)
        linear = [projection for projection in projections if projection is not None]
        if not all(map(is_plain, linear)):
            return None
        for name, module in self.mechanism.named_modules():
            if is_hooked(module) or self._types.get(name) is not type(module):
                return None
        parts = [*linear, self.mechanism]
        parameters = [parameter for part in parts for parameter in part.parameters()]
        stamp = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        prepared = self._prepared  # read once, since another thread may drop it
        if prepared is None or prepared[0] != stamp:
            with _PREPARING:  # one step for all sessions that begin at the same moment, since it copies the weights
                prepared = self._prepared
                if prepared is None or prepared[0] != stamp:
                    prepared = self._prepared = stamp, step_of(self.mechanism, projections)
        return prepared[1]

    def train(self, mode: bool = True) -> MechanismAttention:
        """Also drop the prepared step; the next generation prepares a new one.

        The versions of parameters do not reveal every change: fairseq's optimizers write to `parameter.data`. Such a
        change comes with a training step, which calls `train` or makes a pass with gradients.
        """
        self._prepared = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        # The prepared step holds functions, which cannot be pickled; it can be prepared again.
        return {**self.__dict__, "_prepared": None}

    def _q(self, x: Tensor) -> Tensor:
        return self._heads(self.q_proj(x))

    def _kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        v = self._heads(self.v_proj(x))
        return v if self.mechanism.capabilities.keys_are_values else self._heads(self.k_proj(x)), v

    def _out(self, heads: Tensor) -> Tensor:
        """The block's output (T, B, C), given the heads' (B, H, T, E)."""
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(T, B, C) to (B, H, T, D)."""
        return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

    @property
    def mask(self) -> Mask:
        """The model's mask, or in cross-attention the schedule of the current pass if that has options."""
        options = None if self.self_attention else self.context.value("options")
        return self._mask if options is None else options.schedule

    @mask.setter
    def mask(self, mask: Mask) -> None:
        self._mask = mask

    @property
    def slot(self) -> str:
        """The key of this block's Memory in `incremental_state`."""
        return self._get_full_incremental_state_key("attention")

    def memory(self, incremental_state: IncrementalState) -> Memory:
        """This block's memory in `incremental_state`; a new one if there is none."""
        if self.slot not in incremental_state:
            step = None if torch.is_grad_enabled() else self._step()
            incremental_state[self.slot] = Memory(step, self.context.value("lengths"))
        return incremental_state[self.slot]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> IncrementalState:
        """Follow beam search: batch entry i becomes the old entry new_order[i]; entries may be repeated or dropped."""
        if self.slot in incremental_state:
            incremental_state[self.slot] = incremental_state[self.slot].reorder(new_order)
        return incremental_state

    def set_beam_size(self, beam_size: int) -> None:
        """Called by fairseq's generator: `beam_size` neighbouring batch entries are hypotheses of one source."""
        self.context.beam_size = beam_size

    def make_generation_fast_(self, need_attn: bool = False, **unused: Any) -> None:
        """Called by fairseq-generate: weights are computed only if alignments will be printed."""
        self.compose_weights = need_attn

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Called by fairseq before it loads a checkpoint."""
        upgrade(state_dict, name, {"q": self.q_proj, "k": self.k_proj, "v": self.v_proj}, self.mechanism)

    # fairseq's decoder layer asks for this buffer of every self-attention; this module keeps its state elsewhere.
    def _get_input_buffer(self, incremental_state: IncrementalState | None) -> dict[str, Tensor]:
        return {}

    def extra_repr(self) -> str:
        return f"mechanism={self.mechanism.name}, heads={self.num_heads}, mask={self.mask}"


def _keep(padding: Tensor | None) -> Tensor | None:
    """The keep mask for a padding mask of fairseq's; None: no padding."""
    return None if padding is None or padding.dim() == 0 else ~padding.bool()
