"""A disk that is full, and a folder that nothing can be written to: one line from every command, and no half file."""

from __future__ import annotations

import resource
import shlex
from pathlib import Path

import pytest
from fairseq import checkpoint_utils

from leapformer_fairseq.cli.main import main
from tests.cli.test_refusals import places  # noqa: F401
from tests.cli.test_wrong_files import everything  # noqa: F401
from tests.covering import shared_out
from tests.scoring.pictures.test_maps import data  # noqa: F401
from tests.untrained import save_checkpoint

TRAINING = "--arch leapformer_nmt_tiny --optimizer adam --lr 1e-3 --max-update 1 --max-tokens 500 --num-workers 0 --cpu"
#: command lines that write below `OUT`, and how many bytes a file may have before the disk is full
WRITE = {
    "score {log} --references {data}/target --json OUT/a.json": 60,
    "compare {log} {other} --references {data}/target --samples 100 --json OUT/a.json": 60,
    "plot {results}/raw/training/train.json --out OUT/a.png": 2000,
    "maps --path {st} --input {data}/a.wav --out OUT/o": 2000,
    "stream {data}/a.wav --checkpoint {model} --log OUT/a.log": 10,
    "simulate --checkpoint {model} {lists} --out OUT/o": 60,
    "curve --checkpoints {model} {lists} --out OUT/o --k 1": 60,
    "export --path {linear} --out OUT/o": 2000,
    "corpus --task listops --train 20 --dev 5 --test 5 --min-length 5 --max-length 50 --out OUT/o": 100,
    "corpus --train 20 --dev 5 --test 5 --vocab-size 60 --out OUT/o": 2000,
    "prepare text {text} --pair en-de --vocab-size 30 --out OUT/o": 100,
    "preprocess --source-lang en --target-lang de --trainpref {text}/train --destdir OUT/o --workers 1": 100,
    "train {mt} " + TRAINING + " --save-dir OUT/o": 5000,
    "generate {mt} --path {teacher} --max-tokens 500 --num-workers 0 --cpu --results-path OUT/o": 100,
    "probe --out OUT/o --probes copying --attention leap --updates 1 --seeds 1 --rates 1e-3": 20,
    "lra params --protocol luna --out OUT/o": 20,
    "ablate --out OUT/o --mechanisms leap --blocks decoder-self -- train {mt} " + TRAINING: 20,
    "linearize --path {teacher} --attention leap --out OUT/o --align-updates 2 --distill-updates 2": 20,
    "sentence-ends --train {data}/two.tsv --valid {data}/two.tsv --out OUT/a.npz --updates 1 --units 2": 20,
    "recipe quickstart --fast --out OUT/o": 20,
}
#: all of them, but what takes longest in the full tier only
SLOW_LAST = [
    pytest.param(words, marks=[pytest.mark.full] * words.startswith(("export", "lra", "maps"))) for words in WRITE
]


@pytest.fixture(scope="module")
def given(everything):  # noqa: F811
    pair = ("--source-lang", "en", "--target-lang", "de")
    linear = save_checkpoint(
        everything["data"] / "linear.pt", everything["mt"], "leapformer_nmt_tiny", *pair, task="translation"
    )
    return {**everything, "linear": linear, "results": Path(__file__).parents[2] / "docs/results"}


def ended(words: str, given, out: Path, monkeypatch, capsys) -> str:
    monkeypatch.setattr("sys.argv", ["pytest"])
    status = main(shlex.split(words.format(**given).replace("OUT", str(out))))
    err = capsys.readouterr().err
    assert status == 2 and "Traceback" not in err, err[-2000:]
    last = err.splitlines()[-1]
    assert last.startswith("leapformer: error: "), last
    return last


@pytest.mark.parametrize("words", shared_out(SLOW_LAST, 0))
def test_a_full_disk(words, given, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(checkpoint_utils.time, "sleep", lambda seconds: None)  # fairseq tries three times
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITE[words], before[1]))
    try:
        last = ended(words, given, tmp_path / "out", monkeypatch, capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert any(reason in last for reason in ("limit of file sizes", "File too large", "disk")), last


@pytest.mark.parametrize("words", shared_out([*WRITE], 1))
def test_a_folder_that_nothing_can_be_written_to(words, given, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "/sys/nothing" in ended(words, given, Path("/sys/nothing"), monkeypatch, capsys)
