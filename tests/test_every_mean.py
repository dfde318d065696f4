"""Every mean has the right count: of losses, scores, times and shares, beside a plain loop over unequal parts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from leapformer_fairseq.data import tables
from leapformer_fairseq.models.averaging import average_parameters
from leapformer_fairseq.runtime.schedule import unheard_share
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.scoring.outputs import score_generation
from leapformer_fairseq.scoring.report import score_run
from leapformer_fairseq.simul.batch import _frames, _wait_k
from leapformer_fairseq.studies.lra import grid
from leapformer_fairseq.studies.lra.protocols import load

from . import losses
from .exported import AHEAD, EOS, ONE_LAYER, speech_system
from .scripted import sound

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
    for batches in (
        [range(count)],
        [range(1), range(1, count)],
        [range(count - 1), [count - 1]],
        [[i] for i in range(count)],
    ):
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
    bits = [-float(row.log_softmax(0)[label]) / math.log(2) for row, label in zip(logits, target, strict=True)]
    right = [int(row.argmax()) == int(label) for row, label in zip(logits, target, strict=True)]
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


# ------------------------------------------------------------------------------------------------------------- scores
def test_scores_of_a_run_are_means_over_utterances_with_output(tmp_path):
    lines = [
        {"index": 0, "prediction": "a b", "reference": "a b", "delays": [400.0, 1000.0], "elapsed": [500.0, 1200.0],
         "source_length": 1000.0},
        {"index": 1, "prediction": "", "reference": "c", "delays": [], "elapsed": [], "source_length": 3000.0},
        {"index": 2, "prediction": "c", "reference": "c d e", "delays": [2000.0], "elapsed": [2500.0],
         "source_length": 2000.0},
    ]  # fmt: skip
    (tmp_path / "instances.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    compute = [
        {"features_s": 0.1 * n, "encoder_s": 0.2 * n, "decoder_s": 0.3 * n, "audio_s": 1.0 * n} for n in (1, 3, 2)
    ]
    (tmp_path / "compute.jsonl").write_text("".join(json.dumps(line) + "\n" for line in compute))
    found = score_run(tmp_path)
    assert (found["n_instances"], found["n_empty"]) == (3, 1)
    assert found["scores"]["AL"] == pytest.approx((((400 + 1000 - 500) / 2) + 2000) / 2)
    assert found["scores"]["AP"] == pytest.approx((1400 / 2000 + 2000 / 6000) / 2)
    assert found["scores"]["AL_CA"] == pytest.approx((_al([500, 1200], 1000, 2) + 2500) / 2)
    assert found["compute"]["encoder_s"] == pytest.approx(1.2) and found["compute"]["audio_s"] == 6.0
    assert found["compute"]["seconds_per_second"] == pytest.approx(0.6)
    assert found["length_ratio"] == pytest.approx(3 / 6)


def _al(times, length, units):
    """Average lagging by hand."""
    last = next((rank for rank, moment in enumerate(times) if moment >= length), len(times) - 1)
    return sum(times[rank] - rank * length / units for rank in range(last + 1)) / (last + 1)


def test_empty_translations_are_counted(tmp_path):
    (tmp_path / "references").write_text("a b\nc\nd\n")
    (tmp_path / "generate.txt").write_text("D-1\t0\t\nD-0\t0\ta b\nD-2\t0\t\n")
    found = score_generation([tmp_path / "generate.txt"], tmp_path / "references")
    assert (found["n_instances"], found["n_empty"]) == (3, 2) and found["length_ratio"] == pytest.approx(2 / 4)


@pytest.mark.parametrize("labels", [[0, 0, 0, 1], [9, 9, 2, 2, 2, 0, 9, 9], [5], [1, 1, 1]])
def test_chance_is_the_share_of_the_most_frequent_label(labels, monkeypatch, tmp_path):
    """Of all test examples, whichever numbers labels have."""
    best = {"updates": 7, "parameters": 11}
    monkeypatch.setattr(grid, "Split", lambda *given: SimpleNamespace(labels=np.array(labels)))
    monkeypatch.setattr(grid, "describe_checkpoint", lambda path: best)
    monkeypatch.setattr(grid, "signature", lambda **about: str(about))
    one, cell = grid.Grid(load("reduced"), tmp_path, tmp_path, ()), grid.Training("listops", "leap", 3)
    (tmp_path / "test.log").write_text("valid on 'test' subset | loss 2 | accuracy 90.5\n")
    (tmp_path / "train.log").write_text("")
    found = one._collect(cell, tmp_path)
    assert found["signature"] == "{'threads': 1}", "those of the training"
    assert found["chance"] == max(labels.count(label) for label in labels) / len(labels)
    assert (found["examples"], found["accuracy"], found["dev"]) == (len(labels), 90.5, None)
    assert {name: found[name] for name in ("task", "row", "seed", *best)} == {**cell._asdict(), **best}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_the_longest_utterance_of_a_batch_limits_the_length_whichever_it_is(order):
    seconds = (1.0, 2.0, 0.5)
    audio = [sound(seconds[i], seed=i) for i in order]
    system = speech_system("leap", **AHEAD, **ONE_LAYER)
    system = replace(system, forbidden=(*system.forbidden, EOS))  # so that all write until they have to stop
    frames = [len(_frames(system, one)) for one in audio]
    for a, b in ((0.1, 3), (0.25, 0), (0.0, 5)):
        written = _wait_k(system, DecodingOptions(max_len_a=a, max_len_b=b), [_frames(system, one) for one in audio])
        assert [len(tokens) for tokens in written] == [int(a * max(frames) + b)] * 3


def test_shares_count_tokens_not_sentences():
    states, tokens = np.array([40, 10, 25]), np.array([2, 8, 5])
    for k, ratio in ((1, 1), (2, 2), (3, 4)):
        late = sum(
            min(s, ratio * (t + k)) < s * (t + 1) / n for s, n in zip(states, tokens, strict=True) for t in range(n)
        )
        assert unheard_share(states, tokens, k, ratio) == pytest.approx(late / 15)


def test_lengths_of_measured_tables_count_the_ends(tmp_path, monkeypatch):
    rows = [{"tgt_text": "a b c", "n_frames": "400"}, {"tgt_text": "d", "n_frames": "200"}]
    monkeypatch.setattr(tables, "need_file", lambda path: None)
    monkeypatch.setattr(tables, "read_manifest", lambda path, *needed: rows)
    model = SimpleNamespace(encode=str.split)
    monkeypatch.setattr(tables.sentencepiece, "SentencePieceProcessor", lambda model_file: model)
    found = tables.measure(tmp_path)
    assert found.hours == pytest.approx(6 / 3600) and found.token_seconds == pytest.approx(1.0) and found.ratio == 25


def test_averages_of_checkpoints_weigh_all_alike(tmp_path):
    models = {name: {"w": torch.tensor([float(value)])} for name, value in (("a", 1), ("b", 2), ("c", 9))}
    assert average_parameters(models)["w"].item() == 4


def test_errors_of_attention_do_not_count_padding():
    """Nor how many sentences there are: of one batch that is given twice, and of one that is padded further."""
    torch.manual_seed(0)
    sample = losses.CASES["leapformer_alignment"].sample()
    whole = losses.outcome("leapformer_alignment", sample)[2]
    twice = losses.outcome("leapformer_alignment", losses.part(sample, [0, 0, 1, 1, 2, 2]))[2]
    padded = {**sample, "net_input": {**sample["net_input"]}, "target": F.pad(sample["target"], (0, 3), value=1)}
    padded["net_input"]["prev_output_tokens"] = F.pad(sample["net_input"]["prev_output_tokens"], (0, 3), value=1)
    more = losses.outcome("leapformer_alignment", padded)[2]
    for name in whole:
        if name == "loss" or name.startswith("error_"):
            assert twice[name] == pytest.approx(whole[name], rel=1e-6), name
            assert more[name] == pytest.approx(whole[name], rel=1e-6), name
