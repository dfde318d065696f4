"""Wait-k in the model: what a token may see, sampling of k, and bad values."""

from __future__ import annotations

import pytest
import torch

from leapformer_fairseq.errors import LeapformerError
from leapformer_fairseq.models.simulst import parse_lagging
from leapformer_fairseq.modules import attentions

from .tiny import PLANS, make_model, speech_batch, target_prefix


def simulst(plan="leap", lagging="2", ratio=3):
    return make_model("leapformer_simulst_tiny", plan, waitk_lagging=lagging, fixed_pre_decision_ratio=ratio)


def first_affected_token(model, frame: int, tokens: int = 10) -> int:
    """The first target position whose logits change when encoder state `frame` changes (the decoder alone)."""
    batch, prefix = speech_batch((80,)), target_prefix(1, tokens)
    with torch.no_grad():
        encoder_out = model.encoder(**batch)
        before, _ = model.decoder(prefix, encoder_out=encoder_out)
        encoder_out["encoder_out"][0][frame] += 1.0
        after, _ = model.decoder(prefix, encoder_out=encoder_out)
    changed = (before - after).abs().amax(-1)[0] > 1e-9
    return int(changed.float().argmax()) if bool(changed.any()) else tokens


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("k", "ratio"), [(1, 1), (1, 3), (3, 2), (2, 7)])
def test_a_token_sees_exactly_its_prefix(plan, k, ratio):
    model = simulst(plan, str(k), ratio)
    for frame in range(20):
        # g(t) = ratio (t + k) > frame, the smallest such t
        expected = max(0, frame // ratio + 1 - k)
        assert first_affected_token(model, frame) == min(expected, 10)


def test_the_check_notices_a_leak():
    """Inverted control: one decision too many is seen one token too early."""
    model = simulst("leap", "2", 3)
    model.set_lagging(3)
    assert first_affected_token(model, 12) != max(0, 12 // 3 + 1 - 2)


def test_a_range_is_sampled_in_training_and_fixed_in_evaluation():
    model, batch, prefix = simulst(lagging="2-5"), speech_batch(), target_prefix(3, 4)
    cross = [a for a in attentions(model) if a.encoder_decoder_attention]
    assert {a.visible.lagging for a in cross} == {5}
    model.train()
    seen = set()
    for _ in range(40):
        model(**batch, prev_output_tokens=prefix)
        assert len({a.visible for a in cross}) == 1
        seen.add(cross[0].visible.lagging)
    assert seen == {2, 3, 4, 5}
    model.eval()
    assert {a.visible.lagging for a in cross} == {5}


def test_k_large_enough_is_offline():
    batch, prefix = speech_batch(), target_prefix(3, 6)
    with torch.no_grad():
        wide, _ = simulst(lagging="20")(**batch, prev_output_tokens=prefix)
        offline, _ = simulst(lagging="offline")(**batch, prev_output_tokens=prefix)
    torch.testing.assert_close(wide, offline, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", ["0", "-1", "3-2", "0-4", "x", "2.5", ""])
def test_bad_lagging_is_refused(text):
    with pytest.raises(LeapformerError, match=r"--waitk-lagging .*give k >= 1"):
        parse_lagging(text)


@pytest.mark.parametrize(("text", "bounds"), [("5", (5, 5)), ("1-9", (1, 9)), ("offline", None), (3, (3, 3))])
def test_lagging_is_read(text, bounds):
    assert parse_lagging(text) == bounds


def test_bad_ratio_is_refused():
    with pytest.raises(LeapformerError, match="pre-decision ratio is 0"):
        simulst(ratio=0)
