"""Adapters to fairseq: an attention module around a mechanism, attention plans, and the swap."""

from ..attention.block import Memory
from .attention import IncrementalState, MechanismAttention, forget_source, fork_state, state_bytes
from .context import PassContext, PassOptions
from .origin import OfAnyOrigin
from .plan import expand_plan
from .swap import (
    BLOCKS,
    Block,
    add_attention_args,
    add_options,
    attentions,
    check_decoder,
    fill_attention_args,
    fill_options,
    swap_attention,
)
from .vocabulary import check_vocabulary, remember_vocabulary
from .warm_start import load_component

__all__ = [
    "BLOCKS",
    "Block",
    "IncrementalState",
    "MechanismAttention",
    "Memory",
    "OfAnyOrigin",
    "PassContext",
    "PassOptions",
    "add_attention_args",
    "add_options",
    "attentions",
    "check_decoder",
    "check_vocabulary",
    "expand_plan",
    "fill_attention_args",
    "fill_options",
    "forget_source",
    "fork_state",
    "load_component",
    "remember_vocabulary",
    "state_bytes",
    "swap_attention",
]
