"""Text for masked language models, and vocabularies: ours and that of the released RoBERTa."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode, get_encoder

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import documents
from leapformer_fairseq.data.vocabulary import load_vocabulary
from leapformer_fairseq.support.errors import LeapformerError

from .text_trees import SIZES, sentences, text, wikitext_tree


def tree(root: Path) -> Path:
    """Documents of four sentences, with empty lines of every kind around them."""
    root.mkdir(parents=True)
    for split in SIZES:
        lines = [""]
        for n, sentence in enumerate(sentences(split)["en"]):
            lines += ["", " \t", ""][: n % 3 + 1] if n and n % 4 == 0 else []
            lines.append(f" {sentence}\u00a0\u2028. ")
        (root / f"{split}.txt").write_text(text([*lines, ""]), encoding="utf-8")
    return root


def expected(split: str) -> list[str]:
    lines = []
    for n, sentence in enumerate(sentences(split)["en"]):
        lines += [""] if n and n % 4 == 0 else []
        lines.append(f"{sentence} .")
    return lines


def read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def gpt2(folder: Path) -> Path:
    """A vocabulary of GPT-2's kind: all bytes, and two pairs of them."""
    folder.mkdir()
    letters = list(bytes_to_unicode().values())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    symbols = [*letters, *("".join(pair) for pair in merges)]
    (folder / "encoder.json").write_text(json.dumps({symbol: n for n, symbol in enumerate(symbols)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + text([" ".join(pair) for pair in merges]), encoding="utf-8")
    (folder / "dict.txt").write_text(text([f"{n} 1" for n in range(len(symbols))]))
    return folder


def test_sentences_keep_their_lines_and_documents_one_empty_line(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["prepare", "mlm", str(tree(tmp_path / "data")), "--out", str(out), "--vocab-size", "120"]) == 0
    model = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model"))
    for split in SIZES:
        assert [model.decode(line.split()) for line in read(out / f"{split}.txt")] == expected(split)
    tokens = sum(len(line.split()) + 1 for line in read(out / "test.txt"))
    assert f"test: {tokens} tokens" in capsys.readouterr().out
    pieces = [line.rsplit(" ", 1)[0] for line in read(out / "dict.txt")]
    assert len(set(pieces)) == len(pieces) <= 120
    assert {piece for line in read(out / "train.txt") for piece in line.split()} <= set(pieces)


@pytest.mark.parametrize("names", ["wiki.{}.tokens", "{}.txt.gz"])
def test_other_names_of_the_files(names, tmp_path):
    root = wikitext_tree(tmp_path / "data")
    for split in SIZES:
        content = (root / f"{split}.txt").read_bytes()
        (root / f"{split}.txt").unlink()
        (root / names.format(split)).write_bytes(gzip.compress(content) if names.endswith(".gz") else content)
    documents.prepare(root, tmp_path / "out", 120)
    assert len(read(tmp_path / "out/test.txt")) > 40


def test_the_vocabulary_of_another_run(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    documents.prepare(tree(tmp_path / "data"), first, 120)
    root = tree(tmp_path / "other")
    (root / "train.txt").write_text("quite other words\n", encoding="utf-8")
    documents.prepare(root, second, vocabulary=first)
    assert read(second / "test.txt") == read(first / "test.txt")
    assert (second / "dict.txt").read_bytes() == (first / "dict.txt").read_bytes()
    with pytest.raises(LeapformerError, match="prepared with vocab_size None, not 120"):
        documents.prepare(root, second, 120)


def test_the_byte_pairs_of_the_released_roberta(tmp_path):
    folder, out = gpt2(tmp_path / "roberta"), tmp_path / "out"
    documents.prepare(tree(tmp_path / "data"), out, vocabulary=folder)
    decoder = get_encoder(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    found = [decoder.decode([int(piece) for piece in line.split()]) for line in read(out / "test.txt")]
    assert found == expected("test")
    assert "258" in (out / "test.txt").read_text().split(), "' the' is one piece"
    assert list(load_vocabulary(out)("the")) == [257], "the result is a vocabulary, too"


def test_what_is_finished_is_kept(tmp_path):
    root, out = tree(tmp_path / "data"), tmp_path / "out"
    first = documents.prepare(root, out, 120)
    (root / "train.txt").unlink()  # not needed any more
    assert documents.prepare(root, out, 120) == first


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda root: (root / "test.txt").unlink(), r"holds no test\.txt and no wiki\.test\.tokens, nor with \.gz"),
        (lambda root: (root / "test.txt").write_text("\n \n"), r"test\.txt holds no text"),
        (lambda root: (root / "train.txt").write_text("\n"), "cannot train a subword model of 120 pieces"),
        (lambda root: (root / "valid.txt").write_bytes(b"\xff\xfe"), r"valid\.txt, line 1, is not UTF-8"),
    ],
)
def test_unusable_text_is_named(break_it, message, tmp_path):
    root = tree(tmp_path / "data")
    break_it(root)
    with pytest.raises(LeapformerError, match=message):
        documents.prepare(root, tmp_path / "out", 120)


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(LeapformerError, match="root .*nowhere is not a folder"):
        documents.prepare(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(LeapformerError, match="nowhere holds no vocabulary"):
        documents.prepare(tree(tmp_path / "data"), tmp_path / "out", vocabulary=tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damaged", ["spm.model", "encoder.json"])
def test_a_damaged_vocabulary_is_named(damaged, tmp_path):
    folder = gpt2(tmp_path / "roberta")
    (folder / damaged).write_text("{")
    with pytest.raises(LeapformerError, match="the vocabulary .*roberta cannot be read"):
        load_vocabulary(folder)
