"""Noise of quantisation in training, scalar and by blocks, with every mechanism in every block that it serves."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules.quantization import scalar

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
