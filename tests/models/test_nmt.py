"""Text translation: through fairseq's generator with every option it has, against the full forward pass."""

from __future__ import annotations

import pytest
import torch
from fairseq import search
from fairseq.optim.adam import Adam
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator, SequenceGeneratorWithAlignment

from leapformer_fairseq.attention.ops import cpu as native
from leapformer_fairseq.modules import attentions
from leapformer_fairseq.support.errors import LeapformerError

from ..covering import each_with_one, shared_out
from .tiny import PLANS, VARIANTS, dictionary, make_model, target_prefix, text_batch

WORDS = dictionary()
ROUNDED = 2e-6  # fairseq sums scores in float32 whatever the model: a sum between 16 and 32 is off by up to 0.95e-6


def nmt(plan="leap", arch="leapformer_nmt_tiny", **options):
    sizes = {"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24}
    model = make_model(arch, plan, **{**sizes, **options})
    model.decoder.output_projection.weight.data[2] *= -2  # so that sentences end now and then
    return model


def generate(models, batch, beam=3, cls=SequenceGenerator, **options):
    settings = {"max_len_b": 12, "min_len": 4, "temperature": 0.7, **options}
    call = {name: settings.pop(name) for name in ("prefix_tokens", "constraints") if name in settings}
    return cls(models, WORDS, beam_size=beam, **settings).generate(models, {"net_input": batch}, **call)


def rescored(models, batch, i, tokens, temperature=0.7):
    """Log probabilities of a hypothesis by one pass over it, averaged over an ensemble."""
    prefix = torch.cat([torch.tensor([2]), tokens[:-1]]).unsqueeze(0)
    length = int(batch["src_lengths"][i])
    with torch.no_grad():
        logits = [m(batch["src_tokens"][i : i + 1, -length:], torch.tensor([length]), prefix)[0] for m in models]
    probs = torch.stack([(x / temperature).softmax(-1) for x in logits]).mean(0)
    return probs.log()[0].gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def worst(models, batch, hypotheses):
    return max(
        float((hypothesis["positional_scores"] - rescored(models, batch, i, hypothesis["tokens"])).abs().max())
        for i, best in enumerate(hypotheses)
        for hypothesis in best
    )


@pytest.mark.parametrize("plan", shared_out([*PLANS, *VARIANTS], 0))
def test_decoding_steps_equal_the_full_forward(plan):
    model, batch, prefix = nmt(plan), text_batch(), target_prefix(3, 9)
    with torch.no_grad():
        full, _ = model(**batch, prev_output_tokens=prefix)
        encoder_out, state = model.encoder(**batch), {}
        parts = [
            model.decoder(prefix[:, : t + 1], encoder_out=encoder_out, incremental_state=state)[0] for t in range(9)
        ]
    torch.testing.assert_close(torch.cat(parts, 1), full, rtol=0, atol=1e-10)


def generate_and_watch(model, batch):
    """The hypotheses, and whether the batch became smaller while others were still being written."""
    rows, forward = [], model.decoder.forward

    def watched(tokens, *args, **kwargs):
        rows.append(len(tokens))
        return forward(tokens, *args, **kwargs)

    model.decoder.forward = watched
    hypotheses = generate([model], batch)
    del model.decoder.forward
    return hypotheses, rows[-1] < rows[0]


@pytest.mark.parametrize(("plan", "language"), each_with_one(shared_out([*PLANS, *VARIANTS], 1), ["C", "torch"]))
def test_beam_search_scores_equal_those_of_a_full_forward(plan, language, monkeypatch):
    batch = text_batch()
    if language == "torch":
        monkeypatch.setenv(native.SWITCH, "0")
    for seed in range(40):  # weights with which some sentence is finished before another
        model = nmt(plan, seed=seed)
        model = model.float() if language == "C" else model  # only that is in C
        hypotheses, shrank = generate_and_watch(model, batch)
        if shrank:
            break
    assert shrank, "no sentence was finished before another"
    assert worst([model], batch, hypotheses) < (2e-5 if language == "C" else ROUNDED)


def test_the_comparison_can_fail(monkeypatch):
    """Inverted control: a state that does not follow the beam gives other scores."""
    model, batch = nmt().float(), text_batch((7,))
    for attention in attentions(model.decoder):
        monkeypatch.setattr(attention, "reorder_incremental_state", lambda state, order: state)
    assert worst([model], batch, generate([model], batch)) > 1e-4


@pytest.mark.parametrize("plan", shared_out([*PLANS, *VARIANTS], 2))
def test_hypotheses_share_the_state_of_their_sentence(plan):
    model, batch, rows = nmt(plan).float(), text_batch(), []
    cross = model.decoder.layers[0].encoder_attn
    forward = cross.forward

    def watched(**call):
        out = forward(**call)
        rows.append((call["query"].shape[1], cross.memory(call["incremental_state"]).state.batch_size))
        return out

    cross.forward = watched
    generate([model], batch, beam=4)
    assert rows[0] == (12, 3)
    assert all(hypotheses == 4 * sentences for hypotheses, sentences in rows)


def test_a_beam_size_from_an_earlier_generation_does_no_harm():
    model, batch = nmt().float(), text_batch((6, 6, 5, 4))
    generate([model], batch, beam=2)
    assert worst([model], batch, generate([model], batch, beam=1)) < 2e-5  # fairseq says nothing about a beam of 1


@pytest.mark.parametrize("plan", ["softmax", "leap", "abc-mlp", "luna"])
def test_a_generation_between_updates_knows_the_weights_as_they_are(plan):
    """As --eval-bleu does: fairseq's optimizers change weights without changing their version."""
    model, batch, prefix = nmt(plan), text_batch(), target_prefix(3, 6)
    optimizer = Adam(model.parameters(), lr=0.05)
    for _ in range(2):
        found = generate([model], batch)
        model.train()(**batch, prev_output_tokens=prefix)[0].square().sum().backward()
        optimizer.step()
        model.eval()
    assert worst([model], batch, generate([model], batch)) < 1e-5
    assert worst([model], batch, found) > 1e-2  # it is another model now


def test_ensembles_of_different_plans():
    models = [nmt("leap"), nmt("softmax", seed=1), nmt("relu", seed=2)]
    batch = text_batch()
    assert worst(models, batch, generate(models, batch)) < 2e-5


def test_prefix_tokens():
    model, batch = nmt().float(), text_batch()
    prefix = torch.randint(4, 30, (3, 2))
    hypotheses = generate([model], batch, prefix_tokens=prefix)
    assert all(h["tokens"][:2].tolist() == prefix[i].tolist() for i, best in enumerate(hypotheses) for h in best)
    assert worst([model], batch, hypotheses) < 2e-5


@pytest.mark.parametrize("plan", shared_out([*PLANS, *VARIANTS], 0))
def test_alignments_are_printed_for_every_mechanism(plan):
    model, batch = nmt(plan).float(), text_batch((6, 6))
    model.make_generation_fast_(need_attn=True)
    for best in generate([model], batch, cls=SequenceGeneratorWithAlignment):
        assert best[0]["attention"].shape == (6, len(best[0]["tokens"]))
        assert all(source < 6 for source, _ in best[0]["alignment"])
        assert torch.isfinite(best[0]["attention"]).all()


def test_without_alignments_no_weights_are_composed():
    model, batch = nmt().float(), text_batch()
    model.make_generation_fast_(need_attn=False)
    for attention in attentions(model.decoder):
        attention.mechanism.weights = None
    assert generate([model], batch)[0][0]["attention"].numel() == 0


def test_lexical_constraints():
    model, batch = nmt().float(), text_batch()
    constraints = torch.tensor([[1, 9, 0]] * 3)  # one constraint: the word with index 9
    hypotheses = generate(
        [model],
        batch,
        beam=6,
        constraints=constraints,
        max_len_b=40,
        search_strategy=search.LexicallyConstrainedBeamSearch(WORDS, "ordered"),
    )
    assert all(9 in best[0]["tokens"].tolist() for best in hypotheses)
    assert worst([model], batch, hypotheses) < 2e-5


@pytest.mark.parametrize("plan", ["softmax", "leap"])
def test_a_stock_checkpoint_loads(plan):
    """Only mechanism.* and the fingerprint of words are new; with softmax everywhere the model is the same function."""
    stock = make_model("transformer_tiny", plan)
    ours = nmt(plan, seed=1)
    state = stock.state_dict()
    new = set(ours.state_dict()) - set(state) - {"encoder.vocabulary", "decoder.vocabulary"}
    assert all(".mechanism." in key for key in new) and bool(new) == (plan == "leap")
    ours.load_state_dict(state)
    if plan == "softmax":
        batch, prefix = text_batch(), target_prefix(3, 5)
        with torch.no_grad():
            expected, _ = stock(**batch, prev_output_tokens=prefix)
            out, _ = ours(**batch, prev_output_tokens=prefix)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arch", "tied"),
    [
        ("leapformer_nmt_iwslt", (False, False)),
        ("leapformer_nmt_iwslt_tied", (False, True)),
        ("leapformer_nmt_wmt14", (False, False)),
        ("leapformer_nmt_wmt14_tied", (True, True)),
        ("leapformer_nmt_multi30k", (True, True)),
        ("leapformer_nmt_iwslt17", (True, True)),
    ],
)
def test_presets_tie_embeddings(arch, tied):
    model = nmt(arch=arch)
    decoder = model.decoder
    joint = model.encoder.embed_tokens is decoder.embed_tokens
    output = decoder.output_projection.weight is decoder.embed_tokens.weight
    assert (joint, output) == tied


def test_layer_drop_swaps_every_layer():
    model = nmt(encoder_layerdrop=0.5, decoder_layerdrop=0.5).train()
    assert len(list(attentions(model))) == 2 + 2 * 2
    for _ in range(5):
        model(**text_batch(), prev_output_tokens=target_prefix(3, 5))[0].sum().backward()


def test_what_cannot_be_built_is_refused():
    with pytest.raises(LeapformerError, match="--cosformer-length"):
        nmt("cosformer", cosformer_length=0)
    with pytest.raises(LeapformerError, match="--cross-self-attention"):
        nmt(cross_self_attention=True)


def test_the_length_of_cosformer_limits_the_target():
    model = nmt("cosformer", cosformer_length=17)
    assert model.decoder.max_positions() == 17
    assert EnsembleModel([model, nmt()]).max_decoder_positions() == 17


def test_no_mask_over_all_pairs_is_built():
    decoder = nmt().decoder
    assert decoder.buffered_future_mask(torch.zeros(5, 1, 1)).numel() == 0


def test_a_checkpoint_of_other_words_is_refused():
    """As many words, but others: fairseq's own checkpoints cannot tell, ours can, also in half precision."""
    state, other = nmt().half().state_dict(), nmt()
    other.load_state_dict(state)
    other.decoder.vocabulary.copy_(torch.zeros(16))
    with pytest.raises(
        LeapformerError, match="the checkpoint's decoder knows other words than this data set's dictionary"
    ):
        other.load_state_dict(state)
    other.load_state_dict({key: value for key, value in state.items() if "vocabulary" not in key})


def test_a_frozen_model_projects_all_words_by_one_product():
    """One for each sentence takes a hundred times as long in bfloat16."""
    model, batch = nmt().requires_grad_(False), text_batch()
    given = {**batch, "prev_output_tokens": target_prefix(len(batch["src_tokens"]), 5)}
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profile:
        model(**given)
    words = len(model.decoder.output_projection.weight)
    shapes = [event.input_shapes for event in profile.events() if event.name in ("aten::mm", "aten::bmm")]
    assert [len(one[0]) for one in shapes if one[1][-1] == words] == [2], "one product of matrices"
