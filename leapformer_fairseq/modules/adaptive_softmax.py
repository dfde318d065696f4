"""fairseq's adaptive softmax as a function that changes nothing in place, for gradients and for graphs."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.modules.adaptive_softmax import TiedHeadModule
from torch import Tensor


def adaptive_log_probs(softmax: Any, features: Tensor) -> Tensor:
    """The log-probabilities (.., V) of all words, given features (.., C) and an `AdaptiveSoftmax`."""
    x = features.flatten(0, -2)
    head = softmax.head
    scores = torch.cat([head.word_proj(x), head.class_proj(x)], -1) if isinstance(head, TiedHeadModule) else head(x)
    words, clusters = scores.float().log_softmax(-1).split([softmax.cutoff[0], len(softmax.tail)], -1)
    tails = [
        tail(x).float().log_softmax(-1) + cluster.unsqueeze(-1)
        for tail, cluster in zip(softmax.tail, clusters.unbind(-1), strict=True)
    ]
    return torch.cat([words, *tails], -1).unflatten(0, features.shape[:-1])
