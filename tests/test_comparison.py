"""Scores of fairseq-generate, and systems side by side."""

from __future__ import annotations

import json

import pytest

from leapformer_fairseq.errors import LeapformerError
from leapformer_fairseq.scoring.comparison import collect, draw, table
from leapformer_fairseq.scoring.generation import score_generation


def generated(folder, *lines):
    path = folder / "generate-test_st.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def references(folder, *lines):
    path = folder / "test.target"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_generation_is_scored_in_the_order_of_the_references(tmp_path):
    path = generated(
        tmp_path,
        "T-1\tx",
        "D-1\t-0.5\tdas ist der zweite Satz",
        "H-0\t-0.1\tignored",
        "D-0\t-0.1\tdas ist der erste Satz",
        "D-0\t-0.9\ta worse hypothesis",
    )
    scores = score_generation([path], references(tmp_path, "das ist der erste Satz", "das ist der zweite Satz"))
    assert scores["scores"]["BLEU"] == pytest.approx(100) and scores["length_ratio"] == 1 and not scores["marks"]
    longer = score_generation([path], references(tmp_path, "das ist der", "das ist der"))
    assert longer["marks"] == ["too long: 2.06 characters for each of the references: repetition, or what was not said"]
    swapped = score_generation([path], references(tmp_path, "das ist der zweite Satz", "das ist der erste Satz"))
    assert swapped["scores"]["BLEU"] < 90


def test_a_dropped_sentence_is_noticed(tmp_path):
    path = generated(tmp_path, "D-0\t-0.1\tein Satz")
    with pytest.raises(
        LeapformerError, match=r"lacks 1 of 2 sentences, first number 1.*--required-batch-size-multiple"
    ):
        score_generation([path], references(tmp_path, "ein Satz", "noch einer"))


def test_shards_are_put_together_and_given_once(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shards = [generated(tmp_path / "one", "D-1\t-0.1\tnoch einer"), generated(tmp_path / "two", "D-0\t-0.1\tein Satz")]
    of_all = references(tmp_path, "ein Satz", "noch einer")
    assert score_generation(shards, of_all)["scores"]["chrF"] == pytest.approx(100)
    with pytest.raises(LeapformerError, match="has sentence 1 again; give each shard"):
        score_generation([*shards, shards[0]], of_all)


def test_missing_output_is_named(tmp_path):
    with pytest.raises(LeapformerError, match="no generation output"):
        score_generation([tmp_path / "generate-x.txt"], references(tmp_path, "x"))


def scored(folder, bleu, lag=None):
    folder.mkdir(parents=True)
    scores = {"BLEU": bleu, "chrF": bleu} | ({} if lag is None else {"AL": lag, "AL_CA": lag + 100})
    compute = None if lag is None else {"seconds_per_second": 0.25}
    entry = {"scores": scores, "signatures": {"BLEU": "sig"}, "compute": compute, "n_instances": 5}
    (folder / "scores.json").write_text(json.dumps(entry), encoding="utf-8")


@pytest.fixture()
def folder(tmp_path):
    scored(tmp_path / "leap/k9", 60, 2000)
    scored(tmp_path / "leap/k10", 61, 2100)
    scored(tmp_path / "leap/offline", 80)
    scored(tmp_path / "softmax/tst/k1", 30, 500)
    (tmp_path / "leap/options").write_text("--attention leap\n")
    return tmp_path


def test_systems_are_collected_in_order(folder):
    comparison = collect(folder)
    assert list(comparison["systems"]) == ["leap", "softmax/tst"]
    assert [row["k"] for row in comparison["systems"]["leap"]["rows"]] == [9, 10, "offline"]
    assert comparison["systems"]["leap"]["options"] == "--attention leap"
    assert comparison["systems"]["leap"]["rows"][0]["compute"] == 0.25
    lines = table(comparison).splitlines()
    assert len(lines) == 2 + 4
    assert "0.250" in lines[2] and "2000" in lines[2]


def test_the_curve_is_a_picture(folder):
    draw(collect(folder), folder / "curve.png")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(LeapformerError, match="holds no scores"):
        collect(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"scores": {}}'])
def test_damaged_scores_are_named(folder, content):
    (folder / "leap/k9/scores.json").write_text(content)
    with pytest.raises(LeapformerError, match="k9/scores.json is damaged .*; score this run again"):
        collect(folder)
