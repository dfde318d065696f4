"""Attention mechanisms on (B, H, T, D) tensors in pure torch; nothing here needs fairseq.

To add a mechanism, write its file and name it in `linear`, `recurrent`, `bounded`, `sparse`, `bidirectional` or below.
"""

from . import bidirectional, bounded, linear, recurrent, softmax, sparse  # noqa: F401  (each import registers its mechanisms)
from .capabilities import BLOCKS, Capabilities, Context
from .decoding import step_of
from .decoding.step import Step
from .kernels import Kernel, LinearKernel, PackedKernel, Projections, Reading, RecurrentKernel, SlotKernel
from .linear.base import Features, LinearMechanism, LinearState
from .masks import CAUSAL, ChunkMask, Mask, PrefixMask
from .mechanism import Mechanism, State
from .multihead import Attention, Cache
from .options import Option
from .positions import sinusoids
from .recurrent.gated import Averaging
from .registry import MECHANISMS, OPTIONS, build, create, find, register
from .tokens import Carry, TokenInfo

__all__ = [
    "BLOCKS",
    "CAUSAL",
    "MECHANISMS",
    "OPTIONS",
    "Attention",
    "Averaging",
    "Cache",
    "Capabilities",
    "Carry",
    "ChunkMask",
    "Context",
    "Features",
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
    "SlotKernel",
    "State",
    "Step",
    "TokenInfo",
    "build",
    "create",
    "find",
    "register",
    "sinusoids",
    "step_of",
]
