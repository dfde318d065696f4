"""fairseq's loss of a recogniser with CTC, and in validation the share of characters that the encoder gets wrong."""

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

    That is the edit distance between the transcript and the units with the highest CTC probabilities, as text with
    spaces, for each character of the transcripts. The encoder is measured without the decoder because translation
    models begin with the encoder only. A model without a CTC head (`--ctc-weight 0`) has no such error.
    """

    def __init__(self, cfg: LabelSmoothedCrossEntropyWithCtcCriterionConfig, task: Any) -> None:
        smoothing = cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy
        super().__init__(task, *smoothing, cfg.ctc_weight)

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Any, dict[str, Any]]:
        if model.training or self.ctc_weight <= 0:
            return super().forward(model, sample, reduce)
        outputs: list[Any] = []  # of the one pass that the loss makes
        hook = model.register_forward_hook(lambda *passed: outputs.append(passed[-1]))
        try:
            loss, size, log = super().forward(model, sample, reduce)
        finally:
            hook.remove()
        log["char_errors"], log["chars"] = self._errors(model, outputs[0], sample)
        return loss, size, log

    @torch.no_grad()
    def _errors(self, model: Any, output: Any, sample: dict[str, Any]) -> tuple[int, int]:
        """Wrong characters, and characters of the transcripts."""
        lprobs, lengths = model.get_ctc_output(output, sample)
        errors = chars = 0
        for units, length, target in zip(lprobs.argmax(-1).t(), lengths.tolist(), sample["target"], strict=True):
            spoken = units[:length].unique_consecutive()
            said, reference = self._text(spoken[spoken != BLANK]), self._text(target[target != self.padding_idx])
            errors += edits(said, reference)
            chars += len(reference)
        return errors, chars

    def _text(self, units: Tensor) -> str:
        return str(self.task.target_dictionary.string(units, "sentencepiece"))

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Aggregate the logs of batches."""
        super().reduce_metrics(logging_outputs)
        errors, chars = (sum(int(log.get(name, 0)) for log in logging_outputs) for name in ("char_errors", "chars"))
        if chars:
            metrics.log_scalar("char_error", 100 * errors / chars, chars, round=2)


def edits(text: str, reference: str) -> int:
    """The least number of insertions, deletions and replacements of a character between two texts (Levenshtein, 1966).

    >>> edits("kitten", "sitting")
    3
    """
    letters, places = np.array(list(reference)), np.arange(len(reference) + 1)
    row = places
    for letter in text:
        kept = np.minimum(row[1:] + 1, row[:-1] + (letters != letter))
        # The least over all numbers of insertions to the left, each of which costs 1.
        row = np.minimum.accumulate(np.concatenate(([row[0] + 1], kept)) - places) + places
    return int(row[-1])
