"""fairseq's losses for translation and for text to speech, plus the loss of a length predictor."""

# No `from __future__ import annotations`: fairseq reads the types of the configurations' fields.
from dataclasses import dataclass, field
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.criterions.tacotron2_loss import Tacotron2Criterion, Tacotron2CriterionConfig
from fairseq.logging import metrics
from torch import Tensor, nn

from ..models.encoder_out import LEARNING, Learning
from ..models.length_predictors import LengthPredictor
from .recorder import Recorder


class WithLength(FairseqCriterion):
    """Mixin for criterions: adds the length predictor's loss, and passes it the durations in the data.

    The length predictor's loss is a mean over the batch; `summed` says that the criterion's loss is a sum over
    `sample_size`, to which the mean is scaled.
    """

    summed: bool
    length_loss_weight: float

    def forward(self, model: nn.Module, sample: dict[str, Any], *args: Any, **kwargs: Any) -> tuple[Tensor, int, Any]:
        recorder = Recorder(model)
        loss, sample_size, log = super().forward(recorder, sample, *args, **kwargs)
        for learning in recorder.output[-1]["encoder_out"].get(LEARNING, ()):
            length_loss = self.length_loss(model, learning, sample.get("durations"))
            if length_loss is not None:
                scale = self.length_loss_weight * (sample_size if self.summed else 1)
                loss = loss + scale * length_loss
                log["loss"], log["length_loss"] = utils.item(loss.data), utils.item(length_loss.data)
        return loss, sample_size, log

    def length_loss(self, model: Any, learning: Learning, durations: Tensor | None) -> Tensor | None:
        """The predictor's loss; None if it has none. A predictor without gradients learns the durations here."""
        predictor: LengthPredictor = model.encoder.length_predictor
        if durations is not None and predictor.training:
            predictor.observe_durations(learning.source, durations)
        if learning.log_durations is None:
            return None
        return predictor.loss(learning.log_durations, learning.source, durations)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        super().reduce_metrics(logging_outputs)
        logs = [log for log in logging_outputs if "length_loss" in log]
        total = sum(log["sample_size"] for log in logs)
        if total:
            mean = sum(log["length_loss"] * log["sample_size"] for log in logs) / total
            metrics.log_scalar("length_loss", mean, total, round=3)


WEIGHT_HELP = {"help": "weight of the length predictor's loss"}


@dataclass
class LabelSmoothedCrossEntropyWithLengthConfig(LabelSmoothedCrossEntropyCriterionConfig):
    length_loss_weight: float = field(default=1.0, metadata=WEIGHT_HELP)


@register_criterion("label_smoothed_cross_entropy_with_length", dataclass=LabelSmoothedCrossEntropyWithLengthConfig)
class LabelSmoothedCrossEntropyWithLength(WithLength, LabelSmoothedCrossEntropyCriterion):
    """label_smoothed_cross_entropy for translation of text or speech with `--length-predictor conv`."""

    summed = True

    def __init__(self, cfg: LabelSmoothedCrossEntropyWithLengthConfig, task: Any) -> None:
        super().__init__(task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy)
        self.length_loss_weight = cfg.length_loss_weight

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return False  # the logs contain a mean


@dataclass
class Tacotron2WithLengthConfig(Tacotron2CriterionConfig):
    length_loss_weight: float = field(default=1.0, metadata=WEIGHT_HELP)


@register_criterion("tacotron2_with_length", dataclass=Tacotron2WithLengthConfig)
class Tacotron2WithLength(WithLength, Tacotron2Criterion):
    """tacotron2 for text to speech with a length predictor: `lookup` averages durations, `conv` is trained on them."""

    summed = False

    def __init__(self, cfg: Tacotron2WithLengthConfig, task: Any) -> None:
        guided = cfg.use_guided_attention_loss, cfg.guided_attention_loss_sigma
        super().__init__(task, cfg.sentence_avg, *guided, cfg.bce_pos_weight, cfg.ctc_weight)
        self.length_loss_weight = cfg.length_loss_weight
