"""The MuST-C and CoVoST 2 recipes, from the layout of the releases to the scores, with tiny models and real speech."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from leapformer_fairseq.data import tables
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.runtime.audio import read_speech
from tests.data.tiny_corpus import TINY_SIZES, tiny_corpus
from tests.data.trees import Spoken, covost2_tree, mboshi_tree, mustc_tree
from tests.studies.recipes.running import finished, ran, refused

TINY = "--max-epoch 2 --max-tokens 2500 --update-freq 1 --warmup-updates 2 --log-interval 1"


@pytest.fixture(scope="session")
def speech() -> dict[str, list[Spoken]]:
    """Synthetic utterances by split: train, dev, test."""
    corpus, spoken = tiny_corpus(), {}
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


def tiny(root: Path, out: Path, k: str) -> list[str]:
    """Options for a run of seconds."""
    return [
        "--root", str(root), "--out", str(out), "--vocab-size", "60", "--average", "2", "--k", k,
        "--asr-options", f"--arch leapformer_s2t_tiny {TINY}",
        "--st-options", f"--arch leapformer_simulst_tiny {TINY}",
        "--eval-options", "--max-len-b 6",
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


@pytest.mark.full
def test_mustc(speech, tmp_path, one_at_a_time):
    splits = {"train": speech["train"], "dev": speech["dev"], "tst-COMMON": speech["test"], "tst-HE": speech["dev"]}
    options = tiny(mustc_tree(tmp_path / "data", splits), tmp_path / "out", "1 3")
    finished("mustc", *options)
    check_results(tmp_path / "out", "tst-COMMON", "1 3")
    assert finished("mustc", *options).count("is finished, skipped") == 7
    whole = ("--attention", "leap/cosformer/softmax", "--offline", "--st-options", "--arch leapformer_s2t_tiny")
    assert "is finished, skipped" in finished("mustc", *options, *whole), "it shares the recogniser"
    run = tmp_path / "out/leap+cosformer+softmax-offline"
    assert "--length-predictor ratio --length-ratio 0.6" in (run / "options").read_text(encoding="utf-8")
    assert [path.name for path in (run / "tst-COMMON").iterdir() if path.is_dir()] == ["offline"]
    plan = "softmax/cosformer/softmax:cosformer-"
    for table, row, k in (("5", f"{plan}length=0", ""), ("figure-4", f"{plan}step=4", "1"), ("10", "softmax", "3")):
        finished(f"leapformer-{table}", *options, "--rows", row, "--longest", "2", "--k", k)
    report = json.loads((tmp_path / "out/scores.json").read_text(encoding="utf-8"))["systems"]
    assert report["softmax+cosformer+softmax_cosformer-length_0"]["rows"][0]["perplexity"] > 1
    assert [row["k"] for row in report["softmax+cosformer+softmax_cosformer-step_4/dev-long"]["rows"]] == [1, "offline"]
    simultaneous, _ = report["softmax/dev-long"]["rows"]
    assert simultaneous["sentences"] == 2 and 0 < simultaneous["without_prenet"] < simultaneous["compute"]
    assert "without pre-net" in (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert "holds the run of another command" in refused("mustc", "train", *options, "--st-options", "--lr 1")


@pytest.mark.full
@pytest.mark.skipif("MP3" not in soundfile.available_formats(), reason="libsndfile without mp3")
def test_covost2_step_by_step(speech, tmp_path, one_at_a_time):
    root = covost2_tree(tmp_path / "data", speech)
    options = tiny(root, tmp_path / "out", "3")
    for step in ("prepare", "train", "evaluate"):
        finished("covost2", step, *options)
    check_results(tmp_path / "out", "test", "3")


def own_tables(root: Path, speech: dict[str, list[Spoken]]) -> list[str]:
    """A table for each split with names of one's own, and the options that say so."""
    words = ["--columns", "text=sentence"]
    for split, spoken in speech.items():
        lines = ["audio\tsentence\ttranslation\tspeaker"]
        for i, one in enumerate(spoken):
            soundfile.write(root / f"{split}{i}.wav", one.samples, 16_000)
            lines.append(f"{split}{i}.wav\t{one.source}\t{one.target}\t{one.speaker}")
        (root / f"{split}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        words += [f"--{split}", str(root / f"{split}.tsv")]
    return words


def test_speech_of_ones_own(speech, tmp_path, one_at_a_time):
    """What follows from the data stands in the commands, and what the user says comes after it."""
    out = tmp_path / "out"
    options = [*own_tables(tmp_path, speech), *tiny(tmp_path, out, "2")[2:], "--attention", "leap"]
    dry = finished("speech", *options, "--dry-run")
    assert "not prepared yet: --max-tokens, --max-update, --fixed-pre-decision-ratio are left out" in dry
    assert "the characters of dev wrong: it has not learned to recognise" in refused("speech", *options)
    assert "more updates would help" in finished("speech", *options, "--anyway")
    check_results(out, "test", "2")
    ratio = tables.measure(out / "data").ratio
    asr, st = ((out / f"{run}/options").read_text(encoding="utf-8") for run in ("asr-leap", "leap"))
    assert "--max-tokens 4000 --max-update 6000 --warmup-updates 600 --arch leapformer_s2t_tiny" in asr
    assert f"--fixed-pre-decision-ratio {ratio} --arch leapformer_simulst_tiny --waitk-lagging 1-9,offline" in st
    assert st.rstrip().endswith(TINY)
    assert finished("speech", *options[8:], "--anyway", "train", "evaluate").count("is finished, skipped") == 6
    dry = finished("speech", *options[8:-2], "--dry-run", "train")
    assert f"--encoder-chunk-ms {40 * ratio} " in dry and f"asr-leap_encoder-chunk-ms_{40 * ratio}/" in dry
    dry = finished("speech", *options[8:-1], "leap:encoder-chunk-ms=200", "--dry-run", "train")
    assert "--encoder-chunk-ms 200 " in dry and f"--fixed-pre-decision-ratio {ratio} " in dry


@pytest.mark.full
def test_mboshi(speech, tmp_path, one_at_a_time):
    """A release of some hours: the test split is cut out of train, and the rest follows from the data."""
    root = mboshi_tree(tmp_path / "data", {"train": [*speech["train"], *speech["dev"]], "dev": speech["test"]})
    options = [*tiny(root, tmp_path / "out", "2"), "--attention", "leap:encoder-chunk-ms=step", "--offline"]
    finished("mboshi", *options, "--anyway")
    measured = tables.measure(tmp_path / "out/data")
    run = tmp_path / f"out/leap_encoder-chunk-ms_{measured.step_ms}-offline"
    assert f"--max-update {measured.updates} " in (run / "options").read_text(encoding="utf-8")
    scores = {name: json.loads((run / name / "offline/scores.json").read_text("utf-8")) for name in ("dev", "test")}
    assert scores["dev"]["n_instances"] == len(speech["test"])
    assert scores["test"]["n_instances"] == (len(speech["train"]) + len(speech["dev"])) // 10
    assert "--sets test: choose from dev" in refused("quechua", *options, "--sets", "test")


def test_speech_of_ones_own_needs_its_tables(tmp_path):
    assert "no --train given, a table of recordings" in refused("speech", "--out", tmp_path / "out")
    (tmp_path / "a.tsv").write_text("audio\ttext\n")
    words = ["--train", tmp_path / "a.tsv", "--dev", tmp_path / "a.tsv"]
    assert "no --test given" in refused("speech", *words, "--out", tmp_path / "out")
    assert "none.tsv" in refused("speech", *words, "--test", tmp_path / "none.tsv", "--out", tmp_path / "out")


@pytest.mark.parametrize("dataset", ["mustc", "covost2"])
class TestErrors:
    def test_missing_root_is_named(self, dataset, tmp_path):
        told = refused(dataset, "--root", tmp_path / "nowhere", "--out", tmp_path / "out")
        assert str(tmp_path / "nowhere") in told
        assert not (tmp_path / "out").exists()

    def test_empty_root_is_named(self, dataset, tmp_path):
        assert str(tmp_path) in refused(dataset, "prepare", "--root", tmp_path, "--out", tmp_path / "out")

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ([], "no --out given"),
            (["--out"], "--out needs a value"),
            (["--speed", "3"], "unknown option --speed"),
            (["--paper", "nature", "--out", "x"], "nature"),
            (["translate", "--out", "x"], "has no step translate; choose from prepare, train, evaluate"),
        ],
    )
    def test_wrong_option_is_named(self, dataset, options, named):
        assert named in refused(dataset, *options)

    @pytest.mark.parametrize(("step", "before"), [("train", "prepare"), ("evaluate", "train")])
    def test_steps_need_the_one_before(self, dataset, tmp_path, step, before):
        assert f"run the step {before} first" in refused(dataset, step, "--out", tmp_path / "out")

    def test_help(self, dataset):
        status, shown, _ = ran(dataset, "--help")
        assert status == 0
        for word in ("--offline", "--asr-options", "(default: leapformer)", "prepare, train, evaluate"):
            assert word in " ".join(shown.split())
