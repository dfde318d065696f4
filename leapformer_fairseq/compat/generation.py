"""Generation: n-grams that must not come twice."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..runtime.beam import repeating
from .patch import patch, wrapping


def _padding_is_taken_for_text() -> bool:
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    written = torch.tensor([[2, 4, 5, 4, 1, 1]])  # three tokens in a buffer for five, as the generator has it
    scores = NGramRepeatBlock(2, use_extension=False)(written, torch.zeros(1, 9), 1, 1, 3)
    return not bool(scores.isinf().any())


@patch(
    "repeated-ngrams",
    "--no-repeat-ngram-size does nothing without a CUDA extension: the last tokens of a buffer, which are padding, are "
    "taken for the last that were written",
    _padding_is_taken_for_text,
)
@wrapping("fairseq.ngram_repeat_block:NGramRepeatBlock._no_repeat_ngram")
def _look_at_what_is_written(
    _: Any, self: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
) -> Tensor:
    for row, written in enumerate(tokens[:, 1 : step + 1].tolist()):
        lprobs[row, repeating(written, self.no_repeat_ngram_size)] = -math.inf
    return lprobs
