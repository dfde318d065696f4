"""Sampling draws what fairseq's generator may draw, as often as the model says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fairseq.search import Sampling

from leapformer_fairseq.runtime.beam import Search, candidates, drawn
from leapformer_fairseq.support.errors import LeapformerError

WORDS: Any = type("Words", (), {"pad": lambda _: 1, "unk": lambda _: 3, "eos": lambda _: 2, "__len__": lambda _: 30})()
LIMITS = [{}, {"topk": 1}, {"topk": 5}, {"topk": 40}, {"topp": 0.05}, {"topp": 0.5}, {"topp": 0.95}, {"topp": 1.0}]


def log_probs(seed: int) -> np.ndarray:
    """As of a model, with two tokens that cannot be written, which therefore do not add up to 1."""
    scores = torch.randn(30, generator=torch.Generator().manual_seed(seed)).mul(2).log_softmax(0)
    scores[[1, 7]] = -torch.inf
    return scores.numpy()


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_the_tokens_that_may_be_drawn_are_those_of_fairseq(limits: dict[str, Any], seed: int) -> None:
    scores = log_probs(seed)
    ours = candidates(scores, Search(sampling=True, **limits))
    search = Sampling(WORDS, min(limits.get("topk", -1), 28), limits.get("topp", -1.0))
    if search.sampling_topp > 0:
        chances, tokens = search._sample_topp(torch.from_numpy(scores.copy())[None, None])
        theirs = tokens[chances > 0]
    else:
        theirs = torch.from_numpy(scores).topk(search.sampling_topk).indices if limits else torch.arange(30)
    assert {token for token in ours if scores[token] > -np.inf} == {
        token for token in theirs.tolist() if scores[token] > -np.inf
    }


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_tokens_are_drawn_as_often_as_the_model_says(limits: dict[str, Any]) -> None:
    """And as often as by fairseq, whose first step draws from one distribution as many as there are hypotheses."""
    scores, count, chances = log_probs(1), 20_000, np.random.default_rng(1)
    options = Search(sampling=True, **limits)
    ours = np.bincount([drawn(scores, chances, options) for _ in range(count)], minlength=30) / count
    allowed = candidates(scores, options)
    expected = np.zeros(30)
    expected[allowed] = np.exp(scores[allowed]) / np.exp(scores[allowed]).sum()
    assert np.abs(ours - expected).max() < 0.01 and not ours[expected == 0].any()
    torch.manual_seed(1)
    search = Sampling(WORDS, min(limits.get("topk", -1), 30), limits.get("topp", -1.0))
    _, tokens, _ = search.step(0, torch.from_numpy(scores).repeat(1, count, 1), None)
    assert np.abs(ours - np.bincount(tokens[0], minlength=30) / count).max() < 0.02


def test_a_token_that_must_come_is_drawn_however_unlikely() -> None:
    scores = np.full(30, -np.inf, np.float32)
    scores[9] = -300
    for limits in LIMITS:
        assert drawn(scores, np.random.default_rng(1), Search(sampling=True, **limits)) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "--temperature 0.0: give more than 0"),
        ({"temperature": float("nan")}, "--temperature nan: give more than 0"),
        ({"max_len_b": -3}, "--max-len-b -3 is less than --min-len 1; give more"),
        ({"sampling": True, "topp": 1.5}, "--sampling-topp 1.5: give a probability"),
        ({"sampling": True, "topp": 0.5, "topk": 2}, "--sampling-topk 2 and --sampling-topp 0.5: give one of them"),
        ({"topk": 2}, "--sampling-topk and --sampling-topp need --sampling"),
    ],
)
def test_searches_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LeapformerError, match=message):
        Search(**options)
