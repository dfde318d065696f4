"""fairseq adapters: an attention module that asks a mechanism, the plan grammar and the swap."""

from .length_predictor import LENGTH_PREDICTORS, LengthPredictor, Setting, Source, length_options
from .mechanism_attention import MechanismAttention
from .memory import CurrentPass, IncrementalState, Memory
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
from .vocabulary import check_vocabulary, remember_vocabulary

__all__ = [
    "CurrentPass",
    "BLOCKS",
    "LENGTH_PREDICTORS",
    "Block",
    "IncrementalState",
    "LengthPredictor",
    "MechanismAttention",
    "Memory",
    "Setting",
    "Source",
    "add_attention_args",
    "add_options",
    "attentions",
    "check_vocabulary",
    "expand_plan",
    "fill_attention_args",
    "fill_options",
    "forget_source",
    "fork_state",
    "length_options",
    "load_component",
    "remember_vocabulary",
    "state_bytes",
    "swap_attention",
]
