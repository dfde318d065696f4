"""Attention mechanisms on (B, H, T, D) tensors in pure torch; nothing here needs fairseq.

Mechanisms of your own need nothing but these names and those of `ops`; docs/adding_a_mechanism.md shows how.
"""

from . import bidirectional, bounded, linear, recurrent, softmax, sparse  # noqa: F401  (each import registers its mechanisms)
from .bounded.base import EMPTY_SLOTS, SLOTS
from .bounded.sums import SlotSums
from .capabilities import BLOCKS, Capabilities, Context
from .decoding import step_of
from .decoding.step import Step
from .kernels import Kernel, LinearKernel, PackedKernel, Projections, Reading, RecurrentKernel, SlotKernel
from .linear.base import NORMALIZER_FLOOR, Features, LinearMechanism, LinearState
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask
from .mechanism import Mechanism, State, shown
from .multihead import Attention, Cache
from .ops.recurrent import Written
from .options import Option
from .positions import sinusoids
from .recurrent.base import RecurrentMechanism
from .recurrent.gated import Averaging
from .recurrent.gates import Gate
from .registry import MECHANISMS, OPTIONS, build, find, register
from .tokens import Carry, TokenInfo

__all__ = [
    "BLOCKS",
    "CAUSAL",
    "EMPTY_SLOTS",
    "MECHANISMS",
    "NORMALIZER_FLOOR",
    "OPTIONS",
    "SLOTS",
    "Attention",
    "Averaging",
    "Cache",
    "Capabilities",
    "Carry",
    "ChunkMask",
    "Context",
    "Features",
    "Gate",
    "Kernel",
    "LinearKernel",
    "LinearMechanism",
    "LinearState",
    "Mask",
    "Mechanism",
    "Option",
    "PackedKernel",
    "PrefixMask",
    "Projections",
    "Reading",
    "RecurrentKernel",
    "RecurrentMechanism",
    "SlotKernel",
    "SlotSums",
    "State",
    "Step",
    "TokenInfo",
    "Written",
    "build",
    "find",
    "register",
    "shown",
    "sinusoids",
    "step_of",
]
