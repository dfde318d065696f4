"""Whether the words of a data set are those that a model was trained on.

A model knows words by their numbers alone: with another dictionary it would read and write nonsense, and say nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from ..support.errors import LeapformerError

FINGERPRINT = "vocabulary"  # name of the buffer


def remember_vocabulary(module: nn.Module, dictionary: Any) -> None:
    """Keep a fingerprint of the dictionary's words and their order, which checkpoints hold from then on.

    It is 16 bytes as whole numbers, which half precision leaves alone and averages of checkpoints do not change.
    """
    digest = hashlib.sha256("\0".join(dictionary.symbols).encode()).digest()[:16]
    module.register_buffer(FINGERPRINT, torch.tensor(list(digest)))


def check_vocabulary(module: nn.Module, state_dict: dict[str, Tensor], name: str) -> None:
    """Raise LeapformerError when a checkpoint is of another vocabulary than the `module` of this `name`.

    fairseq's own checkpoints have no fingerprint: of these only the number of words is compared.
    """
    remedy = "use the data folder (dict.*.txt) that the model was trained on"
    for key, value in module.get_submodule("embed_tokens").state_dict().items():
        found = state_dict.get(f"{name}.embed_tokens.{key}")
        if found is not None and len(found) != len(value):
            raise LeapformerError(
                f"the checkpoint's {name}.embed_tokens.{key} has {len(found)} rows, this data set's dictionary gives "
                f"{len(value)}; {remedy}"
            )
    own = module.get_buffer(FINGERPRINT).cpu()
    if not torch.equal(state_dict.setdefault(f"{name}.{FINGERPRINT}", own).cpu(), own):
        raise LeapformerError(f"the checkpoint's {name} knows other words than this data set's dictionary; {remedy}")
