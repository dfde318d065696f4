"""Our criterions, each with a model and a batch of sentences of unequal lengths, that can be divided."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.logging import metrics

from leapformer_fairseq.criterions import taught
from leapformer_fairseq.models.teacher import Teacher

from .models.tiny import dictionary, make_model, make_tts, speech_batch, text_batch, tts_batch

PAD, EOS = 1, 2
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
TASK = SimpleNamespace(target_dictionary=dictionary(), source_dictionary=dictionary())
Sample = dict[str, Any]


def targets(lengths: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets that end with EOS, and the tokens before them."""
    found = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(found, lengths, strict=True):
        row[:length] = torch.cat([torch.randint(4, 34, (length - 1,)), torch.tensor([EOS])])
    before = torch.cat([torch.full_like(found[:, :1], EOS), found[:, :-1].masked_fill(found[:, :-1].eq(EOS), PAD)], 1)
    return found, before


def _sized(sample: Sample, lengths: Sequence[int]) -> Sample:
    return {**sample, "lengths": tuple(lengths), "ntokens": sum(lengths), "nsentences": len(lengths)}


def of_text(source: dict[str, torch.Tensor]) -> Sample:
    lengths = (4, 9, 6)
    target, before = targets(lengths)
    return _sized({"net_input": {**source, "prev_output_tokens": before}, "target": target}, lengths)


def of_speech() -> Sample:
    return of_text(speech_batch())


def transcribed() -> Sample:
    sample = of_speech()
    return {**sample, "target_lengths": torch.tensor(sample["lengths"])}


def spoken() -> Sample:
    sources, lengths = (9, 6, 4), (7, 11, 3)
    batch = tts_batch(sources, lengths)
    durations = torch.tensor([[3, 2, 1, 0, 2, 1, 2, 3, 0], [4, 9, 1, 6, 2, 0, 0, 0, 0], [2, 3, 1, 0, 0, 0, 0, 0, 0]])
    more = {
        "speaker": None,
        "target": torch.randn(3, max(lengths), 12, dtype=torch.double),
        "target_lengths": batch.pop("target_lengths"),
        "durations": durations,
        "src_lengths": batch["src_lengths"],
        "src_tokens": batch["src_tokens"],
    }
    return _sized({"net_input": batch, **more}, lengths)


def classes() -> Sample:
    sample = _sized({"net_input": {"x": torch.randn(7, 4)}, "target": torch.arange(7) % 4}, (3,) * 7)
    return {**sample, "ntokens": 21}


def part(sample: Sample, rows: Sequence[int]) -> Sample:
    """Some of the sentences, padded as far as all were."""

    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: of(one) for name, one in value.items()}
        return value[list(rows)] if isinstance(value, torch.Tensor) else value

    found = _sized(of(sample), [sample["lengths"][row] for row in rows])
    if "target_lengths" in found and found["target"].dim() == 2:  # CTC reads no further
        found["target"] = found["target"][:, : max(found["lengths"])]
        before = found["net_input"]["prev_output_tokens"]
        found["net_input"]["prev_output_tokens"] = before[:, : max(found["lengths"])]
    return found


@cache
def _translators() -> tuple[Any, Any]:
    return tuple(
        make_model("leapformer_nmt_tiny", plan, seed=seed, **STILL) for seed, plan in ((1, "softmax"), (2, "leap"))
    )


@cache
def _model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "translator":
        return _translators()[1]
    if kind == "with lengths":
        return make_model("leapformer_nmt_tiny", "leap", length_predictor="conv", length_dropout=0.0, **STILL)
    if kind == "wait-k":
        return make_model("leapformer_simulst_tiny", "leap", waitk_lagging="1", fixed_pre_decision_ratio=2, **STILL)
    if kind == "recogniser":
        return make_model("leapformer_s2t_tiny", "leap", ctc_weight=1.0, **STILL)
    if kind == "voice":
        return make_tts(
            "leap", length_predictor="conv", length_dropout=0.0, encoder_dropout=0.0, postnet_dropout=0.0, **STILL
        )
    return lambda x: x


@dataclass(frozen=True)
class Case:
    """A criterion: the `model` it is for, a `sample`, what its options are `other` than here, and its `means`.

    `given`: the configuration. `means`: names in the log that are means over sentences or tokens.
    """

    model: str
    sample: Callable[[], Sample]
    given: Mapping[str, Any]
    other: Mapping[str, Any]
    means: Sequence[str]
    #: what an option is about
    more: Mapping[str, Mapping[str, Any]] | None = None


SMOOTHED = {"sentence_avg": False, "label_smoothing": 0.1, "ignore_prefix_size": 0, "report_accuracy": False}
OTHER_SMOOTHED = {"sentence_avg": True, "label_smoothing": 0.4, "ignore_prefix_size": 1, "report_accuracy": True}
CASES = {
    "leapformer_classification": Case("classifier", classes, {}, {}, ("loss", "accuracy")),
    "label_smoothed_cross_entropy_wait_k": Case(
        "wait-k", of_speech, {**SMOOTHED, "unheard_weight": 0.5}, {**OTHER_SMOOTHED, "unheard_weight": 0.0},
        ("loss", "nll_loss"),
    ),
    "leapformer_recognition": Case(
        "recogniser", transcribed, {**SMOOTHED, "ctc_weight": 1.0}, {**OTHER_SMOOTHED, "ctc_weight": 0.3},
        ("loss", "nll_loss", "ctc_loss", "char_error"),
    ),
    "label_smoothed_cross_entropy_with_length": Case(
        "with lengths", lambda: of_text(text_batch()), {**SMOOTHED, "sentence_avg": True, "length_loss_weight": 0.5},
        {**OTHER_SMOOTHED, "sentence_avg": False, "length_loss_weight": 2.0}, ("loss", "nll_loss", "length_loss"),
    ),
    "tacotron2_with_length": Case(
        "voice", spoken,
        {
            "sentence_avg": True, "use_guided_attention_loss": False, "guided_attention_loss_sigma": 0.4,
            "bce_pos_weight": 5.0, "ctc_weight": 0.0, "length_loss_weight": 0.5,
        },
        {
            "sentence_avg": False, "use_guided_attention_loss": True, "guided_attention_loss_sigma": 0.1,
            "bce_pos_weight": 2.0, "length_loss_weight": 2.0,
        },
        (), {"guided_attention_loss_sigma": {"use_guided_attention_loss": True}},
    ),
    "leapformer_distillation": Case(
        "translator", lambda: of_text(text_batch()), {"distillation_weight": 0.7}, {"distillation_weight": 0.2},
        ("loss", "nll_loss", "distance"),
    ),
    "leapformer_alignment": Case(
        "translator", lambda: of_text(text_batch()), {"align_weights": 0.1}, {"align_weights": 0.9}, ()
    ),
}  # fmt: skip
OURS = sorted(name for name, kind in CRITERION_REGISTRY.items() if kind.__module__.startswith("leapformer_fairseq"))


def options(name: str) -> set[str]:
    """The names of a criterion's options."""
    kind = CRITERION_DATACLASS_REGISTRY.get(name)
    return set() if kind is None else {one.name for one in fields(kind)} - {"_name"}


def outcome(name: str, sample: Sample, training: bool = False, **changed: Any) -> tuple[Any, ...]:
    """The loss, its size and what is logged."""
    case, kind = CASES[name], CRITERION_REGISTRY[name]
    config, task = Namespace(teacher="", **{**case.given, **changed}), TASK
    model = _model(case.model)
    if case.model != "classifier":
        model.train(training)
    if name == "tacotron2_with_length":
        model.decoder.guide()  # as build_model does where the loss looks at its alignment
    own = LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1, report_accuracy=True)
    with patch.object(taught, "load_teacher", lambda *_: Teacher(_translators()[0], own)):
        criterion = kind(config, task) if options(name) else kind(task)
    torch.manual_seed(3)
    loss, size, log = criterion(model, {key: value for key, value in sample.items() if key != "lengths"})
    return float(loss), size, {key: float(one) if hasattr(one, "__float__") else one for key, one in log.items()}


def reduced(name: str, logs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What fairseq logs of several batches."""
    with metrics.aggregate(new_root=True) as found:
        CRITERION_REGISTRY[name].reduce_metrics([dict(log) for log in logs])
    return {key: value for key, value in found.get_smoothed_values().items() if isinstance(value, float)}
