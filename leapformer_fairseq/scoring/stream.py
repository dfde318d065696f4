"""Perplexity of a language model on one long text, read as a stream with its state carried on.

A softmax model sees at most its context window; a linear one keeps K^T V of everything it has read, in constant memory.
Position embeddings start again in every segment, because the model was not trained on later positions.
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
    """Loss in bits per token, perplexity, number of scored tokens, and size of the final state in bytes."""

    loss: float
    perplexity: float
    tokens: int
    state_bytes: int


class Reader(Protocol):
    """A language model that reads a text segment by segment; `state` is an empty dict at the start."""

    @property
    def longest(self) -> int:
        """The longest segment, in tokens."""

    def check(self, tokens: int) -> None:
        """Raise LeapformerError unless it can carry its state over a text of this many tokens."""

    def log_probs(self, tokens: Tensor, state: dict[str, Any]) -> Tensor:
        """Read the next tokens (T,) and return log probabilities (T, V) of the token after each."""

    def state_bytes(self, state: dict[str, Any]) -> int: ...


class ModelReader:
    """A language model in PyTorch as a `Reader`."""

    def __init__(self, model: Any) -> None:
        self.model, self.longest = model, model.max_positions()

    def check(self, tokens: int) -> None:
        check_decoder(self.model.decoder, None, Context(True, target_length=tokens, endless=True))

    @torch.no_grad()
    def log_probs(self, tokens: Tensor, state: IncrementalState) -> Tensor:
        features = self.model.decoder.read(tokens.unsqueeze(0), state)
        output = (self.model.decoder.output_layer(features), None)
        log_probs: Tensor = self.model.get_normalized_probs(output, log_probs=True, sample=None)[0]
        return log_probs

    def state_bytes(self, state: IncrementalState) -> int:
        return state_bytes(state)


def score_stream(reader: Reader, text: Tensor, first: int, segment: int, carry: bool = True) -> StreamScore:
    """Score the tokens of `text`, (N,), each given all tokens before it; `first` is the token before the text.

    The text is read in segments of `segment` tokens. Without `carry`, each segment starts with an empty state, as in
    fairseq-eval-lm without a context window. Raises LeapformerError for an empty text, for segments that do not fit the
    model, and with `carry` for a mechanism whose state grows or that does not support such a long text.
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
    # Each token is predicted from the one before it.
    bits, state = 0.0, IncrementalState()
    progress = tqdm(total=len(text), unit="tok", unit_scale=True, desc="stream", mininterval=1.0)
    for tokens, target in zip(inputs.split(segment), text.split(segment), strict=True):
        state = state if carry else {}
        log_probs = reader.log_probs(tokens, state)
        # In float64, since a long text has many small terms.
        bits -= float(log_probs.gather(-1, target.unsqueeze(-1)).double().sum()) / math.log(2)
        progress.update(len(tokens))
    progress.close()
    loss = bits / len(text)
    return StreamScore(loss, 2**loss, len(text), reader.state_bytes(state))
