"""Whole recordings: an encoder of their frames as a function of tensors, and what fairseq's data config says of them.

Shapes: T frames (10 ms), S encoder states, C width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attention import sinusoids
from ..runtime.folder import Recordings
from ..simul.loading import global_cmvn, transforms_of
from ..support.errors import LeapformerError
from .graphs import Source
from .subwords import Subwords

NORMALISING = ("global_cmvn", "utterance_cmvn")  # feature transforms that the runtime has
CODES = ("subword_nmt", "fastbpe")


class Recording(Source):
    """An encoder that returns what decoder steps need from the frames (1, T, n_bins) of a whole recording."""

    def forward(self, frames: Tensor) -> list[Tensor]:  # type: ignore[override]
        encoder = self.encoder
        rows, _ = encoder.convolve(frames, torch.full((1,), frames.shape[1]))
        positions = torch.arange(1, rows.shape[0] + 1)  # len would fix it
        table = sinusoids(positions + encoder.padding_idx, rows.shape[2]).unsqueeze(1)
        x = encoder.embed_scale * rows + table.to(rows.dtype)
        return self.read(x, encoder.transformer_layers, positions.gt(0).unsqueeze(0))


def recordings_of(task: Any) -> Recordings:
    """How the frames of a speech task are computed from recordings that are not of its training.

    Raises LeapformerError for a task whose frames the runtime cannot compute, or that adds tokens to what is written.
    """
    config = task.data_cfg
    transforms = transforms_of(config)
    other = sorted(set(transforms) - set(NORMALISING))
    refused = {
        "use_audio_input: the model reads samples": config.use_audio_input,
        f"input_channels: {config.input_channels}": config.input_channels != 1,
        f"feature transforms {', '.join(transforms)}": other or len(transforms) > 1,
    }
    if reason := next((reason for reason, found in refused.items() if found), None):
        raise LeapformerError(
            f"{reason} (in the config yaml), while the runtime computes filterbanks of one channel, with "
            f"{' or '.join(NORMALISING)} or neither; use `leapformer generate`"
        )
    tags = ("prepend_tgt_lang_tag", "prepend_bos_and_append_tgt_lang_tag", "eos_token")
    if tag := next((name for name in tags if config.config.get(name)), None):
        raise LeapformerError(
            f"{tag} (in the config yaml) adds tokens, such as those of languages, to what the model writes; exported "
            "models write plain text, so use `leapformer generate`"
        )
    cmvn, own = global_cmvn(config, Path(config.root)), config.config.get("utterance_cmvn") or {}
    by_itself = "utterance_cmvn" in transforms
    return Recordings(
        config.input_feat_per_channel,
        None if cmvn is None else cmvn.mean.tolist(),
        None if cmvn is None else cmvn.std.tolist(),
        by_itself and own.get("norm_means", True),
        by_itself and own.get("norm_vars", True),
    )


def subwords_in(task: Any) -> Subwords:
    """How the config yaml of a speech task splits text. Raises LeapformerError for a way that the runtime has not."""
    pieces, words = task.data_cfg.bpe_tokenizer, task.data_cfg.pre_tokenizer
    bpe, tokenizer = pieces.get("bpe"), words.get("tokenizer")
    if bpe not in (None, "sentencepiece", *CODES) or tokenizer not in (None, "moses"):
        raise LeapformerError(
            f"bpe_tokenizer {bpe!r} with pre_tokenizer {tokenizer!r} in the config yaml: the runtime has "
            f"sentencepiece, {', '.join(CODES)} or none, and moses or none; use `leapformer generate`"
        )
    model, codes = pieces.get("sentencepiece_model"), pieces.get("bpe_codes")
    for name, file in (("sentencepiece_model", model), ("bpe_codes", codes)):
        if file is not None and not Path(file).is_file():
            raise LeapformerError(f"no {name} at {file}; check bpe_tokenizer in the config yaml")
    moses = None if tokenizer is None else (words.get("source_lang") or "en", words.get("target_lang") or "en")
    return Subwords(model and Path(model), codes and Path(codes), moses)
