"""Preparing MuST-C: segments are cut as the yaml says, references stay, and whatever is missing is named."""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.compat import patches
from leapformer_fairseq.data import speech
from leapformer_fairseq.data.manifests import read_manifest, read_yaml
from leapformer_fairseq.data.speech_releases import MUSTC, paired
from leapformer_fairseq.runtime.audio import fbank, read_speech
from leapformer_fairseq.support.errors import LeapformerError

from .trees import Spoken, mustc_tree, noises

TEST = "tst-COMMON"


def splits() -> dict[str, list[Spoken]]:
    train = noises(7, 1)
    return {"train": train, "dev": noises(2, 2), TEST: noises(4, 3), "tst-HE": noises(2, 4)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set, and with what becomes of it; only for reading."""
    folder = tmp_path_factory.mktemp("whole")
    prepared(mustc_tree(folder / "mustc", splits()), folder / "out")
    return folder


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole / "mustc", tmp_path / "mustc")


def prepared(root: Path, out: Path, **options: int) -> Path:
    speech.prepare(MUSTC, root, out, vocab_size=40, **options)
    return out


def stored_features(folder: Path, row: dict[str, str]) -> np.ndarray:
    from fairseq.data.audio.audio_utils import get_features_or_waveform

    return get_features_or_waveform(f"{folder}/{row['audio']}")


class TestLanguages:
    def test_other_languages_are_prepared(self, root, tmp_path, capsys):
        """And not mixed with the default's."""
        (root / "en-de").rename(root / "en-es")
        for path in root.glob("en-es/data/*/txt/*.de"):
            path.rename(path.with_suffix(".es"))
        words = ["prepare", "mustc", str(root), "--out", str(tmp_path / "out"), "--vocab-size", "40"]
        assert main(words) == 2
        assert "the MuST-C root is the folder that holds en-de/data/train" in capsys.readouterr().err
        assert main([*words, "--pair", "en-es"]) == 0
        assert json.loads((tmp_path / "out/prepared.json").read_text())["dataset"] == "mustc en-es"
        assert main(words) == 2
        assert "was prepared with dataset mustc en-es, not mustc; choose another --out" in capsys.readouterr().err
        talks = ["prepare", "mustc-talks", str(root), "--pair", "en-es", "--out", str(tmp_path / "talks")]
        assert main(talks) == 0

    @pytest.mark.parametrize("pair", ["de", "en_de", "../..-x", "en-german", "en-xx", "de-en"])
    def test_what_is_no_pair(self, pair):
        with pytest.raises(
            LeapformerError, match=re.escape(f"--pair {pair}: mustc has no such languages; give one of en-ar, ")
        ):
            paired("mustc", pair)

    def test_a_recipe_says_it_before_it_prepares(self, tmp_path, capsys):
        words = ["recipe", "mustc", "--pair", "en-xx", "--out", str(tmp_path), "--dry-run"]
        assert main(words) == 2
        assert "--pair en-xx: mustc has no such languages" in capsys.readouterr().err


class TestReading:
    def test_segments_are_cut_at_the_sample(self, root):
        for recording, spoken in zip(MUSTC.read_split(root, TEST), splits()[TEST], strict=True):
            np.testing.assert_allclose(MUSTC.read_audio(recording), spoken.samples, atol=2 / 2**15)
            assert (recording.source, recording.target) == (spoken.source, spoken.target)

    def test_ids_are_unique_and_count_within_a_talk(self, root):
        ids = [recording.id for recording in MUSTC.read_split(root, TEST)]
        assert ids == [f"ted_{TEST}_0_0", f"ted_{TEST}_0_1", f"ted_{TEST}_0_2", f"ted_{TEST}_3_0"]

    @pytest.mark.parametrize(
        ("missing", "named"),
        [
            (".", "mustc root"),
            ("en-de/data/tst-HE", "tst-HE"),
            ("en-de/data/dev/txt/dev.yaml", "dev.yaml"),
            ("en-de/data/dev/txt/dev.de", "dev.de"),
            ("en-de/data/train/wav/ted_train_3.wav", "ted_train_3.wav"),
        ],
    )
    def test_what_is_missing_is_named_before_anything_is_written(self, root, tmp_path, missing, named):
        (root / missing).rename(tmp_path / "elsewhere")
        with pytest.raises(LeapformerError, match=named):
            prepared(root, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("change", [{"offset": None}, {"offset": "soon"}, {"wav": None}])
    def test_damaged_row_is_named(self, root, change):
        path = root / "en-de/data/dev/txt/dev.yaml"
        rows = yaml.safe_load(path.read_text())
        rows[1] = {key: value for key, value in {**rows[1], **change}.items() if value is not None}
        path.write_text(yaml.safe_dump(rows))
        with pytest.raises(LeapformerError, match=f"dev.yaml, segment 2.*{next(iter(change))}"):
            MUSTC.read_split(root, "dev")

    def test_texts_of_another_length(self, root):
        path = root / "en-de/data/dev/txt/dev.de"
        path.write_text(path.read_text() + "mehr\n")
        with pytest.raises(LeapformerError, match="2 segments, 2 en and 3 de lines"):
            MUSTC.read_split(root, "dev")

    @pytest.mark.parametrize(("rate", "channels", "named"), [(8000, 1, "8000 Hz"), (16000, 2, "2 channels")])
    def test_other_audio_is_refused(self, root, tmp_path, rate, channels, named):
        soundfile.write(root / "en-de/data/dev/wav/ted_dev_0.wav", np.zeros((3 * rate, channels)), rate)
        with pytest.raises(LeapformerError, match=f"ted_dev_0.wav.*{named}"):
            prepared(root, tmp_path / "out")

    def test_truncated_talk_is_named(self, root, tmp_path):
        soundfile.write(root / "en-de/data/dev/wav/ted_dev_0.wav", np.zeros(100), 16000)
        with pytest.raises(LeapformerError, match="ted_dev_0.wav ends at 0.01 s"):
            prepared(root, tmp_path / "out")


class TestPreparation:
    def test_features_are_those_of_the_segment(self, whole):
        root, out = whole / "mustc", whole / "out"
        rows = list(read_manifest(out / f"{TEST}_st.tsv"))
        for recording, row in zip(MUSTC.read_split(root, TEST), rows, strict=True):
            features = stored_features(out, row)
            assert len(features) == int(row["n_frames"])
            np.testing.assert_array_equal(features, fbank(MUSTC.read_audio(recording)))

    def test_evaluation_wavs_give_the_same_features(self, whole):
        """What SimulEval plays is what the offline scores are computed on."""
        out = whole / "out"
        wavs = (out / f"{TEST}.source").read_text().split()
        for wav, row in zip(wavs, read_manifest(out / f"{TEST}_st.tsv"), strict=True):
            assert Path(wav).is_absolute()
            np.testing.assert_allclose(fbank(read_speech(wav)), stored_features(out, row), atol=0.2)
        assert (out / f"{TEST}.target").read_text() == "".join(f"{one.target}\n" for one in splits()[TEST])

    def test_only_training_text_is_cleaned(self, tmp_path):
        noisy = [Spoken(one.samples, "So. (Applause)", "(Beifall)  Also ♫") for one in noises(3)]
        only_a_note = [Spoken(noises(1)[0].samples, "(Laughter)", "(Lachen)")]
        tree = {**splits(), "train": [*splits()["train"], *noisy, *only_a_note], TEST: noisy}
        out = tmp_path / "out"
        summaries = speech.prepare(MUSTC, mustc_tree(tmp_path / "mustc", tree), out, vocab_size=40)
        assert [row["tgt_text"] for row in read_manifest(out / "train_st.tsv")][-3:] == ["Also"] * 3
        assert [row["tgt_text"] for row in read_manifest(out / "train_asr.tsv")][-3:] == ["So."] * 3
        assert (out / f"{TEST}.target").read_text() == "(Beifall) Also ♫\n" * 3
        assert summaries["train"].dropped == {"no text": 1}
        assert summaries[TEST].dropped == {}

    def test_too_short_and_too_long_segments_are_counted(self, tmp_path, monkeypatch):
        monkeypatch.setattr(speech, "MAX_TRAINING_FRAMES", 100)
        long, short = noises(1, 8, seconds=2)[0], noises(1, 9, seconds=0.03)[0]
        tree = {**splits(), "train": [*splits()["train"], long, short], "dev": [long]}
        summaries = speech.prepare(MUSTC, mustc_tree(tmp_path / "mustc", tree), tmp_path / "out", vocab_size=40)
        assert summaries["train"].dropped == {"too long": 1, "too short": 1}
        assert summaries["train"].utterances == 7
        assert summaries["dev"].utterances == 1

    def test_statistics_are_of_the_training_frames(self, whole):
        out = whole / "out"
        frames = np.concatenate([stored_features(out, row) for row in read_manifest(out / "train_st.tsv")])
        with np.load(out / "gcmvn.npz") as stats:
            np.testing.assert_allclose(stats["mean"], frames.mean(0), rtol=1e-5)
            np.testing.assert_allclose(stats["std"], frames.std(0), rtol=1e-4)

    def test_fairseq_reads_it(self, whole):
        from fairseq.data.audio.speech_to_text_dataset import S2TDataConfig
        from fairseq.tasks.speech_to_text import SpeechToTextTask

        patches.apply()  # paths are those beside the configuration
        out = whole / "out"
        options = Namespace(data=str(out), config_yaml="config_st.yaml", seed=1, eval_wer=False)
        options.max_source_positions, options.max_target_positions = 6000, 1024
        task = SpeechToTextTask.setup_task(options)
        task.load_dataset("train_st")
        dataset = task.dataset("train_st")
        assert len(dataset) == 7
        decoded = task.target_dictionary.string(dataset[6].target, "sentencepiece")
        assert decoded == splits()["train"][6].target
        assert S2TDataConfig(out / "config_asr.yaml").vocab_filename == "spm_asr.txt"

    def test_masks_and_the_text_of_training(self, whole, monkeypatch):
        """A few hours are masked less; what was prepared before gets it when its recipe goes on."""
        out = whole / "out"
        texts = [row["tgt_text"] for row in read_manifest(out / "train_st.tsv", "tgt_text")]
        assert (out / "train.target").read_text().splitlines() == texts and len(texts) == 7
        masks = []
        for few in (0, speech.FEW_HOURS):
            monkeypatch.setattr(speech, "FEW_HOURS", few)
            prepared(whole / "mustc", out)
            masks.append(read_yaml(out / "config_st.yaml")["specaugment"])
            assert masks[-1] == read_yaml(out / "config_asr.yaml")["specaugment"]
        assert (masks[0]["freq_mask_F"], masks[0]["time_mask_T"]) == (27, 100)
        assert masks[1]["freq_mask_F"] < 20 and masks[1]["time_mask_T"] < 50

    def test_several_processes_write_the_same(self, whole, tmp_path):
        one, two = whole / "out", prepared(whole / "mustc", tmp_path / "two", workers=2)
        for name in ("fbank80_train.zip", "train_asr.tsv", "tst-HE_st.tsv", "gcmvn.npz", "spm_st.model"):
            assert (one / name).read_bytes() == (two / name).read_bytes(), name


class TestResuming:
    def test_finished_split_is_not_redone(self, root, tmp_path, monkeypatch):
        out, complete = tmp_path / "out", speech._prepare_split

        def interrupted(dataset, name, *rest):
            if name == TEST:
                raise KeyboardInterrupt
            return complete(dataset, name, *rest)

        monkeypatch.setattr(speech, "_prepare_split", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepared(root, out)
        before = (out / "fbank80_train.zip").stat().st_mtime_ns
        assert list(json.loads((out / "prepared.json").read_text())["splits"]) == ["train", "dev"]
        monkeypatch.setattr(speech, "_prepare_split", complete)
        prepared(root, out)
        assert (out / "fbank80_train.zip").stat().st_mtime_ns == before
        assert len((out / f"{TEST}.source").read_text().split()) == 4

    def test_interrupted_split_leaves_no_archive(self, root, tmp_path, monkeypatch):
        monkeypatch.setattr(speech.FeatureArchive, "add", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepared(root, tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["prepared.json"]

    def test_folder_may_move_and_the_data_go(self, whole, tmp_path):
        shutil.copytree(whole / "out", tmp_path / "moved")
        (whole / "mustc").rename(tmp_path / "gone")
        try:
            out = prepared(whole / "mustc", tmp_path / "moved")
        finally:
            (tmp_path / "gone").rename(whole / "mustc")
        assert str(out) in (out / f"{TEST}.source").read_text()
        assert yaml.safe_load((out / "config_st.yaml").read_text())["audio_root"] == "."

    def test_other_data_and_options_are_not_mixed(self, whole, root, tmp_path):
        with pytest.raises(LeapformerError, match="vocab_size 40, not 50"):
            speech.prepare(MUSTC, whole / "mustc", whole / "out", vocab_size=50)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "thesis.tex").touch()
        with pytest.raises(LeapformerError, match="something else"):
            prepared(root, tmp_path / "full")


def test_command(root, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["prepare", "mustc", str(root), "--out", out, "--vocab-size", "40"]) == 0
    assert "tst-COMMON: 4 utterances, 0.00 h; left out: none" in capsys.readouterr().out
    assert main(["prepare", "mustc", str(root / "nowhere"), "--out", str(tmp_path / "other")]) == 2
    assert f"mustc root {root / 'nowhere'} is not a folder" in capsys.readouterr().err
