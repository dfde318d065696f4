"""Every option of fairseq's models that changes what the same weights compute is compared when weights are loaded."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections import OrderedDict

import pytest
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.speech_to_text import S2TTransformerModel
from fairseq.models.transformer import TransformerConfig

from leapformer_fairseq.modules.origin import FUNCTION, Origin, check_function, origin_of
from leapformer_fairseq.support.errors import LeapformerError

from ..models.tiny import TTS_SIZES, make_model, speech_batch, target_prefix, text_batch, tts_batch

BATCHES = {
    "leapformer_lm_tiny": lambda: {"src_tokens": target_prefix(2, 7)},
    "leapformer_nmt_tiny": lambda: {**text_batch(), "prev_output_tokens": target_prefix(3, 6)},
    "leapformer_s2t_tiny": lambda: {**speech_batch(), "prev_output_tokens": target_prefix(3, 6)},
    "leapformer_s2t_transformer": lambda: {**speech_batch(), "prev_output_tokens": target_prefix(3, 6)},
    "leapformer_tts_tiny": tts_batch,
    "leapformer_mlm_tiny": lambda: {"src_tokens": text_batch()["src_tokens"]},
}
# values that are not the default, of options that are not flags
VALUES = {"activation_fn": "gelu", "encoder_attention_heads": 4, "decoder_attention_heads": 4}
# what the weights are read with, or how they are trained, and nothing of the function of a whole model in evaluation
READING = {"encoder_layers_to_keep", "decoder_layers_to_keep", "max_source_positions", "max_target_positions"}


def options_of(arch: str) -> list[argparse.Action]:
    """The options of fairseq's model that this architecture's is built on, and of its dataclass."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    gen_parser_from_dataclass(parser, TransformerConfig(), delete_default=True, with_prefix="")
    model = ARCH_MODEL_REGISTRY[arch]
    stock = next(base for base in model.__mro__ if base.__module__.startswith("fairseq."))
    stock = S2TTransformerModel if arch == "leapformer_s2t_transformer" else stock  # not a base of its model
    if getattr(stock, "add_args", None):
        stock.add_args(parser)
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


def plain(arch: str, **options):
    torch.manual_seed(0)
    return make_model(arch, "softmax", **{**(TTS_SIZES if arch == "leapformer_tts_tiny" else {}), **options})


@pytest.mark.parametrize("arch", sorted(BATCHES))
def test_what_is_compared_is_all_that_differs_in_silence(arch):
    """Each flag by itself: either a shape, or the function of the same weights, or nothing changes."""
    batch, model = BATCHES[arch](), plain(arch)
    state = {}
    for name, value in model.state_dict().items():  # norms that are not the identity
        drawn = 0.3 * torch.randn_like(value) if value.is_floating_point() and value.dim() else value
        state[name] = drawn.abs() + 0.5 if "running_var" in name else drawn
    state |= {name: value for name, value in model.state_dict().items() if name.endswith("version")}
    model.load_state_dict(OrderedDict(state), strict=True)
    filled = Namespace(arch=arch)
    ARCH_CONFIG_REGISTRY[arch](filled)
    with torch.no_grad():
        expected = model(**batch)[0]
    missed, tried = [], []
    for action in options_of(arch):
        name = action.dest
        if name in READING or not (action.nargs == 0 or name in VALUES):
            continue
        other = VALUES.get(name, not getattr(filled, name, False))
        try:
            changed = plain(arch, **{name: other})
            changed.load_state_dict(OrderedDict(state), strict=True)
        except Exception:  # it is refused, or its shapes are
            continue
        tried.append(name)
        with torch.no_grad():
            found = changed(**batch)[0]
        if not torch.allclose(found, expected, atol=1e-9) and name not in FUNCTION:
            missed.append(name)
    assert not missed and len(tried) >= 10, (missed, tried)


def test_each_option_is_refused_where_it_differs():
    filled = Namespace(arch="leapformer_nmt_tiny")
    ARCH_CONFIG_REGISTRY["leapformer_nmt_tiny"](filled)
    same = Origin("stock.pt", {**vars(filled)})
    check_function(same, filled)
    for name, option in FUNCTION.items():
        own = getattr(filled, name, option.default)
        there = not own if isinstance(own, bool) else 7 if isinstance(own, int) else "other"
        here = Namespace(**{**vars(filled), "decoder_normalize_before": name == "no_decoder_final_norm"})
        before = {**vars(here), name: there}
        if name.startswith(("share", "tie", "merge")):  # two that begin as one are the same function
            check_function(Origin("stock.pt", before), here)
            here, before = Namespace(**before), {**vars(here), name: own}
        if name == "pooler_activation_fn" and own is None:
            continue
        with pytest.raises(LeapformerError, match=rf"stock\.pt: {name} is .* in the checkpoint and .* in this model; "):
            check_function(Origin("stock.pt", before), here)


def test_what_old_checkpoints_do_not_say_is_what_fairseq_fills_in():
    """A RoBERTa of 2019 says nothing of norms and positions that could not be chosen then."""
    here = Namespace(arch="leapformer_mlm_tiny")
    ARCH_CONFIG_REGISTRY["leapformer_mlm_tiny"](here)
    check_function(Origin("roberta.pt", {"arch": "roberta_base", "encoder_attention_heads": 2}), here, ["encoder"])


def test_the_convolutional_encoder_of_fairseq_leaves_its_last_norm_out():
    here = Namespace(arch="leapformer_s2t_tiny")
    ARCH_CONFIG_REGISTRY["leapformer_s2t_tiny"](here)
    with pytest.raises(LeapformerError, match="leaves out the last norm of its encoder"):
        check_function(Origin("s2t.pt", {**vars(here), "arch": "convtransformer"}), here)


def test_parameters_without_an_origin_are_loaded_as_ever():
    model = plain("leapformer_nmt_tiny")
    assert origin_of(model.state_dict()) is None
    model.load_state_dict(model.state_dict(), strict=True)
