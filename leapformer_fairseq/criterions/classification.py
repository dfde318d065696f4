"""Cross-entropy and accuracy of a classifier; the accuracy is logged to a thousandth of a per cent."""

import math
from typing import Any

import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.logging import metrics
from torch import Tensor, nn


@register_criterion("leapformer_classification")
class ClassificationCriterion(FairseqCriterion):
    """Cross-entropy and accuracy of `--task leapformer_classification`.

    `--best-checkpoint-metric accuracy --maximize-best-checkpoint-metric` keeps the checkpoint with the best accuracy.
    """

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The summed loss (per example unless `reduce`), the number of examples, and the values to log."""
        logits = model(**sample["net_input"])
        target = sample["target"]
        loss = F.cross_entropy(logits.float(), target, reduction="sum" if reduce else "none")
        log = {
            "loss": loss.detach().sum(),
            "correct": (logits.argmax(-1) == target).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": len(target),
            "sample_size": len(target),
        }
        return loss, len(target), log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        loss, correct, count = (
            sum(log[name] for log in logging_outputs) for name in ("loss", "correct", "sample_size")
        )
        # fairseq's convention: losses are logged in base 2.
        metrics.log_scalar("loss", loss / count / math.log(2), count, round=3)
        metrics.log_scalar("accuracy", 100.0 * float(correct) / count, count, round=3)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True
