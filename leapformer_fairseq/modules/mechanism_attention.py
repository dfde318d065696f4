"""A module that answers like fairseq's MultiheadAttention and leaves the attention itself to a mechanism.

Shapes as in fairseq: time first outside, (T, B, C); (B, H, T, D) inside. Padding masks are True at padding outside,
keep masks True at real rows inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..attention import CAUSAL, Mechanism, Rows, State, Visible

IncrementalState = dict[str, Any]


@dataclass
class Memory:
    """What one attention block keeps between decoding steps.

    keys: the mechanism's state of everything read so far; seen: (B,) real query rows so far; read: source columns
    already in `keys` (cross-attention; the same for every sentence).
    """

    keys: State | None
    seen: Tensor
    read: int = 0

    def reorder(self, order: Tensor) -> Memory:
        keys = None if self.keys is None else self.keys.reorder(order)
        return Memory(keys, self.seen.index_select(0, order), self.read)

    def fork(self) -> Memory:
        return Memory(None if self.keys is None else self.keys.fork(), self.seen.clone(), self.read)


class MechanismAttention(FairseqIncrementalState, nn.Module):
    """Projects, splits heads, asks one mechanism, and keeps its state in fairseq's `incremental_state`.

    `like` is the stock attention that this module replaces: its projections are reused, so its checkpoints load and
    only `mechanism.*` is new. `visible` limits what a query may see: CAUSAL in decoder self-attention, a wait-k prefix
    in simultaneous cross-attention, None otherwise; it holds in training and generation alike.
    """

    def __init__(self, like: MultiheadAttention, mechanism: Mechanism, visible: Visible | None = None) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = like.embed_dim, like.num_heads, like.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = like.q_proj, like.k_proj, like.v_proj, like.out_proj
        self.self_attention, self.encoder_decoder_attention = like.self_attention, like.encoder_decoder_attention
        self.mechanism = mechanism
        self.visible = visible
        self.compose_weights = True

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """fairseq's contract: (T, B, C) in and out, with weights (B, T, S), or (H, B, T, S) for `need_head_weights`.

        Weights are composed on request, which is quadratic, and never while training. `attn_mask` is ignored: what a
        query may see was fixed at construction.
        """
        keep = None if key_padding_mask is None or key_padding_mask.dim() == 0 else ~key_padding_mask.bool()
        q = self._heads(self.q_proj(query))
        if incremental_state is None:
            out, weights_of = self._whole(q, key, keep)
        elif static_kv or self.encoder_decoder_attention:
            out, weights_of = self._cross_step(q, key, keep, incremental_state)
        else:
            out, weights_of = self._self_step(q, key, keep, incremental_state), None
        out = self.out_proj(out.permute(2, 0, 1, 3).flatten(2))
        wanted = (need_weights or need_head_weights) and self.compose_weights and not self.training
        if not wanted or weights_of is None or key is None:
            return out, None
        weights = self.mechanism.weights(q, self._heads(self.k_proj(key)), **weights_of)
        return out, weights.transpose(0, 1) if need_head_weights else weights.mean(1)

    def _whole(self, q: Tensor, key: Tensor, keep: Tensor | None) -> tuple[Tensor, dict[str, Any]]:
        """Everything at once: training, scoring, encoders."""
        key_rows = Rows.whole(len(key), keep, key.device)
        if self.visible == CAUSAL:
            key_rows = key_rows.without_lengths()
        query_rows = key_rows if self.self_attention else Rows.whole(q.shape[2], device=q.device).without_lengths()
        where = {"query": query_rows, "key": key_rows, "visible": self.visible}
        return self.mechanism(q, self._heads(self.k_proj(key)), self._heads(self.v_proj(key)), **where), where

    def _self_step(self, q: Tensor, key: Tensor, keep: Tensor | None, incremental_state: IncrementalState) -> Tensor:
        """Decoder self-attention over new rows: one token, or a prompt."""
        memory = self._memory(incremental_state, q)
        rows = Rows.following(memory.seen, q.shape[2], keep)
        k, v = self._heads(self.k_proj(key)), self._heads(self.v_proj(key))
        out, memory.keys = self.mechanism.extend(memory.keys, q, k, v, rows)
        memory.seen = memory.seen + (q.shape[2] if keep is None else keep.sum(1))
        return out

    def _cross_step(
        self, q: Tensor, key: Tensor, keep: Tensor | None, incremental_state: IncrementalState
    ) -> tuple[Tensor, dict[str, Any]]:
        """Cross-attention: the source enters the state once, or as far as a wait-k query may see it."""
        memory = self._memory(incremental_state, q)
        rows = Rows.following(memory.seen, q.shape[2])
        source = Rows.whole(len(key), keep, key.device)
        if self.visible is None:
            self._read(memory, key, source, len(key))
            out = self.mechanism.attend(memory.keys, q, rows)
            seen = None
        else:
            outputs = []
            for t in range(q.shape[2]):
                seen = Visible(self.visible.lagging + int(memory.seen[0]) + t, self.visible.ratio)
                self._read(memory, key, source, int(seen.counts(1, len(key))))
                outputs.append(self.mechanism.attend(memory.keys, q[:, :, t : t + 1], rows.narrow(t, t + 1)))
            out = torch.cat(outputs, 2)
            seen = Visible(self.visible.lagging + int(memory.seen[0]), self.visible.ratio)
        memory.seen = memory.seen + q.shape[2]
        return out, {"query": rows, "key": source, "visible": seen}

    def _read(self, memory: Memory, key: Tensor, source: Rows, stop: int) -> None:
        """Bring source columns up to `stop` into the state."""
        if stop > memory.read:
            new = key[memory.read : stop]
            k, v = self._heads(self.k_proj(new)), self._heads(self.v_proj(new))
            memory.keys = self.mechanism.update(memory.keys, k, v, source.narrow(memory.read, stop))
            memory.read = stop

    def _heads(self, x: Tensor) -> Tensor:
        """(T, B, C) to (B, H, T, D)."""
        return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

    @property
    def slot(self) -> str:
        """The key of this block's Memory in `incremental_state`."""
        return self._get_full_incremental_state_key("attention")

    def _memory(self, incremental_state: IncrementalState, q: Tensor) -> Memory:
        if self.slot not in incremental_state:
            incremental_state[self.slot] = Memory(None, torch.zeros(len(q), dtype=torch.long, device=q.device))
        return incremental_state[self.slot]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> IncrementalState:
        """Follow beam search: row i becomes the old row new_order[i]; rows may repeat or be dropped."""
        if self.slot in incremental_state:
            incremental_state[self.slot] = incremental_state[self.slot].reorder(new_order)
        return incremental_state

    def make_generation_fast_(self, need_attn: bool = False, **unused: Any) -> None:
        """fairseq-generate calls this: weights are composed only if the alignments will be printed."""
        self.compose_weights = need_attn

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Warm start: a checkpoint of another mechanism loads; this one's own parameters keep their initial value."""
        prefix = f"{name}.mechanism."
        own = {prefix + key: value for key, value in self.mechanism.state_dict().items()}
        for key in [key for key in state_dict if key.startswith(prefix) and key not in own]:
            del state_dict[key]
        for key, value in own.items():
            state_dict.setdefault(key, value)

    # The decoder layer asks every self-attention for fairseq's own buffer; this module keeps its state elsewhere.
    def _get_input_buffer(self, incremental_state: IncrementalState | None) -> dict[str, Tensor]:
        return {}

    def extra_repr(self) -> str:
        return f"mechanism={self.mechanism.name}, heads={self.num_heads}, visible={self.visible}"
