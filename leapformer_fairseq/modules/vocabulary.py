"""Checks that a data set has the vocabulary that a model was trained with.

A model knows words only by number, so with another dictionary it would read and write nonsense without an error.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError

FINGERPRINT = "vocabulary"  # name of the buffer


def remember_vocabulary(module: nn.Module, dictionary: Any) -> None:
    """Register a fingerprint of the dictionary's words and their order as a buffer, which checkpoints then contain.

    Its 16 bytes are stored as integers, which neither half precision nor averaging of checkpoints changes.
    """
    digest = hashlib.sha256("\0".join(dictionary.symbols).encode()).digest()[:16]
    module.register_buffer(FINGERPRINT, torch.tensor(list(digest)))


def check_vocabulary(module: nn.Module, state_dict: dict[str, Tensor], name: str) -> None:
    """Raise LeapformerError if a checkpoint's module `name` has another vocabulary than `module`.

    fairseq's own checkpoints have no fingerprint; for these only the number of words is compared.
    """
    remedy = "use the data folder (dict.*.txt) that the model was trained on"
    for key, value in module.get_submodule("embed_tokens").state_dict().items():
        stored = state_dict.get(f"{name}.embed_tokens.{key}")
        if stored is not None and len(stored) != len(value):
            raise LeapformerError(
                f"the checkpoint's {name}.embed_tokens.{key} has {len(stored)} rows, this data set's dictionary gives "
                f"{len(value)}; {remedy}"
            )
    expected = module.get_buffer(FINGERPRINT).cpu()
    if not torch.equal(state_dict.setdefault(f"{name}.{FINGERPRINT}", expected).cpu(), expected):
        raise LeapformerError(f"the checkpoint's {name} knows other words than this data set's dictionary; {remedy}")
