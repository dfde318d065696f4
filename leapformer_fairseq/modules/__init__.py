"""fairseq adapters: an attention module that asks a mechanism, the plan grammar and the swap."""

from .length_predictor import LENGTH_PREDICTORS, LengthPredictor, Setting, Source, length_options
from .mechanism_attention import BlockRows, IncrementalState, MechanismAttention, Memory, PackedSequence, TargetLength
from .plan import expand_plan
from .swap import (
    BLOCKS,
    Block,
    add_attention_args,
    add_options,
    attentions,
    fill_attention_args,
    fill_options,
    forget_source,
    fork_state,
    load_component,
    state_bytes,
    swap_attention,
)

__all__ = [
    "BlockRows",
    "BLOCKS",
    "LENGTH_PREDICTORS",
    "Block",
    "IncrementalState",
    "LengthPredictor",
    "MechanismAttention",
    "Memory",
    "PackedSequence",
    "Setting",
    "Source",
    "TargetLength",
    "add_attention_args",
    "add_options",
    "attentions",
    "expand_plan",
    "fill_attention_args",
    "fill_options",
    "forget_source",
    "fork_state",
    "length_options",
    "load_component",
    "state_bytes",
    "swap_attention",
]
