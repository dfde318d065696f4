"""Text to speech from training to wav files, through the commands a user types, with a tiny model and two tones."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli.main import main

from ..data.tts_trees import FRAMES, MELS, tts_tree

SIZES = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-embed-dim 16 --decoder-ffn-embed-dim 24"
TRAINING = (
    "--task text_to_speech --config-yaml config.yaml --train-subset train --valid-subset dev "
    f"--arch leapformer_tts_tiny {SIZES} --prenet-dim 16 --postnet-conv-dim 16 "
    f"--output-frame-dim {MELS.n_mels} --n-frames-per-step 2 "
    "--criterion tacotron2_with_length --optimizer adam --lr 1e-3 --max-tokens 400 --required-batch-size-multiple 1 "
    "--num-workers 0 --no-progress-bar --seed 1"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data set and a checkpoint of cosFormer with the network as predictor, after some updates and a break."""
    folder = tmp_path_factory.mktemp("tts")
    data = tts_tree(folder / "data")
    plan = "--encoder-self-attention cosformer --decoder-self-attention cosformer --decoder-cross-attention cosformer"
    command = f"train {data} --save-dir {folder / 'model'} {TRAINING} {plan} --length-predictor conv"
    for updates in (3, 6):
        assert main([*command.split(), "--max-update", str(updates)]) == 0
    return data, folder / "model" / "checkpoint_last.pt"


def rows_of(folder):
    with (folder / "manifest.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def speak(checkpoint, out, *options):
    return main(
        [
            "tts",
            "--path",
            str(checkpoint),
            "--out",
            str(out),
            "--max-steps",
            "9",
            "--iterations",
            "2",
            *map(str, options),
        ]
    )


def test_a_manifest_is_spoken(trained, tmp_path, capsys):
    data, checkpoint = trained
    assert speak(checkpoint, tmp_path / "run", "--subset", "test", "--plots", 1) == 0
    rows = rows_of(tmp_path / "run")
    assert [row["id"] for row in rows] == ["test-0", "test-1"]
    for row in rows:
        samples, rate = soundfile.read(tmp_path / "run" / row["audio"])
        frames = np.load(tmp_path / "run" / "mel" / f"{row['id']}.npy")
        assert rate == MELS.sample_rate and len(samples) > 0
        assert frames.shape == (int(row["frames"]), MELS.n_mels)
        assert row["stopped"] == "1" or int(row["frames"]) == 9 * 2
        assert row["reference"] == str(data / "wav" / f"{row['id']}.wav")
    assert int(rows[0]["reference_frames"]) == FRAMES["o"]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["features"]["n_mels"] == MELS.n_mels and "|commit:" in about["signature"]
    assert [path.name for path in (tmp_path / "run" / "plots").iterdir()] == ["test-0.svg"]
    printed = capsys.readouterr()
    assert "2 sentences in" in printed.out and "speech" in printed.err


@pytest.mark.parametrize(
    ("overrides", "frames"),
    [
        ({"length_predictor": "oracle"}, [FRAMES["o"], 2 * FRAMES["a"]]),
        ({"length_predictor": "lookup"}, [FRAMES["o"], 2 * FRAMES["a"]]),  # a duration of its own for each phoneme
        ({"length_predictor": "ratio", "length_ratio": 1.5}, [6.0, 9.0]),  # two frames a step; the end counts, too
    ],
)
def test_other_predictors_serve_a_trained_model(trained, tmp_path, overrides, frames):
    assert speak(trained[1], tmp_path, "--subset", "test", "--model-overrides", overrides) == 0
    assert [float(row["predicted_frames"]) for row in rows_of(tmp_path)] == frames


def test_a_stopped_run_goes_on(trained, tmp_path, monkeypatch):
    from leapformer_fairseq.runtime.commands import tts

    options = ("--subset", "train", "--batch-size", 2)
    assert speak(trained[1], tmp_path / "whole", *options) == 0
    write, calls = tts._write, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(tts, "_write", interrupted)
    assert speak(trained[1], tmp_path / "part", *options) == 130
    assert len(rows_of(tmp_path / "part")) == 3
    monkeypatch.setattr(tts, "_write", write)
    assert speak(trained[1], tmp_path / "part", *options) == 0
    assert rows_of(tmp_path / "part") == rows_of(tmp_path / "whole")
    for path in (tmp_path / "whole" / "wav").iterdir():
        assert path.read_bytes() == (tmp_path / "part" / "wav" / path.name).read_bytes()


def test_phonemes_from_a_file_and_from_the_command_line(trained, tmp_path):
    (tmp_path / "lines").write_text("a o\no\n")
    assert speak(trained[1], tmp_path / "file", "--phonemes", tmp_path / "lines") == 0
    assert [(row["id"], row["text"], row["reference"]) for row in rows_of(tmp_path / "file")] == [
        ("0001", "a o", ""),
        ("0002", "o", ""),
    ]
    assert speak(trained[1], tmp_path / "line", "--phonemes", "o\ta ") == 0
    assert [row["text"] for row in rows_of(tmp_path / "line")] == ["o a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--phonemes", "a x"], "sentence 0001: the model does not know the phoneme 'x'"),
        (["--phonemes", " "], "sentence 0001: there is nothing to say"),
        (["--phonemes", "a o " * 100 + "x"], "does not know the phoneme 'x'"),  # longer than the name of a file
        (["--subset", "test", "--plots", "-3"], "--plots -3: give a number from 0"),
        (["--subset", "test", "--model-overrides", "{'length_predictor': 'guess'}"], "'guess' is unknown; choose"),
        (["--subset", "test", "--model-overrides", "{'length_ratio': 'x'}"], "--length-ratio 'x': give a number"),
        (["--text", "hello"], "are not those of espeak-ng; give --phonemes"),
        (["--subset", "holdout"], "there is no manifest"),
        (["--subset", "test", "--eos-threshold", "1.5"], "--eos-threshold 1.5: give a probability"),
        (["--subset", "test", "--batch-size", "0"], "--batch-size 0: give a number from 1"),
        (["--subset", "test", "--model-overrides", "nothing"], "--model-overrides nothing: give a dictionary"),
        (["--phonemes", "a", "--model-overrides", "{'length_predictor': 'oracle'}"], "oracle needs the targets"),
        (["--subset", "test", "--hifigan", "none.pt", "none.json"], "no vocoder at none.pt"),
    ],
)
def test_what_does_not_serve_is_named_in_one_line(trained, tmp_path, capsys, options, message):
    assert speak(trained[1], tmp_path / "run", *options) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("leapformer: error: ") and message in error
    assert not list((tmp_path / "run").glob("wav/*")), "nothing was written"


def test_a_missing_checkpoint_and_missing_data_are_named(trained, tmp_path, capsys):
    assert speak(tmp_path / "none.pt", tmp_path / "run", "--phonemes", "a") == 2
    assert capsys.readouterr().err.endswith("none.pt; check --path\n")
    assert speak(trained[1], tmp_path / "run", "--phonemes", "a", "--data", tmp_path / "nowhere") == 2
    assert "nowhere" in capsys.readouterr().err.splitlines()[-1]


def test_files_that_hold_no_sentences_are_named(trained, tmp_path, capsys):
    for content, message in ((b"", "is empty; give sentences, a line each"), (b"a \xff", "is not UTF-8")):
        (tmp_path / "lines").write_bytes(content)
        assert speak(trained[1], tmp_path / "run", "--phonemes", tmp_path / "lines") == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_data_of_another_model_are_named(trained, tmp_path, capsys):
    shutil.copytree(trained[0], tmp_path / "data")
    vocabulary, config = tmp_path / "data" / "vocab.txt", tmp_path / "data" / "config.yaml"
    vocabulary.write_text(vocabulary.read_text() + "e 1\n")
    options = ("--phonemes", "a", "--data", tmp_path / "data")
    assert speak(trained[1], tmp_path / "run", *options) == 2
    assert "this data set's dictionary gives" in capsys.readouterr().err.splitlines()[-1]
    config.write_text("features: [")
    assert speak(trained[1], tmp_path / "run", *options) == 2
    assert "config.yaml: while parsing a flow node" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("id", "test-0", "line 3: id 'test-0' cannot name its files"),
        ("id", "a/b", "line 3: id 'a/b' cannot name its files"),
        ("n_frames", "many", "line 3: id, tgt_text or n_frames is missing or wrong"),
    ],
)
def test_a_wrong_row_of_the_manifest_is_named(trained, tmp_path, capsys, column, value, message):
    shutil.copytree(trained[0], tmp_path / "data")
    path = tmp_path / "data" / "test.tsv"
    header, first, second = (line.split("\t") for line in path.read_text().splitlines())
    second[header.index(column)] = value
    path.write_text("".join("\t".join(row) + "\n" for row in (header, first, second)))
    assert speak(trained[1], tmp_path / "run", "--subset", "test", "--data", tmp_path / "data") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ("600 1000", "durations of 1600 frames are longer than the audio"),
        ("1", "1 durations for 2 phonemes"),
        ("1 2 3", "3 durations for 2 phonemes"),
        ("1 -6", "is not a list of whole numbers"),
        ("", "is not a list of whole numbers"),
    ],
)
def test_durations_that_do_not_fit_are_named(tmp_path, capsys, durations, message):
    data = tts_tree(tmp_path / "data")
    path = data / "train.tsv"
    header, *rows = (line.split("\t") for line in path.read_text().splitlines())
    row = next(row for row in rows if len(row[header.index("tgt_text")].split()) == 2)
    row[header.index("duration")] = durations
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)))
    assert (
        main(["train", str(data), "--save-dir", str(tmp_path / "model"), *TRAINING.split(), "--max-update", "1"]) == 2
    )
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "train.tsv, line " in error and message in error


def test_a_run_that_was_refused_claims_no_folder(trained, tmp_path, capsys):
    oracle = ("--model-overrides", {"length_predictor": "oracle"})
    assert speak(trained[1], tmp_path, "--phonemes", "a", *oracle) == 2
    assert speak(trained[1], tmp_path, "--phonemes", "a") == 0
    assert speak(trained[1], tmp_path, "--phonemes", "a", *oracle) == 2, "now it is"


def test_another_run_in_the_folder_is_refused(trained, tmp_path, capsys):
    assert speak(trained[1], tmp_path, "--phonemes", "a") == 0
    assert speak(trained[1], tmp_path, "--phonemes", "o") == 2
    assert 'holds a run with another phonemes in options ("a", not "o")' in capsys.readouterr().err


def test_scores_and_pictures(trained, tmp_path, capsys):
    for name in ("one", "two"):
        assert speak(trained[1], tmp_path / name, "--subset", "test", "--seed", len(name) + (name == "two")) == 0
    assert main(["score-speech", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "scores")]) == 0
    assert (tmp_path / "scores" / "table.md").is_file()
    found = json.loads((tmp_path / "one" / "speech.json").read_text())["scores"]
    predicted = [float(row["predicted_frames"]) for row in rows_of(tmp_path / "one")]
    errors = [abs(a / b - 1) for a, b in zip(predicted, (FRAMES["o"], 2 * FRAMES["a"]), strict=True)]
    assert found["prediction_error"] == pytest.approx(sum(errors) / 2)
