"""Paired bootstrap: equal systems do not differ, clearly better ones do, and what cannot be compared is refused."""

from __future__ import annotations

import json
import random

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.significance import as_rows, by_length, paired_bootstrap, read_systems
from leapformer_fairseq.support.errors import LeapformerError

WORDS = ["the", "a", "small", "old", "red", "house", "tree", "dog", "sees", "finds"]


def sentences(seed: int, errors: float = 0.0, count: int = 60) -> list[str]:
    """The same sentences for every seed, with words replaced at random by the seed."""
    text, noise = random.Random(0), random.Random(seed)
    lines = [text.choices(WORDS, k=10) for _ in range(count)]
    return [" ".join(word if noise.random() >= errors else noise.choice(WORDS) for word in line) for line in lines]


def test_equal_systems_do_not_differ_and_better_ones_do():
    systems = {
        "a": sentences(1, 0.3),
        "again": sentences(1, 0.3),
        "other": sentences(2, 0.3),
        "worse": sentences(3, 0.6),
    }
    found, signatures = paired_bootstrap(systems, sentences(0), samples=300)
    rows = {row["system"]: row for row in as_rows(found)}
    assert list(rows) == list(systems) and set(signatures) == {"BLEU", "chrF"}
    for metric in signatures:
        assert rows["a"][metric]["p"] is None
        assert rows["again"][metric]["score"] == rows["a"][metric]["score"]
        assert rows["again"][metric]["p"] == 1 and rows["other"][metric]["p"] > 0.05
        assert rows["worse"][metric]["p"] < 0.01
    assert paired_bootstrap(systems, sentences(0), samples=300)[0] == found


def write(folder, lines) -> str:
    folder.mkdir(parents=True)
    numbered = list(enumerate(lines))
    random.Random(1).shuffle(numbered)  # fairseq's order is that of its batches
    (folder / "generate-test.txt").write_text("".join(f"D-{i}\t0.1\t{line}\n" for i, line in numbered))
    return str(folder.parent)


@pytest.fixture
def references(tmp_path):
    path = tmp_path / "references"
    path.write_text("\n".join(sentences(0)) + "\n")
    return path


def test_the_command(tmp_path, references, capsys):
    runs = [
        write(tmp_path / name / "test", sentences(n, errors))
        for n, (name, errors) in enumerate((("a", 0.3), ("b", 0.6)))
    ]
    saved = tmp_path / "found.json"
    assert main(["compare", *runs, "--references", str(references), "--samples", "200", "--json", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "p = 0.00" in shown and "bs:200" in shown
    assert [row["system"] for row in json.loads(saved.read_text())["rows"]] == ["a", "b"]


def test_groups_from_short_to_long(tmp_path, references, capsys):
    """System b is wrong in the 15 longest sentences alone."""
    lengths = [1 + 37 * i % 60 for i in range(60)]
    sources, saved = tmp_path / "sources", tmp_path / "found.json"
    sources.write_text("".join("w " * length + "\n" for length in lengths))
    texts = sentences(0), [line if n <= 45 else "nothing" for line, n in zip(sentences(0), lengths, strict=True)]
    runs = [write(tmp_path / name / "test", lines) for name, lines in zip("ab", texts, strict=True)]
    command = ["compare", *runs, "--references", str(references), "--samples", "100", "--by-length", str(sources)]
    assert main([*command, "--json", str(saved)]) == 0
    rows = [row for row in json.loads(saved.read_text())["rows"] if row["system"] == "b"]
    assert [row["words"] for row in rows] == ["", "1-15", "16-30", "31-45", "46-60"]
    assert [row["sentences"] for row in rows] == [60, 15, 15, 15, 15]
    assert [round(row["chrF"]["score"]) for row in rows[1:4]] == [100] * 3 and rows[4]["chrF"]["score"] < 20
    assert [row["BLEU"]["p"] < 0.05 for row in rows] == [True, False, False, False, True]
    assert "| 46-60 |        15 |" in capsys.readouterr().out
    assert main([*command, "--groups", "2"]) == 0
    assert "1-30" in capsys.readouterr().out


def test_groups_that_cannot_be(tmp_path):
    texts = {"a": ["x", "y"]}
    assert list(by_length(texts, ["x", "y"], ["v w", "v w"], 2)) == ["2-2", "2-2 (2)"]
    with pytest.raises(LeapformerError, match="--by-length has 1 lines for 2 references"):
        by_length(texts, ["x", "y"], ["x"], 1)
    for groups in (0, 3):
        with pytest.raises(LeapformerError, match=f"--groups {groups}: give 1 to 2"):
            by_length(texts, ["x", "y"], ["x", "y"], groups)
    assert main(["compare", "a", "b", "--references", "r", "--groups", "2"]) == 2


def test_what_cannot_be_compared(tmp_path, references):
    first = write(tmp_path / "a" / "test", sentences(1, 0.3))
    short = write(tmp_path / "b" / "test", sentences(1, 0.3, count=59))
    (tmp_path / "empty").mkdir()
    with pytest.raises(LeapformerError, match="lacks 1 of 60 sentences, first number 59"):
        read_systems([first, short], references)
    with pytest.raises(LeapformerError, match=r"empty holds 0 files generate-\*.txt; name the one to compare"):
        read_systems([first, str(tmp_path / "empty")], references)
    with pytest.raises(LeapformerError, match="another system is called a; name its generate"):
        read_systems([first, first], references)
    with pytest.raises(LeapformerError, match="--references .*nowhere cannot be read: No such file"):
        read_systems([first], tmp_path / "nowhere")
    with pytest.raises(LeapformerError, match="--samples 10: give at least 100"):
        paired_bootstrap({"a": ["x"], "b": ["x"]}, ["x"], samples=10)
    with pytest.raises(LeapformerError, match="1 system to compare; give a baseline and at least one other"):
        paired_bootstrap({"a": ["x"]}, ["x"])
