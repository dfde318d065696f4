"""The speech models step by step, in batches and through fairseq's generator, against their own full forward pass."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.speech_to_text.s2t_transformer import S2TTransformerEncoder
from fairseq.sequence_generator import SequenceGenerator

from leapformer_fairseq.models.s2t import S2TEncoder
from leapformer_fairseq.modules import MechanismAttention, attentions
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import each_with_one, shared_out
from .tiny import PLANS, VARIANTS, dictionary, make_model, speech_batch, target_prefix

LAGGINGS = ["offline", "1", "3"]


def simulst(plan: str, lagging: str, **options):
    return make_model("leapformer_simulst_tiny", plan, waitk_lagging=lagging, fixed_pre_decision_ratio=2, **options)


def steps(model, batch, prefix):
    encoder_out, state, outputs, maps = model.encoder(**batch), {}, [], []
    for t in range(prefix.shape[1]):
        logits, extra = model.decoder(prefix[:, : t + 1], encoder_out=encoder_out, incremental_state=state)
        outputs.append(logits)
        maps.append(extra["attn"][0])
    return torch.cat(outputs, 1), torch.cat(maps, 1)


@pytest.mark.parametrize(("plan", "lagging"), each_with_one(shared_out([*PLANS, *VARIANTS], 1), LAGGINGS))
def test_decoding_steps_equal_the_full_forward(plan, lagging):
    model, batch, prefix = simulst(plan, lagging), speech_batch(), target_prefix(3, 9)
    with torch.no_grad():
        full, extra = model(**batch, prev_output_tokens=prefix)
        logits, maps = steps(model, batch, prefix)
    torch.testing.assert_close(logits, full, rtol=0, atol=1e-10)
    torch.testing.assert_close(maps, extra["attn"][0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("plan", shared_out([*PLANS, *VARIANTS], 2))
def test_a_sentence_is_the_same_alone_and_in_a_batch(plan):
    model, batch, prefix = simulst(plan, "2"), speech_batch(), target_prefix(3, 7)
    with torch.no_grad():
        together, _ = model(**batch, prev_output_tokens=prefix)
        for i, length in enumerate(batch["src_lengths"].tolist()):
            alone, _ = model(
                batch["src_tokens"][i : i + 1, :length], batch["src_lengths"][i : i + 1], prefix[i : i + 1]
            )
            torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-10)


def test_stock_encoder_is_not_invariant_to_the_batch():
    """Inverted control of the test above: what S2TEncoder corrects is really broken upstream."""
    from fairseq.models.speech_to_text.convtransformer import ConvTransformerEncoder

    encoder = make_model("leapformer_s2t_tiny", "softmax", conv_out_channels=16).encoder
    batch = speech_batch()
    with torch.no_grad():
        together = ConvTransformerEncoder.forward(encoder, **batch)["encoder_out"][0]
        alone = ConvTransformerEncoder.forward(encoder, batch["src_tokens"][2:, :33], batch["src_lengths"][2:])
    assert (alone["encoder_out"][0][:9, 0] - together[:9, 2]).abs().max() > 1e-6


def generated(model, batch, beam, steps=12):
    words = dictionary()
    generator = SequenceGenerator([model], words, beam_size=beam, max_len_b=steps, min_len=4, temperature=0.7)
    return generator.generate([model], {"net_input": batch})


def worst_score_difference(model, batch, hypotheses) -> float:
    """Largest difference between the generator's scores and those of a full forward over each hypothesis."""
    worst = 0.0
    for i, best in enumerate(hypotheses):
        for hypothesis in best:
            tokens = hypothesis["tokens"]
            prefix = torch.cat([torch.tensor([2]), tokens[:-1]]).unsqueeze(0)
            with torch.no_grad():
                logits, _ = model(batch["src_tokens"][i : i + 1], batch["src_lengths"][i : i + 1], prefix)
            logits = (logits / 0.7).float().log_softmax(-1)
            scores = logits[0].gather(1, tokens.unsqueeze(1)).squeeze(1)
            worst = max(worst, float((scores - hypothesis["positional_scores"]).abs().max()))
    return worst


@pytest.mark.parametrize(("plan", "lagging"), each_with_one(shared_out([*PLANS, *VARIANTS], 2), ["offline", "2"]))
def test_beam_search_scores_equal_the_full_forward(plan, lagging):
    """Reordering, repeated and finished beams: every score the generator reports is that of its own hypothesis."""
    model, batch = simulst(plan, lagging), speech_batch()
    hypotheses = generated(model, batch, beam=4)
    assert worst_score_difference(model, batch, hypotheses) < 1e-4


@pytest.mark.parametrize("plan", ["leap", "softmax"])
def test_beam_search_without_reordering_fails(plan, monkeypatch):
    """Inverted control: a state that does not follow its beam must be noticed."""
    monkeypatch.setattr(MechanismAttention, "reorder_incremental_state", lambda self, state, order: state)
    model, batch = simulst(plan, "2"), speech_batch((40, 40))
    try:
        difference = worst_score_difference(model, batch, generated(model, batch, beam=4))
    except (RuntimeError, IndexError):
        return  # the batch shrank and the shapes no longer fit: noticed, too
    assert difference > 1e-3


def test_generation_without_alignments_composes_no_weights(monkeypatch):
    model, batch = simulst("leap", "offline"), speech_batch()
    model.make_generation_fast_(need_attn=False)
    monkeypatch.setattr(
        type(next(attentions(model)).mechanism), "weights", lambda *a, **k: pytest.fail("weights were composed")
    )
    generated(model, batch, beam=2, steps=4)


def test_training_builds_no_future_mask():
    model = simulst("leap", "offline")
    assert model.decoder.buffered_future_mask(torch.zeros(500, 1, 16)).numel() == 0


@pytest.mark.parametrize("plan", shared_out([*PLANS, *VARIANTS], 0))
def test_ctc_head_gives_log_probabilities_of_true_lengths(plan):
    model, batch = make_model("leapformer_s2t_tiny", plan, ctc_weight=0.3), speech_batch()
    output = model(**batch, prev_output_tokens=target_prefix(3, 4))
    log_probabilities, lengths = model.get_ctc_output(output, {})
    assert lengths.tolist() == [16, 13, 9]
    torch.testing.assert_close(log_probabilities.exp().sum(-1), torch.ones(16, 3))


@pytest.mark.parametrize("arch", ["leapformer_s2t_tiny", "leapformer_simulst_tiny"])
def test_a_frozen_encoder_has_no_gradients_until_it_thaws(arch):
    model, batch = make_model(arch, "leap", encoder_freezing_updates=2).train(), speech_batch()
    for updates, trained in ((0, False), (1, False), (2, True)):
        model.set_num_updates(updates)
        model.zero_grad(set_to_none=True)
        model(**batch, prev_output_tokens=target_prefix(3, 4))[0].sum().backward()
        assert {p.grad is not None for p in model.encoder.parameters()} == {trained}
        assert all(p.grad is not None for p in model.decoder.parameters())


def test_encoder_lengths_follow_the_convolutions():
    encoder = make_model("leapformer_s2t_tiny").encoder
    assert isinstance(encoder, S2TEncoder)
    for frames in range(1, 30):
        states, lengths = encoder.convolve(torch.randn(1, frames, 8).double(), torch.tensor([frames]))
        assert len(states) == int(lengths) == -(-frames // 4)


def test_a_prefix_of_whole_decisions_has_final_frames():
    """The agent feeds multiples of 4 frames: none of its convolved frames may change when more audio arrives."""
    encoder = make_model("leapformer_s2t_tiny").encoder
    frames = torch.randn(1, 40, 8).double()
    whole, _ = encoder.convolve(frames, torch.tensor([40]))
    for n in (4, 12, 28):
        part, _ = encoder.convolve(frames[:, :n], torch.tensor([n]))
        torch.testing.assert_close(part, whole[: n // 4])


@pytest.mark.parametrize("kernels", ["4,4,4,4", "3,5", "1,2,3"])
def test_other_convolutions_halve_twice_and_leave_padding_alone(kernels):
    model, batch = make_model("leapformer_s2t_tiny", "leap", conv_kernel_sizes=kernels), speech_batch()
    assert [x.kernel_size[0] for x in model.encoder.conv if isinstance(x, torch.nn.Conv2d)] == [
        int(size) for size in kernels.split(",")
    ]
    with torch.no_grad():
        together = model.encoder(**batch)
        for i, length in enumerate(batch["src_lengths"].tolist()):
            alone = model.encoder(batch["src_tokens"][i : i + 1, :length], batch["src_lengths"][i : i + 1])
            states = alone["encoder_out"][0]
            assert len(states) == -(-length // 4) == int((~together["encoder_padding_mask"][0][i]).sum())
            torch.testing.assert_close(states[:, 0], together["encoder_out"][0][: len(states), i], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv_kernel_sizes": "3"}, "--conv-kernel-sizes 3: give at least 2 positive numbers"),
        ({"conv_kernel_sizes": "3,x"}, "--conv-kernel-sizes 3,x: give"),
        ({"conv_kernel_sizes": "4,4,4,4", "encoder_causal": True}, "a streaming encoder has 3,3; leave one"),
    ],
)
def test_convolutions_that_cannot_be_built(options, message):
    with pytest.raises(LeapformerError, match=message):
        make_model("leapformer_s2t_tiny", "leap", **options)


def test_the_convolutions_of_the_mla_paper():
    model = make_model("leapformer_s2t_mla", "leap")
    assert sum(isinstance(layer, torch.nn.Conv2d) for layer in model.encoder.conv) == 4
    for arch, sizes in (("leapformer_s2t_mla", (256, 8)), ("leapformer_s2t_mla_224", (224, 4))):
        args = Namespace(arch=arch)
        ARCH_CONFIG_REGISTRY[arch](args)
        assert (args.encoder_embed_dim, args.decoder_attention_heads) == sizes
        assert (args.conv_kernel_sizes, args.encoder_layers) == ("4,4,4,4", 6)


@pytest.mark.parametrize("options", [{}, {"conv_kernel_sizes": "4,3,2"}, {"conv_version": "convtransformer"}], ids=str)
def test_fairseqs_convolutions_leave_padding_alone(options):
    """Unlike in fairseq: what padding becomes reaches the last states."""
    model = make_model("leapformer_s2t_transformer", "leap", conv_channels=12, conv_out_channels=16, **options)
    batch, halvings = speech_batch(), 3 if "conv_kernel_sizes" in options else 2
    assert model.encoder.pooling_ratio() == 2**halvings
    with torch.no_grad():
        together = model.encoder(**batch)
        changed = S2TTransformerEncoder.forward(model.encoder, **batch)["encoder_out"][0] if halvings == 2 else None
        for i, length in enumerate(batch["src_lengths"].tolist()):
            given = batch["src_tokens"][i : i + 1, :length], batch["src_lengths"][i : i + 1]
            states = model.encoder(*given)["encoder_out"][0]
            assert len(states) == -(-length // 2**halvings) == int((~together["encoder_padding_mask"][0][i]).sum())
            torch.testing.assert_close(states[:, 0], together["encoder_out"][0][: len(states), i], rtol=0, atol=1e-10)
    assert changed is None or (changed[:9, 2] - together["encoder_out"][0][:9, 2]).abs().max() > 1e-6, "the control"
