"""Small models with random weights and small batches of random filterbanks, for tests of every model."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import Tensor

from leapformer_fairseq import register
from leapformer_fairseq.attention import MECHANISMS

register()

# plans by names of their own: a mechanism with options
VARIANTS = {"kda-conv": ("kda", {"short_conv": 4}), "simple-gla-conv": ("simple-gla", {"short_conv": 4})}
PLANS = sorted(name for name, mechanism in MECHANISMS.items() if not mechanism.capabilities.missing)
BLOCKS = {"encoder_self": "encoder-self", "decoder_self": "decoder-self", "decoder_cross": "decoder-cross"}
SIZES = dict(
    encoder_layers=2,
    decoder_layers=2,
    encoder_embed_dim=16,
    encoder_ffn_embed_dim=24,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    conv_out_channels=4,
    input_feat_per_channel=8,
    input_channels=1,
    cosformer_length=40,
    abc_slots="4/3/5",
    abc_pool_size="0/100/0",
    dropout=0.1,
)


def dictionary(symbols: int = 30) -> Dictionary:
    words = Dictionary()
    for i in range(symbols):
        words.add_symbol(f"w{i}")
    return words


def make_model(arch: str, plan: str = "leap", seed: int = 0, **options: Any) -> Any:
    """A float64 model in eval mode, every block that the plan can serve with it unless `options` name another.

    A mechanism that is not defined for a block, or for wait-k, leaves it to softmax.
    """
    args = Namespace(arch=arch, **{**SIZES, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    waits = getattr(args, "waitk_lagging", "offline") != "offline"
    if waits:
        args.luna_packed = "learned"  # that of the encoder holds the whole source
    named = plan
    plan = VARIANTS[plan][0] if plan in VARIANTS else plan
    for argument, block in BLOCKS.items():
        serves = plan not in MECHANISMS or block in MECHANISMS[plan].capabilities.blocks
        if plan in MECHANISMS and block != "encoder-self":
            serves = serves and MECHANISMS[plan].capabilities.incremental
        prefixes = (
            plan not in MECHANISMS or MECHANISMS[plan].capabilities.prefixes or not (waits and block == "decoder-cross")
        )
        setattr(args, f"{argument}_attention", named if serves and prefixes else "softmax")
    vars(args).update(options)
    for argument in (f"{argument}_attention" for argument in BLOCKS):
        if getattr(args, argument) in VARIANTS:
            of, more = VARIANTS[getattr(args, argument)]
            vars(args).update({argument: of, **more})
    words = dictionary()
    torch.manual_seed(seed)
    task = SimpleNamespace(target_dictionary=words, source_dictionary=words, src_dict=words)
    task.get_speaker_embeddings = lambda args: None
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task).double().eval()


def speech_batch(lengths: tuple[int, ...] = (61, 50, 33), bins: int = 8) -> dict[str, Tensor]:
    """Filterbanks, zero behind each sentence's length."""
    frames = torch.randn(len(lengths), max(lengths), bins, dtype=torch.double)
    for i, length in enumerate(lengths):
        frames[i, length:] = 0
    return {"src_tokens": frames, "src_lengths": torch.tensor(lengths)}


def target_prefix(batch: int, length: int, eos: int = 2, symbols: int = 30) -> Tensor:
    tokens = torch.randint(4, 4 + symbols, (batch, length))
    tokens[:, 0] = eos
    return tokens


def text_batch(lengths: tuple[int, ...] = (9, 6, 4), pad: int = 1, eos: int = 2) -> dict[str, Tensor]:
    """Sentences padded on the left, as fairseq's translation task pads sources."""
    tokens = torch.full((len(lengths), max(lengths)), pad)
    for i, length in enumerate(lengths):
        tokens[i, -length:] = torch.cat([torch.randint(4, 34, (length - 1,)), torch.tensor([eos])])
    return {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)}


TTS_SIZES = dict(
    encoder_transformer_layers=2,
    decoder_transformer_layers=2,
    decoder_embed_dim=16,
    decoder_ffn_embed_dim=24,
    prenet_dim=16,
    postnet_conv_dim=12,
    output_frame_dim=6,
    n_frames_per_step=2,
    max_source_positions=100,
    max_target_positions=100,
    prenet_dropout=0.0,  # fairseq's pre-net drops at random in generation, too
)


def make_tts(plan: str = "leap", **options: Any) -> Any:
    """A float64 text to speech model in eval mode whose batch normalisation is not the identity."""
    model = make_model("leapformer_tts_tiny", plan, **{**TTS_SIZES, **options})
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(module.bias)
    return model


def tts_batch(sources: tuple[int, ...] = (9, 6, 4), targets: tuple[int, ...] = (7, 11, 3), frame: int = 12) -> Any:
    """Phonemes and frames, padded on the right, as fairseq's dataset hands them to a model."""
    tokens, frames = torch.full((len(sources), max(sources)), 1), torch.zeros(len(targets), max(targets), frame)
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        tokens[i, :source] = torch.cat([torch.randint(4, 34, (source - 1,)), torch.tensor([2])])
        frames[i, :target] = torch.randn(target, frame)
    previous = torch.cat([torch.zeros(len(targets), 1, frame), frames[:, :-1]], 1).double()
    return {
        "src_tokens": tokens,
        "src_lengths": torch.tensor(sources),
        "prev_output_tokens": previous,
        "target_lengths": torch.tensor(targets),
    }
