"""The MuST-C and CoVoST 2 recipes, from the layout of the releases to the scores, with tiny models and real speech."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.audio import read_speech
from leapformer_fairseq.checkpoints import load_checkpoint
from leapformer_fairseq.data.manifests import read_manifest

from ..data.tiny_corpus import TINY_SIZES, build_tiny
from ..data.trees import Spoken, covost2_tree, mustc_tree

SCRIPTS = PLUGIN_DIR.parent / "scripts"
TINY = "--max-epoch 2 --max-tokens 2500 --update-freq 1 --warmup-updates 2 --log-interval 1"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the installed package has no scripts beside it")


@pytest.fixture(scope="session")
def speech(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Spoken]]:
    """Synthetic utterances by split: train, dev, test."""
    corpus = build_tiny(tmp_path_factory.mktemp("speech") / "corpus").folder
    spoken = {}
    for split in ("train", "dev", "test"):
        wavs = (corpus / f"{split}.source").read_text(encoding="utf-8").split()
        rows = read_manifest(corpus / f"{split}_st.tsv")
        spoken[split] = [
            Spoken(read_speech(wav), row["src_text"], row["tgt_text"], row["speaker"])
            for wav, row in zip(wavs, rows, strict=True)
        ]
    return spoken


@pytest.fixture
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two trainings at once on a small machine are slower than one after the other; workers share the parent folder."""
    with open(tmp_path_factory.getbasetemp().parent / "recipes.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def recipe(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe in the environment of the tests."""
    environment = {**os.environ, "LEAPFORMER_VENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SCRIPTS / script), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def tiny(root: Path, out: Path, k: str) -> list[str]:
    """Options for a run of seconds."""
    return [
        "--root", str(root), "--out", str(out), "--vocab-size", "60", "--average", "2", "--k", k,
        "--asr-options", f"--arch leapformer_s2t_tiny {TINY}",
        "--st-options", f"--arch leapformer_simulst_tiny {TINY}",
        "--eval-options", "--max-len-b 20",
    ]  # fmt: skip


def check_results(out: Path, test_set: str, ks: str) -> None:
    """Both models were trained, the average is of two epochs, and every k has scores of all test utterances."""
    assert (out / "asr-leap/model/checkpoint_best.pt").is_file()
    average = load_checkpoint(out / "leap/model/average2.pt")
    assert average["averaged"] == ["checkpoint1.pt", "checkpoint2.pt"]
    for k in ks.split():
        scores = json.loads((out / f"leap/{test_set}/k{k}/scores.json").read_text(encoding="utf-8"))
        assert scores["n_instances"] == TINY_SIZES["test"]
        assert {"BLEU", "AL", "LAAL", "AL_CA"} <= scores["scores"].keys()
    offline = json.loads((out / f"leap/{test_set}/offline/scores.json").read_text(encoding="utf-8"))
    assert offline["n_instances"] == TINY_SIZES["test"]
    report = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert len(report["systems"][f"leap/{test_set}"]["rows"]) == len(ks.split()) + 1
    (forced,) = report["systems"]["leap"]["rows"]
    assert forced["k"] == "teacher-forced" and forced["perplexity"] > 1


def test_mustc(speech, tmp_path, one_at_a_time):
    splits = {"train": speech["train"], "dev": speech["dev"], "tst-COMMON": speech["test"], "tst-HE": speech["dev"]}
    options = tiny(mustc_tree(tmp_path / "data", splits), tmp_path / "out", "1 3")
    done = recipe("mustc/run.sh", *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    check_results(tmp_path / "out", "tst-COMMON", "1 3")
    again = recipe("mustc/run.sh", *options)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("is finished, skipped") == 6
    whole = ("--attention", "leap/cosformer/softmax", "--offline", "--st-options", "--arch leapformer_s2t_tiny")
    done = recipe("mustc/run.sh", *options, *whole)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "is finished, skipped" in done.stdout, "the encoder of another plan with the same encoder"
    run = tmp_path / "out/leap+cosformer+softmax-offline"
    assert "--length-predictor ratio --length-ratio 0.6" in (run / "options").read_text(encoding="utf-8")
    assert [path.name for path in (run / "tst-COMMON").iterdir() if path.is_dir()] == ["offline"]
    for number, plan, k in ((5, "softmax/cosformer/softmax:cosformer-length=0", ""), (10, "softmax", "3")):
        done = recipe("tables.sh", f"leapformer-{number}", *options, "--rows", plan, "--longest", "2", "--k", k)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "out/scores.json").read_text(encoding="utf-8"))["systems"]
    assert report["softmax+cosformer+softmax_cosformer-length_0"]["rows"][0]["perplexity"] > 1
    simultaneous, _ = report["softmax/dev-long"]["rows"]
    assert simultaneous["sentences"] == 2 and 0 < simultaneous["without_prenet"] < simultaneous["compute"]
    assert "without pre-net" in (tmp_path / "out/report.md").read_text(encoding="utf-8")
    other = recipe("mustc/train.sh", *options, "--st-options", "--lr 1")
    assert other.returncode == 1
    assert "holds the results of another run" in other.stderr


@pytest.mark.skipif("MP3" not in soundfile.available_formats(), reason="libsndfile without mp3")
def test_covost2_step_by_step(speech, tmp_path, one_at_a_time):
    root = covost2_tree(tmp_path / "data", speech)
    options = tiny(root, tmp_path / "out", "3")
    for step in ("prepare", "train", "evaluate"):
        done = recipe(f"covost2/{step}.sh", *options)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    check_results(tmp_path / "out", "test", "3")


@pytest.mark.parametrize("dataset", ["mustc", "covost2"])
class TestErrors:
    def test_missing_root_is_named(self, dataset, tmp_path):
        done = recipe(f"{dataset}/run.sh", "--root", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"))
        assert done.returncode == 1
        assert str(tmp_path / "nowhere") in done.stderr
        assert not (tmp_path / "out").exists()

    def test_empty_root_is_named(self, dataset, tmp_path):
        done = recipe(f"{dataset}/prepare.sh", "--root", str(tmp_path), "--out", str(tmp_path / "out"))
        assert done.returncode == 2
        assert done.stderr.startswith("leapformer: error: ")
        assert str(tmp_path) in done.stderr

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ([], "--out"),
            (["--out"], "--out needs a value"),
            (["--speed", "3"], "--speed"),
            (["--paper", "nature", "--out", "x"], "nature"),
        ],
    )
    def test_wrong_option_is_named(self, dataset, options, named):
        done = recipe(f"{dataset}/train.sh", *options)
        assert done.returncode == 1
        assert named in done.stderr

    @pytest.mark.parametrize(("step", "before"), [("train", "prepare"), ("evaluate", "train")])
    def test_steps_need_the_one_before(self, dataset, tmp_path, step, before):
        done = recipe(f"{dataset}/{step}.sh", "--out", str(tmp_path / "out"))
        assert done.returncode == 1
        assert f"run scripts/{dataset}/{before}.sh first" in done.stderr

    def test_help(self, dataset):
        done = recipe(f"{dataset}/evaluate.sh", "--help")
        assert done.returncode == 0
        assert f"scripts/{dataset}/evaluate.sh" in done.stdout
        assert "leapformer" in done.stdout


def test_no_script_redefines_what_all_share():
    """A function of common.sh by the same name elsewhere would be called by common.sh, too."""

    def functions(path):
        return set(re.findall(r"^(\w+)\(\)", path.read_text(encoding="utf-8"), re.MULTILINE))

    shared = functions(SCRIPTS / "common.sh")
    assert {"train", "once", "lock_run"} <= shared
    for path in SCRIPTS.rglob("*.sh"):
        if path.name not in ("common.sh", "setup.sh"):  # setup.sh does not source it
            assert not functions(path) & shared, path
