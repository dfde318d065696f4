"""Scores of synthesised speech: corpus values, references, baselines, and folders that cannot be scored."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from leapformer_fairseq.runtime.acoustics.mel import MelConfig, log_mel
from leapformer_fairseq.runtime.acoustics.vocoder import GriffinLim
from leapformer_fairseq.scoring.distortion import mcd, msd
from leapformer_fairseq.scoring.speech import (
    Spectra,
    check_same,
    read_run,
    score_baselines,
    score_speech,
    speech_table,
)
from leapformer_fairseq.support.errors import LeapformerError
from tests.runtime.acoustics.signals import RATE, voiced, write_run, write_speech

MELS = MelConfig()
RECORDED = {"short": voiced(0.3), "long": voiced(0.5, pitch=160.0)}
SPOKEN = {"short": voiced(0.45, pitch=150.0), "long": voiced(0.4, pitch=140.0)}


def resynthesised(samples):
    return GriffinLim(MELS)(log_mel(samples, MELS))


def score(folder, kind="resynthesised"):
    run = read_run(folder)
    return score_speech(run, Spectra(run.mels), kind)


@pytest.mark.parametrize("kind", ["resynthesised", "recording"])
def test_scores_of_the_corpus_are_sums_over_sums(kind, tmp_path):
    report = score(write_run(tmp_path / "run", SPOKEN, RECORDED), kind)
    for name, measure in (("MCD", mcd), ("MSD", msd)):
        references = {one: resynthesised(of) if kind == "resynthesised" else of for one, of in RECORDED.items()}
        found = [measure(references[one], SPOKEN[one], RATE) for one in SPOKEN]
        total, frames, aligned = (sum(getattr(x, of) for x in found) for of in ("total", "reference_frames", "aligned"))
        assert report["scores"][name] == pytest.approx(total / frames)
        assert report["scores"][f"{name}_aligned"] == pytest.approx(total / aligned)
        assert abs(report["scores"][name] - fmean(x.per_reference_frame for x in found)) > 1e-3, "no mean of means"
        assert [one[name] for one in report["instances"]] == pytest.approx([x.per_reference_frame for x in found])
        assert report["alignment"][name]["insertions"] == sum(x.insertions for x in found)
    assert report["scores"]["deletions"] == report["alignment"]["MCD"]["deletions"] / 66
    assert report["reference"] == kind and report["n_instances"] == 2


def test_durations(tmp_path):
    scores = score(write_run(tmp_path / "run", SPOKEN, RECORDED))["scores"]
    # 37 and 33 frames for 25 and 41: nearly right in the sum, wrong in each
    assert (scores["frames"], scores["reference_frames"]) == (70, 66)
    assert scores["duration_ratio"] == 70 / 66
    assert scores["duration_error"] == pytest.approx((12 / 25 + 8 / 41) / 2)
    assert scores["stopped"] == 0.5


def test_the_description_of_the_run_is_kept(tmp_path):
    model = score(write_run(tmp_path / "run", SPOKEN, RECORDED))["model"]
    assert model == {"features": MELS.features(), "signature": "made:run", "updates": 7}


def test_a_recording_is_at_no_distance_from_itself(tmp_path):
    folder = write_run(tmp_path / "run", RECORDED, RECORDED)
    assert score(folder, "recording")["scores"]["MCD"] == 0
    assert score(folder)["scores"]["MCD"] > 0.3


def test_the_vocoder_is_not_held_against_the_model(tmp_path):
    folder = write_run(tmp_path / "run", {one: resynthesised(of) for one, of in RECORDED.items()}, RECORDED)
    assert score(folder)["scores"]["MCD"] == 0
    assert score(folder, "recording")["scores"]["MCD"] > 0.3


def test_baselines(tmp_path):
    run = read_run(write_run(tmp_path / "run", SPOKEN, RECORDED))
    spectra = Spectra(run.mels)
    against_recordings, against_vocoder = (
        score_baselines(run, spectra, kind) for kind in ("recording", "resynthesised")
    )
    floor = sum(mcd(one, resynthesised(one), RATE).total for one in RECORDED.values()) / 66
    assert against_recordings["floor"] == against_vocoder["floor"]
    assert against_recordings["floor"]["scores"]["MCD"] == pytest.approx(floor)
    frames = [log_mel(one, MELS) for one in RECORDED.values()]
    flat = [GriffinLim(MELS)(np.tile(np.concatenate(frames).mean(0), (len(one), 1))) for one in frames]
    expected = (
        sum(mcd(resynthesised(one), of, RATE).total for one, of in zip(RECORDED.values(), flat, strict=True)) / 66
    )
    assert against_vocoder["mean spectrogram"]["scores"]["MCD"] == pytest.approx(expected)
    assert against_vocoder["mean spectrogram"]["reference"] == "resynthesised"
    assert floor < 0.25 * expected
    assert "frames" not in against_vocoder["floor"]["scores"], "it has no durations of its own"


def test_recordings_are_resynthesised_once(tmp_path):
    runs = [read_run(write_run(tmp_path / name, SPOKEN, RECORDED)) for name in ("one", "two")]
    spectra = Spectra(MELS)
    calls = []
    vocoder = spectra._vocoder
    spectra._vocoder = lambda log_mels: calls.append(len(log_mels)) or vocoder(log_mels)
    first, second = (score_speech(run, spectra, "resynthesised")["scores"] for run in runs)
    assert calls == [25, 41] and first == second


def test_references_may_be_relative_and_the_manifest_in_another_order(tmp_path):
    folder = write_run(tmp_path / "run", SPOKEN, RECORDED)
    expected = score(folder)["scores"]
    manifest = folder / "manifest.tsv"
    rows = [line.split("\t")[::-1] for line in manifest.read_text().replace(str(tmp_path), "..").splitlines()]
    manifest.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    assert score(folder)["scores"] == expected


def test_table_has_a_line_for_each_and_leaves_unknown_cells_empty(tmp_path):
    run = read_run(write_run(tmp_path / "run", SPOKEN, RECORDED))
    spectra = Spectra(run.mels)
    report = score_speech(run, spectra, "recording")
    table = speech_table({"leap": report, **score_baselines(run, spectra, "recording")}).markdown().splitlines()
    leap, floor, _ = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:])
    assert leap[:4] == ["leap", "2", "recording", f"{report['scores']['MCD']:.3f}"]
    assert leap[-5:] == ["70", "1.061", "33.8%", "", "50.0%"]
    assert floor[0] == "floor" and floor[-5:] == [""] * 5


def test_the_error_of_a_predicted_length(tmp_path):
    folder = write_run(tmp_path / "run", SPOKEN, RECORDED)
    header, *rows = (folder / "manifest.tsv").read_text().splitlines()
    recorded = [int(row.split("\t")[-1]) for row in rows]
    predicted = [f"{row}\t{1.5 * recorded[0] if i == 0 else recorded[i]:g}" for i, row in enumerate(rows)]
    (folder / "manifest.tsv").write_text("\n".join([f"{header}\tpredicted_frames", *predicted]) + "\n")
    run = read_run(folder)
    scores = score_speech(run, Spectra(run.mels), "recording")["scores"]
    assert scores["prediction_error"] == pytest.approx(0.5 / len(rows))


def edit(folder, old, new):
    manifest = folder / "manifest.tsv"
    manifest.write_text(manifest.read_text().replace(old, new, 1))


def describe(content):
    return lambda folder: (folder / "run.json").write_text(content)


FEATURES = {"features": MELS.features()}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.tsv").unlink(), "no manifest.tsv in .*; give a folder of `leapformer tts`"),
        (lambda folder: (folder / "run.json").unlink(), "run.json cannot be read .No such file"),
        (describe("{"), "run.json cannot be read"),
        (describe("[]"), "run.json describes no features"),
        (describe('{"features": {}}'), "the features have no window_fn"),
        (lambda folder: edit(folder, "stopped", "ended"), "has no column 'stopped'"),
        (lambda folder: edit(folder, "\t37\t", "\tmany\t"), "sentence 'short' in .* no usable frames"),
        (lambda folder: edit(folder, "\t37\t1\t", "\t37\tyes\t"), "sentence 'short' in .* no usable frames or stopped"),
        (lambda folder: edit(folder, "\t25\n", "\t0\n"), "37 frames for 0 of the reference"),
        (lambda folder: (folder / "wav" / "long.wav").unlink(), "1 audio files of .* are missing, .*long.wav"),
        (lambda folder: (folder / "manifest.tsv").write_text(
            (folder / "manifest.tsv").read_text().splitlines()[0] + "\n"), "lists no sentences"),
        (describe(json.dumps({"features": replace(MELS, sample_rate=24_000).features()})), "sampled at 16000 Hz"),
        (lambda folder: write_speech(folder / "wav" / "long.wav", np.full(900, np.nan)), "has samples of nan"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_scored(damage, message, tmp_path):
    folder = write_run(tmp_path / "run", SPOKEN, RECORDED)
    damage(folder)
    with pytest.raises(LeapformerError, match=message) as error:
        score(folder)
    assert "\n" not in str(error.value)


def test_a_sentence_without_a_recording_is_named(tmp_path):
    folder = write_run(tmp_path / "run", SPOKEN, RECORDED)
    edit(folder, str(tmp_path / "recordings" / "long.wav"), "")
    with pytest.raises(LeapformerError, match="sentence 'long' in .* has no reference"):
        read_run(folder)


def test_only_the_same_sentences_are_compared(tmp_path):
    first, same = (read_run(write_run(tmp_path / name, SPOKEN, RECORDED)) for name in ("one", "two"))
    check_same(first, same)
    fewer = read_run(write_run(tmp_path / "fewer", {"short": SPOKEN["short"]}, RECORDED))
    other = read_run(write_run(tmp_path / "other", SPOKEN, RECORDED, replace(MELS, n_mels=40)))
    elsewhere = read_run(write_run(tmp_path / "elsewhere" / "run", SPOKEN, RECORDED))
    with pytest.raises(LeapformerError, match="run has other sentences"):
        check_same(first, elsewhere)
    with pytest.raises(LeapformerError, match="fewer has other sentences than .*one; score them separately"):
        check_same(first, fewer)
    with pytest.raises(LeapformerError, match="other has other features"):
        check_same(first, other)
