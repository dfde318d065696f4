"""Sums that decay: S_t = e^{g_t} S_{t-1} + k_t v_t^T, o_t = q_t S_t, with one log-decay g_t <= 0 a token and head.

Chunk by chunk: inside a chunk by all pairs, weighted by the decay between them; between chunks by the state. No factor
exceeds 1, since decays are taken between two tokens and never alone (Yang et al., 2023, arXiv:2312.06635, section 4).

Shapes: T tokens, F features, M value columns, any leading dimensions (..).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .linear import read_state, state_of


def state_after(k: Tensor, v: Tensor, decay: Tensor, first: Tensor) -> Tensor:
    """The state (.., F, M) after keys (.., S, F) and values (.., S, M) with log-decays (.., S) that follow `first`."""
    total = decay.cumsum(-1)
    faded = (total[..., -1:] - total).exp().unsqueeze(-1)
    return total[..., -1:, None].exp() * first + state_of((k * faded).to(k.dtype), v)


def causal_sums(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, first: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Causal sums (.., T, M) of queries (.., T, F) that follow the state `first`, and the state after all keys.

    Query t sees keys up to t; queries after the last key see all, without a further decay.
    """
    tokens = min(q.shape[-2], k.shape[-2])
    size = max(1, min(chunk, tokens))
    state, sums = first, []
    parts = (x[..., :tokens, :].split(size, -2) for x in (q, k, v, decay.unsqueeze(-1)))
    for some_q, some_k, some_v, some_decay in zip(*parts, strict=True):
        total = some_decay.squeeze(-1).cumsum(-1)
        pairs = (read_state(some_q, some_k.mT) * _between(total)).to(some_v.dtype)
        aged = (some_q * total.exp().unsqueeze(-1)).to(some_q.dtype)
        sums.append(read_state(aged, state) + read_state(pairs, some_v))
        state = state_after(some_k, some_v, some_decay.squeeze(-1), state)
    if tokens < q.shape[-2]:
        sums.append(read_state(q[..., tokens:, :], state))
    return torch.cat(sums, -2), state


def _between(total: Tensor) -> Tensor:
    """What is left of a token at a later one, (.., C, C), and 0 at an earlier one, given cumulated decays (.., C)."""
    ages = total.unsqueeze(-1) - total.unsqueeze(-2)
    future = torch.ones(ages.shape[-2:], dtype=torch.bool, device=ages.device).triu(1)
    return ages.masked_fill(future, -torch.inf).exp()
