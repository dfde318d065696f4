"""The lookup predictor: a mean duration for each source token, from a table or from training data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...attention import Option
from ...support.errors import LeapformerError
from ...support.lines import read_lines
from .base import Predictor, Setting, Source, register

PRECISION = 1000  # a table's durations are stored in units of 1 / PRECISION frames
LONGEST_DURATION = 100_000  # frames per token in a table; longer ones are an error


@register(
    "lookup",
    Option("length_table", "", "lookup: file of source tokens and their mean frames; default: durations in the data"),
    Option("length_dampening", 1.0, "lookup: predicted lengths are divided by this"),
)
class Lookup(Predictor):
    """Predicts the sum of the mean durations of the source tokens; tokens without a duration take the overall mean.

    The end-of-sentence token counts as 0 frames unless the table has a duration for it.
    """

    needs_tokens = True
    frames: Tensor
    tokens: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if setting.dictionary is None:
            raise LeapformerError(
                "--length-predictor lookup needs source tokens, but the source is speech; use ratio or conv"
            )
        self.dampening, self.frames_per_step = setting.options.length_dampening, setting.frames_per_step
        if not 0 < self.dampening < math.inf:
            raise LeapformerError(
                f"--length-dampening {self.dampening}: lengths are divided by it, give a number above 0"
            )
        for name in ("frames", "tokens"):
            self.register_buffer(name, torch.zeros(len(setting.dictionary), dtype=torch.long))
        self.end = setting.dictionary.eos()
        self.table = Path(setting.options.length_table) if setting.options.length_table else None
        # Checkpoints contain the table, so the file is only needed in training.
        self.read = self.table is not None and self.table.is_file()
        if self.table is not None and self.read:
            for token, frames in _read_table(self.table, setting.dictionary):
                self.frames[token] = round(frames * PRECISION)
                self.tokens[token] = PRECISION

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Let a table that was read from a file take precedence over the one in the checkpoint."""
        if self.read:
            state_dict.update({f"{name}.{key}": value for key, value in self.state_dict().items()})

    @property
    def missing(self) -> str | None:
        if self.tokens.any():
            return None
        return (
            "there are no durations of source tokens; give --length-table, or train with --criterion "
            "tacotron2_with_length on data with a column duration"
        )

    def observe(self, source: Source) -> None:
        """Learn nothing, but raise LeapformerError for a missing table before time is spent on training."""
        if self.table is not None and not self.read and self.missing:
            raise LeapformerError(f"--length-table {self.table}: there is no such file; give a table of durations")

    def observe_durations(self, source: Source, durations: Tensor) -> None:
        if self.table is None:
            assert source.tokens is not None
            counted = source.keep & source.tokens.ne(self.end)
            tokens = source.tokens[counted]
            self.frames.index_add_(0, tokens, durations[counted].long())
            self.tokens.index_add_(0, tokens, torch.ones_like(tokens))

    def forward(self, source: Source) -> Tensor:
        durations = self.frames / self.tokens.clamp_min(1)
        unknown = self.tokens == 0
        unknown[self.end] = False
        durations = torch.where(unknown, self.frames.sum() / self.tokens.sum(), durations)
        total = (durations[source.tokens] * source.keep).sum(1)
        return (total / self.frames_per_step).floor() / self.dampening


def _read_table(path: Path, dictionary: Any) -> Iterator[tuple[int, float]]:
    """Iterate over (index of a token, mean frames) of a text file with one token and its frames per line."""
    lines = list(read_lines(path, "--length-table", "give a text file in UTF-8"))
    for number, line in enumerate(lines, 1):
        token, *frames = line.split() or [""]
        try:
            (mean,) = map(float, frames)
        except ValueError:
            mean = math.nan
        if not 0 <= mean < LONGEST_DURATION:
            raise LeapformerError(
                f"--length-table {path}, line {number}: {line!r} is not a token and its mean frames "
                f"(0 to {LONGEST_DURATION})"
            )
        if dictionary.index(token) == dictionary.unk() and token != dictionary.unk_word:
            raise LeapformerError(
                f"--length-table {path}: {token!r} is not in the dictionary; create the table with this vocabulary"
            )
        yield dictionary.index(token), mean
