"""Noise of quantisation in training, scalar and by blocks, with every mechanism in every block that it serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fairseq.modules.quantization import scalar

from leapformer_fairseq.export.ctranslate2 import unfit
from leapformer_fairseq.export.graphs import embedded
from leapformer_fairseq.modules import attentions

from .. import covering
from ..covering import shared_out
from ..models.tiny import PLANS, make_model, target_prefix, text_batch


def trained_and_used(model):
    """A step of training, then a whole pass and one token after the other."""
    batch, previous = text_batch(), target_prefix(3, 6)
    model.train()
    out, _ = model(**batch, prev_output_tokens=previous)
    out.square().mean().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    assert not missing
    model.eval()
    with torch.no_grad():
        encoder_out = model.encoder(batch["src_tokens"], batch["src_lengths"])
        state = {}
        for i in range(1, 4):
            step, _ = model.decoder(previous[:, :i], encoder_out=encoder_out, incremental_state=state)
        assert step.isfinite().all()
    return out


@pytest.mark.parametrize("plan", shared_out(PLANS, 0)[:: 1 if covering.whole_products else 3])
def test_scalar(plan):
    model = make_model("leapformer_nmt_tiny", plan, encoder_learned_pos=True, decoder_embed_dim=16)
    count = len(list(attentions(model)))
    scalar.quantize_model_(model, p=0.5, bits=8, update_step=1000)
    quantised = [name for name, part in model.named_modules() if type(part).__name__ == "IntLinear"]
    assert sum(name.endswith("q_proj") for name in quantised) == count, "of every attention"
    trained_and_used(model)


@pytest.mark.parametrize("plan", PLANS)
def test_by_blocks(plan):
    model = make_model(
        "leapformer_nmt_tiny", plan, quant_noise_pq=0.3, quant_noise_pq_block_size=8, decoder_embed_dim=16
    )
    before = {name: p.clone() for name, p in model.named_parameters() if name.endswith("v_proj.weight")}
    trained_and_used(model)
    after = dict(model.named_parameters())
    assert all((after[name] == 0).any() and not (p == 0).any() for name, p in before.items()), "blocks are dropped"


def test_the_adaptive_embedding_of_a_language_model_has_noise_too():
    options = {"adaptive_input": True, "adaptive_input_cutoff": "10", "adaptive_softmax_cutoff": "10"}
    model = make_model("leapformer_lm_tiny", "leap", quant_noise_pq=0.3, quant_noise_pq_block_size=8, **options)
    hooked = [part for part in model.decoder.embed_tokens.modules() if part._forward_pre_hooks]
    assert len(hooked) == 2, "one for each cut"


def test_its_projection_of_embeddings_is_in_prompts_and_exports():
    """fairseq puts it in front of the layers, after the positions of an encoder and before those of a decoder."""
    options: dict[str, Any] = {"quant_noise_pq": 0.3, "quant_noise_pq_block_size": 8}
    model = make_model("leapformer_nmt_tiny", "softmax", decoder_embed_dim=16, **options).eval()
    tokens = torch.tensor([[5, 9, 7, 2]])
    places = torch.arange(1, 5)[None]
    with torch.no_grad():
        expected, _ = model.encoder.forward_embedding(tokens)
        torch.testing.assert_close(embedded(model.encoder, tokens, places), expected)
        for kind in "leapformer_lm_tiny", "leapformer_nmt_tiny":
            decoder = make_model(kind, "softmax", decoder_embed_dim=16, **options).eval().decoder
            if kind == "leapformer_lm_tiny":
                expected = decoder.extract_features(tokens, None)[0]
                torch.testing.assert_close(decoder.read(tokens, {}), expected)
            given = []
            decoder.layers[0].register_forward_pre_hook(lambda _, x, given=given: given.append(x[0]))
            decoder(tokens, encoder_out=model.encoder(tokens, torch.tensor([4])) if "nmt" in kind else None)
            torch.testing.assert_close(embedded(decoder, tokens, places), given[0].transpose(0, 1))
    assert unfit(model.encoder, model.decoder) == "projection of embeddings (--quant-noise-pq)"
