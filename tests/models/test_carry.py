"""Luna in whole models: the packed sequence from layer to layer and from the encoder to the decoder."""

from __future__ import annotations

import copy

import pytest
import torch

from leapformer_fairseq.attention import build
from leapformer_fairseq.attention.ops import dispatch
from leapformer_fairseq.modules import attentions, swap
from leapformer_fairseq.support.errors import LeapformerError

from ..attention.cases import difference
from .test_mlm import HEAD, mlm, padded, sentence, with_head
from .test_nmt import generate, nmt, worst
from .tiny import make_model, make_tts, speech_batch, target_prefix, text_batch, tts_batch


def encoded(model, batch):
    with torch.no_grad():
        return model.encoder(**batch)


# -------------------------------------------------------------------------------------------------------- the flow
def test_every_layer_reads_what_the_one_before_handed_on():
    """The output changes when the first layer's packed rows do, though nothing but they lead from there."""
    model, batch = nmt("luna"), text_batch()
    first = model.encoder.layers[0].self_attn.mechanism
    handed = first.carry
    before = encoded(model, batch)
    first.carry = lambda state: handed(state)._replace(values=handed(state).values.roll(1, 2))
    after = encoded(model, batch)
    assert (before["encoder_out"][0] - after["encoder_out"][0]).abs().max() > 1e-3
    assert (before["carry"][0] - after["carry"][0]).abs().max() > 1e-3


def test_a_layer_with_another_mechanism_is_passed_by():
    model, batch = nmt("luna", encoder_layers=3, encoder_self_attention="luna,softmax,luna"), text_batch()
    seen = []
    for i in (0, 2):
        part = model.encoder.layers[i].self_attn.mechanism
        part.write = lambda state, k, v, key, write=part.write: (
            seen.append(key.carry),
            write(state, k, v, key),
        )[1]
    handed = encoded(model, batch)
    assert seen[0] is None and seen[1] is not None and handed["carry"][0].shape == (3, 16, 16)


@pytest.mark.parametrize(("side", "block"), [("self", "decoder_self"), ("cross", "decoder_cross")])
def test_the_decoder_reads_what_the_encoder_handed_on(side, block):
    plans = {f"{name}_attention": "softmax" for name in ("decoder_self", "decoder_cross")}
    model, batch, prefix = nmt("luna", **{**plans, f"{block}_attention": "luna"}), text_batch(), target_prefix(3, 5)
    encoder_out = encoded(model, batch)
    other = {**encoder_out, "carry": [encoder_out["carry"][0].roll(1, 2), *encoder_out["carry"][1:]]}
    with torch.no_grad():
        outputs = [model.decoder(prefix, encoder_out=found)[0] for found in (encoder_out, other)]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4


def test_a_learned_packed_sequence_takes_nothing_from_the_encoder():
    model, batch, prefix = nmt("luna", luna_packed="learned"), text_batch(), target_prefix(3, 5)
    encoder_out = encoded(model, batch)
    other = {name: value for name, value in encoder_out.items() if name != "carry"}
    with torch.no_grad():
        outputs = [model.decoder(prefix, encoder_out=found)[0] for found in (encoder_out, other)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)
    hypotheses = generate([model], batch)
    assert worst([model], batch, hypotheses) < 1e-5


def test_a_decoder_alone_may_have_luna_with_learned_rows():
    model, batch = nmt("luna", encoder_self_attention="leap", luna_packed="learned"), text_batch()
    assert worst([model], batch, generate([model], batch)) < 1e-5


def test_no_batch_sees_the_one_before():
    """Twice the same, and after a batch of another size that failed in the middle."""
    model, batch = nmt("luna"), text_batch()
    before = encoded(model, batch)
    model.encoder.layers[1].fc1.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model.encoder(**text_batch((8, 3)))
    del model.encoder.layers[1].fc1.forward
    torch.testing.assert_close(encoded(model, batch)["encoder_out"], before["encoder_out"], rtol=0, atol=0)


def test_layer_drop_hands_past_the_layers_that_are_dropped():
    """Also when all of them are."""
    model, batch = nmt("luna", encoder_layerdrop=0.5, decoder_layerdrop=0.5, dropout=0.0), text_batch()
    model.train()
    for seed in range(12):
        torch.manual_seed(seed)
        out, _ = model(**batch, prev_output_tokens=target_prefix(3, 5))
        assert torch.isfinite(out).all()
    start = model.encoder.context.facts.carrier.first_carry(3).values
    for p, dropped in ((1.0, True), (0.0, False)):
        model.encoder.layers.p = p
        assert torch.equal(encoded(model, batch)["carry"][0], start) == dropped


@pytest.mark.parametrize("rows", [{}, {"luna_packed": "learned"}], ids=["encoder", "learned"])
@pytest.mark.parametrize("projections", ["tied", "raw", "untied", "standard"])
@pytest.mark.parametrize("kind", ["nmt", "s2t", "tts", "lm", "mlm"])
def test_every_parameter_gets_a_gradient(kind, projections, rows, monkeypatch):
    """Distributed training waits for the gradient of every parameter, also where tokens are read in segments."""
    monkeypatch.setenv(dispatch.VARIABLE, "kept_slot_tokens=0,segment_slot_tokens=1,least_segment=1,chunk=2")
    options = {"luna_projections": projections, "dropout": 0.0, **rows}
    if kind == "nmt":
        model = nmt("luna", **options)
        out, _ = model(**text_batch(), prev_output_tokens=target_prefix(3, 5))
    elif kind == "s2t":
        model = make_model("leapformer_s2t_tiny", "luna", **options)
        out, _ = model(**speech_batch(), prev_output_tokens=target_prefix(3, 5))
    elif kind == "tts":
        model = make_tts("luna", **options)
        out = torch.cat([x.flatten() for x in model(**tts_batch())[:2]])
    elif kind == "lm":
        model = make_model("leapformer_lm_tiny", "luna", decoder_embed_dim=16, tokens_per_sample=64, **options)
        out, _ = model(target_prefix(3, 20))
    else:
        model = mlm("luna", **options)
        out, _ = model(padded([sentence(9), sentence(5)], 9))
    (out * torch.randn_like(out)).sum().backward()
    trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    assert [name for name, parameter in trained if parameter.grad is None] == []


@pytest.mark.parametrize("count", [5, 23])
def test_packed_pooling_does_not_depend_on_the_batch(count):
    """Sentences shorter and longer than the packed sequence."""
    model = with_head(mlm("luna", pooling="packed"))
    sentences = [sentence(length) for length in (count, 9, 4)]
    with torch.no_grad():
        together, _ = model(padded(sentences, 30), classification_head_name=HEAD)
        alone = [model(tokens.unsqueeze(0), classification_head_name=HEAD)[0] for tokens in sentences]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-10)


def test_packed_pooling_is_the_mean_of_what_the_last_layer_hands_on():
    model, tokens, seen = with_head(mlm("luna", pooling="packed")), sentence(7).unsqueeze(0), []
    model.classification_heads[HEAD].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        _, extra = model(tokens, classification_head_name=HEAD)
    rows, keep = extra["carry"]
    assert keep.sum() == 7
    rows = rows[0, :7]
    normal = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(seen[0][0, 0], normal.mean(0))


# ----------------------------------------------------------------------------------------------------------- sizes
def test_luna_adds_one_matrix_a_block_and_one_packed_sequence():
    width, length, layers = 16, 16, 2
    extra = sum(p.numel() for p in nmt("luna").parameters()) - sum(p.numel() for p in nmt("softmax").parameters())
    blocks = 3 * layers
    assert extra == blocks * (width * (width + 1) + 2 * width) + length * width


def test_the_state_has_the_same_size_at_every_length():
    model, batch = nmt("luna").float(), text_batch()
    sizes = set()
    with torch.no_grad():
        encoder_out, state = encoded(model, batch), {}
        for t in range(12):
            model.decoder(target_prefix(3, t + 1), encoder_out=encoder_out, incremental_state=state)
            sizes.add(sum(memory.state.nbytes() for memory in state.values() if hasattr(memory, "state")))
    assert len(sizes) == 1


# -------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"encoder_self_attention": "softmax"},
            "decoder-self attention, layer 1: luna cannot be used: no layer of an encoder hands on .*"
            "take --luna-packed learned",
        ),
        (
            {"checkpoint_activations": True},
            "encoder-self attention, layer 1: luna .*leave --checkpoint-activations",
        ),
        ({"luna_length": 0}, "--luna-length 0: give at least 1"),
        (
            {"encoder_embed_dim": 8, "decoder_self_attention": "softmax"},
            "decoder-cross attention, layer 1: luna .*make them equal",
        ),
        (
            {"encoder_embed_dim": 8, "decoder_cross_attention": "softmax"},
            "decoder-self attention, layer 1: luna .*carry is 8 wide, the decoder 16; make them equal, or .*"
            "--luna-packed learned",
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_model_is_built(options, message):
    with pytest.raises(LeapformerError, match=message):
        nmt("luna", **options)


def gradients(model, *inputs, **more):
    """Of every parameter, of one backward pass in training without dropout."""
    out, _ = model.train()(*inputs, **more)
    out.square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_checkpointed_layers_would_not_find_the_packed_sequence(monkeypatch):
    """Why the flag is refused: fairseq runs a layer again as a function of its input alone."""
    monkeypatch.setattr(swap, "check_use", lambda *unused: None)
    model = nmt("luna", dropout=0.0, checkpoint_activations=True)
    with pytest.raises(LeapformerError, match="luna was given no packed sequence"):
        gradients(model, **text_batch(), prev_output_tokens=target_prefix(3, 5))


@pytest.mark.parametrize("kind", ["lm", "nmt"])
def test_layers_with_learned_rows_may_be_checkpointed(kind):
    """They hand nothing on."""
    options, prefix = {"dropout": 0.0}, target_prefix(3, 9)
    if kind == "lm":
        models = [
            make_model("leapformer_lm_tiny", "luna", tokens_per_sample=64, checkpoint_activations=on, **options)
            for on in (False, True)
        ]
        inputs = {"src_tokens": prefix}
    else:
        plan = {"encoder_self_attention": "softmax", "luna_packed": "learned"}
        models = [nmt("luna", checkpoint_activations=on, **plan, **options) for on in (False, True)]
        inputs = {**text_batch(), "prev_output_tokens": prefix}
    models[1].load_state_dict(models[0].state_dict())
    plain, again = (gradients(model, **inputs) for model in models)
    assert plain.keys() == again.keys()
    assert difference(plain.values(), again.values()) < 1e-12


@pytest.mark.parametrize("kind", ["nmt", "tts", "lm", "mlm"])
def test_nothing_of_a_pass_is_kept(kind):
    """A model that has been trained can be copied, and holds no graph."""
    if kind == "mlm":
        model = mlm("luna")
        model.train()(padded([sentence(9), sentence(5)], 9))
    elif kind == "tts":
        model = make_tts("luna")
        model.train()(**tts_batch())
    elif kind == "lm":
        model = make_model("leapformer_lm_tiny", "luna", tokens_per_sample=64)
        model.train()(target_prefix(3, 9))
    else:
        model = nmt("luna")
        model.train()(**text_batch(), prev_output_tokens=target_prefix(3, 5))
    assert all(attention.context.carry is None for attention in attentions(model))
    copy.deepcopy(model)


def test_classes_are_told_from_the_first_rows_if_all_layers_are_dropped():
    model, batch = with_head(mlm("luna", pooling="packed", encoder_layerdrop=0.5)).train(), padded([sentence(9)], 9)
    model.encoder.layers.p = 1.0
    out, _ = model(batch, classification_head_name=HEAD)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("trained", "given"),
    [("tied", "untied"), ("untied", "tied"), ("tied", "standard"), ("tied", "raw"), ("raw", "tied")],
)
def test_a_checkpoint_with_other_projections_is_refused(trained, given):
    checkpoint = nmt("luna", luna_projections=trained).state_dict()
    with pytest.raises(
        LeapformerError, match=r"mechanism\.(own\.|raw_).* only; give luna the options .*--luna-projections"
    ):
        nmt("luna", luna_projections=given).load_state_dict(checkpoint)


def test_a_checkpoint_with_a_handed_on_sequence_is_refused_for_learned_ones():
    checkpoint = nmt("luna").state_dict()
    with pytest.raises(LeapformerError, match="mechanism.packed is in this model only; give luna .*--luna-packed"):
        nmt("luna", luna_packed="learned").load_state_dict(checkpoint)


def test_full_context_alignment_is_refused():
    model = nmt("luna")
    with pytest.raises(LeapformerError, match="full_context_alignment: .* causal by construction"):
        model(**text_batch(), prev_output_tokens=target_prefix(3, 5), full_context_alignment=True)


def test_a_language_model_has_learned_rows_and_refuses_those_of_an_encoder():
    sizes = {"decoder_embed_dim": 16, "tokens_per_sample": 64}
    model = make_model("leapformer_lm_tiny", "luna", **sizes)
    packed = {id(attention.mechanism.packed) for attention in attentions(model)}
    assert len(packed) == 2
    with pytest.raises(LeapformerError, match="--luna-packed learned"):
        make_model("leapformer_lm_tiny", "luna", luna_packed="encoder", **sizes)


def test_wait_k_refuses_a_packed_sequence_that_holds_the_whole_source():
    plans = {"encoder_self_attention": "luna", "decoder_cross_attention": "leap"}
    for own, packed in (("luna", "learned"), ("leap", "encoder")):
        make_model("leapformer_simulst_tiny", "leap", **plans, decoder_self_attention=own, luna_packed=packed)
    with pytest.raises(
        LeapformerError,
        match="layer 1: luna .*still arriving; take --luna-packed learned",
    ):
        make_model("leapformer_simulst_tiny", "leap", **plans, decoder_self_attention="luna", luna_packed="encoder")


def test_packed_pooling_needs_a_packed_sequence():
    with pytest.raises(
        LeapformerError, match="--pooling packed: no layer of 'leap' has a carry; give one of luna, or --pooling cls"
    ):
        mlm("leap", pooling="packed")


def test_a_checkpoint_of_another_length_names_the_option():
    old, new = nmt("luna"), nmt("luna", luna_length=5)
    with pytest.raises(LeapformerError, match=r"packed is \(16, 16\) in the checkpoint and \(5, 16\).*--luna-length"):
        new.load_state_dict(old.state_dict())
    assert build("luna", 8, 2).packed.shape == (16, 16)
