"""Where a mechanism is supported: its capabilities as data, and the one function that evaluates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..support.declared import with_known_fields
from ..support.errors import LeapformerError, suggestion
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask

BLOCKS: tuple[str, ...] = ("encoder-self", "decoder-self", "decoder-cross")
ENCODER_SELF, DECODER_SELF, DECODER_CROSS = BLOCKS
PROJECTIONS = ("q_proj", "k_proj")  # those that a mechanism can do without
NO_STATE = (
    "an edge may change with later tokens, so there is no state to decode from; `leapformer sparsefinder evaluate` "
    "reads the text again for every token"
)


@dataclass(frozen=True)
class Context:
    """How a model uses a mechanism, apart from block and mask.

    length_known:    the target's length is known, or predicted, before the target is generated.
    carry_width:     width of the carry that the encoder passes to the decoder; None: the encoder has no carry.
    reruns_layers:   the backward pass runs layers again (activation checkpointing).
    source_streams:  target tokens are generated while the source is still arriving.
    source_in_parts: cross-attention gets the source in parts, which are never encoded again.
    target_length:   length of the longest target, if known.
    endless:         the state is carried over a text of any length.
    incremental:     target tokens are generated one at a time from a state.
    """

    length_known: bool = False
    carry_width: int | None = None
    reruns_layers: bool = False
    source_streams: bool = False
    source_in_parts: bool = False
    target_length: int | None = None
    endless: bool = False
    incremental: bool = False


@with_known_fields
@dataclass(frozen=True)
class Capabilities:
    """What a mechanism, with its options, supports and needs.

    unsupported:     block -> why it is not supported there, with the remedy.
    prefixes:        queries may see prefixes of a source, as in wait-k.
    append:          keys can be appended to a state without changing what earlier keys contributed.
    incremental:     a decoder token's output does not depend on later tokens, so they can be generated one by one.
    missing:         what a model must be given before it can use the mechanism, with the remedy; "" if nothing.
    normalized:      the weights of a query sum to one, unless it matches no key.
    constant_state:  the size of the state does not depend on the number of tokens read.
    needs_length:    the output depends on the lengths of the whole sequences.
    length_remedy:   what to do in decoder blocks if the target's length is unknown; "" if the options provide one.
    guesses_length:  an unknown target length is estimated from the number of tokens generated so far.
    needs_inputs:    keys need `TokenInfo.inputs`, the block's input before the projections.
    needs_query_inputs: queries need it, too.
    unused_projections: projections of the block that are not used. Without q_proj the keys are also the queries,
                     without k_proj the values are also the keys.
    max_target:      length of the longest target that a decoder supports; None: no limit.
    limit_options:   flags that set this limit.
    carry_width:     width of the carry that its layers pass on (`TokenInfo.carry`); None: it has no carry.
    carry_is_given:  the first layer of a decoder needs the encoder's carry.
    carry_remedy:    what to do if there is no such carry.
    """

    unsupported: Mapping[str, str] = field(default_factory=dict)
    prefixes: bool = True
    append: bool = True
    incremental: bool = True
    missing: str = ""
    normalized: bool = True
    constant_state: bool = True
    needs_length: bool = False
    length_remedy: str = ""
    guesses_length: bool = False
    needs_inputs: bool = False
    needs_query_inputs: bool = False
    unused_projections: tuple[str, ...] = ()
    max_target: int | None = None
    limit_options: str = ""
    carry_width: int | None = None
    carry_is_given: bool = False
    carry_remedy: str = ""

    def __post_init__(self) -> None:
        """Raises LeapformerError for blocks and projections that there are not."""
        if not isinstance(self.unsupported, Mapping):
            raise LeapformerError(
                f"Capabilities(unsupported={self.unsupported!r}): give a reason for each block, as in "
                f'{{"{DECODER_CROSS}": "why; remedy"}}'
            )
        if isinstance(self.unused_projections, str):
            raise LeapformerError(
                f"Capabilities(unused_projections={self.unused_projections!r}): give a tuple, as in "
                f"({self.unused_projections!r},)"
            )
        for noun, given, known in (
            ("block", self.unsupported, BLOCKS),
            ("projection", self.unused_projections, PROJECTIONS),
        ):
            for name in given:
                if name not in known:
                    near = suggestion(str(name), known)
                    raise LeapformerError(
                        f"Capabilities: {noun} {name!r} is unknown; {near}choose from: {', '.join(known)}"
                    )

    @property
    def keys_are_values(self) -> bool:
        """Whether one projection computes both keys and values."""
        return "k_proj" in self.unused_projections

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks in which the mechanism is supported."""
        return tuple(block for block in BLOCKS if block not in self.unsupported)

    def unsupported_reason(self, block: str | None, mask: Mask = None, context: Context | None = None) -> str | None:
        """Why the mechanism is not supported in `block` with this mask, in one line with the remedy; None if it is.

        Without a `block` (use as a library), one block that can have this mask and supports the mechanism is enough.
        Without a `context`, only block and mask are checked.
        """
        if block is None:
            reasons = [self.unsupported_reason(name, mask, context) for name in _blocks_with(mask)]
            return None if None in reasons else reasons[0]
        return self._by_block(block, mask) or (None if context is None else self._by_context(block, context))

    def _by_block(self, block: str, mask: Mask) -> str | None:
        if block in self.unsupported:
            return f"{self.unsupported[block]}; allowed: {', '.join(self.blocks) or 'no block'}"
        if block == ENCODER_SELF and isinstance(mask, PrefixMask) and DECODER_SELF in self.unsupported:
            return f"under a causal mask, {self.unsupported[DECODER_SELF]}"
        if isinstance(mask, ChunkMask) and not self.append:
            return (
                "it depends on the whole sequence, which a streaming encoder does not have yet; leave "
                "--encoder-causal and --encoder-chunk-ms out, or take another mechanism"
            )
        if isinstance(mask, PrefixMask) and block == DECODER_CROSS and not self.prefixes:
            return (
                "it is not defined over the prefixes of wait-k; give --waitk-lagging offline, or another mechanism "
                "there"
            )
        return None

    def _by_context(self, block: str, context: Context) -> str | None:
        if self.missing:
            return self.missing
        if context.incremental and block != ENCODER_SELF and not self.incremental:
            return NO_STATE
        if block != ENCODER_SELF and self.length_remedy and not context.length_known:
            return f"it needs the target's length, which is unknown while decoding; {self.length_remedy}"
        if context.endless and not self.constant_state:
            return (
                "it keeps every key, so its state grows with the text; stream a model with linear attention in all "
                "layers, or add --no-carry"
            )
        if self.max_target is not None and (context.target_length or 0) > self.max_target:
            return (
                f"it can read {self.max_target} tokens and the text has {context.target_length}; give more room "
                f"({self.limit_options}), or "
                + ("add --no-carry" if context.endless else f"--tokens-per-sample {self.max_target} or less")
            )
        if block == DECODER_CROSS and context.source_in_parts and not self.append:
            return (
                "it reads a source at once, this encoder hands it on in parts; take --engine recompute or --policy "
                "offline"
            )
        return None if self.carry_width is None else self._by_carry(block, context)

    def _by_carry(self, block: str, context: Context) -> str | None:
        if context.reruns_layers:
            return (
                "its layers hand a carry on to each other, which is gone when layers are run again in the backward "
                "pass; leave --checkpoint-activations out"
            )
        if block == ENCODER_SELF or not self.carry_is_given:
            return None
        if context.carry_width is None:
            return f"no layer of an encoder hands on the carry that it needs; {self.carry_remedy}"
        if context.carry_width != self.carry_width:
            return (
                f"the encoder's carry is {context.carry_width} wide, the decoder {self.carry_width}; make them equal, "
                f"or {self.carry_remedy}"
            )
        if block == DECODER_SELF and context.source_streams:
            return (
                "every token is written by the carry of the whole source, which is still arriving; "
                f"{self.carry_remedy}, or --waitk-lagging offline and --policy offline"
            )
        return None


def _blocks_with(mask: Mask) -> tuple[str, ...]:
    """The blocks that can have this mask."""
    if mask is None:
        return ENCODER_SELF, DECODER_CROSS
    if isinstance(mask, ChunkMask):
        return (ENCODER_SELF,)
    return (DECODER_SELF,) if mask == CAUSAL else (DECODER_CROSS,)
