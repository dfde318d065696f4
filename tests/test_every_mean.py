"""Every mean has the right count: of losses, scores, times and shares, beside a plain loop over unequal parts."""

from __future__ import annotations

import pytest
import torch

from . import losses

# ------------------------------------------------------------------------------------------------------------- losses


def test_every_criterion_of_ours_is_looked_at():
    assert set(losses.OURS) == set(losses.CASES)


@pytest.mark.parametrize("name", [name for name, case in losses.CASES.items() if case.means])
def test_a_logged_loss_does_not_depend_on_how_sentences_are_batched(name):
    """Of one batch, of two of unequal size, and of one for each sentence."""
    torch.manual_seed(0)
    case = losses.CASES[name]
    sample = case.sample()
    count = len(sample["lengths"])
    found = {}
    for batches in ([range(count)], [range(1), range(1, count)], [range(count - 1), [count - 1]], [[i] for i in range(count)]):
        logs = [losses.outcome(name, losses.part(sample, list(rows)))[2] for rows in batches]
        found[len(batches), len(list(batches[0]))] = losses.reduced(name, logs)
    whole = found[1, count]
    for batches, values in found.items():
        for mean in case.means:
            assert values[mean] == pytest.approx(whole[mean], abs=2e-3), (batches, mean)
    assert set(case.means) <= whole.keys()


def test_a_classifiers_loss_and_accuracy_are_those_of_a_loop():
    torch.manual_seed(0)
    sample = losses.classes()
    logits, target = sample["net_input"]["x"], sample["target"]
    values = losses.reduced("leapformer_classification", [losses.outcome("leapformer_classification", sample)[2]])
    bits = [-float(row.log_softmax(0)[label]) / torch.log(torch.tensor(2.0)) for row, label in zip(logits, target)]
    right = [int(row.argmax()) == int(label) for row, label in zip(logits, target)]
    assert values["loss"] == pytest.approx(float(sum(bits) / 7), abs=1e-3)
    assert values["accuracy"] == pytest.approx(100 * sum(right) / 7, abs=1e-3)


def test_errors_of_blocks_are_means_over_batches():
    torch.manual_seed(0)
    sample = losses.CASES["leapformer_alignment"].sample()
    logs = [losses.outcome("leapformer_alignment", losses.part(sample, rows))[2] for rows in ([0], [1, 2])]
    values = losses.reduced("leapformer_alignment", logs)
    names = {name for name in logs[0] if name == "loss" or name.startswith("error_")}
    assert len(names) == 7
    for name in names:
        assert values[name] == pytest.approx((logs[0][name] + logs[1][name]) / 2, abs=1e-3), name
