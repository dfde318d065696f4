"""A module with the interface of fairseq's MultiheadAttention whose attention is computed by a mechanism.

Its `Memory` is kept in fairseq's `incremental_state`. Inputs and outputs are time first, (T, B, C), as in fairseq.
Padding masks of the interface are True at padding; keep masks inside are True at real tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import MultiheadAttention
from torch import Tensor

from ..attention import CAUSAL, ChunkMask, Mask, Mechanism, State, TokenInfo
from ..attention.block import AttentionBlock, Memory, Where
from ..attention.mechanism import Execution
from .context import PassContext, StackFacts
from .state_dict import remember_slots, upgrade

IncrementalState = dict[str, Any]


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


class MechanismAttention(FairseqIncrementalState, AttentionBlock):
    """An `AttentionBlock` in fairseq's layout, whose memory is in fairseq's `incremental_state`.

    `like` is the stock attention that this module replaces. Its projections are reused, so its checkpoints load and
    only `mechanism.*` is new. `mask` limits what a query may see, in training and generation alike: CAUSAL in decoder
    self-attention, a wait-k prefix in simultaneous cross-attention, chunks in streaming encoders, None otherwise.
    `context` describes the current pass of the encoder or decoder; without one, there is no carry.
    """

    batch_first = False
    _get_full_incremental_state_key: Callable[[str], str]  # defined by FairseqIncrementalState

    def __init__(
        self,
        like: MultiheadAttention,
        mechanism: Mechanism,
        mask: Mask = None,
        context: PassContext | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.head_dim = like.embed_dim, like.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = like.q_proj, like.k_proj, like.v_proj, like.out_proj
        self.self_attention, self.encoder_decoder_attention = like.self_attention, like.encoder_decoder_attention
        self._mask = mask
        self.context = PassContext(StackFacts()) if context is None else context
        self.passes_carry = mechanism.capabilities.carry_width is not None and context is not None
        self.use(mechanism, crosses=like.encoder_decoder_attention)
        remember_slots(mechanism)
        self.compose_weights, self.weights_in_training = True, False

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

        A query (B, C) is the next token of each batch entry in a graph, whose state is in `incremental_state`.
        """
        if query.dim() == 2:
            out, weights = self.rows_step(query, self.memory(incremental_state or {}))
            return out, None if weights is None else weights.transpose(0, 1)
        if torch.is_grad_enabled():
            self._prepared = None  # weights are about to change (see `train`)
        wanted = (need_weights or need_head_weights) and self._composes(need_head_weights)
        if incremental_state is not None and not wanted and not self.passes_carry:
            by_step = self._next_token(query, key, key_padding_mask, self.memory(incremental_state))
            if by_step is not None:
                return by_step, None
        keep = _keep(key_padding_mask)
        if isinstance(self.mask, ChunkMask):
            out, weights = self._in_chunks(query, keep, wanted)
        elif incremental_state is None:
            out, weights = self._whole(query, key, keep, wanted)
        elif static_kv or self.encoder_decoder_attention:
            out, weights = self.cross_step(query, key, keep, self.memory(incremental_state), self.mask, wanted)
        else:
            out, weights = self.self_step(query, keep, self.memory(incremental_state), self.mask), None
        if weights is not None:
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(1)
        return out, weights

    def _next_token(self, query: Tensor, key: Tensor, padding: Tensor | None, memory: Memory) -> Tensor | None:
        """The output where the prepared step is all that is to be computed, as for most tokens of a generation.

        None elsewhere. Python takes most of the time of a token, so this comes before what other passes need.
        """
        # Under wait-k, too, every query sees all of a source once that is written.
        ready = memory.written == key.shape[0] if self.crosses else padding is None and self._mask == CAUSAL
        if not ready:
            return None
        memory.leave_inference()
        return self.by_step(query, memory)

    def _whole(self, query: Tensor, key: Tensor, keep: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Attention over whole sequences: training, scoring, encoders."""
        key_info = self.described(TokenInfo.whole(key.shape[0], keep, key.device), key)
        if self.self_attention and self.mask is not None:
            key_info = key_info.of_length(self.lengths())
        query_info = key_info
        if not self.self_attention:
            query_info = TokenInfo.whole(query.shape[0], device=query.device).of_length(self.lengths())
            query_info = self.described(query_info, query, as_keys=False)
        return self.attend(query, key, query_info, key_info, self.mask, wanted)

    def read_all(self, q: Tensor, k: Tensor, v: Tensor, where: Where) -> Tensor:
        if not self.passes_carry or where["mask"] is not None:
            return super().read_all(q, k, v, where)
        state = self.mechanism.write(self.first_state(k, v, where["key"], None), k, v, where["key"])
        self.hand_on(state)
        return self.mechanism.read(state, q, where["query"])

    def _composes(self, asked_of_this_layer: bool) -> bool:
        """Whether requested weights are computed, according to the options of the pass or else the model's settings."""
        options = self.context.value("options")
        if options is not None:
            return options.weights and asked_of_this_layer
        return self.weights_in_training if self.training else self.compose_weights

    def _in_chunks(self, x: Tensor, keep: Tensor | None, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Encoder self-attention over whole utterances, or over the next chunks of an utterance that is arriving."""
        tokens, states = self.context.value("tokens"), self.context.states
        tokens = self.described(TokenInfo.whole(len(x), keep, x.device) if tokens is None else tokens, x)
        if states is None:
            return self.attend(x, x, tokens, tokens, self.mask, wanted)
        out, states[self.slot] = self.scan(states.get(self.slot), x, tokens, self.mask)
        return out, None

    def empty_state(self, batch: int) -> State | None:
        """The state of a graph before anything is written, without a carry; None: no graph can hold it."""
        like = self.v_proj.weight.new_zeros(batch, 1, self.v_proj.in_features)
        tokens = TokenInfo(torch.ones(1, 0, dtype=torch.long), inputs=like[:, :0])
        return self.mechanism.loop_state(
            batch, self.value_dim, like, tokens, self.mask if self.self_attention else None
        )

    def write_source(self, state: State, source: Tensor, tokens: TokenInfo) -> State:
        """Write more of a source (S, B, C) to the state of cross-attention, as a graph can do it."""
        tokens = self.described(tokens, source).cleared()
        return self.mechanism.write_loop(state, *self.project_keys(source, tokens), tokens)

    def source_keys(self, source: Tensor, tokens: TokenInfo) -> Tensor:
        """The keys (B, H, S, D) of a source (S, B, C) in cross-attention."""
        return self.project_keys(source, self.described(tokens, source).cleared())[0]

    # --------------------------------------------------------------------------------------------- the pass that runs
    def lengths(self) -> Tensor | None:
        lengths: Tensor | None = self.context.value("lengths")
        return lengths

    def execution(self) -> Execution:
        options = self.context.value("options")
        return "auto" if options is None else options.execution

    def shared_by(self) -> int:
        return self.context.beam_size

    def described(self, tokens: TokenInfo, x: Tensor, as_keys: bool = True) -> TokenInfo:
        tokens = super().described(tokens, x, as_keys)
        if not as_keys or not self.passes_carry or self.context.carry is None:
            return tokens
        return replace(tokens, carry=self.context.carry.for_batch(x.shape[1]))

    def observe(self, q: Tensor, k: Tensor, where: Where) -> None:
        """Call this thread's watcher, if there is one, with q, k and their tokens."""
        watcher = self.context.watchers.get(self.slot) if self.context.watchers else None
        if watcher is not None:
            watcher(q, k, **where)

    def hand_on(self, state: State) -> None:
        if self.passes_carry:
            self.context.carry = self.mechanism.carry(state)

    @property
    def mask(self) -> Mask:
        """The model's mask, or in cross-attention the schedule of the current pass if that has options."""
        options = None if self.self_attention else self.context.value("options")
        return self._mask if options is None else options.schedule

    @mask.setter
    def mask(self, mask: Mask) -> None:
        self._mask = mask

    # -------------------------------------------------------------------------------------------------- fairseq's side
    @property
    def slot(self) -> str:
        """The key of this block's Memory in `incremental_state`."""
        return self._get_full_incremental_state_key("attention")

    def memory(self, incremental_state: IncrementalState) -> Memory:
        """This block's memory in `incremental_state`; a new one if there is none."""
        slot = self.slot
        if slot not in incremental_state:
            incremental_state[slot] = self.new_memory()
        return incremental_state[slot]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> IncrementalState:
        """Follow beam search: batch entry i becomes the old entry new_order[i]; entries may be repeated or dropped."""
        if (slot := self.slot) in incremental_state:
            incremental_state[slot] = incremental_state[slot].reorder(new_order)
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
