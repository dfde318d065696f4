"""fairseq's loss of a recogniser with CTC, with the character error rate of the encoder in validation."""

# No `from __future__ import annotations`: fairseq reads the types of the configurations' fields.
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy_with_ctc import (
    LabelSmoothedCrossEntropyWithCtcCriterion,
    LabelSmoothedCrossEntropyWithCtcCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

BLANK = 0  # of torch's ctc_loss


@register_criterion("leapformer_recognition", dataclass=LabelSmoothedCrossEntropyWithCtcCriterionConfig)
class Recognition(LabelSmoothedCrossEntropyWithCtcCriterion):
    """label_smoothed_cross_entropy_with_ctc that also logs `char_error` in validation, in per cent.

    This is the edit distance between the greedy CTC output and the transcript, as texts with spaces, divided by the
    characters of the transcripts. The decoder is left out, because translation models are initialised with the encoder
    only. Without a CTC head (`--ctc-weight 0`), nothing is logged.
    """

    def __init__(self, cfg: LabelSmoothedCrossEntropyWithCtcCriterionConfig, task: Any) -> None:
        smoothing = cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy
        super().__init__(task, *smoothing, cfg.ctc_weight)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Any, dict[str, Any]]:
        if model.training or self.ctc_weight <= 0:
            return super().forward(model, sample, reduce)
        outputs: list[Any] = []  # the output of the pass that the loss makes, so that there is no second one
        hook = model.register_forward_hook(lambda *arguments: outputs.append(arguments[-1]))
        try:
            loss, size, log = super().forward(model, sample, reduce)
        finally:
            hook.remove()
        log["char_errors"], log["chars"] = self._errors(model, outputs[0], sample)
        return loss, size, log

    @torch.no_grad()
    def _errors(self, model: Any, output: Any, sample: dict[str, Any]) -> tuple[int, int]:
        """The numbers of character errors and of characters in the transcripts."""
        lprobs, lengths = model.get_ctc_output(output, sample)
        errors = chars = 0
        for units, length, target in zip(lprobs.argmax(-1).t(), lengths.tolist(), sample["target"], strict=True):
            collapsed = units[:length].unique_consecutive()
            text, reference = self._text(collapsed[collapsed != BLANK]), self._text(target[target != self.padding_idx])
            errors += edits(text, reference)
            chars += len(reference)
        return errors, chars

    def _text(self, units: Tensor) -> str:
        return str(self.task.target_dictionary.string(units, "sentencepiece"))

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Log the sums and means over all batches and processes."""
        super().reduce_metrics(logging_outputs)
        errors, chars = (sum(int(log.get(name, 0)) for log in logging_outputs) for name in ("char_errors", "chars"))
        if chars:
            metrics.log_scalar("char_error", 100 * errors / chars, chars, round=2)


def edits(text: str, reference: str) -> int:
    """The edit distance of two texts: insertions, deletions and substitutions of a character (Levenshtein, 1966).

    >>> edits("kitten", "sitting")
    3
    """
    letters, columns = np.array(list(reference)), np.arange(len(reference) + 1)
    row = columns
    for letter in text:
        without_insertions = np.minimum(row[1:] + 1, row[:-1] + (letters != letter))
        # Each insertion costs 1: a running minimum after subtracting the column covers any number of them.
        row = np.minimum.accumulate(np.concatenate(([row[0] + 1], without_insertions)) - columns) + columns
    return int(row[-1])
