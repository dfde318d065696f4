"""Wait-k against the pace of speech: by hand, against the mask of attention, and what is told about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leapformer_fairseq.attention import PrefixMask
from leapformer_fairseq.runtime.schedule import STATE_FRAMES, fitting_ratio, outrun, unheard, unheard_share
from tests.models.tiny import make_model


def test_by_hand() -> None:
    """12 states, 4 tokens, of 3 states each; steps of 2 states."""
    places = np.arange(6)
    # seen at k = 1: 2 4 6 8, needed: 3 6 9 12; places 4 and 5 are padding
    assert unheard(places, 4, 12, 1, 2).tolist() == [True, True, True, True, False, False]
    assert unheard(places, 4, 12, 2, 2).tolist() == [False, False, True, True, False, False]  # 4 6 8 10
    assert unheard(places, 4, 12, 3, 2).tolist() == [False] * 6  # 6 8 10 12
    assert not unheard(places, 4, 12, 1, 3).any() and unheard(places, 4, 13, 1, 3).any(), "a step of a token, or less"
    assert unheard_share(np.array([12, 6]), np.array([4, 2]), 2, 2) == 2 / 6


@pytest.mark.parametrize("seed", range(20))
def test_a_token_sees_what_the_mask_shows_it(seed: int) -> None:
    draw = np.random.default_rng(seed)
    tokens, states, k, ratio = (int(draw.integers(1, high)) for high in (20, 150, 10, 12))
    expected = [PrefixMask(k, ratio).count(t, states) < states * (t + 1) / tokens - 1e-9 for t in range(tokens)]
    assert unheard(torch.arange(tokens), tokens, states, k, ratio).tolist() == expected


def test_what_is_told() -> None:
    slow, quick = ([count * length for length in (5, 9)] for count in (80, 20))  # frames: 0.8 or 0.2 s for a token
    tokens, laggings = [5, 9], list(range(1, 6))
    said = outrun(slow, tokens, laggings, 7)
    shares = [unheard_share(np.array(slow) // STATE_FRAMES, np.array(tokens), k, 7) for k in laggings]
    assert f"{np.mean(shares):.0%} of the target tokens are due before they are heard" in said
    assert f"({shares[0]:.0%} at k = 1, {shares[4]:.0%} at k = 5)" in said
    assert "--fixed-pre-decision-ratio 20 instead of 7 fits this data" in said
    assert "(100% at k = 1)" in outrun(slow, tokens, [1], 7)
    assert outrun(slow, tokens, laggings, 20) is None and outrun(quick, tokens, laggings, 7) is None
    assert outrun(slow, tokens, [18], 7) is None, "with such a k all is heard"
    varied = [30, 50, 40] * 4000
    assert outrun(varied, [1] * 12000, [1], 10) is None, "half are early, but no other step fits better"
    assert outrun(varied, [1] * 12000, [1], 9) is not None


def test_the_ratio_is_in_states_of_the_encoder() -> None:
    assert fitting_ratio(100, 30) == 3 and fitting_ratio(1, 30) == 1
    assert make_model("leapformer_simulst_tiny").encoder.pooling_ratio() == STATE_FRAMES
