"""Losses of a student that learns from a teacher: from its attention, block by block, or from its predictions.

Shapes: B sentences, T tokens or decoder steps, V words.
"""

# No `from __future__ import annotations`: fairseq reads the types of the configurations' fields.
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion, register_criterion
from fairseq.data.data_utils import lengths_to_mask
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..models.teacher import Teacher, load_teacher
from ..modules.adaptive_softmax import adaptive_log_probs
from ..modules.alignment import ReplacedBlock, compared, replaced_blocks
from ..support.errors import LeapformerError
from .divergence import divergence
from .recorder import Recorder

TASK_LOSS = "task_criterion"  # key of the log: the name of the teacher's criterion
Log = dict[str, Any]


class Predicted(NamedTuple):
    """A model and its output for a batch."""

    model: Any
    output: Any


def checked(option: str, weight: float, most: float = math.inf) -> float:
    """Return the weight of a loss. Raises LeapformerError if it is negative, more than `most`, infinite or NaN."""
    if not 0 <= weight <= most or math.isinf(weight):
        raise LeapformerError(f"{option} {weight}: give {'0 or more' if math.isinf(most) else f'0 to {most}'}")
    return weight


@dataclass
class TaughtConfig(FairseqDataclass):
    teacher: str = field(default="", metadata={"help": "checkpoint of the trained model to learn from"})


class Taught(FairseqCriterion):
    """A criterion with a teacher; the teacher's criterion is used to call models of this task."""

    def __init__(self, cfg: TaughtConfig, task: Any) -> None:
        super().__init__(task)
        # A tuple hides the teacher from nn.Module, so that its parameters are neither trained nor saved.
        self._held: tuple[Teacher] = (load_teacher(cfg.teacher, task),)

    @property
    def teacher_criterion(self) -> FairseqCriterion:
        """The criterion that the teacher was trained with."""
        return self._held[0].criterion

    def teacher_for(self, student: nn.Module) -> Any:
        """The teacher, moved to the student's device and precision."""
        parameter = next(student.parameters())
        return self._held[0].model.to(device=parameter.device, dtype=parameter.dtype)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return False  # the logs contain means and a name


@dataclass
class AlignmentConfig(TaughtConfig):
    align_weights: float = field(
        default=0.1,
        metadata={
            "help": "weight of the cross-entropy of attention weights beside the error of the outputs, where both "
            "mechanisms have weights that sum to one; it takes memory quadratic in the length; 0: outputs alone"
        },
    )


@register_criterion("leapformer_alignment", dataclass=AlignmentConfig)
class Alignment(Taught):
    """Trains each replaced attention block to reproduce the teacher's block on the same inputs.

    The loss is the mean over blocks of |s - t|^2 / |t|^2, for outputs s of the student and t of the teacher, plus
    `align_weights` times the cross-entropy of the attention weights. Only the mechanisms of these blocks and their
    projections get gradients; everything else keeps the teacher's values. Dropout is off. Raises LeapformerError if no
    block is replaced, if the loss is not finite, and for several processes without `--ddp-backend legacy_ddp`.
    """

    def __init__(self, cfg: AlignmentConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.align_weights = checked("--align-weights", cfg.align_weights)
        self._blocks: tuple[nn.Module, list[ReplacedBlock]] | None = None

    def forward(self, model: nn.Module, sample: Any, reduce: bool = True) -> tuple[Tensor, int, Log]:
        student = _unwrapped(model)
        training = student.training
        blocks = self.blocks(student)
        # Its parts in evaluation mode have no dropout, but the model itself stays in training mode: it then draws the
        # k of wait-k.
        student.eval()
        student.training = training
        try:
            with (
                torch.no_grad(),
                compared(blocks, _real_targets(sample, self.padding_idx), self.align_weights > 0) as comparisons,
            ):
                self.teacher_criterion(student, sample)
        finally:
            student.train(training)
        errors = {name: error.output.detach() for name, error in comparisons.items()}
        loss = torch.stack([error.output + self.align_weights * error.weights for error in comparisons.values()]).mean()
        if not torch.isfinite(loss):
            wrong = next((name for name, error in errors.items() if not torch.isfinite(error)), "the weights")
            raise LeapformerError(
                f"alignment of {wrong}: the error is {loss.item()}; lower --lr, or take another mechanism there"
            )
        counts = {name: sample[name] for name in ("ntokens", "nsentences")}
        blockwise = {f"error_{name}": float(error) for name, error in errors.items()}
        return loss, 1, {"loss": loss.item(), "sample_size": 1, **counts, **blockwise}

    def blocks(self, student: nn.Module) -> list[ReplacedBlock]:
        """The blocks in which student and teacher have different mechanisms."""
        teacher = self.teacher_for(student)
        if self._blocks is None or self._blocks[0] is not student:
            self._blocks = student, replaced_blocks(student, teacher)
        if not self._blocks[1]:
            raise LeapformerError("teacher and student have the same mechanisms; change a plan, e.g. --attention leap")
        return self._blocks[1]

    @staticmethod
    def reduce_metrics(logging_outputs: list[Log]) -> None:
        count = len(logging_outputs)
        for name in logging_outputs[0]:
            if name == "loss" or name.startswith("error_"):
                metrics.log_scalar(name, sum(log[name] for log in logging_outputs) / count, count, round=4)


def _unwrapped(model: Any) -> Any:
    """The model inside fairseq's wrappers for several processes."""
    while hasattr(model, "module"):
        # PyTorch's DDP sums only gradients of its own forward pass, which this criterion does not call.
        if isinstance(model, DistributedDataParallel):
            raise LeapformerError(
                "--criterion leapformer_alignment in several processes needs --ddp-backend legacy_ddp"
            )
        model = model.module
    return model


@dataclass
class DistillationConfig(TaughtConfig):
    distillation_weight: float = field(
        default=0.7,
        metadata={
            "help": "weight A of the distance to the teacher's predictions; that of the teacher's own loss is 1 - A"
        },
    )


@register_criterion("leapformer_distillation", dataclass=DistillationConfig)
class Distillation(Taught):
    """Trains a student on a teacher's predictions and on its targets (Hinton et al., 2015, arXiv:1503.02531).

    The loss is A KL(teacher || student) over real target tokens, at temperature 1, plus 1 - A times the criterion that
    the teacher was trained with. For speech output, the distance of predicted frames replaces KL, see `distance`. The
    log's `loss` is the teacher's criterion alone; its `distance` is per token, in nats.
    """

    def __init__(self, cfg: DistillationConfig, task: Any) -> None:
        super().__init__(cfg, task)
        self.weight = checked("--distillation-weight", cfg.distillation_weight, 1)

    def forward(self, model: nn.Module, sample: Any, reduce: bool = True) -> tuple[Tensor, int, Log]:
        recorder = Recorder(model)
        if getattr(self.teacher_for(model).decoder, "guided", False):
            recorder.decoder.guide()  # the teacher's criterion needs the student's alignment
        loss, sample_size, log = self.teacher_criterion(recorder, sample)
        apart = distance(self.predicted(model, recorder), Predicted(model, recorder.output), sample)
        # fairseq's losses for text are sums over tokens, that for speech is a mean over frames: match the other term.
        total = apart.total if apart.summed else apart.mean
        name = next(name for name, kind in CRITERION_REGISTRY.items() if kind is type(self.teacher_criterion))
        log = {**log, "distance": float(apart.mean.detach()), TASK_LOSS: name}
        return self.weight * total + (1 - self.weight) * loss, sample_size, log

    @torch.no_grad()
    def predicted(self, student: nn.Module, recorder: Recorder) -> Predicted:
        """The teacher's output for the inputs that the student was called with, under the same wait-k schedule."""
        teacher = self.teacher_for(student)
        if hasattr(teacher, "set_lagging"):
            mask = recorder.decoder.mask
            teacher.set_lagging(None if mask is None else mask.lagging, None if mask is None else mask.ratio)
        return Predicted(teacher, teacher(*recorder.args, **recorder.options))

    @staticmethod
    def reduce_metrics(logging_outputs: list[Log]) -> None:
        CRITERION_REGISTRY[logging_outputs[0][TASK_LOSS]].reduce_metrics(logging_outputs)
        tokens = sum(log["ntokens"] for log in logging_outputs)
        mean = sum(log["distance"] * log["ntokens"] for log in logging_outputs) / tokens
        metrics.log_scalar("distance", mean, tokens, round=4)


class Distance(NamedTuple):
    """A distance of predictions: its sum over real tokens, their number, and whether the task's loss is a sum, too."""

    total: Tensor
    tokens: Tensor
    summed: bool

    @property
    def mean(self) -> Tensor:
        return self.total / self.tokens.clamp_min(1)


def distance(teacher: Predicted, student: Predicted, sample: Any) -> Distance:
    """The distance of the student's output to the teacher's.

    Text: KL(teacher || student), in nats. Speech: the mean absolute difference of a step's frames, before and after the
    post-net, plus the KL of the prediction that the speech has ended.
    """
    if len(student.output) == 3:  # frames after the post-net, logits of the end (B, T, 1), and more
        return _distance_of_speech(teacher.output, student.output, lengths_to_mask(sample["target_lengths"]))
    with torch.no_grad():
        target = _logits(*teacher)
    real = student.model.get_targets(sample, student.output).ne(student.model.decoder.padding_idx)
    return Distance(divergence(target, _logits(*student), real), real.sum(), summed=True)


def _logits(model: Any, output: Any) -> Tensor:
    """The logits of all words, (B, T, V); for an adaptive softmax, log probabilities.

    fairseq's `get_log_prob` of an adaptive softmax works in place, and so cannot be differentiated.
    """
    adaptive = getattr(model.decoder, "adaptive_softmax", None)
    return output[0] if adaptive is None else adaptive_log_probs(adaptive, output[0])


def _distance_of_speech(teacher: Any, student: Any, real: Tensor) -> Distance:
    pairs = ((student[0], teacher[0]), _before_post_net(student, teacher))
    frames = sum((x - target).abs().mean(-1) for x, target in pairs)
    # Log probabilities of having ended and of going on.
    ended, target = (F.logsigmoid(torch.cat([logits, -logits], -1).float()) for logits in (student[1], teacher[1]))
    end = F.kl_div(ended, target, log_target=True, reduction="none").sum(-1)
    return Distance(((frames + end) * real).sum(), real.sum(), summed=False)


def _before_post_net(student: Any, teacher: Any) -> tuple[Tensor, Tensor]:
    return student[2]["feature_out"], teacher[2]["feature_out"]


def _real_targets(sample: Any, padding_idx: int) -> Tensor:
    """The mask of the decoder's tokens or frames that are not padding, (B, T)."""
    inputs = sample["net_input"]
    tokens = inputs.get("prev_output_tokens", inputs["src_tokens"])
    return tokens.ne(padding_idx) if tokens.dim() == 2 else lengths_to_mask(sample["target_lengths"])
