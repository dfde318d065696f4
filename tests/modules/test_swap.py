"""The swap by plan, its refusals, and warm starts between mechanisms."""

from __future__ import annotations

import argparse
from argparse import Namespace

import pytest
import torch

from leapformer_fairseq.attention import OPTIONS
from leapformer_fairseq.modules import add_attention_args, attentions, fill_attention_args, load_component
from leapformer_fairseq.support.errors import LeapformerError

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
    for part in ("decoder-self", "layer 2", "cosformer", "length", "--cosformer-length", "leap"):
        assert part in str(error.value)


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(LeapformerError, match="unknown attention mechanism 'lepa'; did you mean leap"):
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("softmax", "leap"),
        ("leap", "softmax"),
        ("leap", "leap"),
        ("relu", "elu"),
        ("softmax", "entmax"),
        ("entmax", "leap"),
    ],
)
def test_an_encoder_starts_warm_from_any_mechanism(old, new, checkpoint):
    teacher = make_model("leapformer_s2t_tiny", old, seed=1, ctc_weight=0.3)
    student = make_model("leapformer_simulst_tiny", new, seed=2)
    before = {k: v.clone() for k, v in student.encoder.state_dict().items()}
    load_component(student.encoder, "encoder", checkpoint(teacher), Namespace())
    theirs = teacher.encoder.state_dict()
    for name, value in student.encoder.state_dict().items():
        torch.testing.assert_close(value, theirs[name] if name in theirs else before[name])
        assert name in theirs or ".mechanism." in name


@pytest.mark.parametrize(("symbols", "loaded"), [(0, False), (7, False), (None, True)])
def test_a_recogniser_begins_with_the_encoder_of_another_language(symbols, loaded, checkpoint):
    """Of another number of symbols, or of a model that translates; None: of as many."""
    teacher = make_model("leapformer_s2t_tiny", seed=1, ctc_weight=1.0 if symbols != 0 else 0.0)
    student = make_model("leapformer_s2t_tiny", seed=2, ctc_weight=1.0)
    if symbols:
        teacher.encoder.ctc_proj = torch.nn.Linear(teacher.encoder.ctc_proj.in_features, symbols)
    before = {name: value.clone() for name, value in student.encoder.state_dict().items()}
    load_component(student.encoder, "encoder", checkpoint(teacher), Namespace())
    theirs = teacher.encoder.state_dict()
    for name, value in student.encoder.state_dict().items():
        expected = theirs if loaded or not name.startswith("ctc_proj.") else before
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(("old", "new"), [(None, "ratio"), ("ratio", None), ("ratio", "ratio"), ("ratio", "conv")])
def test_a_length_predictor_starts_untrained(old, new, checkpoint):
    teacher = make_model("leapformer_s2t_tiny", seed=1, length_predictor=old)
    student = make_model("leapformer_s2t_tiny", seed=2, length_predictor=new)
    if old:
        teacher.encoder.length_predictor.by_name["ratio"].source_length += 7
    before = {k: v.clone() for k, v in student.encoder.state_dict().items() if k.startswith("length_predictor.")}
    load_component(student.encoder, "encoder", checkpoint(teacher), Namespace())
    after, theirs = student.encoder.state_dict(), teacher.encoder.state_dict()
    assert bool(before) == bool(new) and all(torch.equal(after[name], value) for name, value in before.items())
    assert all(torch.equal(after[name], theirs[name]) for name in after.keys() - before.keys())


def test_an_encoder_takes_a_tied_control_from_any_layer(checkpoint):
    teacher = with_encoder("softmax,abc-mlp,softmax", 1)
    student = with_encoder("abc-mlp", 2)
    load_component(student.encoder, "encoder", checkpoint(teacher), Namespace())
    (expected,) = {a.mechanism.control_weight for a in attentions(teacher.encoder) if a.mechanism.tied}
    torch.testing.assert_close(controls(student.encoder, False)[0], expected)
    with pytest.raises(LeapformerError, match="differs between the layers of the checkpoint"):
        load_component(student.encoder, "encoder", checkpoint(with_encoder("abc-mlp", 1, abc_untied=True)), Namespace())


def test_a_component_of_another_size_is_refused(checkpoint):
    path = checkpoint(make_model("leapformer_s2t_tiny", encoder_layers=3))
    with pytest.raises(LeapformerError, match="does not fit this model"):
        load_component(make_model("leapformer_s2t_tiny").encoder, "encoder", path, Namespace())


def test_a_missing_checkpoint_is_named():
    with pytest.raises(LeapformerError, match="no such checkpoint"):
        load_component(make_model("leapformer_s2t_tiny").encoder, "encoder", "/nowhere/x.pt", Namespace())


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


ABC = {"abc_slots": "4/3/5", "encoder_layers": 3}


def controls(stack, cross):
    """The control's weights of all layers."""
    return [a.mechanism.control_weight for a in attentions(stack) if a.encoder_decoder_attention == cross]


def test_a_control_is_tied_over_the_layers_of_a_block():
    model = make_model("leapformer_s2t_tiny", "abc-mlp", **ABC)
    blocks = [controls(model.encoder, False), controls(model.decoder, False), controls(model.decoder, True)]
    assert [(len(block), len(set(block)), len(block[0])) for block in blocks] == [(3, 1, 8), (2, 1, 6), (2, 1, 10)]
    found = [name for name, _ in model.named_parameters() if "control_weight" in name]
    assert len(found) == 3, "each is trained once"
    untied = make_model("leapformer_s2t_tiny", "abc-mlp", abc_untied=True, **ABC)
    assert len(set(controls(untied.encoder, False))) == 3


def test_a_plan_with_gaps_ties_what_is_left():
    model = make_model("leapformer_s2t_tiny", encoder_self_attention="abc-mlp,softmax,abc-mlp", **ABC)
    first, _, last = (a.mechanism for a in attentions(model.encoder))
    assert first.control_weight is last.control_weight


def with_encoder(plan, seed, **options):
    return make_model("leapformer_s2t_tiny", encoder_self_attention=plan, seed=seed, **{**ABC, **options})


def loaded(model, checkpoint):
    model.load_state_dict(dict(checkpoint.state_dict()), strict=True)  # what fairseq does, too
    return controls(model.encoder, False)


@pytest.mark.parametrize("options", [{}, {"abc_untied": True}])
def test_a_checkpoint_with_a_tied_control_loads(options):
    """Into a model without ties it is the same function."""
    trained = with_encoder("abc-mlp", 1)
    for weight in loaded(with_encoder("abc-mlp", 2, **options), trained):
        torch.testing.assert_close(weight, trained.encoder.transformer_layers[0].self_attn.mechanism.control_weight)


@pytest.mark.parametrize("plan", ["softmax,abc-mlp,softmax", "softmax,softmax,abc-mlp", "abc-mlp,softmax,softmax"])
def test_a_tied_control_is_found_in_any_layer(plan):
    trained = with_encoder(plan, 1)
    (expected,) = {a.mechanism.control_weight for a in attentions(trained.encoder) if a.mechanism.tied}
    for weight in loaded(with_encoder("abc-mlp", 2), trained):
        torch.testing.assert_close(weight, expected)


def test_a_trained_leap_goes_on_as_gated_leap_with_open_gates():
    trained, gated = make_model("leapformer_s2t_tiny", "leap", seed=1), make_model("leapformer_s2t_tiny", "gated-leap")
    gated.load_state_dict(dict(trained.state_dict()), strict=True)
    batch, prefix = speech_batch(), target_prefix(3, 5)

    def logits(model):
        return model(batch["src_tokens"], batch["src_lengths"], prefix)[0]

    expected, found = logits(trained), logits(gated)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)
    assert not torch.equal(found, expected)
    again = make_model("leapformer_s2t_tiny", "gated-leap", seed=3)
    again.load_state_dict(dict(gated.state_dict()), strict=True)
    assert torch.equal(logits(again), found)
    for other in ("softmax", "relu"):  # which have no parameters that tell them from each other
        fresh = make_model("leapformer_s2t_tiny", "gated-leap", seed=2)
        gate = next(iter(attentions(fresh.decoder))).mechanism.gate.begin.clone()
        fresh.load_state_dict(dict(make_model("leapformer_s2t_tiny", other).state_dict()), strict=True)
        assert torch.equal(next(iter(attentions(fresh.decoder))).mechanism.gate.begin, gate)


def test_a_tied_control_starts_new_where_there_was_none():
    model = with_encoder("abc-mlp", 2)
    before = model.encoder.transformer_layers[0].self_attn.mechanism.control_weight.clone()
    assert all(torch.equal(weight, before) for weight in loaded(model, with_encoder("leap", 1)))


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        ({"abc_slots": 7}, {}, r"control_weight is \(14, 16\) in the checkpoint and \(8, 16\) in this model; give"),
        ({"abc_untied": True}, {}, "control_weight differs between the layers of the checkpoint, .*--abc-untied"),
    ],
)  # fmt: skip
def test_a_control_of_another_kind_is_refused(theirs, ours, message):
    with pytest.raises(LeapformerError, match=message) as error:
        loaded(with_encoder("abc-mlp", 2, **ours), with_encoder("abc-mlp", 1, **theirs))
    assert "\n" not in str(error.value) and "encoder.transformer_layers.0.self_attn" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_self_attention": "leap,abc-window"}, "encoder-self attention, layer 2: abc-window cannot be used"),
        ({"decoder_cross_attention": "abc-dilated"}, "decoder-cross attention, layer 1: abc-dilated .*decoder-self"),
        ({"decoder_self_attention": "abc-cluster"}, "decoder-self attention, layer 1: abc-cluster .*still to come"),
        ({"decoder_self_attention": "abc-pool", "abc_pool_size": "0"}, "decoder-self .*--abc-pool-size 0 needs the"),
        ({"decoder_self_attention": "abc-global", "abc_global_every": "0"}, "decoder-self .*-every 0 needs the"),
        ({"encoder_self_attention": "abc-mlp", "abc_slots": "0"}, "--abc-slots '0': give a whole number"),
    ],
)  # fmt: skip
def test_bounded_mechanisms_refuse_what_they_cannot_serve(options, message):
    with pytest.raises(LeapformerError, match=message):
        make_model("leapformer_s2t_tiny", **options)


def test_old_checkpoints_with_one_matrix_for_queries_keys_and_values_load():
    model = make_model("leapformer_nmt_tiny", "softmax", **{"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24})
    expected, old = dict(model.state_dict()), {}
    for key, value in expected.items():
        if ".self_attn.q_proj." in key:
            old[key.replace(".q_proj.", ".in_proj_")] = torch.cat(
                [expected[key.replace(".q_", f".{x}_")] for x in "qkv"]
            )
        elif ".self_attn.k_proj." not in key and ".self_attn.v_proj." not in key:
            old[key] = value
    model.upgrade_state_dict(old)
    assert old.keys() == expected.keys()
    assert all(torch.equal(old[key], value) for key, value in expected.items())


def test_wait_k_needs_a_mechanism_over_prefixes():
    options = {"waitk_lagging": "3", "decoder_cross_attention": "leap,abc-mlp"}
    with pytest.raises(LeapformerError, match="layer 2: abc-mlp cannot be used: .*prefixes of wait-k; give --waitk"):
        make_model("leapformer_simulst_tiny", **options)
    make_model("leapformer_simulst_tiny", **{**options, "waitk_lagging": "offline"})


@pytest.mark.parametrize(("length", "fails"), [(32, False), (40, True)])
def test_a_source_longer_than_a_table_is_refused_when_it_comes(length, fails):
    model = make_model("leapformer_s2t_tiny", encoder_self_attention="abc-linformer", abc_max_length=8)
    batch = speech_batch((length,))
    if fails:
        with pytest.raises(LeapformerError, match="in encoder-self can read 8 tokens and got 10; cut the text"):
            model.encoder(**batch)
    else:
        model.encoder(**batch)


# ---------------------------------------------------------------------------------------------------- slots
WITHOUT_PARAMETERS = ["abc-random", "abc-window", "abc-dilated", "abc-global", "abc-pool", "abc-cluster"]


def slots_of(model):
    return [name for name in model.state_dict() if name.endswith("_slots")]


@pytest.mark.parametrize("plan", WITHOUT_PARAMETERS)
def test_a_checkpoint_with_another_number_of_slots_is_refused(plan):
    old, same, new = (make_model("leapformer_s2t_tiny", plan, abc_slots=slots) for slots in (4, 4, 6))
    assert slots_of(old)
    same.load_state_dict(dict(old.state_dict()), strict=True)
    remedy = f"is 4 in the checkpoint and 6 in this model; give {plan} the options that it was trained with"
    with pytest.raises(LeapformerError, match=remedy):
        new.load_state_dict(dict(old.state_dict()), strict=True)


def test_a_checkpoint_that_does_not_know_its_slots_loads():
    old, new = (make_model("leapformer_s2t_tiny", "abc-random", abc_slots=slots) for slots in (4, 6))
    state = {name: value for name, value in old.state_dict().items() if name not in slots_of(old)}
    new.load_state_dict(state, strict=True)
    assert {int(new.state_dict()[name]) for name in slots_of(new)} == {6}


@pytest.mark.parametrize("plan", ["abc-window", "abc-mlp", "luna", "leap", "softmax"])
def test_slots_of_another_mechanism_do_not_matter(plan):
    old = make_model("leapformer_s2t_tiny", plan, abc_slots=4)
    new = make_model("leapformer_s2t_tiny", "abc-random", abc_slots=6)
    new.load_state_dict(dict(old.state_dict()), strict=True)
    old.load_state_dict(dict(new.state_dict()), strict=True)
    assert plan == "abc-window" or not slots_of(old)


def test_a_learned_alpha_starts_fresh_from_a_softmax_checkpoint():
    """As in Sparsefinder: train with softmax, swap, fine-tune; all but the alphas is loaded."""
    state = make_model("leapformer_s2t_tiny", "softmax", seed=1).state_dict()
    model = make_model("leapformer_s2t_tiny", "entmax", entmax_alpha="learned", seed=2)
    model.load_state_dict(state, strict=True)
    alphas = {name: x for name, x in model.named_parameters() if name.endswith("alpha_logit")}
    assert len(alphas) == 6 and all((x == 0).all() for x in alphas.values())
    for name, value in state.items():
        assert torch.equal(model.state_dict()[name], value), name


def test_short_convolutions_are_of_self_attention():
    """3 taps in the encoder, 4 in the decoder, none in cross-attention; without the option there are none."""
    for plan, taps in (("kda-conv", {"encoder": [3], "decoder": [4, 0]}), ("kda", {"encoder": [0], "decoder": [0, 0]})):
        model = make_model("leapformer_s2t_tiny", plan)
        for stack, expected in taps.items():
            found = [a.mechanism.convolution for a in attentions(getattr(model, stack))]
            assert [0 if one is None else len(one.weight) for one in found] == expected * 2
