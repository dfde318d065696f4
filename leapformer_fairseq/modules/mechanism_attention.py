"""A module that answers like fairseq's MultiheadAttention and leaves the attention itself to a mechanism.

Shapes as in fairseq: time first outside, (T, B, C); (B, H, T, D) inside. Padding masks are True at padding outside,
keep masks True at real rows inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..attention import CAUSAL, Blocks, Mechanism, Projections, Rows, Step, Visible
from ..errors import LeapformerError
from .memory import CurrentPass, IncrementalState, Memory


class MechanismAttention(FairseqIncrementalState, nn.Module):
    """Projects, splits heads, asks one mechanism, and keeps its state in fairseq's `incremental_state`.

    `like` is the stock attention that this module replaces: its projections are reused, so its checkpoints load and
    only `mechanism.*` is new. `visible` limits what a query may see: CAUSAL in decoder self-attention, a wait-k prefix
    in simultaneous cross-attention, blocks in encoders of arriving speech, None otherwise; it holds in training and
    generation alike. `current` is what its stack says of the pass that runs; an attention without a stack hands nothing
    on to others.
    """

    def __init__(
        self,
        like: MultiheadAttention,
        mechanism: Mechanism,
        visible: Visible | Blocks | None = None,
        current: CurrentPass | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = like.embed_dim, like.num_heads, like.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = like.q_proj, like.k_proj, like.v_proj, like.out_proj
        self.self_attention, self.encoder_decoder_attention = like.self_attention, like.encoder_decoder_attention
        self.mechanism = mechanism
        self.visible = visible
        self.current = CurrentPass() if current is None else current
        self.hands_on = mechanism.packs and current is not None
        mechanism.adopt(self._projections())
        self.compose_weights, self.weights_in_training = True, False
        # told what the mechanism is asked for whole sequences: q, k and their rows, query, key, visible
        self.watcher: Callable[..., None] | None = None
        self.beam_size = 1
        self._prepared: tuple[list[tuple[int, int]], Step | None] | None = None

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

        Weights are composed on request, which is quadratic, and while training only for `weights_in_training`.
        `attn_mask` is ignored: what a query may see was fixed at construction.
        """
        if torch.is_grad_enabled():
            self._prepared = None  # weights are about to change; see `train`
        composes = self.weights_in_training if self.training else self.compose_weights
        wanted = (need_weights or need_head_weights) and composes and key is not None
        if isinstance(self.visible, Blocks):
            out, weights = self._in_blocks(query, _keep(key_padding_mask), self.visible, wanted)
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
        """Everything at once: training, scoring, encoders."""
        key_rows = self._as_asked(Rows.whole(len(key), keep, key.device), key)
        if self.visible == CAUSAL:
            key_rows = key_rows.of_length(self.current.lengths)
        query_rows = key_rows
        if not self.self_attention:
            query_rows = Rows.whole(len(query), device=query.device).of_length(self.current.lengths)
        where = {"query": query_rows, "key": key_rows, "visible": self.visible}
        q, (k, v) = self._q(query), self._kv(key)
        if self.watcher is not None:
            self.watcher(q, k, **where)
        weights = self.mechanism.weights(q, k, **where) if wanted else None
        if not self.hands_on or self.visible is not None:
            return self._out(self.mechanism(q, k, v, **where)), weights
        state = self.mechanism.update(None, k, v, key_rows)
        self.current.packed = self.mechanism.packed_after(state)
        return self._out(self.mechanism.attend(state, q, query_rows)), weights

    def _in_blocks(self, x: Tensor, keep: Tensor | None, blocks: Blocks, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Encoder self-attention over whole utterances, or over more blocks of an utterance that arrives."""
        rows, states = self.current.rows, self.current.states
        rows = self._as_asked(Rows.whole(len(x), keep, x.device) if rows is None else rows, x)
        q, (k, v) = self._q(x), self._kv(x)
        if states is not None:
            out, states[self.slot] = self.mechanism.extend_blocks(states.get(self.slot), q, k, v, rows, blocks)
            return self._out(out), None
        if self.watcher is not None:
            self.watcher(q, k, query=rows, key=rows, visible=blocks)
        weights = self.mechanism.weights(q, k, query=rows, key=rows, visible=blocks) if wanted else None
        return self._out(self.mechanism.blockwise(q, k, v, rows, blocks)), weights

    def _self_step(self, query: Tensor, keep: Tensor | None, memory: Memory) -> Tensor:
        """Decoder self-attention over new rows: one token, or a prompt."""
        stepping = len(query) == 1 and keep is None and memory.padded is None and memory.step_serves(query.device)
        if stepping and memory.keys is None:
            value_dim = self.v_proj.out_features // self.num_heads
            memory.keys = self.mechanism.empty_state(query.shape[1], value_dim, query)
        if stepping and memory.keys is not None:
            out = memory.step.extend(query[0], memory.keys, memory.queries + 1, memory.lengths).unsqueeze(0)
        else:
            rows = memory.rows(len(query), keep, query.device)
            rows = self._as_asked(rows, query)
            out, memory.keys = self.mechanism.extend(memory.keys, self._q(query), *self._kv(query), rows)
            out = self._out(out)
        memory.advance(len(query), keep)
        return out

    def _cross_step(
        self, query: Tensor, key: Tensor, padding: Tensor | None, memory: Memory, wanted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Cross-attention: the source enters the state once, or as far as a wait-k query may see it."""
        weights = self._step_weights(query, key, _keep(padding), memory) if wanted else None
        outputs = []
        # Under wait-k one query after the other, since each sees more of the source.
        for part in query.split(len(query) if self.visible is None else 1):
            visible = self._visible_from(memory)
            self._read(memory, key, padding, len(key) if visible is None else int(visible.counts(1, len(key))))
            outputs.append(self._attend(part, memory))
            memory.advance(len(part))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), weights

    def _visible_from(self, memory: Memory) -> Visible | None:
        """What the next queries may see of the source."""
        return None if self.visible is None else replace(self.visible, lagging=self.visible.lagging + memory.queries)

    def _step_weights(self, query: Tensor, key: Tensor, keep: Tensor | None, memory: Memory) -> Tensor:
        """Cross-attention weights (B, H, T, S) of the next queries."""
        rows = memory.rows(len(query), None, query.device)
        source = self._as_asked(Rows.whole(len(key), keep, key.device), key)
        visible = self._visible_from(memory)
        return self.mechanism.weights(self._q(query), self._kv(key)[0], query=rows, key=source, visible=visible)

    def _read(self, memory: Memory, key: Tensor, padding: Tensor | None, stop: int) -> None:
        """Bring source columns up to `stop` into the state."""
        if stop > memory.read:
            self._read_more(memory, key, padding, stop)
        if self.hands_on:
            self.current.packed = self.mechanism.packed_after(memory.keys)

    def _read_more(self, memory: Memory, key: Tensor, padding: Tensor | None, stop: int) -> None:
        keep = _keep(padding)
        if memory.keys is None:
            memory.shared = self._shared(key, keep)
        key = key[:, :: memory.shared]
        rows = Rows.whole(len(key), None if keep is None else keep[:: memory.shared], key.device)
        rows, new = self._as_asked(rows, key).narrow(memory.read, stop), key[memory.read : stop]
        memory.keys = self.mechanism.update(memory.keys, *self._kv(new), rows)
        memory.read = stop

    def _attend(self, query: Tensor, memory: Memory) -> Tensor:
        """Cross-attention of new rows to what was read of the source."""
        if len(query) == 1 and memory.step_serves(query.device):
            return memory.step.attend(query[0], memory.keys, memory.queries + 1, memory.lengths).unsqueeze(0)
        q, rows = self._q(query), memory.rows(len(query), None, query.device)
        if memory.shared == 1:
            return self._out(self.mechanism.attend(memory.keys, q, rows))
        # The hypotheses of a sentence are queries of one row.
        together = q.unflatten(0, (-1, memory.shared)).transpose(1, 2)  # (sentences, H, shared, T, D)
        lengths = None if rows.lengths is None else rows.lengths[:: memory.shared]
        rows = Rows(rows.positions.repeat(1, memory.shared), lengths)
        out = self.mechanism.attend(memory.keys, together.flatten(2, 3), rows)
        return self._out(out.unflatten(2, (memory.shared, -1)).transpose(1, 2).flatten(0, 1))

    def _shared(self, key: Tensor, keep: Tensor | None) -> int:
        """How many rows behind each other hold the same source: `beam_size`, if they really do."""
        n = self.beam_size
        if n == 1 or key.shape[1] % n:
            return 1
        sides = [key.transpose(0, 1)] if keep is None else [key.transpose(0, 1), keep]
        groups = (side.unflatten(0, (-1, n)) for side in sides)
        return n if all(torch.equal(group, group[:, :1].expand_as(group)) for group in groups) else 1

    def _as_asked(self, rows: Rows, x: Tensor) -> Rows:
        """The rows with what the mechanism wants to see: what they come from, (T, B, C), and what layers hand on."""
        if self.mechanism.needs_inputs:
            rows = replace(rows, inputs=x.transpose(0, 1))
        return replace(rows, packed=self.current.packed_of(x.shape[1])) if self.hands_on else rows

    def _projections(self) -> Projections:
        return Projections(self.q_proj, self.out_proj, self.k_proj, self.v_proj)

    def _step(self) -> Step | None:
        """The mechanism's fast way through one row, if it has one; prepared anew when a weight has changed."""
        projections = self._projections()
        if self.encoder_decoder_attention:
            projections = projections._replace(k=None, v=None)
        linear = [projection for projection in projections if projection is not None]
        if any(type(projection) is not nn.Linear for projection in linear):
            return None
        parts = [*linear, self.mechanism]
        parameters = [parameter for part in parts for parameter in part.parameters()]
        stamp = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        if self._prepared is None or self._prepared[0] != stamp:
            self._prepared = stamp, self.mechanism.step(projections)
        return self._prepared[1]

    def train(self, mode: bool = True) -> MechanismAttention:
        """As ever; the next generation also prepares its steps anew.

        Versions do not tell of all that changes weights: fairseq's optimizers write to `parameter.data`. Between two
        generations with such a change there is a training step, and with that a pass with gradients or this.
        """
        self._prepared = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        # What is prepared can be prepared again, and its functions cannot be pickled.
        return {**self.__dict__, "_prepared": None}

    def _q(self, x: Tensor) -> Tensor:
        return self._heads(self.q_proj(x))

    def _kv(self, x: Tensor) -> tuple[Tensor, Tensor]:
        v = self._heads(self.v_proj(x))
        return v if self.mechanism.keys_are_values else self._heads(self.k_proj(x)), v

    def _out(self, heads: Tensor) -> Tensor:
        """(B, H, T, E) to the block's output (T, B, C)."""
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """(T, B, C) to (B, H, T, D)."""
        return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

    @property
    def slot(self) -> str:
        """The key of this block's Memory in `incremental_state`."""
        return self._get_full_incremental_state_key("attention")

    def memory(self, incremental_state: IncrementalState) -> Memory:
        """What this block keeps in `incremental_state`; empty at first."""
        if self.slot not in incremental_state:
            step = None if torch.is_grad_enabled() else self._step()
            incremental_state[self.slot] = Memory(step, self.current.lengths)
        return incremental_state[self.slot]

    def reorder_incremental_state(self, incremental_state: IncrementalState, new_order: Tensor) -> IncrementalState:
        """Follow beam search: row i becomes the old row new_order[i]; rows may repeat or be dropped."""
        if self.slot in incremental_state:
            incremental_state[self.slot] = incremental_state[self.slot].reorder(new_order)
        return incremental_state

    def set_beam_size(self, beam_size: int) -> None:
        """fairseq's generator says how many hypotheses of a sentence stand side by side; they share one source."""
        self.beam_size = beam_size

    def make_generation_fast_(self, need_attn: bool = False, **unused: Any) -> None:
        """fairseq-generate calls this: weights are composed only if the alignments will be printed."""
        self.compose_weights = need_attn

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Warm start: a checkpoint of another mechanism loads; this one's own parameters keep their initial value.

        Old ones, as that of the released RoBERTa, project queries, keys and values by one matrix: it is split. Raises
        LeapformerError for a checkpoint of the same mechanism with other options.
        """
        for part in ("weight", "bias"):
            if f"{name}.in_proj_{part}" in state_dict:
                for side, own in zip("qkv", state_dict.pop(f"{name}.in_proj_{part}").chunk(3), strict=True):
                    state_dict[f"{name}.{side}_proj.{part}"] = own
        for key, value in ((f"{name}.{side}_proj.weight", getattr(self, f"{side}_proj").weight) for side in "qkv"):
            if key in state_dict and state_dict[key].shape != value.shape:
                raise LeapformerError(
                    f"{key} {_shapes(state_dict[key], value)}; use the --arch and the width of its training"
                )
        prefix = f"{name}.mechanism."
        own = {prefix + key: value for key, value in self.mechanism.state_dict().items()}
        there = {key for key in state_dict if key.startswith(prefix)}
        untied = {key for key in own if key.removeprefix(prefix) not in self.mechanism.tied}
        differ = (there ^ own.keys()) & (there | untied)
        if there & untied and differ:
            key = min(differ)
            where = "the checkpoint only" if key in there else "this model only"
            raise LeapformerError(f"{key} is in {where}; {self._remedy()}")
        for key in there - own.keys():
            del state_dict[key]
        for key, value in own.items():
            found = self._trained(state_dict, key, tied=key.removeprefix(prefix) in self.mechanism.tied)
            if found is not None and found.shape != value.shape:
                raise LeapformerError(f"{key} {_shapes(found, value)}; {self._remedy()}")
            state_dict[key] = value if found is None else found

    def _trained(self, state_dict: dict[str, Tensor], key: str, tied: bool) -> Tensor | None:
        """A parameter in a checkpoint; one that all layers have in common may stand in any of them."""
        if not tied:
            return state_dict.get(key)
        found = [value for other, value in state_dict.items() if _in_any_layer(other) == _in_any_layer(key)]
        if any(not torch.equal(value, found[0]) for value in found):
            raise LeapformerError(
                f"{key} differs between the layers of the checkpoint, in this model they share it; {self._remedy()}"
            )
        return found[0] if found else None

    def _remedy(self) -> str:
        options = ", ".join(option.flag for option in self.mechanism.options)
        return f"give {self.mechanism.name} the options that it was trained with ({options})"

    # The decoder layer asks every self-attention for fairseq's own buffer; this module keeps its state elsewhere.
    def _get_input_buffer(self, incremental_state: IncrementalState | None) -> dict[str, Tensor]:
        return {}

    def extra_repr(self) -> str:
        return f"mechanism={self.mechanism.name}, heads={self.num_heads}, visible={self.visible}"


def _in_any_layer(key: str) -> str:
    """The name of a parameter without the number of its layer, which is the last number in it."""
    return re.sub(r"\.\d+\.(?!.*\.\d+\.)", ".*.", key)


def _shapes(found: Tensor, own: Tensor) -> str:
    """That a tensor of a checkpoint does not fit, in words."""
    return f"is {tuple(found.shape)} in the checkpoint and {tuple(own.shape)} in this model"


def _keep(padding: Tensor | None) -> Tensor | None:
    """fairseq's padding mask as a keep mask."""
    return None if padding is None or padding.dim() == 0 else ~padding.bool()
