"""Trained models without the files that their training began with, and prepared folders in another place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from fairseq import checkpoint_utils
from fairseq.data.audio.data_cfg import S2TDataConfig

from leapformer_fairseq import register
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.teacher import load_teacher
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.simul.loading import load_system
from leapformer_fairseq.simul.simulate import read_utterances
from leapformer_fairseq.support.files import paths_beside
from tests.covering import kept
from tests.data.tiny_corpus import tiny_corpus
from tests.reversed_text import TRAINING, reversed_text
from tests.untrained import save_checkpoint

pytest.importorskip("espeakng_loader")
register()
SPEECH = (
    "--task speech_to_text --config-yaml config_{0}.yaml --train-subset train_{0} --valid-subset dev_{0} "
    f"--arch leapformer_s2t_tiny --encoder-embed-dim 16 --decoder-embed-dim 16 {TRAINING} --max-tokens 4000 "
    "--max-update"
)


def old_configuration(folder: Path) -> None:
    """As folders were prepared before: with absolute paths."""
    for file in folder.glob("config_*.yaml"):
        config = yaml.safe_load(file.read_text())
        config["audio_root"], config["global_cmvn"]["stats_npz_path"] = str(folder), str(folder / "gcmvn.npz")
        config["bpe_tokenizer"]["sentencepiece_model"] = str(
            folder / config["bpe_tokenizer"]["sentencepiece_model"].rpartition("/")[2]
        )
        file.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("old", kept([False, True], True))
def test_a_speech_model_outlives_its_recogniser_and_the_place_of_its_data(old, tmp_path, capsys) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_corpus(), data)
    if old:
        old_configuration(data)
    begin, st = tmp_path / "asr/checkpoint_last.pt", tmp_path / "st"

    def train(task: str, updates: int, save: Path, folder: Path) -> int:
        warm = [] if task == "asr" else ["--load-pretrained-encoder-from", str(begin)]
        words = SPEECH.format(task).split()
        return main(["train", str(folder), *words, str(updates), "--save-dir", str(save), *warm])

    assert train("asr", 1, begin.parent, data) == 0
    assert train("st", 1, st, data) == 0
    shutil.rmtree(begin.parent)
    assert train("st", 1, tmp_path / "new", data) == 2, "a training that begins needs the recogniser"
    moved = tmp_path / "elsewhere" / "other name"
    moved.parent.mkdir()
    data.rename(moved)
    assert train("st", 2, st, moved) == 0, "one that goes on does not"
    model = str(st / "checkpoint_last.pt")
    words = ["--gen-subset", "test_st", "--task", "speech_to_text", "--config-yaml", "config_st.yaml", "--path", model]
    assert main(["generate", str(moved), *words, "--cpu", "--beam", "1", "--max-len-b", "3"]) == 0
    system = load_system(model, moved, "config_st.yaml", policy=PolicyOptions("offline"), pre_decision_ratio=1)
    assert system.cmvn is not None
    assert main(["export", "--path", model, "--data", str(moved), "--config-yaml", "config_st.yaml",
                 "--pre-decision-ratio", "1", "--out", str(tmp_path / "out")]) == 2  # fmt: skip
    assert "has no meaning for a model that reads whole recordings" in capsys.readouterr().err, "it was loaded"


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_no_way_of_loading_looks_for_a_warm_start(kind: str, tmp_path: Path) -> None:
    begin = save_checkpoint(
        tmp_path / "begin.pt", tiny_corpus(), "leapformer_s2t_tiny", "--config-yaml", "config_st.yaml"
    )
    options = ["--config-yaml", "config_st.yaml", f"--load-pretrained-{kind}-from", str(begin)]
    model = save_checkpoint(tmp_path / "model.pt", tiny_corpus(), "leapformer_s2t_tiny", *options)
    begin.unlink()
    (loaded,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(model)])
    teacher = load_teacher(str(model), task)
    for name, value in loaded.state_dict().items():
        assert value.equal(teacher.model.state_dict()[name])


@pytest.mark.parametrize("arch", ["leapformer_nmt_tiny", "transformer_tiny"])
def test_embeddings_are_read_when_training_begins(arch: str, tmp_path: Path) -> None:
    root = reversed_text(tmp_path / "text", train=10, valid=2)
    vectors, path = tmp_path / "vectors.txt", tmp_path / "model.pt"
    vectors.write_text("1 64\nthe " + " ".join(["0.5"] * 64) + "\n")
    options = ["--encoder-embed-path", str(vectors), "--decoder-embed-path", str(vectors)]
    save_checkpoint(path, root / "mt", arch, *options, task="translation")
    vectors.unlink()
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert model.encoder.embed_tokens.weight[task.source_dictionary.index("the")].tolist() == [0.5] * 64
    with pytest.raises(FileNotFoundError):
        save_checkpoint(path, root / "mt", arch, *options, task="translation")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"audio_root": "."}, {"audio_root": "FOLDER"}),
        ({"audio_root": ""}, {"audio_root": ""}),
        ({"audio_root": "/gone/data"}, {"audio_root": "/gone/data"}),
        (
            {"audio_root": "/gone/data", "global_cmvn": {"stats_npz_path": "/gone/data/gcmvn.npz"}},
            {"audio_root": "FOLDER", "global_cmvn": {"stats_npz_path": "FOLDER/gcmvn.npz"}},
        ),
        ({"audio_root": "/gone/data/wav"}, {"audio_root": "FOLDER/wav"}),
        ({"audio_root": "/"}, {"audio_root": "/"}),
        ({"global_cmvn": {"stats_npz_path": "gcmvn.npz"}}, {"global_cmvn": {"stats_npz_path": "FOLDER/gcmvn.npz"}}),
        ({"vocab_filename": "/gone/spm.txt", "n": 1}, {"vocab_filename": "FOLDER/spm.txt", "n": 1}),
        ({"vocab_filename": "/gone/none.txt"}, {"vocab_filename": "/gone/none.txt"}),
    ],
)
def test_paths_beside_the_configuration(value: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "wav").mkdir()
    for name in ("gcmvn.npz", "spm.txt"):
        (tmp_path / name).touch()
    assert str(paths_beside(value, tmp_path)) == str(expected).replace("FOLDER", str(tmp_path))


def test_a_prepared_folder_names_no_place(tmp_path: Path) -> None:
    for file in tiny_corpus().glob("config_*.yaml"):
        assert str(tiny_corpus()) not in file.read_text()
        assert S2TDataConfig(file).audio_root == str(tiny_corpus())


def test_lists_of_recordings_are_read_where_the_folder_is(tmp_path: Path) -> None:
    data, moved = tmp_path / "data", tmp_path / "moved"
    shutil.copytree(tiny_corpus(), data)
    listed = (data / "test.source").read_text().replace(str(tiny_corpus()), str(data))
    (data / "test.source").write_text(listed)
    data.rename(moved)
    found = read_utterances(moved / "test.source", moved / "test.target")
    assert [str(one.audio) for one in found] == listed.replace(str(data), str(moved)).split()
