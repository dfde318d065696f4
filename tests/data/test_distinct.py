"""Splits without duplicates across them, and the releases that are split here: Tatoeba and Python's documentation."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import distinct, releases
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.lines import read_lines

from .text_trees import python_docs_tree, sentences, tatoeba_archive

TREES = {"tatoeba": (tatoeba_archive, ("de", "en"), 6), "python_docs": (python_docs_tree, ("en", "es"), 6)}


def linked(seed: int, count: int = 300) -> list[tuple[str, str]]:
    """Pairs of few sentences, so that many share a side; case, marks and spaces differ."""
    draw = random.Random(seed)
    marks = ("s{}", "S{} !", " s{}.")
    return [(draw.choice(marks).format(draw.randrange(200)), f"t{draw.randrange(200)}") for _ in range(count)]


def test_no_side_is_in_two_groups():
    pairs = linked(1)
    found = distinct.groups(pairs)
    assert sorted(i for group in found for i in group) == list(range(len(pairs))), "each pair is in one group"
    assert max(map(len, found)) > 3 and len(found) > 20
    for side in (0, 1):
        of = Counter(text for group in found for text in {distinct.fold(pairs[i][side]) for i in group})
        assert set(of.values()) == {1}


def test_groups_do_not_depend_on_the_order_and_large_ones_do_not_come_first():
    pairs = linked(2)
    said = [{pairs[i] for i in group} for group in distinct.groups(pairs)]
    other = random.Random(3).sample(pairs, len(pairs))
    assert [{other[i] for i in group} for group in distinct.groups(other)] == said
    many = [(f"a{n}", f"b{n}.{of}") for n in range(600) for of in range(1 + 9 * (n % 2))]
    first = distinct.groups(many)[:300]
    assert 0.4 < sum(len(group) > 1 for group in first) / len(first) < 0.6


@pytest.mark.parametrize("name", TREES)
def test_a_release_is_split_without_leaks_and_again_the_same(name, tmp_path, capsys):
    tree, languages, held_out = TREES[name]
    root, shown = tree(tmp_path / "data"), []
    there, back = "-".join(languages), "-".join(reversed(languages))
    for out, pair in (("one", there), ("two", there), ("turned", back)):
        words = ["--out", str(tmp_path / out), "--pair", pair, "--vocab-size", "150"]
        assert main(["prepare", name, str(root), *words]) == 0
        shown.append(capsys.readouterr().out)
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert {Path("left_out.tsv"), Path("raw/train.en"), Path("train.en"), Path("raw/test.en")} <= files
    for path in files:
        assert (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes(), path
    texts = {}
    for split in ("train", "valid", "test"):
        one, turned = (
            [list(read_lines(tmp_path / out / f"raw/{split}.{language}")) for language in languages]
            for out in ("one", "turned")
        )
        assert one == turned, "both directions have the same splits"
        texts[split] = one
    for side in (0, 1):
        folded = {split: {distinct.fold(line) for line in texts[split][side]} for split in texts}
        assert not (folded["train"] & (folded["valid"] | folded["test"])) and not folded["valid"] & folded["test"]
        assert len(folded["test"]) == len(texts["test"][side]) == held_out, "each is tested once"
    listed = [line.split("\t") for line in read_lines(tmp_path / "one/left_out.tsv")]
    assert listed[0] == ["split", "reason", *languages]
    rows = sum(1 for _ in distinct.split(_release(name), root).left_out)
    assert len(listed) == rows + 1 and f"{tmp_path}/one/left_out.tsv lists them" in shown[0]
    said = sentences("train")
    for language, lines in zip(languages, texts["train"], strict=True):
        assert set(said["en" if language == "en" else "de"]) & set(lines), f"{language} is {language}"
    if name == "tatoeba":
        assert "sentence pairs; left out: 1 repeated\nvalid: " in shown[0]
    else:
        assert Counter(row[1] for row in listed[1:]) - Counter({distinct.ANOTHER: 9}) == Counter(
            ["fuzzy", "not translated", "damaged", "the same in both languages"]
        )
        assert "left out: 1 damaged, 1 fuzzy, 1 not translated, 1 the same in both languages" in shown[0]


def _release(name: str) -> distinct.Unsplit:
    from leapformer_fairseq.data import parallel

    unsplit = parallel.DATASETS[name].unsplit
    assert unsplit is not None
    return unsplit


@pytest.mark.parametrize(
    ("name", "files", "told"),
    [
        ("tatoeba", {}, "no file {root}/deu-eng.zip, nor deu.txt out of it"),
        ("tatoeba", {"deu.txt": "Hi.\tHallo!\nno tab\n"}, "deu.txt, line 2: no tab between two sentences"),
        ("tatoeba", {"deu.txt": "Hi.\tHallo!\tCC-BY\n" * 20}, "{root} holds 1 different sentence pairs"),
        ("python_docs", {"a.txt": ""}, "{root} holds no messages in *.po files"),
    ],
)
def test_what_cannot_be_split_is_one_line(name, files, told, tmp_path):
    for file, content in files.items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    with pytest.raises(LeapformerError) as error:
        distinct.split(_release(name), tmp_path)
    assert told.format(root=tmp_path) in str(error.value)


def test_messages_are_read_as_gettext_writes_them(tmp_path):
    content = [
        'msgid ""', 'msgstr "Language: es\\n"', "", "#. a note", "#, fuzzy, c-format", 'msgctxt "menu"', 'msgid ""',
        '"a \\"quoted\\" line\\n"', '"and\\tmore"', 'msgstr "x"', 'msgid "next, without an empty line"', 'msgstr "y"',
        "", 'msgid "one"', 'msgid_plural "many"', 'msgstr[0] "uno"', 'msgstr[1] "muchos"',
    ]  # fmt: skip
    (tmp_path / "a.po").write_text("\n".join(content), encoding="utf-8")
    first, second, third = releases.read_messages(tmp_path / "a.po")
    assert first.texts == {"msgctxt": "menu", "msgid": 'a "quoted" line\nand\tmore', "msgstr": "x"}
    assert first.flags == {"fuzzy", "c-format"} and not second.flags and not second.damaged
    assert second.texts == {"msgid": "next, without an empty line", "msgstr": "y"}
    assert third.texts == {"msgid": "one", "msgid_plural": "many", "msgstr[0]": "uno", "msgstr[1]": "muchos"}
