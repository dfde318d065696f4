"""`leapformer preprocess`: an attempt that did not end does not stand in the way of the next one."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from leapformer_fairseq.cli.main import main


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "train").write_text("a b\n" * 3)
    options = f"--only-source --trainpref {tmp_path}/train --validpref {tmp_path}/valid --destdir {tmp_path}/binary"
    return ["preprocess", *shlex.split(options)]


def test_an_attempt_that_failed_can_be_repeated(words, tmp_path, capsys):
    assert main(words) != 0, "there is no file for validation"
    assert (tmp_path / "binary/dict.txt").is_file(), "fairseq writes the dictionary first"
    (tmp_path / "valid").write_text("a\n")
    assert main(words) == 0
    assert {"valid.bin", "train.bin", "dict.txt"} <= {path.name for path in (tmp_path / "binary").iterdir()}
    assert not list((tmp_path / "binary").glob("*unfinished"))


def test_a_dictionary_of_an_attempt_that_ended_is_not_replaced(words, tmp_path, capsys):
    (tmp_path / "valid").write_text("a\n")
    assert main(words) == 0
    assert main(words) == 0, "a study that was killed right after it repeats it"
    (tmp_path / "train").write_text("a b c\n" * 3)
    before = (tmp_path / "binary/dict.txt").read_text()
    for again in (words, [*words, "--workers", "2"]):
        for _ in range(2):
            assert main(again) != 0
            assert "dict.txt exists already" in capsys.readouterr().err
    assert (tmp_path / "binary/dict.txt").read_text() == before


def test_a_given_dictionary_in_the_folder_is_kept(words, tmp_path, capsys):
    given = tmp_path / "binary/dict.mine.txt"
    given.parent.mkdir()
    given.write_text("a 1\nb 1\n")
    assert main([*words, "--srcdict", str(given)]) != 0, "there is no file for validation"
    (tmp_path / "valid").write_text("a\n")
    assert main([*words, "--srcdict", str(given)]) == 0
