"""The recipes for text to speech, from nothing or from the layout of the release to scores and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leapformer_fairseq.cli.main import main
from tests.data.test_ljspeech import IDS, ljspeech_tree
from tests.studies.recipes.running import finished, ran, refused

pytestmark = pytest.mark.usefixtures("forked_trainings")
SIZES = "--encoder-transformer-layers 1 --decoder-transformer-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16"
TINY = (
    "--train-options", f"--arch leapformer_tts_tiny {SIZES} --prenet-dim 16 --postnet-conv-dim 16 --max-update 3",
    "--tts-options", "--max-steps 8 --iterations 2",
)  # fmt: skip


def table(out: Path) -> dict[str, dict]:
    """The scores of all systems by name."""
    content = json.loads((out / "speech/table.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in content["rows"]}


@pytest.mark.full
def test_espeak_with_every_predictor_and_then_another_plan(tmp_path):
    out = tmp_path / "out"
    options = ("--out", out, "--train", 12, "--dev", 2, "--test", 2, "--pictures", 1, *TINY)
    names = ["conv", "lookup", "oracle", "ratio"]
    predictors = ("--predictors", " ".join(reversed(names)))
    finished("espeak_tts", *options, "--attention", "cosformer/relu/cosformer", *predictors)
    finished("espeak_tts", *options, "--attention", "softmax", "--seed", 2)
    systems = [f"cosformer+relu+cosformer-seed1-{name}" for name in names]
    found = table(out)
    assert list(found) == [*systems, "softmax-seed2", "floor", "mean spectrogram"]
    assert all(found[name]["model"]["options"]["path"].endswith("checkpoint_best.pt") for name in systems)
    predicted = {name: (out / "speech" / name / "manifest.tsv").read_text(encoding="utf-8") for name in systems}
    assert len(set(predicted.values())) == len(names), "each predictor says something else"
    assert (out / "speech/spectrogram_1.svg").is_file()
    losses = json.loads((out / "table.json").read_text(encoding="utf-8"))["rows"]
    assert [row["attention"] for row in losses] == ["cosformer/relu/cosformer", "softmax"]
    for row in losses:
        parts = [row["scores"][name]["mean"] for name in ("L1", "MSE", "end")]
        assert min(parts) > 0 and row["scores"]["loss"]["mean"] == pytest.approx(sum(parts))
    again = finished("espeak_tts", *options, "--attention", "softmax", "--seed", 2)
    assert again.count("is finished, skipped") == 2
    linearized(out / "softmax-seed2/model/checkpoint_best.pt", tmp_path / "linear")


def linearized(teacher: Path, out: Path) -> None:
    """The trained softmax model, whose loss guides attention, as the teacher of a linear one."""
    plan = ["--attention", "softmax/softmax/hedgehog", "--align-updates", "2", "--distill-updates", "2"]
    assert main(["linearize", "--path", str(teacher), *plan, "--out", str(out)]) == 0
    found = json.loads((out / "keep0/result.json").read_text(encoding="utf-8"))
    assert found["replaced"] == ["decoder-cross.1"] and 0 < found["distance"]["distilled"] < 10


@pytest.mark.full
def test_lengths_are_swept_with_one_model(tmp_path):
    out, plan = tmp_path / "out", "softmax+softmax+cosformer"
    options = ("--out", out, "--train", 12, "--dev", 2, "--test", 2, "--pictures", 0, *TINY)
    finished("espeak-lengths", *options, "--ratios", "0.5 1.5", "--dampenings", "0.9", "--sizes")
    names = {name for name, row in table(out).items() if row.get("model")}
    sizes = {f"{plan}{size}-seed1-conv" for size in ("", "_length-hidden_256", "_length-layers_3")}
    assert names == {f"{plan}-seed1-ratio0.5", f"{plan}-seed1-ratio1.5", f"{plan}-seed1-lookup0.9", *sizes}


@pytest.mark.full
def test_ljspeech_step_by_step(tmp_path):
    out = tmp_path / "out"
    options = ("--root", ljspeech_tree(tmp_path / "LJSpeech-1.1"), "--out", out, "--pictures", 0, *TINY)
    for step in ("prepare", "train", "evaluate"):
        finished("ljspeech", step, *options)
    assert table(out)["leap-seed1"]["n_instances"] == len(IDS["test"])


@pytest.mark.parametrize("dataset", ["espeak_tts", "ljspeech"])
class TestWrongUse:
    def test_help(self, dataset):
        status, shown, _ = ran(dataset, "--help")
        assert status == 0 and "--predictors" in shown and "sweep" in shown

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ([], "no --out given"),
            (["--out", "x", "--predictors", "guess"], "choose from ratio, lookup, conv, oracle"),
            (["--out", "x", "--sizes", "--predictors", "ratio"], "--sizes are those of the predictor conv"),
            (["--out", "x", "--seed", "first"], "--seed first"),
            (["--out", "x", "--paper", "nature"], "nature"),
        ],
    )
    def test_wrong_option_is_named(self, dataset, options, named):
        assert named in refused(dataset, "train", *options)

    @pytest.mark.parametrize(("step", "before"), [("train", "prepare"), ("evaluate", "train")])
    def test_steps_need_the_one_before(self, dataset, tmp_path, step, before):
        assert f"run the step {before} first" in refused(dataset, step, "--out", tmp_path / "out")
