"""fairseq's loss for simultaneous translation, with less weight on tokens that are due before they are heard."""

# No `from __future__ import annotations`: fairseq reads the types of the configurations' fields.
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor

from ..runtime.schedule import unheard
from ..support.errors import LeapformerError


@dataclass
class WaitKConfig(LabelSmoothedCrossEntropyCriterionConfig):
    unheard_weight: float = field(
        default=1.0,
        metadata={
            "help": "weight in training of target tokens that wait-k asks for before their share of the speech was "
            "heard; 0 leaves them out, 1 is label_smoothed_cross_entropy"
        },
    )


@register_criterion("label_smoothed_cross_entropy_wait_k", dataclass=WaitKConfig)
class LabelSmoothedCrossEntropyWaitK(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy with less weight on tokens that wait-k asks for before they are heard.

    For `leapformer_simulst` with schedules that outrun the speech. Which tokens these are follows from the k of the
    pass, see `schedule.unheard`. The sum of the weighted losses is divided by the number of all tokens. Perplexity and
    validation are not weighted. Raises LeapformerError for a negative weight and for models without wait-k.
    """

    def __init__(self, cfg: WaitKConfig, task: Any) -> None:
        super().__init__(task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy)
        self.unheard_weight = cfg.unheard_weight
        if not self.unheard_weight >= 0:
            raise LeapformerError(f"--unheard-weight {self.unheard_weight}: give 0 or more")

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """The weighted loss and the unweighted negative log likelihood, summed if `reduce`, else per token."""
        if not hasattr(model.decoder, "mask"):
            raise LeapformerError("--criterion label_smoothed_cross_entropy_wait_k needs --arch leapformer_simulst*")
        mask = model.decoder.mask
        if self.unheard_weight == 1 or mask is None or not model.training:
            return super().compute_loss(model, net_output, sample, reduce)
        loss, nll_loss = super().compute_loss(model, net_output, sample, reduce=False)
        target = model.get_targets(sample, net_output)
        states = (~net_output[1]["encoder_out"]["encoder_padding_mask"][0]).sum(1, keepdim=True)
        tokens = target.ne(self.padding_idx).sum(1, keepdim=True)
        position = torch.arange(target.shape[1], device=target.device)
        # fairseq cuts the ignored prefix off before it computes the losses.
        late = unheard(position, tokens, states, mask.lagging, mask.ratio)[:, self.ignore_prefix_size :]
        loss = loss * torch.where(late, self.unheard_weight, 1.0).to(loss).view_as(loss)
        return (loss.sum(), nll_loss.sum()) if reduce else (loss, nll_loss)
