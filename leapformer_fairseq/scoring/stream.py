"""Perplexity of a language model on one long text that it reads as a stream, with its state carried.

A softmax model sees at most its context window; a linear one keeps K^T V of everything it has read, in constant memory.
Position embeddings start again in every segment, because the model was not trained with others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from ..attention import Context
from ..modules import IncrementalState, check_decoder, state_bytes
from ..support.errors import LeapformerError


@dataclass(frozen=True)
class StreamScore:
    """Loss in bits per token, its perplexity, tokens scored, and bytes of state after them."""

    loss: float
    perplexity: float
    tokens: int
    state_bytes: int


class Reader(Protocol):
    """A language model that reads a text segment by segment; `state` is what it has read, at first an empty dict."""

    @property
    def longest(self) -> int:
        """Tokens that a segment may have."""

    def check(self, tokens: int) -> None:
        """Raise LeapformerError unless it can read a text of so many tokens with its state carried on."""

    def log_probs(self, tokens: Tensor, state: dict[str, Any]) -> Tensor:
        """Of what follows each of the next tokens (T,), (T, V)."""

    def state_bytes(self, state: dict[str, Any]) -> int: ...


class ModelReader:
    """A `Reader` of a language model in PyTorch."""

    def __init__(self, model: Any) -> None:
        self.model, self.longest = model, model.max_positions()

    def check(self, tokens: int) -> None:
        check_decoder(self.model.decoder, None, Context(True, target_length=tokens, endless=True))

    @torch.no_grad()
    def log_probs(self, tokens: Tensor, state: IncrementalState) -> Tensor:
        features = self.model.decoder.read(tokens.unsqueeze(0), state)
        output = (self.model.decoder.output_layer(features), None)
        found: Tensor = self.model.get_normalized_probs(output, log_probs=True, sample=None)[0]
        return found

    def state_bytes(self, state: IncrementalState) -> int:
        return state_bytes(state)


def score_stream(reader: Reader, text: Tensor, first: int, segment: int, carry: bool = True) -> StreamScore:
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
        reader.check(len(text))
    if segment > reader.longest:
        raise LeapformerError(
            f"a segment of {segment} tokens does not fit the model's {reader.longest} positions; give a smaller "
            "--segment"
        )
    inputs = torch.cat([text.new_tensor([first]), text[:-1]])
    bits, state = 0.0, IncrementalState()
    progress = tqdm(total=len(text), unit="tok", unit_scale=True, desc="stream", mininterval=1.0)
    for tokens, target in zip(inputs.split(segment), text.split(segment), strict=True):
        state = state if carry else {}
        log_probs = reader.log_probs(tokens, state)
        bits -= float(log_probs.gather(-1, target.unsqueeze(-1)).double().sum()) / math.log(2)
        progress.update(len(tokens))
    progress.close()
    loss = bits / len(text)
    return StreamScore(loss, 2**loss, len(text), reader.state_bytes(state))
