"""Attention as plain loops that follow the papers' formulas; tests compare the fast implementations with them.

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


def convolution(x: Tensor, taps: Tensor, before: int, ends: Sequence[int] | None = None) -> Tensor:
    """y_t = silu(sum_j w_j * x_(t + j - before)) for each channel of x (T, C), with taps w (J, C); x is 0 outside.

    Token t does not see tokens from ends[t] on (None: from T on). As in the released models of Yang et al., 2024,
    arXiv:2406.06484.
    """
    outputs = []
    for t in range(len(x)):
        total = x.new_zeros(x.shape[1])
        for j, weight in enumerate(taps):
            s = t + j - before
            if 0 <= s < (len(x) if ends is None else ends[t]):
                total = total + weight * x[s]
        outputs.append(total / (1 + (-total).exp()))
    return torch.stack(outputs)


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor | None, counts: Sequence[int]
) -> Tensor:
    """o_t = S_n^T q_t, n = counts[t], where S_s = diag(e^{g_s}) S_(s-1) + k_s u_s^T; log-decays g (S, 1 or F).

    Without strengths u_s = v_s (Yang et al., 2023, arXiv:2312.06635, equation 3). With strengths b (S, 1), the delta
    rule: u_s = b_s (v_s - S^T k_s), where S is the state after the decay (Yang et al., 2024, arXiv:2412.06464,
    equation 10).
    """
    states = [q.new_zeros(q.shape[1], v.shape[1])]
    for s, (key, value) in enumerate(zip(k, v, strict=True)):
        state = decay[s].exp().unsqueeze(1) * states[-1]
        new = value if strength is None else strength[s] * (value - state.T @ key)
        states.append(state + torch.outer(key, new))
    return torch.stack([states[count].T @ query for query, count in zip(q, counts, strict=True)])


def two_sided(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    """o_i = sum_j (q_i . (k_j e^{-|c_i - c_j|})) v_j, where c are the cumulated log-decays `decay`, (T, 1 or F).

    Afzal et al., 2025, arXiv:2502.16249, section 3.
    """
    total = decay.cumsum(0)
    rows = [(k * torch.exp(-(total - at).abs())) @ query for query, at in zip(q, total, strict=True)]
    return torch.stack([row @ v for row in rows])


def cosine_weights(q: Tensor, k: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Unnormalised weights relu(q_i) . relu(k_j) cos(pi/2 (p_i - r_j)), (T, S), with proportions p (T,) and r (S,).

    cosFormer has p = i/N and r = j/M (Qin et al., 2022, arXiv:2202.08791, eq. 10), LeaPformer learned proportions
    (Agostinelli et al., 2024, arXiv:2405.13046, eq. 8-10).
    """
    rows = [
        torch.stack([a.relu() @ b.relu() * torch.cos(torch.pi / 2 * (p - r)) for b, r in zip(k, key, strict=True)])
        for a, p in zip(q, query, strict=True)
    ]
    return torch.stack(rows)


def slots(q: Tensor, k: Tensor, v: Tensor, control: Tensor, counts: Sequence[int], normalized: bool) -> Tensor:
    """o_t = V~^T softmax(K~ q_t / sqrt(D)), K~ = sum_i phi_i k_i^T, V~ = sum_i phi_i v_i^T; control phi (S, n).

    `normalized`: the control of each slot is divided by its sum over the keys that the query sees. Peng et al., 2022,
    arXiv:2110.02488, eq. 5 and appendix B.1.
    """
    outputs = []
    for query, count in zip(q, counts, strict=True):
        phi = control[:count]
        phi = phi / phi.sum(0) if normalized else phi
        keys, values = phi.T @ k[:count], phi.T @ v[:count]
        outputs.append(values.T @ torch.softmax(keys @ query / query.shape[0] ** 0.5, 0))
    return torch.stack(outputs)


def window(q: Tensor, k: Tensor, v: Tensor, size: int, dilation: int = 1) -> Tensor:
    """Softmax over `size` tokens: the query's own and those before it, of which every `dilation`-th counts.

    Peng et al., 2022, arXiv:2110.02488, section 3.3 and appendix A.4.
    """
    outputs = []
    for t, query in enumerate(q):
        seen = list(range(t, -1, -dilation))[:size]
        outputs.append(torch.softmax(k[seen] @ query / query.shape[0] ** 0.5, 0) @ v[seen])
    return torch.stack(outputs)
