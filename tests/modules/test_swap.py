"""The swap by plan, its refusals, and warm starts between mechanisms."""

from __future__ import annotations

import argparse

import pytest
import torch

from leapformer_fairseq.attention import OPTIONS
from leapformer_fairseq.errors import LeapformerError
from leapformer_fairseq.modules import add_attention_args, attentions, fill_attention_args, load_component

from ..models.tiny import make_model, speech_batch, target_prefix


def mechanisms(stack):
    return [a.mechanism.name for a in attentions(stack)]


def test_each_layer_gets_its_mechanism():
    model = make_model(
        "leapformer_s2t_tiny",
        encoder_self_attention="relu,elu",
        decoder_self_attention="softmax,leap",
        decoder_cross_attention="rope",
    )
    assert mechanisms(model.encoder) == ["relu", "elu"]
    assert mechanisms(model.decoder) == ["softmax", "rope", "leap", "rope"]


def test_a_mechanism_that_cannot_serve_a_block_is_refused_with_everything_said():
    with pytest.raises(LeapformerError) as error:
        make_model("leapformer_s2t_tiny", decoder_self_attention="leap,cosformer", cosformer_length=0)
    for part in ("decoder-self", "layer 1", "cosformer", "length", "--cosformer-length", "leap"):
        assert part in str(error.value)


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(LeapformerError, match="unknown attention mechanism 'lepa'; choose from"):
        make_model("leapformer_s2t_tiny", "lepa")


def test_every_option_has_a_flag_and_reaches_the_mechanism():
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_attention_args(parser)
    args = parser.parse_args(["--leap-factor", "8", "--leap-per-head", "--encoder-self-attention", "relu"])
    fill_attention_args(args)
    assert (args.leap_factor, args.leap_per_head, args.encoder_self_attention) == (8, True, "relu")
    assert args.decoder_self_attention == "leap"
    for option in OPTIONS.values():
        assert hasattr(args, option.name)
    model = make_model("leapformer_s2t_tiny", leap_factor=8, normalizer_floor=0.1)
    floors = {a.mechanism.normalizer_floor for a in attentions(model)}
    assert floors == {0.1}


@pytest.fixture()
def checkpoint(tmp_path, monkeypatch):
    """Let load_component find a model, without a training run."""

    def write(model):
        state = {"model": model.state_dict()}
        monkeypatch.setattr("fairseq.checkpoint_utils.load_checkpoint_to_cpu", lambda path: state)
        path = tmp_path / "checkpoint.pt"
        path.touch()
        return str(path)

    return write


@pytest.mark.parametrize(("old", "new"), [("softmax", "leap"), ("leap", "softmax"), ("leap", "leap"), ("relu", "elu")])
def test_an_encoder_starts_warm_from_any_mechanism(old, new, checkpoint):
    teacher = make_model("leapformer_s2t_tiny", old, seed=1, ctc_weight=0.3)
    student = make_model("leapformer_simulst_tiny", new, seed=2)
    before = {k: v.clone() for k, v in student.encoder.state_dict().items()}
    load_component(student.encoder, "encoder", checkpoint(teacher))
    theirs = teacher.encoder.state_dict()
    for name, value in student.encoder.state_dict().items():
        torch.testing.assert_close(value, theirs[name] if name in theirs else before[name])
        assert name in theirs or ".mechanism." in name


def test_a_component_of_another_size_is_refused(checkpoint):
    path = checkpoint(make_model("leapformer_s2t_tiny", encoder_layers=3))
    with pytest.raises(LeapformerError, match="does not fit this model"):
        load_component(make_model("leapformer_s2t_tiny").encoder, "encoder", path)


def test_a_missing_checkpoint_is_named():
    with pytest.raises(LeapformerError, match="no such checkpoint"):
        load_component(make_model("leapformer_s2t_tiny").encoder, "encoder", "/nowhere/x.pt")


def test_a_whole_softmax_checkpoint_loads_into_a_linear_model():
    """`--finetune-from-model`: fairseq loads strictly, only the mechanism's parameters may be missing."""
    softmax, leap = (
        make_model("leapformer_s2t_tiny", "softmax", seed=1),
        make_model("leapformer_s2t_tiny", "leap", seed=2),
    )
    leap.load_state_dict(softmax.state_dict(), strict=True)
    torch.testing.assert_close(leap.decoder.layers[0].fc1.weight, softmax.decoder.layers[0].fc1.weight)
    again = make_model("leapformer_s2t_tiny", "softmax", seed=3)
    again.load_state_dict(leap.state_dict(), strict=True)
    batch, prefix = speech_batch(), target_prefix(3, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            again(**batch, prev_output_tokens=prefix)[0], softmax(**batch, prev_output_tokens=prefix)[0]
        )


def test_a_checkpoint_that_lacks_more_than_the_mechanism_does_not_load():
    state = make_model("leapformer_s2t_tiny", "softmax").state_dict()
    del state["encoder.transformer_layers.0.self_attn.q_proj.weight"]
    with pytest.raises(RuntimeError, match="q_proj"):
        make_model("leapformer_s2t_tiny", "leap").load_state_dict(state, strict=True)
