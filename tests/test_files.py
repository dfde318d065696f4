"""Files that are written as a whole, and folders that hold one run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leapformer_fairseq.errors import LeapformerError
from leapformer_fairseq.files import locked_folder, made_folder, read_json, replacing, write_json, write_text


class Stop(BaseException):
    """As Ctrl-C is, it is no Exception."""


# -- whole files -------------------------------------------------------------------------------------------------------
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(Stop), replacing(path) as partial:
        partial.write_text("ne")
        raise Stop
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half of it, then \udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen, write = tmp_path / "table.json", [], Path.write_text
    path.write_text("old")

    def watched(self: Path, *args: object, **kwargs: object) -> int:
        count = write(self, *args, **kwargs)
        seen.append(path.read_text())
        return count

    monkeypatch.setattr(Path, "write_text", watched)
    write_text(path, "new")
    assert seen == ["old"] and path.read_text() == "new"


def test_json_is_for_people_too(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"text": "größer", "rows": [1]})
    lines = ["{", '  "text": "größer",', '  "rows": [', "    1", "  ]", "}", ""]
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "\n".join(lines)
    assert read_json(tmp_path / "a.json") == {"text": "größer", "rows": [1]}


def test_links_and_pipes_are_written_into(tmp_path: Path) -> None:
    """Replaced, /dev/null would be gone."""
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(link, "new")
    write_text(pipe, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert pipe.is_fifo() and os.read(reader, 9) == b"new"
    os.close(reader)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "a.json"
    with pytest.raises(LeapformerError) as error:
        write_json(nowhere, {}, "--json")
    assert str(error.value) == f"--json {nowhere} cannot be written: No such file or directory; choose another file"
    with pytest.raises(LeapformerError) as error:
        write_text(nowhere, "")
    assert str(error.value) == f"{nowhere} cannot be written: No such file or directory"
    with pytest.raises(LeapformerError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"scores": {"BLEU": 1', "Expecting ',' delimiter"),
        (b'{"scores": "\xff"}', "can't decode byte"),
        (b"[1]", "no JSON object"),
        (b'{"signature": ""}', "without 'scores'"),
    ],
)
def test_damaged_json_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "scores.json"
    path.write_bytes(content)
    with pytest.raises(LeapformerError) as error:
        read_json(path, ["scores"])
    message = str(error.value)
    assert message.startswith(f"{path} is damaged (") and reason in message and "\n" not in message
    assert message.endswith("; delete it, and the same command makes it again")
    with pytest.raises(LeapformerError, match="; score again$"):
        read_json(path, ["scores"], "score again")


# -- folders -----------------------------------------------------------------------------------------------------------
ABOUT = {"options": {"k": 3, "sizes": (1, 2)}, "model": {"updates": 10}}


def lock_run(folder: Path, about: dict | None = None, **settings: object) -> Path:
    return locked_folder(folder, "run.json", ABOUT if about is None else about, "run", **settings)


def refusal(folder: Path, about: dict | None = None, **settings: object) -> str:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(LeapformerError) as error:
        lock_run(folder, about, **settings)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(error.value)


def test_a_new_folder_is_made_with_its_record(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert lock_run(out, signature="commit:1") == out
    assert read_json(out / "run.json") == {**json.loads(json.dumps(ABOUT)), "signature": "commit:1"}
    assert "signature" not in read_json(lock_run(tmp_path / "unsigned") / "run.json")


def test_the_same_run_finds_its_folder_as_it_was(tmp_path: Path) -> None:
    lock_run(tmp_path, signature="commit:1")
    (tmp_path / "results").touch()
    before = (tmp_path / "run.json").read_bytes()
    for settings in {}, {"grows": True}, {"among_others": True}:
        assert lock_run(tmp_path, signature="commit:2", **settings) == tmp_path
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("about", "which"),
    [
        ({**ABOUT, "options": {"k": 5, "sizes": (1, 2)}}, "k in options (3, not 5)"),
        ({**ABOUT, "options": {"k": 3, "sizes": (1,)}}, "sizes in options ([1, 2], not [1])"),
        ({**ABOUT, "options": {"k": 3}}, "sizes in options ([1, 2], not nothing)"),
        ({**ABOUT, "options": {**ABOUT["options"], "beam": 1}}, "beam in options (nothing, not 1)"),
        ({**ABOUT, "model": "m.pt"}, 'model ({"updates": 10}, not "m.pt")'),
        ({**ABOUT, "data": None}, "data (nothing, not null)"),
    ],
)
@pytest.mark.parametrize("among_others", [False, True])
def test_another_run_is_refused_and_told_apart(tmp_path: Path, about: dict, which: str, among_others: bool) -> None:
    lock_run(tmp_path)
    expected = f"--out {tmp_path} holds a run with another {which}; choose another folder or delete it"
    assert refusal(tmp_path, about, among_others=among_others) == expected


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    lock_run(tmp_path, {"text": "a" * 1000})
    assert len(refusal(tmp_path, {"text": "b"}).removeprefix(f"--out {tmp_path}")) < 300


def test_a_growing_record_takes_what_it_lacks_and_keeps_the_rest(tmp_path: Path) -> None:
    lock_run(tmp_path, {"limit": 3, "checkpoint a": 1}, grows=True)
    lock_run(tmp_path, {"limit": 3, "checkpoint b": 2}, grows=True)
    assert read_json(tmp_path / "run.json") == {"limit": 3, "checkpoint a": 1, "checkpoint b": 2}
    assert "another limit (3, not 4)" in refusal(tmp_path, {"limit": 4, "checkpoint c": 5}, grows=True)


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for settings in {}, {"grows": True}:
        expected = f"--out {tmp_path} is not empty and holds no run; choose another folder"
        assert refusal(tmp_path, **settings) == expected
    lock_run(tmp_path, among_others=True)
    assert (tmp_path / "run.json").is_file() and (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_damaged_record_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    for settings in {}, {"grows": True}, {"among_others": True}:
        message = refusal(tmp_path, **settings)
        assert message.startswith(f"{tmp_path / 'run.json'} is damaged (") and "choose another folder" in message


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = "--out .*file(/out)? cannot be made: .*; choose another folder"
    for out in tmp_path / "file", tmp_path / "file" / "out":
        with pytest.raises(LeapformerError, match=message):
            made_folder(str(out))
        with pytest.raises(LeapformerError, match=message):
            lock_run(out)
    assert made_folder(str(tmp_path / "a" / "b")).is_dir()
