"""Perplexity of a language model on one long text that it reads as a stream, with its state carried.

A softmax model sees at most its context window; a linear one keeps K^T V of everything it has read, in constant memory.
Position embeddings start again in every segment, because the model was not trained with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..attention import Context
from ..errors import LeapformerError
from ..modules import IncrementalState, check_decoder, state_bytes


@dataclass(frozen=True)
class StreamScore:
    """Loss in bits per token, its perplexity, tokens scored, and bytes of state after them."""

    loss: float
    perplexity: float
    tokens: int
    state_bytes: int


@torch.no_grad()
def score_stream(model: Any, text: Tensor, first: int, segment: int, carry: bool = True) -> StreamScore:
    """Score the tokens of `text`, (N,), each given all before it; `first` precedes the first.

    The text is read in segments of `segment` tokens. Without `carry`, each begins with an empty state, as in
    fairseq-eval-lm without a context window. Raises LeapformerError for an empty text, and with `carry` for a mechanism
    whose state grows or that does not support such long texts.
    """
    if not len(text):
        raise LeapformerError("the text holds no tokens; check the subset")
    if segment < 1:
        raise LeapformerError(f"a segment of {segment} tokens: give at least 1")
    if carry:
        check_decoder(model.decoder, None, Context(True, target_length=len(text), endless=True))
    if segment > model.max_positions():
        raise LeapformerError(
            f"a segment of {segment} tokens does not fit the model's {model.max_positions()} positions; give a smaller "
            "--segment"
        )
    inputs = torch.cat([text.new_tensor([first]), text[:-1]])
    bits, state = 0.0, IncrementalState()
    progress = tqdm(total=len(text), unit="tok", unit_scale=True, desc="stream", mininterval=1.0)
    for tokens, target in zip(inputs.split(segment), text.split(segment), strict=True):
        state = state if carry else {}
        features = model.decoder.read(tokens.unsqueeze(0), state)
        output = (model.decoder.output_layer(features), None)
        log_probs = model.get_normalized_probs(output, log_probs=True, sample=None)[0]
        bits -= float(log_probs.gather(-1, target.unsqueeze(-1)).double().sum()) / math.log(2)
        progress.update(len(tokens))
    progress.close()
    loss = bits / len(text)
    return StreamScore(loss, 2**loss, len(text), state_bytes(state))
