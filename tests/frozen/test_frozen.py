"""Checkpoints of users go on working: what the fixtures' checkpoints put out is what it was when they were made.

`make` wrote them; it says how, and they are not written again. A failure names what changed. Should a difference be
wanted, because a checkpoint's outputs were wrong, say so in the changelog before its fixture is written again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.covering import kept

from . import observe
from .cases import BLOCKS, CASES, MECHANISMS, SERVES

FIXTURES = sorted(file.parent for file in observe.DATA.glob("*/expected.pt"))
CHANGES = {  # options of a plan that fit the same weights
    "nmt-leap": {"decoder_cross_attention": "leap,softmax"},
    "nmt-relu": {"encoder_self_attention": "elu"},
    "nmt-abc-window": {"decoder_self_attention": "abc-dilated"},
    "nmt-abc-random": {"abc_seed": 2},
    "nmt-abc-literal": {"abc_empty_slots": "mask"},
    "nmt-cosformer": {"cosformer_length": 11},
    "nmt-cosformer-ratio": {"length_ratio": 2.0},
    "nmt-rope": {"rope_theta": 100.0},
    "nmt-elu": {"normalizer_floor": 9.0},
    "nmt-luna": {"luna_activation": "softplus2"},
    "lm-options": {"luna_activation": "elu1"},
    "mlm-luna-packed": {"pooling": "mean"},
    "s2t-causal": {"encoder_causal": False, "encoder_chunk_ms": 80},
    "simulst-causal": {"waitk_lagging": "2"},
    "simulst-chunks": {"encoder_right_context_ms": 40},
    "simulst-whole-softmax": {"fixed_pre_decision_ratio": 2},
    "tts-cosformer-lookup": {"length_predictor": "ratio"},
}


def expected_of(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "expected.pt", weights_only=True)


def check(expected: Any, found: Any) -> None:
    """Raise AssertionError with all differences."""
    differ = list(observe.differences(expected, found))
    if differ:
        raise AssertionError("\n".join(differ))


def observed(folder: Path, kind: str, **loading: Any) -> dict[str, Any]:
    """What a checkpoint puts out by itself, without streams, if it is loaded in another way."""
    model, task = observe.load(folder / "checkpoint.pt", kind, **loading)
    return observe.observed(model, task, kind, observe.inputs_of(kind))


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_a_checkpoint_puts_out_what_it_did(folder: Path) -> None:
    torch.load(folder / "checkpoint.pt", weights_only=True)
    expected = expected_of(folder)
    check(expected["outputs"], observe.outputs(folder, expected["kind"], expected["streams"]))


def test_every_case_is_there() -> None:
    assert {folder.name for folder in FIXTURES} == {*CASES}


def test_every_mechanism_is_there_in_every_block_that_it_serves() -> None:
    found = set()
    for case in CASES.values():
        words = case.flags.split()
        for block in BLOCKS:
            if f"--{block}-attention" in words:
                plan = words[words.index(f"--{block}-attention") + 1]
                found |= {(name, block) for name in plan.split(",")}
    assert found == {(name, block) for name in MECHANISMS for block in SERVES.get(name, BLOCKS)}


def test_the_fixtures_are_small() -> None:
    assert sum(file.stat().st_size for file in observe.DATA.rglob("*") if file.is_file()) < 3.5e6


# --------------------------------------------------------------------------------------- the tests above can fail
@pytest.mark.parametrize("name", kept(CHANGES, *[*CHANGES][::3]))
def test_another_plan_or_option_is_noticed(name: str) -> None:
    expected, folder = expected_of(observe.DATA / name), observe.DATA / name
    outputs = {key: value for key, value in expected["outputs"].items() if not key.startswith("stream")}
    check(outputs, observed(folder, expected["kind"]))
    with pytest.raises(AssertionError, match="differs by|became"):
        check(outputs, observed(folder, expected["kind"], **CHANGES[name]))


@pytest.mark.parametrize(
    "name", ["nmt-leap", "nmt-abc-mlp", "nmt-abc-linformer", "nmt-luna", "lm-bounded", "mlm-linear"]
)
def test_another_parameter_of_a_mechanism_is_noticed(name: str) -> None:
    folder, expected = observe.DATA / name, expected_of(observe.DATA / name)
    whole = observe.checkpoint_utils.load_checkpoint_to_cpu(
        str(folder / "checkpoint.pt"), {"data": str(observe.folder_of(expected["kind"])), "load_checkpoint_heads": True}
    )
    own = [key for key, value in whole["model"].items() if ".mechanism." in key and value.is_floating_point()]
    assert own
    state = copy.deepcopy(whole)
    state["model"][own[0]].mul_(1.02)
    for key in own[1:]:  # layers may have it in common
        if torch.equal(whole["model"][key], whole["model"][own[0]]):
            state["model"][key].copy_(state["model"][own[0]])
    with pytest.raises(AssertionError, match="differs by"):
        check(expected["outputs"]["forward"], observed(folder, expected["kind"], state=state)["forward"])


def _set(*path: Any, to: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A function that changes one value deep inside outputs."""

    def change(outputs: Any) -> None:
        for key in path[:-1]:
            outputs = outputs[key]
        outputs[path[-1]] = to(outputs[path[-1]])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("steps, beam 3", "bytes", to=lambda n: n + 4), "steps, beam 3, bytes: .* became"),
        (_set("stream 0", 0, "tokens", 2, to=lambda token: token + 1), "stream 0, 0, tokens, 2: .* became"),
        (_set("stream 0", 1, "delays", -1, to=lambda n: n + 700), "stream 0, 1, delays, .* became"),
        (_set("hypotheses, beam 3", 0, 1, "score", to=lambda score: score + 2e-5), "beam 3, 0, 1, score: .* became"),
        (_set("hypotheses, beam 1", 0, 0, "tokens", to=lambda tokens: tokens[:-1]), "tokens: has the parts"),
        (_set("forward", "logits", to=lambda x: x + 2e-5), "forward, logits: differs by 2.*e-05"),
        (_set("forward", "attention", to=lambda x: None), "forward, attention: .* became None"),
        (lambda outputs: outputs.pop("stream 0"), "has the parts"),
    ],
)
def test_the_comparison_notices(change: Callable[[Any], None], message: str) -> None:
    expected = expected_of(observe.DATA / "simulst-causal")["outputs"]
    changed = copy.deepcopy(expected)
    check(expected, changed)
    change(changed)
    with pytest.raises(AssertionError, match=message):
        check(expected, changed)
