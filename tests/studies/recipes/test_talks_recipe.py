"""The recipe of talks: sets out of a corpus, curves of trained models, one report; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import soundfile

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.manifests import write_manifest
from leapformer_fairseq.studies.recipes.talks import JOINED
from tests.data.trees import noises
from tests.simul.conftest import spm_model, symbols  # noqa: F401  (fixtures)
from tests.simul.test_loading import data_root  # noqa: F401  (a fixture)
from tests.simul.test_simulate import checkpoints  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("forked_trainings")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    root, rows = tmp_path / "corpus", []
    (root / "wav").mkdir(parents=True)
    for n, spoken in enumerate(noises(3, seconds=1.5)):
        soundfile.write(root / f"wav/{n}.wav", spoken.samples, 16_000)
        rows.append([str(n), "", "0", spoken.source, ""])
    (root / "test.source").write_text("".join(f"{root}/wav/{n}.wav\n" for n in range(3)))
    (root / "test.target").write_text("hallo welt\n" * 3)
    write_manifest(root / "test_asr.tsv", rows)
    return root


def test_from_sentences_to_a_report(corpus, checkpoints, data_root, tmp_path, capsys) -> None:  # noqa: F811
    out = tmp_path / "out"
    words = ["--root", str(corpus), "--out", str(out), "--checkpoints", str(checkpoints["causal"])]
    words += ["--data-root", str(data_root), "--config-yaml", "config.yaml", "--sets", "utterances snr10"]
    words += ["--talks", "1", "--minutes", "0.1", "--segment", "pause tokens", "--curve-options", "--k 1 --max-len-b 3"]
    assert main(["recipe", "talks", *words]) == 0
    said = capsys.readouterr().out
    assert "1 talks, " in said and "done: " in said
    report = (out / "report.md").read_text()
    assert [line for line in report.splitlines() if line.startswith("## ")] == [
        "## utterances: simultaneous translation: quality against latency",
        "## snr10: simultaneous translation of talks: quality against latency",
    ]
    for name, n_rows in (("utterances", 1), ("snr10", 2)):
        # Fewer than three points are not drawn.
        assert (f"]({name}/curve.svg)" in report) == (out / name / "curve.svg").is_file()
        assert len(json.loads((out / name / "curve.json").read_text())["rows"]) == n_rows
    assert "](curve" not in report
    about = json.loads((out / "data/snr10/talks.json").read_text())
    assert (about["gap_s"], about["snr_db"], about["minutes"]) == ([0.3, 1.5], 10.0, 0.1)
    assert len((out / "commands.sh").read_text().split("leapformer curve")) == 3


def test_a_dry_run_has_all_sets(corpus, tmp_path, capsys) -> None:
    words = ["--root", str(corpus), "--out", str(tmp_path / "out"), "--checkpoints", "a.pt b.pt", "--dry-run"]
    assert main(["recipe", "talks", *words, "--long-minutes", "150"]) == 0
    lines = capsys.readouterr().out.splitlines()
    prepared = [line for line in lines if line.startswith("leapformer prepare talks")]
    curves = [line for line in lines if line.startswith("leapformer curve")]
    assert len(prepared) == len(JOINED) and len(curves) == len(JOINED) + 1  # and the utterances
    assert sum("--minutes 150" in line and "--gap-s 0 0 --talks 1" in line for line in prepared) == 1
    assert sum("--gap-s -0.3 0" in line for line in prepared) == 1
    assert all("--segment pause tokens" in line for line in curves[1:]) and "--source" in curves[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare"], "no --root given"),
        (["evaluate", "--root", "."], "no --checkpoints given"),
        (
            ["evaluate", "--root", ".", "--checkpoints", "a.pt", "--sets", "snr10"],
            "holds no talks; run the step prepare",
        ),
        (["prepare", "--sets", "snr11"], "--sets snr11: choose from utterances, pauses"),
    ],
)
def test_what_is_missing_is_said(tmp_path, capsys, words, message) -> None:
    assert main(["recipe", "talks", words[0], "--out", str(tmp_path / "out"), *words[1:]]) == 2
    assert message in capsys.readouterr().err
