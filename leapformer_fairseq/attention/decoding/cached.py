"""The decoding step of softmax attention: keys and values of earlier tokens are in a cache, `softmax.KVCache`."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..kernels import CachedKernel, Projections
from ..mechanism import Mechanism
from ..softmax import never_empty, visible_keys
from .step import Step


class CachedStep(Step):
    """PyTorch's attention over the cache, in few calls, which take most of the time of a token."""

    def __init__(self, mechanism: Mechanism, projections: Projections, kernel: CachedKernel) -> None:
        super().__init__(mechanism, projections)

    def attend(self, projected: Tensor, x: Tensor, state: Any, position: int, lengths: Tensor | None) -> Tensor:
        if self.self_attention:
            q, k, v = map(self._heads, projected.tensor_split((self.key, self.value), 1))
            state.append(k, v, None)
        else:  # the hypotheses of a sentence are queries of one sequence
            q = projected.view(state.batch_size, -1, self.heads, self.dim).transpose(1, 2)
        k, v, keep = state.columns()
        visible = never_empty(visible_keys(q, k, keep, None))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).reshape(len(x), -1)
