"""Attention token by token, as the papers write it: loops to be read beside the formulas, and the truth of the tests.

Shapes: D head dimension, E value dimension, F features, n slots; inputs are one sequence of one head, (T, ..), (S, ..).
`counts[t]` is the number of keys that query t sees: t + 1 in causal attention, S without a mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def linear(q: Tensor, k: Tensor, v: Tensor, counts: Sequence[int], floor: float) -> Tensor:
    """o_t = S_t^T q_t / max(z_t . q_t, floor), S_t = sum k_s v_s^T, z_t = sum k_s; q (T, F), k (S, F) are mapped.

    Katharopoulos et al., 2020, arXiv:2006.16236, eq. 16-20.
    """
    outputs = []
    for query, count in zip(q, counts, strict=True):
        state, total = q.new_zeros(q.shape[1], v.shape[1]), q.new_zeros(q.shape[1])
        for key, value in zip(k[:count], v[:count], strict=True):
            state = state + torch.outer(key, value)
            total = total + key
        outputs.append(state.T @ query / (total @ query).clamp_min(floor))
    return torch.stack(outputs)


def gated(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, floor: float) -> Tensor:
    """o_t = S_t^T q_t / max(z_t . q_t, floor), S_t = g_t S_(t-1) + k_t v_t^T, z_t = g_t z_(t-1) + k_t; gate g (T,).

    Peng et al., 2021, arXiv:2103.02143, eq. 7, where the k are mapped and times 1 - g_t.
    """
    outputs = []
    state, total = q.new_zeros(q.shape[1], v.shape[1]), q.new_zeros(q.shape[1])
    for query, key, value, keep in zip(q, k, v, gate, strict=True):
        state = keep * state + torch.outer(key, value)
        total = keep * total + key
        outputs.append(state.T @ query / (total @ query).clamp_min(floor))
    return torch.stack(outputs)


def cosine_weights(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """relu(q_i) . relu(k_j) cos(pi/2 (p_i - r_j)), (T, S), of proportions p (T,) and r (S,), before it is normalised.

    cosFormer with p = i/N, r = j/M (Qin et al., 2022, arXiv:2202.08791, eq. 10), LeaPformer with learned ones
    (Agostinelli et al., 2024, arXiv:2405.13046, eq. 8-10).
    """
    rows = [
        torch.stack([a.relu() @ b.relu() * torch.cos(torch.pi / 2 * (p - r)) for b, r in zip(k, key, strict=True)])
        for a, p in zip(q, query, strict=True)
    ]
    return torch.stack(rows)


def slots(q: Tensor, k: Tensor, v: Tensor, control: Tensor, counts: Sequence[int], normalized: bool) -> Tensor:
    """o_t = V~^T softmax(K~ q_t / sqrt(D)), K~ = sum_i phi_i k_i^T, V~ = sum_i phi_i v_i^T; control phi (S, n).

    `normalized` controls are divided by their sum over the keys seen, slot by slot (Peng et al., 2022,
    arXiv:2110.02488, eq. 5; appendix B.1).
    """
    outputs = []
    for query, count in zip(q, counts, strict=True):
        phi = control[:count]
        phi = phi / phi.sum(0) if normalized else phi
        keys, values = phi.T @ k[:count], phi.T @ v[:count]
        outputs.append(values.T @ torch.softmax(keys @ query / query.shape[0] ** 0.5, 0))
    return torch.stack(outputs)


def window(q: Tensor, k: Tensor, v: Tensor, size: int, dilation: int = 1) -> Tensor:
    """Softmax over the last `size` tokens, each query's own included, of every `dilation`-th.

    Peng et al., 2022, arXiv:2110.02488, section 3.3 and appendix A.4.
    """
    outputs = []
    for t, query in enumerate(q):
        seen = list(range(t, -1, -dilation))[:size]
        outputs.append(torch.softmax(k[seen] @ query / query.shape[0] ** 0.5, 0) @ v[seen])
    return torch.stack(outputs)
