"""Text to speech: steps against the full forward, batches against single sentences, fairseq's own generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq.models.text_to_speech.tts_transformer import TTSTransformerModel
from fairseq.speech_generator import AutoRegressiveSpeechGenerator

from leapformer_fairseq.attention import MECHANISMS
from leapformer_fairseq.modules import attentions
from leapformer_fairseq.support.errors import LeapformerError

from ..attention.cases import OURS, UNNORMALIZED
from ..covering import shared_out
from .tiny import PLANS, make_tts, tts_batch

LENGTHS = {"length_predictor": "ratio", "length_ratio": 1.5, "cosformer_length": 0}


def plans(place: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("plan", shared_out(["cosformer-predicted", *PLANS], place))


def tts(plan: str, **options):
    """A plan for all blocks; "cosformer-predicted" takes lengths from a predictor instead of a constant."""
    if plan == "cosformer-predicted":
        return make_tts("cosformer", **{**LENGTHS, "length_in_training": "predicted", **options})
    return make_tts(plan, **options)


def alone(batch, i):
    """Sentence i without padding."""
    source, target = batch["src_lengths"][i], batch["target_lengths"][i]
    return {
        "src_tokens": batch["src_tokens"][i : i + 1, :source],
        "src_lengths": batch["src_lengths"][i : i + 1],
        "prev_output_tokens": batch["prev_output_tokens"][i : i + 1, :target],
        "target_lengths": batch["target_lengths"][i : i + 1],
    }


@torch.no_grad()
def stepwise(model, batch):
    """Frames before the post-net and logits of the end, one step after the other."""
    encoder_out = model.forward_encoder(batch["src_tokens"], batch["src_lengths"])
    state, frames, ended, attention = {}, [], [], []
    for t in range(batch["prev_output_tokens"].shape[1]):
        _, end, extra = model.decoder(
            batch["prev_output_tokens"][:, t : t + 1],
            encoder_out=encoder_out,
            incremental_state=state,
            target_lengths=torch.full((len(batch["src_lengths"]),), t + 1),
        )
        frames.append(extra["feature_out"])
        ended.append(end)
        attention.append(extra["attn"])
    return torch.cat(frames, 1), torch.cat(ended, 1), torch.cat(attention, 2), state


@plans(0)
@torch.no_grad()
def test_decoding_steps_equal_the_full_forward(plan):
    model, batch = tts(plan), tts_batch()
    _, ended, extra = model(**batch)
    frames, ends, attention, _ = stepwise(model, batch)
    for i, length in enumerate(batch["target_lengths"]):
        for got, expected in ((frames, extra["feature_out"]), (ends, ended), (attention.mT, extra["attn"].mT)):
            torch.testing.assert_close(got[i, :length], expected[i, :length], rtol=0, atol=1e-10)


@plans(1)
@torch.no_grad()
def test_a_sentence_is_the_same_alone_and_in_a_batch(plan):
    model, batch = tts(plan), tts_batch()
    frames, ended, _ = model(**batch)
    for i, length in enumerate(batch["target_lengths"]):
        frames_alone, ended_alone, _ = model(**alone(batch, i))
        torch.testing.assert_close(frames[i, :length], frames_alone[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(ended[i, :length], ended_alone[0], rtol=0, atol=1e-10)


@torch.no_grad()
def test_fairseqs_own_model_depends_on_the_batch():
    """What the mending is for: its convolutions see the padding."""
    model, batch = make_tts("softmax"), tts_batch()
    encode = super(type(model.encoder), model.encoder).forward  # stock forward on our weights
    states = encode(batch["src_tokens"], batch["src_lengths"])["encoder_out"][0]
    ours = model.encoder(batch["src_tokens"], batch["src_lengths"])["encoder_out"][0]
    torch.testing.assert_close(states[:, 0], ours[:, 0])  # the longest has no padding
    last = batch["src_lengths"][2] - 1
    assert (states[last, 2] - ours[last, 2]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "plan", shared_out([plan for plan in PLANS if MECHANISMS[plan].capabilities.constant_state], 0)
)
@torch.no_grad()
def test_the_state_does_not_grow(plan):
    model, sizes = make_tts(plan), []
    ours = [attention for attention in attentions(model.decoder) if attention.mechanism.name == plan]
    for n in (3, 30):
        state = stepwise(model, tts_batch((5, 5), (n, n)))[3]
        sizes.append([attention.memory(state).state.nbytes() for attention in ours])
    assert sizes[0] == sizes[1] != []


class Data:
    """What fairseq's generator asks of a data configuration."""

    def __init__(self, path):
        self.global_cmvn_stats_npz = path


@plans(2)
def test_fairseqs_generator_works(plan, tmp_path):
    """It stops when the probability of the end says so, denormalises, and gives the alignment."""
    model, batch = tts(plan, normalizer_floor=1e-30), tts_batch()
    np.savez(tmp_path / "gcmvn.npz", mean=np.full(6, 3.0), std=np.full(6, 2.0))
    model.decoder.eos_proj.bias.data.fill_(-50)  # never ends by itself
    sample = {"net_input": {k: batch[k] for k in ("src_tokens", "src_lengths")}, "speaker": None}
    generator = AutoRegressiveSpeechGenerator(model, None, Data(str(tmp_path / "gcmvn.npz")), max_iter=5)
    found = generator.generate(model, sample)
    assert [len(utterance["feature"]) for utterance in found] == [10, 10, 10]  # two frames a step
    assert found[0]["attn"].shape == (9, 10)
    heads = model.decoder.transformer_layers[-1].encoder_attn.num_heads
    sums = heads * found[0]["attn"].sum(0)
    if plan not in UNNORMALIZED:  # each head adds 1, or nothing if its query matches no key
        assert sums.min() > -1e-6 and sums.max() < heads + 1e-6
    if plan in OURS.difference(UNNORMALIZED):  # of others the floor is not known, below which it adds less
        torch.testing.assert_close(sums, sums.round())
    model.decoder.eos_proj.bias.data.fill_(50)
    assert [len(utterance["feature"]) for utterance in generator.generate(model, sample)] == [2, 2, 2]


@torch.no_grad()
def test_a_padded_row_among_the_steps_does_no_harm():
    """fairseq's generator goes on feeding finished utterances, marked as padding."""
    model, batch = make_tts("leap"), tts_batch((5, 5), (4, 4))
    encoder_out, outputs = model.forward_encoder(batch["src_tokens"], batch["src_lengths"]), []
    for lengths in ([4, 4], [4, 2]):
        state = {}
        for t in range(4):
            cut = torch.tensor(lengths).clamp_max(t + 1)
            step = batch["prev_output_tokens"][:, t : t + 1]
            _, _, extra = model.decoder(step, encoder_out=encoder_out, incremental_state=state, target_lengths=cut)
        outputs.append(extra["feature_out"])
    torch.testing.assert_close(outputs[0][0], outputs[1][0], rtol=0, atol=1e-10)
    assert outputs[1].isfinite().all()


def test_guided_attention_has_weights_and_gradients_in_training():
    model, batch = make_tts("leap", use_guided_attention_loss=True).train(), tts_batch()
    _, _, extra = model(**batch)
    assert extra["attn"].shape == (3, 9, 11)
    extra["attn"].square().sum().backward()
    assert model.decoder.transformer_layers[-1].encoder_attn.q_proj.weight.grad.abs().max() > 0
    plain = make_tts("leap").train()
    assert plain(**batch)[2]["attn"] is None, "not composed for nothing"


@pytest.mark.parametrize("name", ["delta", "gated-delta", "simple-gla"])
def test_guided_attention_is_bounded_where_weights_are_signed(name):
    """Negative weights far from the diagonal would else make the loss as small as one likes."""
    model, batch = make_tts(name, use_guided_attention_loss=True).train(), tts_batch()
    with torch.no_grad():
        model.decoder.transformer_layers[-1].encoder_attn.q_proj.weight.mul_(1e3)
    shares = model(**batch)[2]["attn"]
    assert shares.min() >= 0
    torch.testing.assert_close(shares.sum(1), torch.ones_like(shares[:, 0]))


@pytest.mark.parametrize("training", [True, False])
def test_guided_attention_does_not_reward_dead_queries(training):
    """Where a query matches no key all weights are 0, and so would be the loss that guides them, or validates."""
    model, batch = make_tts("relu", use_guided_attention_loss=True).train(training), tts_batch()
    attention = model.decoder.transformer_layers[-1].encoder_attn
    with torch.no_grad():
        attention.q_proj.weight.zero_()
        attention.q_proj.bias.fill_(-1)
    alignment = model(**batch)[2]["attn"]
    torch.testing.assert_close(alignment[1].sum(0), torch.ones(11).double())
    torch.testing.assert_close(alignment[1, :6], torch.full((6, 11), 1 / 6).double())
    assert not alignment[1, 6:].any(), "nothing to padding"
    alive = make_tts("relu", use_guided_attention_loss=True).train(training)(**batch)[2]["attn"]
    torch.testing.assert_close(alive.sum(1), torch.ones(3, 11).double())


@torch.no_grad()
def test_no_alignments_are_composed_unless_wanted(monkeypatch):
    model, batch = make_tts("leap"), tts_batch()
    model.compose_attention(False)
    for attention in attentions(model.decoder):
        monkeypatch.setattr(attention.mechanism, "weights", lambda *_, **__: pytest.fail("composed"))
    encoder_out = model.forward_encoder(batch["src_tokens"], batch["src_lengths"])
    step = batch["prev_output_tokens"][:, :1]
    model.decoder(step, encoder_out=encoder_out, incremental_state={}, target_lengths=torch.ones(3).long())


def test_a_stock_checkpoint_loads():
    stock = make_tts("softmax").state_dict()
    model = make_tts("leap", seed=1)
    model.load_state_dict(dict(stock))  # fairseq's loading calls upgrade_state_dict_named: only mechanism.* is new
    torch.testing.assert_close(model.decoder.feat_proj.weight, stock["decoder.feat_proj.weight"])
    assert isinstance(model, TTSTransformerModel)


def test_what_cannot_be_built_is_refused():
    with pytest.raises(LeapformerError, match="--postnet-conv-kernel-size 4 is even; give an odd"):
        make_tts(postnet_conv_kernel_size=4)
    with pytest.raises(LeapformerError, match="needs the target's length, .* --length-predictor"):
        make_tts("cosformer", cosformer_length=0)
