"""Every option of the models and tasks that this package adds changes the model, its training, or what it reads."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.speech_to_text.convtransformer import ConvTransformerModel
from torch import Tensor

from leapformer_fairseq.data.arrays import About, Example, write_about, write_split
from leapformer_fairseq.models.classifier import LeapformerClassifier
from leapformer_fairseq.models.length_predictors import length_options
from leapformer_fairseq.models.simulst import LeapformerSimulSTModel
from leapformer_fairseq.modules import add_attention_args
from leapformer_fairseq.tasks.classification import ClassificationConfig, ClassificationTask

from .models.tiny import make_model, speech_batch, target_prefix

SMALL = {
    "encoder_layers": 1, "encoder_embed_dim": 16, "encoder_attention_heads": 2, "encoder_ffn_embed_dim": 12,
    "classifier_width": 10, "max_positions": 20, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip
CLASSIFIER: dict[str, Any] = {
    "encoder_layers": 2, "encoder_embed_dim": 24, "encoder_attention_heads": 4, "encoder_ffn_embed_dim": 20,
    "encoder_normalize_before": False, "classifier_width": 14, "activation_fn": "relu", "dropout": 0.5,
    "attention_dropout": 0.5, "activation_dropout": 0.5, "max_positions": 7, "positions": ("sinusoidal", "none"),
    "pooling": ("mean", "padded-mean", "packed"), "checkpoint_activations": True, "freeze": "classifier",
    "pairs": "concatenated", "embedding_std": 0.5,
}  # fmt: skip
WITH: dict[Any, dict[str, Any]] = {"packed": {"encoder_self_attention": "luna"}, "concatenated": {"inputs": 2}}


def own_options(add_args: Any, *others: Any) -> set[str]:
    """The options that one function declares and no other."""

    def of(function: Any) -> set[str]:
        parser = argparse.ArgumentParser(conflict_handler="resolve")
        function(parser)
        return {action.dest for action in parser._actions} - {"help"}

    return of(add_args).difference(*map(of, others))


def outcome(model: Any, *given: Any, **more: Any) -> list[Any]:
    """What comes out in training, what is trained, and how much there is."""
    model.train()
    torch.manual_seed(3)
    out = model(*given, **more)
    out = out if isinstance(out, Tensor) else out[0]
    out.float().square().sum().backward()
    trained = sorted(name for name, parameter in model.named_parameters() if parameter.grad is not None)
    kinds = [type(part).__name__ for part in model.modules()]
    functions = ["forward" in vars(part) for part in model.modules()]
    return [out.detach(), trained, sum(one.numel() for one in model.parameters()), kinds, functions]


def alike(one: list[Any], other: list[Any]) -> bool:
    return one[1:] == other[1:] and one[0].shape == other[0].shape and torch.equal(one[0], other[0])


def classified(inputs: int = 1, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    args = Namespace(**{"encoder_self_attention": "softmax", **SMALL, **options})
    ARCH_CONFIG_REGISTRY["leapformer_classifier"](args)
    model = LeapformerClassifier.build_model(args, SimpleNamespace(about=About(12, 3, inputs)))
    begun = model.encoder.embed_tokens.weight[0, :4].tolist()
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(len(name))
        parameter.data = torch.randn(parameter.shape, generator=generator) / 3
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10, 1, 2], [5, 5, 7, 0, 0, 0, 0, 0, 0, 0]])
    return [*outcome(model, [tokens] * inputs), begun]


def test_every_option_of_the_classifier_is_known_here() -> None:
    plans = own_options(lambda parser: add_attention_args(parser, ("encoder",))) - CLASSIFIER.keys()
    assert own_options(LeapformerClassifier.add_args) - plans == CLASSIFIER.keys()


@pytest.mark.parametrize("option", CLASSIFIER)
def test_every_option_of_the_classifier_changes_it(option: str) -> None:
    values = CLASSIFIER[option] if isinstance(CLASSIFIER[option], tuple) else (CLASSIFIER[option],)
    found = []
    for value in values:
        more = WITH.get(value, {})
        before = classified(**more)
        assert alike(before, classified(**more)), "nothing else changes it"
        after = classified(**more, **{option: value})
        assert not alike(before, after), f"{option}={value} changes nothing"
        found.append(after)
    assert all(not alike(one, other) for i, one in enumerate(found) for other in found[:i])


@pytest.mark.parametrize("pooling", ["cls", "mean", "packed"])
def test_a_sequence_is_classified_the_same_however_it_is_padded(pooling: str) -> None:
    torch.manual_seed(0)
    args = Namespace(**{"encoder_self_attention": "luna", **SMALL, "pooling": pooling})
    ARCH_CONFIG_REGISTRY["leapformer_classifier"](args)
    model = LeapformerClassifier.build_model(args, SimpleNamespace(about=About(12, 3))).double().eval()
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8], [5, 5, 7, 0, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(model([tokens])[1], model([tokens[1:, :3]])[0])


def arrays(folder: Path) -> ClassificationConfig:
    about = About(30, 3)
    write_about(folder, about)
    for split, count in (("train", 12), ("valid", 9), ("test", 5)):
        write_split(folder, split, (Example((np.arange(1, 4 + n),), n % 3) for n in range(count)), about)
    config = ClassificationConfig(data=str(folder))
    config.seed = 1
    return config


TASK = {"longest": 3, "padded_length": 5000, "valid_examples": 4, "seed": 2}


@pytest.mark.parametrize("option", [field.name for field in fields(ClassificationConfig) if field.name in TASK])
def test_every_option_of_the_task_changes_what_is_read(option: str, tmp_path: Path) -> None:
    def read(config: ClassificationConfig) -> str:
        task = ClassificationTask.setup_task(config)
        found = []
        for split in ("train", "valid"):
            task.load_dataset(split)
            data = task.datasets[split]
            order = data.ordered_indices()
            found.append((len(data), order.tolist(), data.collater([data[int(i)] for i in order])))
        return str(found)

    config = arrays(tmp_path)
    assert {field.name for field in fields(ClassificationConfig)} - {"_name", "data"} == TASK.keys()
    before = read(config)
    setattr(config, option, TASK[option])
    assert read(config) != before


# -------------------------------------------------------------------------------------------------------------- speech
SPEECH: dict[str, tuple[Any, dict[str, Any]]] = {
    "conv_kernel_sizes": ("4,4,4", {}),
    "encoder_causal": (True, {}),
    "encoder_chunk_ms": (80, {}),
    "encoder_right_context_ms": (40, {"encoder_chunk_ms": 80}),
    "encoder_past_ms": (80, {"encoder_chunk_ms": 80}),
    "encoder_freezing_updates": (3, {}),
    "waitk_lagging": ("1", {}),
    "fixed_pre_decision_ratio": (1, {}),
    "length_predictor": ("oracle", {}),
}
ELSEWHERE = {"join_sentences", "speed_perturbation"}  # models/test_task.py


def translated(**options: Any) -> list[Any]:
    """A training pass of a softmax model, all of whose parameters depend on their names alone."""
    still = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    given = {"waitk_lagging": "2", "fixed_pre_decision_ratio": 2, **still, **options}
    model = make_model("leapformer_simulst_tiny", "softmax", **given)
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(len(name))
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.double) / 3
    torch.manual_seed(0)
    return outcome(model, **speech_batch(), prev_output_tokens=target_prefix(3, 5))


def test_every_option_of_speech_models_is_known_here() -> None:
    ours = own_options(LeapformerSimulSTModel.add_args, ConvTransformerModel.add_args, add_attention_args)
    assert ours - {option.name for option in length_options()} == SPEECH.keys() | ELSEWHERE


@pytest.mark.parametrize("option", SPEECH)
def test_every_option_of_speech_models_changes_them(option: str) -> None:
    value, more = SPEECH[option]
    before = translated(**more)
    assert alike(before, translated(**more)), "nothing else changes it"
    assert not alike(before, translated(**more, **{option: value}))


def test_the_encoder_is_frozen_for_so_many_updates() -> None:
    model = make_model("leapformer_s2t_tiny", "leap", encoder_freezing_updates=3).train()
    for update in range(5):
        model.set_num_updates(update)
        model.zero_grad(set_to_none=True)
        model(**speech_batch(), prev_output_tokens=target_prefix(3, 4))[0].sum().backward()
        trained = {name.partition(".")[0] for name, one in model.named_parameters() if one.grad is not None}
        assert trained == ({"decoder"} if update < 3 else {"encoder", "decoder"}), update
