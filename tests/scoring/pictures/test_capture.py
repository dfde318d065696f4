"""What is captured of a model, and drawn: that it is what the model computes."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from leapformer_fairseq.modules import attentions
from leapformer_fairseq.modules.capture import capture, choose
from leapformer_fairseq.scoring.pictures.heatmaps import Axis, draw_attention, draw_reweighting
from leapformer_fairseq.scoring.pictures.proportions import Proportions, saturation
from leapformer_fairseq.support.errors import LeapformerError
from tests.attention.cases import RECURRENT, UNNORMALIZED
from tests.covering import kept
from tests.models.tiny import PLANS, make_model, speech_batch, target_prefix
from tests.scoring.pictures.images import pixels

BLOCKS = ["encoder-self", "decoder-self", "decoder-cross"]
WITH_PROPORTIONS = ("leap", "gated-leap", "cosformer")
HEADS = 2


def simulst(plan, **more):
    model = make_model("leapformer_simulst_tiny", plan, waitk_lagging="2", fixed_pre_decision_ratio=3, **more)
    return model, {**speech_batch((61,)), "prev_output_tokens": target_prefix(1, 7)}


def captured(plan, **more):
    model, batch = simulst(plan, **more)
    return capture(model, batch, choose(model))


# ------------------------------------------------------------------------------------------------------- capturing
@pytest.mark.parametrize("plan", PLANS)
def test_weights_are_those_the_model_attends_with(plan):
    """Times the values they give every attention's output, in all blocks, wait-k included."""
    model, batch = simulst(plan)
    calls = {}

    def remember(mechanism, given, named, out):
        calls[mechanism] = *given, named["query"], out

    for attention in attentions(model):
        attention.mechanism.register_forward_hook(remember, with_kwargs=True)
    found = capture(model, batch, choose(model))
    assert [(one.block, one.layer) for one in found] == [(block, layer) for block in BLOCKS for layer in (0, 1)]
    for one in found:
        if one.mechanism.capabilities.carry_width and one.mask is None:  # what is unpacked is projected once more
            torch.testing.assert_close(one.weights().sum(-1), torch.ones_like(one.weights()[..., 0]))
            continue
        q, _, v, query, out = calls[one.mechanism]
        read = (one.weights() @ v[0]).unsqueeze(0)
        if plan in RECURRENT:
            inputs = None if query.inputs is None else query.inputs[:1]
            read = one.mechanism.polish(read, q[:1], replace(query, inputs=inputs))
        torch.testing.assert_close(read[0], out[0], rtol=0, atol=1e-10)
        assert (one.weights()[:, one.hidden()] == 0).all()
    assert {one.block for one in found if one.hidden().any()} == {"decoder-self", "decoder-cross"}


def test_an_encoder_in_chunks_is_shown_with_what_it_sees():
    encoder = captured("leap", encoder_chunk_ms=120)[0]
    assert encoder.block == "encoder-self"
    hidden = encoder.hidden()
    assert (encoder.weights()[:, hidden] == 0).all() and not hidden[:3, :3].any() and hidden[:3, 3:].all()


@pytest.mark.parametrize("per_head", [False, True])
def test_reweighting_of_leap_is_the_formula(per_head):
    for one in captured("leap", leap_per_head=per_head):
        q, k = F.relu(one.q), F.relu(one.k)
        p_q, p_k = one.mechanism.query_proportion(q)[0], one.mechanism.key_proportion(k)[0]
        expected = torch.cos(math.pi / 2 * (p_q - p_k.mT))
        assert len(one.reweighting()) == len(p_q)
        torch.testing.assert_close(one.reweighting(), expected, rtol=0, atol=1e-12)
        scores = (q[0] @ k[0].mT * expected).masked_fill(one.hidden(), 0)
        weights = scores / scores.sum(-1, keepdim=True).clamp_min(1e-4)
        torch.testing.assert_close(one.weights(), weights, rtol=0, atol=1e-12)
        # Inverted control: networks in each other's place would be seen.
        swapped = torch.cos(math.pi / 2 * (one.mechanism.key_proportion(q)[0] - p_k.mT))
        assert (swapped - one.reweighting()).abs().max() > 1e-4


def test_reweighting_of_cosformer_is_that_of_relative_positions():
    for one in captured("cosformer"):
        if one.mechanism.name != "cosformer":  # it does not serve wait-k
            continue
        places = {"query": one.q.shape[2], "key": one.k.shape[2]}
        lengths = {side: 40 for side in places} if one.block == "decoder-self" else {**places}
        if one.block == "decoder-cross":
            lengths["query"] = 40
        i, j = (torch.arange(1, places[side] + 1).double() / lengths[side] for side in ("query", "key"))
        torch.testing.assert_close(one.reweighting()[0], torch.cos(math.pi / 2 * (i[:, None] - j)))


@pytest.mark.parametrize("plan", PLANS)
def test_rows_sum_to_one_where_they_are_averages(plan):
    found = captured(plan, normalizer_floor=1e-12, rfa_floor=100.0, sparse_window=5)
    sums = torch.cat([one.weights().sum(-1).flatten() for one in found])
    matched = sums[sums != 0]  # a query that matches nothing attends to nothing
    assert len(matched) > 0.5 * len(sums)
    assert bool(((matched - 1).abs() < 1e-10).all()) == (plan not in UNNORMALIZED)
    assert all((one.proportions() is not None) == (one.mechanism.name in WITH_PROPORTIONS) for one in found)


def test_a_plan_of_several_mechanisms():
    found = captured("softmax", decoder_self_attention="leap,relu")
    assert [one.mechanism.name for one in found if one.block == "decoder-self"] == ["leap", "relu"]
    assert [one.reweighting() is not None for one in found] == [False, False, True, False, False, False]


def test_what_was_not_chosen_is_not_captured_and_no_hook_stays():
    model, batch = simulst("leap")
    assert [(one.block, one.layer) for one in capture(model, batch, choose(model, "decoder-cross", 2))] == [
        ("decoder-cross", 1)
    ]
    with pytest.raises(AttributeError):
        capture(model, {**batch, "src_tokens": None}, choose(model))
    assert not any(attention.mechanism._forward_pre_hooks for attention in attentions(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("encoder",), "--block encoder: there is no such block; choose from: decoder-self$"),
        (("encoder-self",), "--block encoder-self: this model has no such block"),
        (("decoder-self", 3), "--layer 3: there is no such layer; choose from 1 to 2 in decoder-self"),
        ((None, 1, 2), "--head 2: decoder-self has heads 0 to 1"),
    ],
)
def test_choices_out_of_range(arguments, message):
    model = make_model("leapformer_lm_tiny", tokens_per_sample=64)
    with pytest.raises(LeapformerError, match=message):
        choose(model, *arguments)


def test_a_layer_that_only_one_block_has():
    model = make_model("leapformer_nmt_tiny", encoder_layers=4)
    assert choose(model, layer=4) == {"encoder-self": [3]}
    assert choose(model, layer=2) == {block: [1] for block in BLOCKS}


# ----------------------------------------------------------------------------------------------------- proportions
def test_saturation_counts_both_ends():
    values = [0.0, 0.04, 0.05, 0.5, 0.5, 0.95, 0.96, 1.0, 1.0, 0.5]
    assert saturation(torch.tensor(values, dtype=torch.double)) == {
        "count": 10,
        "mean": pytest.approx(0.55),
        "std": pytest.approx(statistics.pstdev(values)),
        "below": 0.2,
        "above": 0.3,
    }


def test_saturated_networks_are_seen():
    model, batch = simulst("leap")
    layer = model.decoder.layers[1].self_attn.mechanism
    with torch.no_grad():
        layer.query_proportion.biases[-1].fill_(20)
        layer.key_proportion.biases[-1].fill_(-20)
    found = Proportions()
    for _ in range(2):
        found.add(capture(model, batch, choose(model, "decoder-self")))
    rows = {(row["layer"], row["side"]): row for row in found.rows()}
    assert (rows[2, "query"]["above"], rows[2, "key"]["below"], rows[2, "query"]["count"]) == (1, 1, 2 * 2 * 7)
    assert rows[1, "query"]["above"] == rows[1, "key"]["below"] == 0


# ------------------------------------------------------------------------------------------------------- pictures
@pytest.mark.parametrize("head", kept(["mean", "all", 1], 1))
def test_pictures_of_every_choice_of_heads(head, tmp_path):
    one = captured("leap", leap_per_head=True)[-1]
    formula = Axis("target", ["$^$", "$", "▁a", "_", "^", "\\", "{"])
    assert draw_attention(one, head, formula, Axis("source"), tmp_path / "a.png")
    assert draw_reweighting(one, head, formula, Axis("source"), tmp_path / "r.png")
    assert pixels(tmp_path / "a.png").shape[1] > (700 if head == "all" else 400)
    pixels(tmp_path / "r.png")


def test_no_reweighting_without_proportions(tmp_path):
    one = captured("relu")[0]
    assert not draw_reweighting(one, "mean", Axis("x"), Axis("x"), tmp_path / "r.png")
    assert not (tmp_path / "r.png").exists()
