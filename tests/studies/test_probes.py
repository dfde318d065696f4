"""Probes: what they ask has the answers they want, trainings learn, and finished work is found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from leapformer_fairseq.attention import find
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.engine import Engine
from leapformer_fairseq.studies.probes import NAMES, study, tasks
from leapformer_fairseq.studies.probes.model import ProbeModel
from leapformer_fairseq.studies.probes.study import Run, Study, parsed, train
from leapformer_fairseq.studies.probes.tasks import NOTHING, PADDING, PROBES, WORDS, Size
from leapformer_fairseq.support.errors import LeapformerError
from tests.covering import kept


def drawn(name, size, rows=20, seed=1):
    return PROBES[name].draw(rows, size, torch.Generator().manual_seed(seed))


def test_recall_asks_for_the_value_that_followed_the_key():
    batch = drawn("recall", Size(64, 16))
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        values = dict(zip(tokens[:32:2], tokens[1:32:2], strict=True))
        asked = [place for place, answer in enumerate(answers) if answer != NOTHING]
        assert len(values) == len(asked) == 16 and min(asked) >= 32
        assert [values[tokens[place]] for place in asked] == [answers[place] for place in asked]
        fillers = [token for place, token in enumerate(tokens) if place >= 32 and place not in asked]
        assert min(fillers) >= 2 * WORDS


def test_selective_copy_asks_for_the_words_in_order():
    batch = drawn("selective-copy", Size(48, 6))
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        assert [token for token in tokens if token < WORDS] == answers[48:] and len(answers) == 54
        assert set(answers[:48]) == {NOTHING} and set(tokens[48:]) == {WORDS}


@pytest.mark.parametrize("name", ["reversal", "copying"])
def test_targets_are_the_source_and_what_is_read_is_one_behind(name):
    batch = drawn(name, Size(9, 9))
    expected = batch.source.flip(1) if name == "reversal" else batch.source
    assert torch.equal(batch.answers, expected) and torch.equal(batch.tokens[:, 1:], expected[:, :-1])


def test_listops_are_calculated():
    batch = drawn("listops", Size(60, 10))
    symbols = {number: symbol for symbol, number in tasks._SYMBOLS.items()}
    operations = dict(tasks.OPERATIONS)
    for tokens, answer in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        stack: list = []
        for symbol in (symbols[token] for token in tokens if token != PADDING):
            if symbol == tasks.END:
                start = max(place for place, one in enumerate(stack) if isinstance(one, str))
                stack[start:] = [operations[stack[start]](stack[start + 1 :])]
            else:
                stack.append(int(symbol) if symbol.isdigit() else symbol)
        assert stack == [answer]


@pytest.mark.parametrize("name", PROBES)
def test_no_batch_is_drawn_twice_and_a_seed_draws_the_same(name):
    size = PROBES[name].trained[0]
    first, again, other = (drawn(name, size, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.answers, again.answers)
    assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)


@pytest.mark.parametrize("attention", kept(["softmax", "delta", "gated-leap"], "delta"))
def test_a_training_learns_and_is_repeatable(attention):
    run = Run("copying", attention, 1e-2, 1)
    assert train(run, 60)["8"] > 0.15  # chance is 1 / 32
    assert train(run, 6) == train(run, 6)
    assert train(run, 1)["8"] < 0.1  # inverted control


def test_answers_to_other_questions_are_not_learned(monkeypatch):
    """Inverted control: without its source nothing can be told."""
    probe = PROBES["copying"]
    blind = lambda *args: probe.draw(*args)._replace(source=torch.zeros(args[0], args[1].length).long())  # noqa: E731
    monkeypatch.setattr(study, "PROBES", {"copying": replace(probe, draw=blind)}, raising=True)
    assert train(Run("copying", "softmax", 1e-2, 1), 60)["8"] < 0.1


def test_wait_k_sees_no_later_source():
    probe = PROBES["copying"]
    model = ProbeModel(probe, "gated-delta").eval()
    model.encoder = None  # which sees the whole source
    batch = drawn("copying", Size(12, 12))
    source = model._embedded(batch.source)
    layer, x = model.layers[0], model._embedded(batch.tokens)
    before = layer(x, tasks.CAUSAL, None, source, probe.mask)
    changed = source.clone()
    changed[:, 7:] += 1.0
    after = layer(x, tasks.CAUSAL, None, changed, probe.mask)
    same = (before - after).abs().amax((0, 2)) < 1e-5
    assert same.tolist() == [t + 3 <= 7 for t in range(12)]


def test_the_command_line_knows_all_probes():
    assert tuple(PROBES) == NAMES


@pytest.mark.parametrize("name", ["leap", "t2r", "abc-mlp", "entmax", "gated-delta", "kda", "hgrn2", "retention"])
def test_mechanisms_are_probed_wherever_they_serve(name):
    for probe in PROBES.values():
        if find(name).capabilities.unsupported_reason(probe.block, probe.mask) is None:
            model = ProbeModel(probe, name)
            model.loss(probe.draw(2, probe.trained[0], torch.Generator().manual_seed(1))).backward()
            weights = [x for x in model.layers[0].self_attention.parameters() if x.requires_grad]
            assert all(weight.grad is not None for weight in weights)


def measure(study: Study, out: Path, signature: str, jobs: int = 1) -> list[str]:
    """The lines of the tables of a study that is run in a folder."""
    study = replace(study, out=out, signature=signature)
    return study.tables(Engine(study, jobs=jobs).run())


SMALL = {
    "probes": ["reversal"],
    "attentions": ["softmax", "delta"],
    "rates": [1e-3, 1e-2],
    "seeds": [1, 2],
    "updates": 2,
}


def test_a_study_is_kept_and_found_again(tmp_path, monkeypatch):
    lines = measure(Study(**SMALL), tmp_path, "here")
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["signature"] == "here" and [row["attention"] for row in found["found"]["reversal"]] == [
        "softmax",
        "delta",
    ]
    assert (tmp_path / "probes.svg").stat().st_size > 5000 and "\n".join(lines) in (tmp_path / "table.md").read_text()
    best = found["found"]["reversal"][0]
    kept = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("reversal-softmax-*")]
    assert len(kept) == 4
    chosen = [one["scores"] for one in kept if one["run"]["rate"] == best["rate"]]
    assert best["sizes"]["8"]["most"] == pytest.approx(100 * max(one["8"] for one in chosen))

    trained: list[Run] = []
    monkeypatch.setattr(study, "train", lambda run, updates: trained.append(run) or {"8": 0.5})
    assert measure(Study(**SMALL), tmp_path, "later") == lines and not trained
    (tmp_path / "runs/reversal-delta-0.001-2.json").unlink()
    with pytest.raises(KeyError):
        measure(Study(**SMALL), tmp_path, "later")  # the stand-in's scores lack sizes
    assert trained == [Run("reversal", "delta", 1e-3, 2)]


@pytest.mark.full
def test_processes_give_the_same(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    few = {**SMALL, "seeds": [1], "rates": [1e-2]}
    assert measure(Study(**few), alone, "") == measure(Study(**few), together, "", jobs=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probes": ["memory"]}, "--probes memory: choose from recall"),
        ({"attentions": ["nothing"]}, "unknown attention mechanism 'nothing'"),
        ({"attentions": ["abc-window"]}, "abc-window cannot be probed by reversal: .*allowed: decoder-self"),
        ({"attentions": ["delta:gate-init=open"]}, "delta has no option gate-init; it has"),
        ({"attentions": ["t2r:normalizer-floor=much"]}, "normalizer-floor 'much': give a number"),
    ],
)
def test_what_cannot_be_probed_is_said_in_one_line(changes, message, tmp_path):
    with pytest.raises(LeapformerError, match=message) as error:
        measure(Study(**{**SMALL, **changes}), tmp_path / "out", "")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_another_number_of_updates_needs_another_folder(tmp_path):
    few = {**SMALL, "attentions": ["relu"], "seeds": [1], "rates": [1e-2]}
    measure(Study(**few), tmp_path, "")
    with pytest.raises(LeapformerError, match="another updates"):
        measure(Study(**{**few, "updates": 3}), tmp_path, "")


def test_options_are_read_as_their_kind():
    assert parsed("hedgehog:hedgehog-importance") == ("hedgehog", {"hedgehog_importance": True})
    assert parsed("leap:leap-factor=2") == ("leap", {"leap_factor": 2})


def test_the_command(tmp_path, capsys):
    options = ["--probes", "reversal", "--attention", "relu", "--rates", "1e-2", "--seeds", "1", "--updates", "1"]
    assert main(["probe", "--out", str(tmp_path), *options]) == 0
    assert "## reversal" in capsys.readouterr().out
