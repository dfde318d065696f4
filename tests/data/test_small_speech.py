"""Preparing releases of some hours: Mboshi-French, with a test split cut out of train, and Quechua-Spanish."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import speech_releases
from leapformer_fairseq.data.distinct import fold
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.data.recordings import Recording
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.lines import read_lines

from .trees import Spoken, mboshi_tree, noises, quechua_tree

MBOSHI, QUECHUA = (speech_releases.DATASETS[name] for name in ("mboshi", "quechua"))

SPEAKERS = {"abiayi": 33, "kouarata": 11, "martial": 6}


def splits() -> dict[str, list[Spoken]]:
    """Fifty utterances of three speakers, of which every sixth says again what another did, or means the same."""
    train = noises(50, 0, seconds=0.1)
    names = [name for name, count in SPEAKERS.items() for _ in range(count)]
    train = [
        replace(one, speaker=name, source=f"mbo s' {n}", target=f"l' eau n' est pas {n} .")
        for n, (one, name) in enumerate(zip(train, names, strict=True))
    ]
    for n in range(0, 48, 6):
        train[n + 1] = replace(train[n + 1], source=train[n].source.upper())
        train[n + 2] = replace(train[n + 2], target=train[n].target)
    return {"train": train, "dev": noises(4, 1, seconds=0.1)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mboshi_tree(tmp_path_factory.mktemp("mboshi"), splits())


def test_the_test_split_has_each_speakers_share_and_no_sentence_of_train(root):
    train, dev, test = (MBOSHI.read_split(root, split) for split in MBOSHI.splits)
    assert (len(train), len(dev), len(test)) == (45, 4, 5)
    assert Counter(one.speaker for one in test) == {"abiayi": 3, "kouarata": 1, "martial": 1}
    assert not {one.id for one in train} & {one.id for one in test}
    for side in ("source", "target"):
        assert not {fold(getattr(one, side)) for one in train} & {fold(getattr(one, side)) for one in test}
    assert MBOSHI.read_split(root / speech_releases.MBOSHI, "test") == [
        replace(one, path=root / speech_releases.MBOSHI / "train" / one.path.name) for one in test
    ]


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_exact_where_sentences_are_many(seed):
    draw = random.Random(seed)
    who = ["a"] * 137 + ["b"] * 101 + ["c"] * 22
    said = tuple(
        Recording(f"{name}_{n}", Path(), name, f"s{draw.randrange(400)}", f"t{draw.randrange(400)}")
        for n, name in enumerate(who)
    )
    found = speech_releases._test_ids(said)
    assert Counter(one.speaker for one in said if one.id in found) == {"a": 14, "b": 10, "c": 2}
    for side in ("source", "target"):
        train, test = ({getattr(one, side) for one in said if (one.id in found) == of} for of in (False, True))
        assert not train & test


def test_mboshi_is_prepared_for_the_recipe(root, tmp_path, capsys):
    words = ["--out", str(tmp_path / "data"), "--vocab-size", "40"]
    assert main(["prepare", "mboshi", str(root), *words]) == 0
    shown = capsys.readouterr().out
    assert "train: 45 utterances" in shown and "dev: 4 utterances" in shown and "test: 5 utterances" in shown
    assert f"leapformer recipe mboshi train evaluate --out {tmp_path}" in shown
    rows = [row for split in MBOSHI.splits for row in read_manifest(tmp_path / f"data/{split}_st.tsv")]
    assert sum(row["tgt_text"].startswith("l' eau n' est") for row in rows) == 50, "apostrophes are none of &apos;"
    assert {row["speaker"] for row in rows} == {*SPEAKERS, "spk.1"}
    assert len((tmp_path / "data/test.target").read_text(encoding="utf-8").splitlines()) == 5


def test_another_kind_of_subwords_is_other_data(root, tmp_path, capsys):
    words = ["prepare", "mboshi", str(root), "--out", str(tmp_path / "data"), "--vocab-size", "40"]
    assert main([*words, "--vocab-type", "char"]) == 0
    pieces = [line.split()[0] for line in read_lines(tmp_path / "data/spm_asr.txt")]
    assert all(len(piece) == 1 for piece in pieces), "transcripts are cut into characters"
    assert main(words) == 2
    assert "prepared with vocab_type char, not unigram; choose another --out" in capsys.readouterr().err
    state = json.loads((tmp_path / "data/prepared.json").read_text(encoding="utf-8"))
    assert state.pop("vocab_type") == state.pop("transcript_type") == "char"  # older versions noted none
    (tmp_path / "data/prepared.json").write_text(json.dumps(state), encoding="utf-8")
    assert main(words) == 2
    assert "prepared with transcript_type unigram, not char" in capsys.readouterr().err
    assert main([*words, "--transcript-type", "unigram"]) == 0


def test_quechua_has_the_published_texts(tmp_path):
    data = {split: noises(3, seed, seconds=0.1) for seed, split in enumerate(("train", "valid", "test"))}
    root = quechua_tree(tmp_path / "data", data)
    assert main(["prepare", "quechua", str(root), "--out", str(tmp_path / "out"), "--vocab-size", "40"]) == 0
    for ours, theirs in {"train": "train", "dev": "valid"}.items():
        texts = [row["tgt_text"] for row in read_manifest(tmp_path / f"out/{ours}_st.tsv")]
        assert texts == [one.target for one in data[theirs]]
    assert not (tmp_path / "out/test_st.tsv").exists()


@pytest.mark.parametrize(
    ("missing", "told"),
    [("full_corpus_newsplit/dev", "no folder .*dev; the Mboshi root"), ("*train_7.fr.cleaned", "no file .*train_7.fr")],
)
def test_what_is_missing_is_named(missing, told, tmp_path):
    root = mboshi_tree(tmp_path / "data", {split: some[:12] for split, some in splits().items()})
    (path,) = root.rglob(missing) if "*" in missing else [root / missing]
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(LeapformerError, match=told):
        for split in MBOSHI.splits:
            MBOSHI.read_split(root, split)
    with pytest.raises(LeapformerError, match="no folder .*; the Quechua root is the folder that holds que_spa_clean"):
        QUECHUA.read_split(root, "train")
