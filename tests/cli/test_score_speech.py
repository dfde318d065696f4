"""`leapformer score-speech`: what it writes where, what it draws, and what is left when a run is broken."""

from __future__ import annotations

import json

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.speech import Spectra, read_run, score_speech
from tests.runtime.acoustics.signals import voiced, write_run
from tests.scoring.pictures.images import texts

RECORDED = {"a": voiced(0.2), "b": voiced(0.3)}
SPOKEN = {"leap": {"a": voiced(0.3), "b": voiced(0.4)}, "softmax": {"a": voiced(0.25), "b": voiced(0.25)}}


@pytest.fixture
def runs(tmp_path):
    return [write_run(tmp_path / "runs" / name, spoken, RECORDED) for name, spoken in SPOKEN.items()]


def command(*arguments):
    return main(["score-speech", *map(str, arguments)])


def names_in_table(folder):
    return [row["name"] for row in json.loads((folder / "table.json").read_text())["rows"]]


def test_runs_side_by_side(runs, tmp_path, capsys):
    assert command(*runs, "--baselines") == 0
    assert names_in_table(tmp_path / "runs") == ["leap", "softmax", "floor", "mean spectrogram"]
    printed, written = capsys.readouterr().out, (tmp_path / "runs" / "table.md").read_text()
    for text in (printed, written):
        assert text.index("leap ") < text.index("softmax ") < text.index("floor ") < text.index("mean spectrogram ")
    assert "* leap: `made:leap`" in written and "* this table: `leapformer_fairseq:" in written
    assert "Floor: Griffin-Lim" in written


def test_every_run_gets_its_scores(runs):
    assert command(*runs) == 0
    for folder in runs:
        report = json.loads((folder / "speech.json").read_text())
        run = read_run(folder)
        assert report["signature"].endswith("|reference:resynthesised")
        del report["signature"]
        assert report == score_speech(run, Spectra(run.mels), "resynthesised")


def test_a_single_run_and_the_recordings(runs, capsys):
    assert command(runs[0], "--reference", "recording") == 0
    assert names_in_table(runs[0]) == ["leap"]
    assert json.loads((runs[0] / "speech.json").read_text())["reference"] == "recording"
    assert "Floor" not in (runs[0] / "table.md").read_text()
    assert " recording " in capsys.readouterr().out


def test_pictures_and_another_folder(runs, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    assert command(*runs, "--pictures", 1, "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["spectrogram_1.svg", "table.json", "table.md"]
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "spectrogram_1.svg")
    assert texts(out / "spectrogram_1.svg")
    assert not (tmp_path / "runs" / "table.md").exists()


@pytest.mark.full
def test_more_pictures_than_sentences(runs):
    assert command(runs[0], "--pictures", 9) == 0
    assert [path.name for path in sorted(runs[0].glob("*.svg"))] == ["spectrogram_1.svg", "spectrogram_2.svg"]


def test_finished_runs_are_kept_when_a_later_one_is_broken(runs, tmp_path, capsys):
    (runs[1] / "wav" / "b.wav").write_bytes(b"RIFF")
    assert command(*runs, "--baselines", "--pictures", 1) == 2
    printed = capsys.readouterr()
    assert "b.wav cannot be read as audio" in printed.err.splitlines()[-1]
    assert "leap " in printed.out and "softmax" not in printed.out
    assert (runs[0] / "speech.json").is_file() and not (runs[1] / "speech.json").exists()
    assert names_in_table(tmp_path / "runs") == ["leap"]


def test_runs_of_different_sentences_share_no_table(runs, tmp_path, capsys):
    fewer = write_run(tmp_path / "runs" / "fewer", {"a": SPOKEN["leap"]["a"]}, RECORDED)
    assert command(*runs, fewer) == 2
    assert "fewer has other sentences than" in capsys.readouterr().err
    assert names_in_table(tmp_path / "runs") == ["leap", "softmax"]


def test_runs_that_are_called_alike_go_by_their_paths(runs, tmp_path):
    again = write_run(tmp_path / "others" / "leap", SPOKEN["leap"], RECORDED)
    manifest = again / "manifest.tsv"
    manifest.write_text(manifest.read_text().replace(str(tmp_path / "others"), str(tmp_path / "runs")))
    assert command(runs[0], again, "--out", tmp_path) == 0
    assert names_in_table(tmp_path) == [str(runs[0]), str(again)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pictures", -1), "--pictures -1: give a number of sentences"),
        (("elsewhere/run",), "give the folder for the table as --out"),
        (("--out", "file"), "--out file cannot be created"),
    ],
)
def test_options_that_do_not_serve(arguments, message, runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert command(runs[0], *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (runs[0] / "speech.json").exists()
