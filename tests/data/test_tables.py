"""Recordings of one's own: any rate and channels, segments, what is left out is listed, bad tables name the line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import soundfile

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import tables
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.runtime.audio import read_speech

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def sound(path: Path, seconds: float = 1.0, rate: int = 16_000, channels: int = 1, seed: int = 0) -> str:
    noise = np.random.default_rng(seed).normal(0, 0.1, (round(seconds * rate), channels)).astype(np.float32)
    soundfile.write(str(path), noise, rate)
    return path.name


@pytest.fixture
def root(tmp_path) -> Path:
    """Three tables beside their audio: wav and flac, 16 and 44.1 kHz, mono and stereo."""
    root = tmp_path / "own"
    root.mkdir()
    for split, count in (("train", 12), ("dev", 3), ("test", 3)):
        lines = ["audio\ttext\ttranslation\tspeaker"]
        for i in range(count):
            flac = i % 2
            name = f"{split}{i}.{'flac' if flac else 'wav'}"
            sound(root / name, 1 + 0.1 * i, 44_100 if flac else 16_000, 2 if flac else 1, i)
            text = " ".join(WORDS[(i + j) % 10] for j in range(4))
            lines.append(f"{name}\t{text}\t{text.upper()}\tspeaker{i % 2}")
        (root / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return root


def command(root: Path, *more: str) -> list[str]:
    splits = [word for split in ("train", "dev", "test") for word in (f"--{split}", str(root / f"{split}.tsv"))]
    return ["prepare", "speech", *splits, "--out", str(root.parent / "data"), "--vocab-size", "60", *more]


def test_from_tables_to_manifests(root, capsys):
    assert main(command(root)) == 0
    told = capsys.readouterr().out
    data = root.parent / "data"
    assert "train: 6 files of 44,100 Hz with 2 channels become 16,000 Hz mono" in told
    assert "train: 12 utterances" in told and "left out: none" in told and not list(data.glob("left_out*"))
    rows = list(read_manifest(data / "train_st.tsv"))
    assert len(rows) == 12 and rows[1]["tgt_text"] == "TWO THREE FOUR FIVE" and rows[1]["speaker"] == "speaker1"
    assert rows[3]["id"] == "train-line000005", "the line of the table"
    assert [row["tgt_text"] for row in read_manifest(data / "train_asr.tsv")][1] == "two three four five"
    for row in rows:
        assert abs(int(row["n_frames"]) - (98 + 10 * (int(row["id"][-6:]) - 2))) <= 1
    samples, _ = read_speech(data / "wav/test/test-line000003.wav"), None
    assert abs(len(np.asarray(samples).reshape(-1)) - 17_600) <= 2
    # The advice is by hand: all frames over all tokens, the ends among them.
    model = sentencepiece.SentencePieceProcessor(model_file=str(data / "spm_st.model"))
    tokens = sum(len(model.encode(row["tgt_text"])) + 1 for row in rows)
    seconds = sum(int(row["n_frames"]) for row in rows) / 100 / tokens
    assert f"a target token lasts {seconds:.2f} s" in told
    assert f"--fixed-pre-decision-ratio {max(1, round(seconds / 0.04))} " in told
    assert "0.0 h to train on are enough to try the commands" in told
    assert f"leapformer recipe speech train evaluate --out {root.parent}\n" in told
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert main(command(root)) == 0 and before == {p: p.read_bytes() for p in data.rglob("*") if p.is_file()}


def test_other_columns_segments_and_commas(root):
    sound(root / "long.wav", 10, 8_000)
    for split in ("train", "dev", "test"):
        lines = ["path,sentence,start,end,id"]
        lines += [f'../own/long.wav,"{WORDS[i]}, and {WORDS[i + 1]}",{i},{i + 0.5},{split}{i}' for i in range(9)]
        (root / f"{split}.csv").write_text("\n".join(lines) + "\n")
    splits = [word for split in ("train", "dev", "test") for word in (f"--{split}", str(root / f"{split}.csv"))]
    out = root.parent / "csv"
    columns = ["--columns", "audio=path", "text=sentence", "--audio-root", str(root), "--vocab-type", "char"]
    assert main(["prepare", "speech", *splits, "--out", str(out), *columns]) == 0
    rows = list(read_manifest(out / "train_st.tsv"))
    assert [row["id"] for row in rows] == [f"train{i}" for i in range(9)]
    assert rows[0]["tgt_text"] == "one, and two", "without a translation the text is the target"
    assert all(46 <= int(row["n_frames"]) <= 50 for row in rows)
    pieces = [line.split()[0] for line in (out / "spm_st.txt").read_text().splitlines()]
    assert all(len(piece) == 1 for piece in pieces), "characters"


def test_what_cannot_be_used_is_listed(root, capsys):
    (root / "broken.wav").write_bytes(b"RIFF nothing")
    soundfile.write(str(root / "silent.wav"), np.zeros(16_000, np.float32), 16_000)
    soundfile.write(str(root / "nan.wav"), np.full(16_000, np.nan, np.float32), 16_000, subtype="FLOAT")
    with (root / "train.tsv").open("a") as file:
        for name in ("broken.wav", "silent.wav", "nan.wav"):
            file.write(f"{name}\tone\tONE\tx\n")
        file.write("train0.wav\t\tONE\tx\n")
    assert main(command(root)) == 0
    told, data = capsys.readouterr().out, root.parent / "data"
    assert "train: 12 utterances" in told
    assert "1 broken, 1 no text, 1 samples that are no numbers, 1 silent" in told
    assert f"train: {data}/left_out_train.tsv lists them" in told
    left_out = [line.split("\t") for line in (data / "left_out_train.tsv").read_text().splitlines()]
    assert [(one[0], one[2]) for one in left_out] == [
        ("train-line000014", "broken"), ("train-line000015", "silent"),
        ("train-line000016", "samples that are no numbers"), ("train-line000017", "no text"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "file\ttext\nx.wav\tone\n",
            "has no column 'audio', it has file, text; say which is meant with --columns audio=",
        ),
        ("audio\ttext\nnowhere.wav\tone\n", "line 2: no file .*nowhere.wav; correct the path, or give --audio-root"),
        ("audio\ttext\n\tone\n", "line 2: no audio; name the audio file, or delete the line"),
        ("audio\ttext\ntrain0.wav\tone\ttwo\n", "line 2: another number of fields than the 2"),
        ("audio\ttext\tid\ntrain0.wav\tone\ta\ntrain2.wav\ttwo\ta\n", "line 3: id a is that of line 2"),
        ("audio\ttext\tid\ntrain0.wav\tone\ta/b\n", "line 2: id a/b has a slash"),
        ("audio\ttext\tstart\tend\ntrain0.wav\tone\t2\t1\n", "line 2: start 2, end 1; the end comes after the start"),
        ("audio\ttext\tstart\ntrain0.wav\tone\tsoon\n", "line 2: start 'soon', end ''; give seconds"),
        ("", "has no column 'audio', it has none"),
    ],
)
def test_bad_tables_are_one_line(root, capsys, text, message):
    (root / "train.tsv").write_text(text)
    assert main(command(root)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and re.search(message, err)


@pytest.mark.parametrize(
    ("columns", "message"),
    [("sound=path", "--columns sound=...: choose from audio, text"), ("audio", "--columns audio: give NAME=COLUMN")],
)
def test_bad_columns_are_one_line(root, capsys, columns, message):
    assert main(command(root, "--columns", columns)) == 2
    assert message in capsys.readouterr().err


def test_sizes_grow_with_the_data():
    few, many = (tables.Measured(hours, 0.3, 7) for hours in (0.5, 400))
    assert (few.batch, few.updates) == (4_000, 6_000)
    some = tables.Measured(19.9, 0.3, 7)
    assert some.batch == 4_000 and 59 < some.updates * some.batch / (19.9 * 360_000) < 61, "some sixty passes"
    assert many.batch == 40_000 and 35 < many.updates * many.batch / (400 * 360_000) < 45, "some forty passes"
