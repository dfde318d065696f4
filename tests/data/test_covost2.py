"""Preparing CoVoST 2: the two tables are joined, mp3 at 48 kHz becomes 16 kHz, unusable clips are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import speech
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.data.recordings import resample
from leapformer_fairseq.data.speech_releases import DATASETS, paired
from leapformer_fairseq.runtime.audio import read_speech
from leapformer_fairseq.support.errors import LeapformerError

from .trees import RATE, Spoken, covost2_tree, noises

COVOST2 = DATASETS["covost2"]

SPLITS = ("train", "train_covost", "dev", "test")
mp3 = pytest.mark.skipif("MP3" not in soundfile.available_formats(), reason="libsndfile without mp3")


def splits() -> dict[str, list[Spoken]]:
    return {split: noises(3, seed) for seed, split in enumerate(SPLITS)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return covost2_tree(tmp_path / "fr", splits(), suffix=".wav")


def prepared(root: Path, out: Path) -> dict[str, speech.SplitSummary]:
    return speech.prepare(COVOST2, root, out, vocab_size=40)


def tone(seconds: float, rate: int, hertz: float = 440) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


class TestReading:
    def test_tables_are_joined_by_path(self, root):
        train = COVOST2.read_split(root, "train")
        expected = splits()["train"] + splits()["train_covost"]
        assert [(one.source, one.target) for one in train] == [(one.source, one.target) for one in expected]
        assert len(COVOST2.read_split(root, "test")) == 3

    def test_other_languages(self, root):
        (root / "covost_v2.fr_en.tsv").rename(root / "covost_v2.en_zh-CN.tsv")
        assert len(paired("covost2", "en-zh-CN").read_split(root, "test")) == 3
        (root / "covost_v2.en_zh-CN.tsv").rename(root / "covost_v2.sv-SE_en.tsv")
        assert len(paired("covost2", "sv-SE-en").read_split(root, "test")) == 3
        with pytest.raises(LeapformerError, match=r"covost_v2.fr_en.tsv"):
            COVOST2.read_split(root, "test")

    def test_clip_in_one_table_only_is_not_used(self, root):
        table = root / "validated.tsv"
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
        assert len(COVOST2.read_split(root, "test")) == 2

    def test_quotes_are_text(self, tmp_path):
        spoken = Spoken(noises(1)[0].samples, 'Il dit "oui" et non', '"Yes", he says')
        root = covost2_tree(tmp_path / "fr", {**splits(), "dev": [spoken]}, suffix=".wav")
        (recording,) = COVOST2.read_split(root, "dev")
        assert (recording.source, recording.target) == (spoken.source, spoken.target)

    @pytest.mark.parametrize(
        ("missing", "named"),
        [
            (".", "covost2 root"),
            ("clips", "clips"),
            ("validated.tsv", "validated.tsv"),
            ("covost_v2.fr_en.tsv", "covost_v2.fr_en.tsv"),
            ("clips/common_voice_fr_dev0001.wav", "1 audio files of split dev .*common_voice_fr_dev0001"),
        ],
    )
    def test_what_is_missing_is_named(self, root, tmp_path, missing, named):
        (root / missing).rename(tmp_path / "elsewhere")
        with pytest.raises(LeapformerError, match=named):
            prepared(root, tmp_path / "out")

    def test_table_without_a_column(self, root):
        table = root / "covost_v2.fr_en.tsv"
        table.write_text(table.read_text().replace("split", "part", 1))
        with pytest.raises(LeapformerError, match="no column 'split'"):
            COVOST2.read_split(root, "dev")


class TestAudio:
    def test_resampling_keeps_low_and_removes_high_tones(self):
        kept = resample(tone(1, 48_000, 440), 48_000)
        assert len(kept) == RATE
        np.testing.assert_allclose(kept[200:-200], tone(1, RATE, 440)[200:-200], atol=1e-3)
        assert np.abs(resample(tone(1, 48_000, 11_000), 48_000)[200:-200]).max() < 1e-2

    @mp3
    def test_mp3_is_decoded(self, tmp_path):
        samples = tone(1, RATE)
        root = covost2_tree(tmp_path / "fr", {**splits(), "dev": [Spoken(samples, "la", "a")]})
        (recording,) = COVOST2.read_split(root, "dev")
        assert recording.path.suffix == ".mp3"
        decoded = COVOST2.read_audio(recording)
        assert abs(len(decoded) - len(samples)) < 0.1 * RATE  # an encoder pads
        spectrum = np.abs(np.fft.rfft(decoded))
        assert abs(spectrum.argmax() / len(decoded) * RATE - 440) < 5
        assert abs(np.sqrt(np.mean(decoded**2)) - 0.5 / np.sqrt(2)) < 0.03

    def test_stereo_is_mixed_down(self, root, tmp_path):
        path = root / "clips/common_voice_fr_dev0000.wav"
        soundfile.write(path, np.stack([tone(1, RATE), -tone(1, RATE) / 2], axis=1), RATE)
        mixed = COVOST2.read_audio(COVOST2.read_split(root, "dev")[0])
        np.testing.assert_allclose(mixed, tone(1, RATE) / 4, atol=1e-3)


class TestPreparation:
    def test_unusable_clips_are_left_out_and_counted(self, root, tmp_path):
        clips = root / "clips"
        soundfile.write(clips / "common_voice_fr_train0000.wav", np.full(RATE, 1e-4), RATE)
        soundfile.write(clips / "common_voice_fr_test0001.wav", tone(0.03, RATE), RATE)
        (clips / "common_voice_fr_test0002.wav").write_bytes(b"no audio at all")
        (clips / "common_voice_fr_dev0002.wav").write_bytes(b"")
        summaries = prepared(root, tmp_path / "out")
        assert summaries["train"].dropped == {"silent": 1}
        assert summaries["dev"].dropped == {"broken": 1}
        assert summaries["test"].dropped == {"too short": 1, "broken": 1}
        assert [row["id"] for row in read_manifest(tmp_path / "out/test_st.tsv")] == ["common_voice_fr_test0000"]
        assert len((tmp_path / "out/test.source").read_text().splitlines()) == 1

    def test_nothing_left_is_an_error(self, root, tmp_path):
        for clip in (root / "clips").glob("*_dev*"):
            clip.write_bytes(b"")
        with pytest.raises(LeapformerError, match="split dev was left out .3 broken"):
            prepared(root, tmp_path / "out")

    def test_evaluation_audio_is_16_khz(self, root, tmp_path):
        prepared(root, tmp_path / "out")
        for wav in (tmp_path / "out/test.source").read_text().split():
            assert len(read_speech(wav)) > 0

    def test_only_training_text_loses_its_quotes(self, tmp_path):
        spoken = Spoken(noises(1)[0].samples, "« Oui »", '"Yes"')
        root = covost2_tree(tmp_path / "fr", {**splits(), "train": [spoken], "test": [spoken]}, suffix=".wav")
        prepared(root, tmp_path / "out")
        assert next(read_manifest(tmp_path / "out/train_st.tsv"))["tgt_text"] == "Yes"
        assert next(read_manifest(tmp_path / "out/train_asr.tsv"))["tgt_text"] == "Oui"
        assert (tmp_path / "out/test.target").read_text() == '"Yes"\n'


@mp3
def test_command(tmp_path, capsys):
    root = covost2_tree(tmp_path / "fr", splits())
    (root / "clips/common_voice_fr_dev0002.mp3").write_bytes(b"")
    assert main(["prepare", "covost2", str(root), "--out", str(tmp_path / "out"), "--vocab-size", "40"]) == 0
    assert "dev: 2 utterances, 0.00 h; left out: 1 broken" in capsys.readouterr().out
