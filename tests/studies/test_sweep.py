"""`leapformer study`: what a file may say, the cells it stands for, and a real one from data to table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from leapformer_fairseq.cli import study as command
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.corpus import text
from leapformer_fairseq.studies.engine import State, planned
from leapformer_fairseq.studies.sweep import Sweep, read_study
from leapformer_fairseq.support.errors import LeapformerError

TRAIN = "DATA --task language_modeling --arch leapformer_lm_tiny --max-update 2 --optimizer adam --max-tokens 500"
PREPARE = "prepare: corpus --task text --out {out}/text\n"


def written(tmp_path: Path, body: str, train: str = TRAIN) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"train: {train}\n{body}", encoding="utf-8")
    return path


def study(tmp_path: Path, body: str, train: str = TRAIN) -> Sweep:
    return read_study(written(tmp_path, body, train), tmp_path / "out", command._check_command)


def test_all_combinations_are_trained_and_scored(tmp_path):
    body = "attention: [softmax, 'abc-mlp:abc-slots=4', softmax]\nseeds: [1, 7]\n"
    body += "options: {--dropout: [0.1, 0.3], fp16: [true, false]}\n"
    body += "scores:\n  test: ['eval-lm DATA --path {checkpoint} --gen-subset test', 'score {log} --text T']\n"
    cells = planned(study(tmp_path, PREPARE + body), State(), dry=True)
    names = [cell.name for cell in cells]
    assert names[:3] == ["prepare", *(f"softmax-dropout_0.1-fp16_true-seed1/{part}" for part in ("model", "test"))]
    assert (
        len(set(names)) == 1 + 2 * 2 * 2 * 2 * 2
        and names[-1] == "abc-mlp_abc-slots_4-dropout_0.3-fp16_false-seed7/test"
    )
    (training,) = cells[-6].steps
    assert training.launched and "encoder" not in str(training), "the model has one block"
    options = "--decoder-self-attention abc-mlp --no-epoch-checkpoints --seed 7 --dropout 0.3 --fp16 --abc-slots 4"
    assert options in str(training)
    run = tmp_path / "out" / names[-1].rpartition("/")[0]
    evaluation, score = cells[-1].steps
    assert str(evaluation) == f"leapformer eval-lm DATA --path {run}/model/checkpoint_best.pt --gen-subset test"
    assert str(score).startswith(f"leapformer score {run}/test/1-eval-lm.log --text T --checkpoint {run}/model/")
    assert str(score).endswith(f"--json {run}/test/scores.json")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("attention: leap\nseed: 1", "'seed' is no key of a study; did you mean seeds?"),
        ("seeds: 1", "attention is missing"),
        ("attention: {a: b}", "attention: {'a': 'b'} is neither text nor a list"),
        ("attention: leap\noptions: [lr]", r"options: \['lr'\] does not map names to values"),
        ("attention: leap\nseeds: [one]", "seeds: one: give a whole number from 0"),
        ("attention: [leap", "is not valid YAML"),
        ("attention: laep", "did you mean leap"),
        ("attention: leap/leap", "attention leap/leap: the model has decoder-self; give a plan for each"),
        ("attention: leap\nscores: {test: [scor x]}", "'scor' is no command of leapformer; did you mean score"),
        ("attention: leap\nscores: {test: [score x --txt y]}", r"arguments: --txt y \(did you mean --text"),
        ("attention: leap\nprepare: corpus 'x", "corpus 'x: No closing quotation; close the quotes"),
        ("attention: leap\nseeds: []", "attention, seeds and options name no run"),
        ("attention: leap\noptions: {lr: []}", "attention, seeds and options name no run"),
        ("attention: leap\noptions: {--seed: 1}", "options: seed is not to be varied, each run has its own"),
        ("attention: leap\nscores: {test: [eval-lm x]}", "scores: test does not end with the command score"),
        ("attention: leap\nscores: {model: [score x]}", "'model' cannot be the name"),
        ("attention: leap\nscores: {test: ['score {chekpoint}']}", "{chekpoint} is not known here; choose from {out},"),
        ("attention: leap\nprepare: ['corpus {log}']", "{log} is not known here; choose from {out}"),
        ("attention: leap", "leap-seed1: the training command cannot start: .*DATA"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_before_any_work(tmp_path, body, message):
    path = written(tmp_path, body)
    with pytest.raises(LeapformerError, match=message) as refused:
        main_study = read_study(path, tmp_path / "out", command._check_command)
        main_study.check()
        planned(main_study, State())
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


def test_what_has_come_to_nothing_may_be_corrected(tmp_path):
    body = "attention: softmax\nscores: {test: [score a --references R]}\n"
    study(tmp_path, body).reserve()
    study(tmp_path, body.replace("score a", "score b"), f"{TRAIN} --dropout 0.1").reserve()
    (tmp_path / "out/softmax-seed1/test").mkdir(parents=True)
    (tmp_path / "out/softmax-seed1/test/scores.json").touch()
    with pytest.raises(LeapformerError, match=r"a study with another scores test \(\"score b .*, not \"score c"):
        study(tmp_path, body.replace("score a", "score c"), f"{TRAIN} --dropout 0.1").check()


def test_a_study_in_python(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "mine.py"
    path.write_text(
        "from leapformer_fairseq.studies.engine import Call, Cell, Study\n"
        "class Mine(Study):\n"
        "    def __init__(self, out): self.out = out\n"
        "    def cells(self, state): return [Cell(n, (Call(str),), needs=(m,)) for n, m in ('ab', 'ba')]\n"
        "study = Mine\n"
    )
    assert main(["study", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "a, b: no order is possible, they need each other" in capsys.readouterr().err
    for name, code, message in (
        ("other", "study = str", "other.py has no function study(out) that returns a Study"),
        ("wrong", "\nstudy = {}['x']", "wrong.py, line 2: KeyError: 'x'"),
        ("json", "study = str", "json.py has the name of another module"),
    ):
        path = tmp_path / f"{name}.py"
        path.write_text(code)
        assert main(["study", str(path), "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_parallel_text_without_speech(tmp_path):
    sizes = {"train": 30, "dev": 3, "test": 4}
    summary = text.build(tmp_path / "a", sizes)
    lines = {path.name: path.read_text("utf-8").splitlines() for path in (tmp_path / "a").glob("*.??")}
    assert {name: len(of_file) for name, of_file in lines.items()} == {
        f"{split}.{language}": size for split, size in zip(("train", "valid", "test"), sizes.values(), strict=True)
        for language in ("de", "en")
    }  # fmt: skip
    assert len({line for name, of_file in lines.items() if name.endswith("en") for line in of_file}) == 37
    assert text.build(tmp_path / "b", sizes) == summary == text.build(tmp_path / "a", sizes)
    with pytest.raises(LeapformerError, match="was prepared with seed 1, not 2"):
        text.build(tmp_path / "a", sizes, seed=2)


@pytest.mark.usefixtures("forked_trainings")
def test_a_study_from_data_to_table(tmp_path, capsys):
    """The one that --example prints, smaller."""
    body = command.EXAMPLE.replace("--train 4000", "--train 60 --dev 4 --test 4").replace("500", "60")
    body = (
        body.replace("--max-update 200", "--max-update 2")
        .replace("softmax, softmax/leap/softmax, ", "")
        .replace(", 2]", "]")
    )
    (tmp_path / "mine.yaml").write_text(body, encoding="utf-8")
    words = ["study", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0, capsys.readouterr()
    table = json.loads((tmp_path / "out/table.json").read_text("utf-8"))
    assert table["title"] == "Synthetic text, English-German"
    assert [(row["attention"], row["set"], row["seeds"]) for row in table["rows"]] == [
        ("softmax/gated-leap/softmax", "test", [1])
    ]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.pt")}
    more = body.replace("seeds: [1]", "seeds: [1]\noptions: {}")
    (tmp_path / "mine.yaml").write_text(more, encoding="utf-8")
    assert main(words) == 0 and before == {path: path.stat().st_mtime_ns for path in before}
    capsys.readouterr()
    (tmp_path / "mine.yaml").write_text(body.replace("--lr 5e-3", "--lr 1"), encoding="utf-8")
    assert main(words) == 2
    assert "holds a study with another train" in capsys.readouterr().err
