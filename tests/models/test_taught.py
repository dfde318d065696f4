"""How far predictions are from a teacher's: equal to the formulas, of real tokens alone, and with useful gradients."""

from __future__ import annotations

import pytest
import torch

from leapformer_fairseq.criterions import divergence as fused
from leapformer_fairseq.criterions.divergence import divergence
from leapformer_fairseq.criterions.taught import Predicted, checked, distance
from leapformer_fairseq.support.errors import LeapformerError

from .tiny import make_model

PAD = 1
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}


def text(rows: int = 3, length: int = 6):
    tokens, target = torch.randint(4, 30, (2, rows, length))
    target[1, 4:] = PAD
    return {"src_tokens": tokens, "src_lengths": torch.full((rows,), length), "prev_output_tokens": target}, target


def models(plan: str = "leap"):
    return make_model("leapformer_nmt_tiny", "softmax"), make_model("leapformer_nmt_tiny", plan, seed=1)


def test_it_is_the_divergence_of_real_tokens():
    (teacher, student), (batch, target) = models(), text()
    outputs = teacher(**batch), student(**batch)
    found = distance(Predicted(teacher, outputs[0]), Predicted(student, outputs[1]), {"target": target})
    p, q = (output[0].softmax(-1)[target.ne(PAD)] for output in outputs)
    expected = (p * (p / q).log()).sum(-1)
    assert found.summed and int(found.tokens) == len(expected)
    torch.testing.assert_close(found.total.double(), expected.sum().double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.mean.double(), expected.mean().double(), rtol=1e-5, atol=0)
    same = Predicted(teacher, outputs[0])
    assert float(distance(same, same, {"target": target}).total) == 0


@pytest.mark.parametrize("at_a_time", [1, 25, 2**20])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_divergence_and_gradient_are_those_of_autograd(dtype, at_a_time, monkeypatch):
    monkeypatch.setattr(fused, "AT_A_TIME", at_a_time)
    teacher, student = (torch.randn(3, 4, 11).to(dtype).requires_grad_() for _ in range(2))
    real = torch.rand(3, 4) < 0.7
    p, q = (x.detach().double().requires_grad_() for x in (teacher, student))
    rows = (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)
    found, expected = divergence(teacher, student, real), (rows * real).sum()
    tolerance = dict.fromkeys(("rtol", "atol"), TOLERANCE[dtype])
    torch.testing.assert_close(found.double(), expected, **tolerance)
    (found * 3).backward()
    (expected * 3).backward()
    torch.testing.assert_close(student.grad.double(), q.grad, **tolerance)
    assert student.grad.dtype == dtype and teacher.grad is None
    assert not student.grad[~real].any() and student.grad[real].any()


def test_its_gradients_lead_to_the_teacher():
    (teacher, student), (batch, target) = models(), text()
    teacher.requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
    found, sample = [], {"target": target}
    for _ in range(30):
        loss = distance(Predicted(teacher, teacher(**batch)), Predicted(student, student(**batch)), sample).mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    assert found[-1] < 0.1 * found[0]


def test_an_adaptive_softmax_has_fairseqs_probabilities_and_gradients():
    options = {"adaptive_softmax_cutoff": "10,20", "adaptive_softmax_dropout": 0.0, "tokens_per_sample": 16}
    teacher, student = (
        make_model("leapformer_lm_tiny", plan, seed=seed, **options) for plan, seed in (("softmax", 0), ("leap", 1))
    )
    tokens, target = text()[0]["src_tokens"], text()[1]
    outputs = {model: model(tokens) for model in (teacher, student)}
    with torch.no_grad():
        p, q = (model.get_normalized_probs(output, log_probs=True) for model, output in outputs.items())
    found = distance(*map(Predicted, outputs.keys(), outputs.values()), {"target": target})
    expected = (p.exp() * (p - q)).sum(-1)[target.ne(PAD)].sum()
    torch.testing.assert_close(found.total.double(), expected.double(), rtol=1e-4, atol=0)
    found.total.backward()
    assert any(parameter.grad is not None for parameter in student.decoder.adaptive_softmax.parameters())
    assert all(parameter.grad is None for parameter in teacher.decoder.adaptive_softmax.parameters())


def test_speech_is_compared_before_and_after_the_post_net_and_at_its_end():
    post, pre, end = torch.randn(2, 5, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 1)
    other_post, other_pre, other_end = torch.randn(2, 5, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 1)
    lengths = torch.tensor([5, 3])
    teacher, student = (post, end, {"feature_out": pre}), (other_post, other_end, {"feature_out": other_pre})
    found = distance(Predicted(None, teacher), Predicted(None, student), {"target_lengths": lengths})
    expected = 0.0
    for i, length in enumerate(lengths.tolist()):
        for t in range(length):
            expected += float((post - other_post)[i, t].abs().mean() + (pre - other_pre)[i, t].abs().mean())
            p, q = float(end[i, t].sigmoid()), float(other_end[i, t].sigmoid())
            p, q = torch.tensor([p, 1 - p]), torch.tensor([q, 1 - q])
            expected += float((p * (p / q).log()).sum())
    assert not found.summed and int(found.tokens) == 8
    assert float(found.total) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(LeapformerError, match="^--distillation-weight .*: give 0 to 1$"):
        checked("--distillation-weight", weight, 1)
