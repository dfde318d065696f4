"""`--optimizer apollo`: options arrive, training goes on where it was, and a missing package is named."""

from __future__ import annotations

import sys
from argparse import Namespace
from copy import deepcopy
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import FairseqOptimizer, build_optimizer

from leapformer_fairseq import register
from leapformer_fairseq.optim.apollo import ApolloConfig
from leapformer_fairseq.support.errors import LeapformerError

register()
CURVATURE = torch.tensor([0.002, 0.005, 0.01], dtype=torch.float64)  # times 1 / 0.01, the least Hessian, below 2 / lr


def optimizer(parameter: torch.Tensor, *words: str) -> FairseqOptimizer:
    parser = options.get_training_parser()
    given = ["data", "--optimizer", "apollo", "--lr", "0.5", "--arch", "leapformer_nmt_tiny", *words]
    args = options.parse_args_and_arch(parser, given)
    return build_optimizer(convert_namespace_to_omegaconf(Namespace(**vars(args))).optimizer, [parameter])


def descend(found: FairseqOptimizer, parameter: torch.Tensor, updates: int, steepness: float = 1) -> list[float]:
    losses = []
    for _ in range(updates):
        found.zero_grad()
        loss = (steepness * CURVATURE * parameter**2).sum() / 2
        loss.backward()
        losses.append(loss.item())
        found.step()
    return losses


def start() -> Any:
    return torch.ones(3, dtype=torch.float64, requires_grad=True)


def test_it_descends():
    parameter = start()
    losses = descend(optimizer(parameter, "--apollo-warmup-updates", "100"), parameter, 300)
    assert losses[-1] < 1e-6 * losses[0]


def test_it_goes_on_from_a_checkpoint():
    parameter = start()
    found = optimizer(parameter, "--apollo-warmup-updates", "40")
    descend(found, parameter, 20)
    again = parameter.detach().clone().requires_grad_()
    resumed = optimizer(again, "--apollo-warmup-updates", "40")
    resumed.load_state_dict(deepcopy(found.state_dict()))
    fresh = parameter.detach().clone().requires_grad_()
    descend(optimizer(fresh, "--apollo-warmup-updates", "40"), fresh, 20)
    assert descend(found, parameter, 20) == descend(resumed, again, 20)
    assert not torch.equal(parameter, fresh), "inverted control: a new optimizer has forgotten"


@pytest.mark.parametrize(
    ("option", "value", "name", "expected"),
    [
        ("--apollo-beta", "0.8", "beta", 0.8),
        ("--apollo-eps", "1e-3", "eps", 1e-3),
        ("--apollo-init-lr", "1", "init_lr", 1),
        ("--weight-decay", "0.1", "weight_decay", 0.1),
        ("--lr", "0.25", "lr", 0.25),
    ],
)
def test_options_arrive(option, value, name, expected):
    assert optimizer(start(), option, value).param_groups[0][name] == expected


OTHER = {
    "apollo_beta": "0.5", "apollo_eps": "0.5", "apollo_warmup_updates": "10", "apollo_init_lr": "0.1",
    "weight_decay": "0.3", "lr": "0.25",
}  # fmt: skip


@cache
def descended(*words: str) -> list[float]:
    parameter = start()
    return descend(optimizer(parameter, "--apollo-warmup-updates", "4", *words), parameter, 12, steepness=100)


@pytest.mark.parametrize("option", [one.name for one in fields(ApolloConfig) if one.name != "_name"])
def test_every_option_changes_the_descent(option):
    assert descended() != descended(f"--{option.replace('_', '-')}", OTHER[option])


@pytest.mark.parametrize("updates", [5, 20])
def test_the_rate_rises_for_so_many_updates(updates):
    """Steps of a parameter whose gradient never changes are as long as the rate, in units of the last one."""
    parameter = start()
    found, steps = optimizer(parameter, "--apollo-warmup-updates", str(updates), "--apollo-init-lr", "0"), []
    for _ in range(updates + 5):
        before = parameter.detach().clone()
        parameter.grad = torch.ones_like(parameter)
        found.step()
        steps.append(float((before - parameter.detach()).mean()))
    assert [step / steps[-1] for step in steps] == pytest.approx([min(1, n / updates) for n in range(1, updates + 6)])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)  # importing it fails
    with pytest.raises(LeapformerError, match="pytorch_optimizer is not installed; pip install"):
        optimizer(start())
