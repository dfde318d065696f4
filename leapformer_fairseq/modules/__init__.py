"""fairseq adapters: an attention module that asks a mechanism, the plan grammar and the swap."""

from .mechanism_attention import IncrementalState, MechanismAttention, Memory
from .plan import expand_plan
from .swap import (
    BLOCKS,
    Block,
    add_attention_args,
    attentions,
    fill_attention_args,
    forget_source,
    fork_state,
    load_component,
    state_bytes,
    swap_attention,
)

__all__ = [
    "BLOCKS",
    "Block",
    "IncrementalState",
    "MechanismAttention",
    "Memory",
    "add_attention_args",
    "attentions",
    "expand_plan",
    "fill_attention_args",
    "forget_source",
    "fork_state",
    "load_component",
    "state_bytes",
    "swap_attention",
]
