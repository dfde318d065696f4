"""Tiny GLUE tasks in the layout of the release, with sentences of the corpus grammar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from .text_trees import sentences, text

COUNTS = {"train": 60, "dev": 11, "test": 5}
_PARSES = ("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse")
_MNLI = (*_PARSES, "sentence1_parse", "sentence2_parse", "sentence1", "sentence2")
_ANNOTATORS = tuple(f"label{n}" for n in range(1, 6))


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    """A header and rows, with tabs between the fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(["\t".join(row) for row in (columns, *rows)]), encoding="utf-8")
    return path


def english(kind: str) -> list[str]:
    """The sentences of a split: train, dev or test."""
    return sentences({"dev": "valid"}.get(kind, kind), COUNTS[kind])["en"]


def sst2_tree(root: Path) -> Path:
    """ROOT/SST-2: whether there is an "old" in the sentence."""
    for kind in ("train", "dev"):
        rows = [(one, str(int(" old " in one))) for one in english(kind)]
        write_table(root / f"SST-2/{kind}.tsv", ("sentence", "label"), rows)
    write_table(
        root / "SST-2/test.tsv", ("index", "sentence"), ((str(n), one) for n, one in enumerate(english("test")))
    )
    return root


def qnli_tree(root: Path) -> Path:
    """ROOT/QNLI: pairs, the second of them with quotation marks that are text."""
    for kind in COUNTS:
        rows = [
            (str(n), one, f'"{one}', *([] if kind == "test" else [("entailment", "not_entailment")[n % 2]]))
            for n, one in enumerate(english(kind))
        ]
        columns = ("index", "question", "sentence", "label")
        write_table(root / f"QNLI/{kind}.tsv", columns[: len(rows[0])], rows)
    return root


def mnli_tree(root: Path) -> Path:
    """ROOT/MNLI: matched and mismatched sets, and other columns in every kind of file."""
    labels = ("contradiction", "neutral", "entailment")
    for name, judged in (
        ("train", ("label1", "gold_label")),
        ("dev_matched", (*_ANNOTATORS, "gold_label")),
        ("dev_mismatched", (*_ANNOTATORS, "gold_label")),
        ("test_matched", ()),
        ("test_mismatched", ()),
    ):
        rows = [
            (
                str(n),
                *["x"] * 7,
                one,
                f"{one} {name}",
                *["neutral"] * (len(judged) - 1),
                *([labels[n % 3]] if judged else ()),
            )
            for n, one in enumerate(english(name.partition("_")[0]))
        ]
        write_table(root / f"MNLI/{name}.tsv", (*_MNLI, *judged), rows)
    return root
