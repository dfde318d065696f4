"""The loss of tokens that wait-k asks for too early: that of fairseq with weight 1, none of them with weight 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor

from leapformer_fairseq.criterions.wait_k import LabelSmoothedCrossEntropyWaitK, WaitKConfig
from leapformer_fairseq.runtime.schedule import unheard
from leapformer_fairseq.support.errors import LeapformerError

from .tiny import dictionary, make_model, speech_batch

PAD, EOS = 1, 2
FRAMES, TOKENS = (61, 50, 33), (4, 7, 5)  # 16, 13 and 9 states
TASK = SimpleNamespace(target_dictionary=dictionary())
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def model_of(lagging: str = "1", ratio: int = 2) -> Any:
    options = {"waitk_lagging": lagging, "fixed_pre_decision_ratio": ratio, **STILL}
    return make_model("leapformer_simulst_tiny", "leap", **options).train()


def sample() -> dict[str, Any]:
    torch.manual_seed(5)
    target = torch.full((len(TOKENS), max(TOKENS)), PAD)
    for i, length in enumerate(TOKENS):
        target[i, :length] = torch.cat([torch.randint(4, 34, (length - 1,)), torch.tensor([EOS])])
    ends = torch.full_like(target[:, :1], EOS)
    before = torch.cat([ends, target[:, :-1].masked_fill(target[:, :-1].eq(EOS), PAD)], 1)
    net_input = {**speech_batch(FRAMES), "prev_output_tokens": before}
    return {"net_input": net_input, "target": target, "ntokens": sum(TOKENS)}


def criterion(weight: float | None, ignored: int = 0) -> LabelSmoothedCrossEntropyCriterion:
    if weight is None:
        return LabelSmoothedCrossEntropyCriterion(TASK, False, 0.1, ignored, True)
    settings = {"label_smoothing": 0.1, "ignore_prefix_size": ignored, "report_accuracy": True}
    return LabelSmoothedCrossEntropyWaitK(WaitKConfig(**settings, sentence_avg=False, unheard_weight=weight), TASK)


def outcome(model: Any, weight: float | None, ignored: int = 0) -> tuple[Tensor, Any, list[Tensor | None]]:
    model.zero_grad()
    loss, size, log = criterion(weight, ignored)(model, sample())
    loss.backward()
    return loss.detach(), (size, log), [p.grad.clone() if p.grad is not None else None for p in model.parameters()]


def check_equal(found: Any, expected: Any) -> None:
    assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
    for one, other in zip(found[2], expected[2], strict=True):
        assert one is other is None or torch.equal(one, other)


def late(lagging: int, ratio: int) -> Tensor:
    tokens, states = torch.tensor(TOKENS)[:, None], -(-torch.tensor(FRAMES)[:, None] // 4)
    return unheard(torch.arange(max(TOKENS)), tokens, states, lagging, ratio)


def test_weight_one_is_the_loss_of_fairseq() -> None:
    model = model_of()
    assert late(1, 2).any() and WaitKConfig().unheard_weight == 1
    assert LabelSmoothedCrossEntropyCriterionConfig in WaitKConfig.__bases__
    check_equal(outcome(model, 1.0), outcome(model, None))


@pytest.mark.parametrize("ignored", [0, 1])
@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_the_loss_is_that_of_each_token_by_its_weight(weight: float, ignored: int) -> None:
    model = model_of("2")  # a row is heard first, then not
    found = outcome(model, weight, ignored)
    tokens, _ = criterion(None, ignored).compute_loss(model, model(**sample()["net_input"]), sample(), reduce=False)
    weights = torch.where(late(2, 2), weight, 1.0)[:, ignored:].reshape(-1, 1)
    torch.testing.assert_close(found[0], (tokens * weights).sum())
    assert (weights * (tokens > 0)).sum() < (tokens > 0).sum()
    stock = outcome(model, None, ignored)
    assert found[1][1]["nll_loss"] == pytest.approx(float(stock[1][1]["nll_loss"])), "perplexity is not weighted"
    assert found[1][0] == stock[1][0], "all tokens count"


def test_weight_zero_gives_no_gradient_from_early_tokens() -> None:
    """The gradient at the logits: nothing where a token is early, else as without weights."""
    model, grads = model_of(), {}
    for weight in (0.0, None):
        output, extra = model(**sample()["net_input"])
        output.retain_grad()
        criterion(weight).compute_loss(model, (output, extra), sample())[0].backward()
        grads[weight] = output.grad.abs().sum(-1)
    early, real = late(1, 2), sample()["target"].ne(PAD)
    assert early.any() and (real & ~early).any()
    assert grads[0.0][early].eq(0).all() and grads[None][early].ne(0).all()
    torch.testing.assert_close(grads[0.0][~early], grads[None][~early])


@pytest.mark.parametrize("of", ["validation", "whole sources", "a step that suits"])
def test_where_nothing_is_early_it_is_the_loss_of_fairseq(of: str) -> None:
    model = {"whole sources": model_of("offline"), "a step that suits": model_of("1", 4)}.get(of, model_of())
    if of == "validation":
        model.eval()
    found, expected = outcome(model, 0.0), outcome(model, None)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[2], expected[2])


def test_the_k_that_was_drawn_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw = model_of("1-2"), torch.randint
    for place in (0, 1):
        monkeypatch.setattr(torch, "randint", lambda *s, at=place: torch.tensor(at) if len(s) == 2 else draw(*s))
        tokens, _ = criterion(None).compute_loss(model, model(**sample()["net_input"]), sample(), reduce=False)
        expected = (tokens.view(late(1, 2).shape) * ~late(place + 1, 2)).sum()
        torch.testing.assert_close(outcome(model, 0.0)[0], expected.detach())
    assert late(1, 2).sum() > late(2, 2).sum()


def test_what_it_is_not_for() -> None:
    with pytest.raises(LeapformerError, match="--unheard-weight -1: give 0 or more"):
        criterion(-1)
    with pytest.raises(LeapformerError, match="needs --arch leapformer_simulst"):
        criterion(0.5)(make_model("leapformer_s2t_tiny"), sample())
