"""Predicted target lengths in the real models: generation against the full forward, training, the criterions."""

from __future__ import annotations

import threading
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.tacotron2_loss import Tacotron2Criterion

from leapformer_fairseq.attention.ops import cpu as native
from leapformer_fairseq.criterions.with_length import LabelSmoothedCrossEntropyWithLength, Tacotron2WithLength
from leapformer_fairseq.modules import attentions
from leapformer_fairseq.support.errors import LeapformerError

from .test_nmt import ROUNDED, generate, nmt, worst
from .test_s2t import generated, worst_score_difference
from .tiny import dictionary, make_model, make_tts, speech_batch, target_prefix, text_batch, tts_batch

RATIO = {"length_predictor": "ratio", "length_ratio": 0.9, "cosformer_length": 0}
PREDICTED = {**RATIO, "length_in_training": "predicted"}


@pytest.mark.parametrize("overrun", ["saturate", "extrapolate"])
@pytest.mark.parametrize("language", ["C", "torch"])
def test_beam_search_over_text_equals_the_full_forward(language, overrun, monkeypatch):
    """Sentences of different predicted lengths, hypotheses that overrun them, states shared by the hypotheses."""
    model, batch = nmt("cosformer", cosformer_overrun=overrun, **PREDICTED), text_batch()
    if language == "torch":
        monkeypatch.setenv(native.SWITCH, "0")
    else:
        model.float()
    hypotheses = generate([model], batch)
    bound = 2e-5 if language == "C" else ROUNDED
    assert worst([model], batch, hypotheses) < (bound if overrun == "saturate" else 100 * bound)


def test_the_comparison_can_fail():
    """Inverted control: generation that believes in other lengths than scoring."""
    model, batch = nmt("cosformer", **PREDICTED), text_batch()
    hypotheses = generate([model], batch)
    model.encoder.length_predictor.by_name["ratio"].fixed = 1.8
    assert worst([model], batch, hypotheses) > 1e-3


def test_beam_search_over_speech_equals_the_full_forward():
    model, batch = make_model("leapformer_s2t_tiny", "cosformer", **PREDICTED), speech_batch()
    assert worst_score_difference(model, batch, generated(model, batch, beam=4)) < 1e-4


def test_an_oracle_sees_the_references_in_generation():
    """So its generation is what scoring with true lengths is, if a hypothesis is as long as its reference."""
    oracle = {**RATIO, "length_predictor": "oracle"}
    model, batch = nmt("cosformer", **oracle), text_batch((7,))
    batch["prev_output_tokens"] = target_prefix(1, 8)
    (best,) = generate([model], batch, min_len=7, max_len_b=7)
    assert all(len(hypothesis["tokens"]) == 8 for hypothesis in best)
    del batch["prev_output_tokens"]
    assert worst([model], batch, [best]) < ROUNDED
    with pytest.raises(LeapformerError, match="oracle needs the targets"):
        generate([model], batch)


@torch.no_grad()
def test_training_and_scoring_see_true_lengths_unless_told():
    """A target's rows do not change with the padding that longer neighbours bring, but with its own length."""
    model, batch = nmt("cosformer", **RATIO), text_batch((9, 9))
    batch["src_tokens"][1] = batch["src_tokens"][0]
    prefix = target_prefix(2, 9)
    prefix[1] = prefix[0]
    whole, _ = model(**batch, prev_output_tokens=prefix)
    torch.testing.assert_close(whole[0], whole[1])
    prefix[1, 5:] = 1
    cut, _ = model(**batch, prev_output_tokens=prefix)
    torch.testing.assert_close(cut[0], whole[0])
    assert (cut[1, :5] - whole[1, :5]).abs().max() > 1e-4
    told = nmt("cosformer", **PREDICTED)
    cut, _ = told(**batch, prev_output_tokens=prefix)
    torch.testing.assert_close(cut[1, :5], cut[0, :5])


def test_only_training_teaches():
    model, batch, prefix = nmt("cosformer", **RATIO), text_batch(), target_prefix(3, 9)
    counted = model.encoder.length_predictor.by_name["ratio"]
    model(**batch, prev_output_tokens=prefix)
    assert counted.source_length == 0
    model.train()(**batch, prev_output_tokens=prefix)
    assert (counted.source_length, counted.target_length) == (9 + 6 + 4, 27)


def test_a_decoder_that_is_told_no_length_says_so():
    model, batch = nmt("cosformer", **RATIO), text_batch()
    with torch.no_grad(), pytest.raises(LeapformerError, match="received no target length; generate from"):
        model.decoder(target_prefix(3, 1), encoder_out=model.encoder(**batch), incremental_state={})


def test_plans_without_lengths_do_not_ask():
    model = nmt("leap")
    assert model.encoder.length_predictor is None and not model.decoder.context.facts.knows_lengths
    assert all(attention.context.lengths is None for attention in attentions(model))


def test_simultaneous_translation_cannot_predict_lengths():
    with pytest.raises(LeapformerError, match="--length-predictor ratio: it needs the whole source.*leapformer_s2t"):
        make_model("leapformer_simulst_tiny", "cosformer", **RATIO)


TASK = SimpleNamespace(target_dictionary=dictionary(), source_dictionary=dictionary())
TEXT_LOSS = Namespace(
    sentence_avg=False, label_smoothing=0.1, ignore_prefix_size=0, report_accuracy=False, length_loss_weight=0.5
)
SPEECH_LOSS = Namespace(
    sentence_avg=True,
    use_guided_attention_loss=False,
    guided_attention_loss_sigma=0.4,
    bce_pos_weight=5.0,
    ctc_weight=0.0,
    length_loss_weight=0.5,
)


def text_sample():
    prefix = target_prefix(3, 9)
    target = torch.cat([prefix[:, 1:], torch.full((3, 1), 2)], 1)
    return {"net_input": {**text_batch(), "prev_output_tokens": prefix}, "target": target, "ntokens": 27}


def speech_sample():
    batch = tts_batch()
    target = torch.randn(3, 11, 12, dtype=torch.double)
    durations = torch.tensor([[3, 2, 1, 0, 2, 1, 2, 3, 0], [4, 9, 1, 6, 2, 0, 0, 0, 0], [2, 3, 1, 0, 0, 0, 0, 0, 0]])
    lengths = batch.pop("target_lengths")
    return {
        "net_input": batch,
        "speaker": None,
        "target": target,
        "target_lengths": lengths,
        "durations": durations,
        "ntokens": int(lengths.sum()),
        "nsentences": 3,
    }


CASES = {
    "text": (
        lambda **options: nmt("leap", dropout=0.0, **options),
        text_sample,
        lambda: LabelSmoothedCrossEntropyWithLength(TEXT_LOSS, TASK),
        lambda: LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1),
        27,
    ),
    "speech": (
        lambda **options: make_tts("leap", dropout=0.0, encoder_dropout=0.0, postnet_dropout=0.0, **options),
        speech_sample,
        lambda: Tacotron2WithLength(SPEECH_LOSS, TASK),
        lambda: Tacotron2Criterion(TASK, True, False, 0.4, 5.0, 0.0),
        1,
    ),
}
CONV = {"length_predictor": "conv", "length_dropout": 0.0}


@pytest.mark.parametrize("case", CASES)
def test_the_criterion_adds_the_loss_of_the_predictor(case):
    make, sample, ours, stock, scale = CASES[case]
    torch.manual_seed(0)
    model, sample = make(**CONV).train(), sample()
    loss, size, log = ours()(model, sample)
    plain, stock_size, _ = stock()(model, sample)
    assert size == stock_size
    assert float((loss - plain).detach()) == pytest.approx(0.5 * log["length_loss"] * scale, rel=1e-6)
    assert log["loss"] == pytest.approx(float(loss)) and log["length_loss"] > 0
    loss.backward()
    assert model.encoder.length_predictor.by_name["conv"].out.weight.grad.abs().max() > 0
    assert model.encoder.length_predictor.by_name["conv"].updates == 1


@pytest.mark.parametrize("case", CASES)
def test_without_a_trained_predictor_it_is_the_stock_criterion(case):
    make, sample, ours, stock, _ = CASES[case]
    model, sample = make(length_predictor="ratio"), sample()
    loss, _, log = ours()(model, sample)
    torch.testing.assert_close(loss, stock()(model, sample)[0])
    assert "length_loss" not in log
    torch.testing.assert_close(ours()(make(), sample)[0], stock()(make(), sample)[0])


def test_lookup_learns_from_the_durations_of_training():
    model, sample = make_tts("leap", length_predictor="lookup"), speech_sample()
    table = model.encoder.length_predictor.by_name["lookup"]
    Tacotron2WithLength(SPEECH_LOSS, TASK)(model, sample)
    assert not table.tokens.any(), "not in validation"
    Tacotron2WithLength(SPEECH_LOSS, TASK)(model.train(), sample)
    assert table.frames.sum() == sample["durations"].sum() and table.tokens.sum() == 8 + 5 + 3  # not the ends


@pytest.mark.parametrize("predictor", ["conv", "lookup", "ratio"])
def test_training_with_predicted_lengths_starts_with_true_ones(predictor):
    """Nothing was learned before the first update."""
    options = {"length_predictor": predictor, "length_in_training": "predicted", "length_dropout": 0.0}
    model, true = (make_tts("cosformer", prenet_dropout=0.0, **options, **more) for more in ({}, {}))
    true.encoder.length_predictor.in_training = False
    sample, criterion = speech_sample(), Tacotron2WithLength(SPEECH_LOSS, TASK)

    def loss(one):
        torch.manual_seed(1)  # of dropout
        return criterion(one.train(), sample)[0]

    assert torch.equal(loss(model), loss(true)) == (predictor != "ratio"), "a ratio is known from the first batch on"
    assert not torch.equal(loss(model), loss(true))


def test_a_predictor_that_learns_nothing_is_noticed_in_validation():
    model = make_tts("cosformer", length_predictor="lookup", length_in_training="predicted")
    sample = speech_sample() | {"durations": None}
    Tacotron2WithLength(SPEECH_LOSS, TASK)(model.train(), sample)
    with pytest.raises(LeapformerError, match="no durations of source tokens; give --length-table"):
        Tacotron2WithLength(SPEECH_LOSS, TASK)(model.eval(), sample)


@torch.no_grad()
def test_a_state_remembers_the_length_it_was_built_with():
    """What is said of the length later on, by another batch, does not change a sentence that is being written."""
    model, batch = nmt("cosformer", **PREDICTED), text_batch()
    encoder_out, tokens = model.encoder.forward_torchscript(batch), target_prefix(3, 6)
    state: dict = {}
    steps = []
    for t in range(1, 7):
        steps.append(model.decoder(tokens[:, :t], encoder_out, state)[0])
        encoder_out["target_length"] = [encoder_out["target_length"][0] + 50]
    encoder_out["target_length"] = [encoder_out["target_length"][0] - 6 * 50]
    expected = model.decoder(tokens, encoder_out)[0]
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-5, rtol=0)
    assert (
        model.decoder(tokens, {**encoder_out, "target_length": [torch.full((3,), 60.0)]})[0] - expected
    ).abs().max() > 1e-4


@torch.no_grad()
def test_reading_a_prompt_hears_the_predicted_length():
    model, batch = nmt("cosformer", **PREDICTED), text_batch()
    encoder_out, tokens = model.encoder.forward_torchscript(batch), target_prefix(3, 6)
    expected, _ = model.decoder.extract_features(tokens, encoder_out)
    model.decoder.context.lengths = torch.full((3,), 77.0)  # of whatever came before
    torch.testing.assert_close(model.decoder.read(tokens, {}, encoder_out), expected)


def test_logged_losses_are_averaged_by_size():
    from fairseq.logging import metrics

    logs = [
        {"sample_size": size, "length_loss": loss, "loss": 0, "nll_loss": 0, "ntokens": 1}
        for size, loss in ((1, 4.0), (3, 8.0))
    ]
    with metrics.aggregate() as found:
        LabelSmoothedCrossEntropyWithLength.reduce_metrics(logs)
    assert found.get_smoothed_value("length_loss") == 7.0


def test_checkpointed_layers_know_the_lengths_in_a_thread_of_autograds():
    """On a GPU the backward pass, and with it a checkpointed layer once more, runs in another thread."""
    found = {}
    for checkpointed in (False, True):
        model = nmt("cosformer", dropout=0.0, checkpoint_activations=checkpointed, **RATIO).train()
        torch.manual_seed(1)
        out, _ = model(**text_batch(), prev_output_tokens=target_prefix(3, 7))
        backward = threading.Thread(target=out.square().sum().backward)
        backward.start()
        backward.join()
        found[checkpointed] = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(found[True]) == len(found[False]) > 10
    for one, other in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
