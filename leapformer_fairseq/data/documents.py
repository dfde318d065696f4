"""Plain text for masked language models: one sentence per line, with an empty line between documents.

OUT/{train,valid,test}.txt are split into subwords, for `fairseq-preprocess --only-source` with the dictionary
OUT/dict.txt. OUT is also the vocabulary folder with which data for fine-tuning is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from ..support.errors import LeapformerError
from ..support.lines import find_text, read_lines, write_lines
from . import prepared
from .text import tidy
from .vocabulary import copy_vocabulary, encoded, load_vocabulary, make_vocabulary
from .wikitext import count_tokens

NAME = "mlm"
SPLITS = ("train", "valid", "test")
VOCAB_SIZE = 8_000


def prepare(
    root: str | Path, out: str | Path, vocab_size: int = VOCAB_SIZE, vocabulary: str | Path | None = None
) -> prepared.Summary:
    """Prepare the text in `root` for training in `out`; finished work is not repeated.

    The subwords are learned from the training text, or taken from the folder `vocabulary`. Returns the number of tokens
    (subwords and line ends) per split. Raises LeapformerError for missing or empty files, a folder that is not a
    vocabulary, and an `out` that contains other data.
    """
    root, out = Path(root).absolute(), Path(out).absolute()
    existing = None if vocabulary is None else str(Path(vocabulary).absolute())
    options = {"dataset": NAME, "vocab_size": vocab_size if existing is None else None, "vocabulary": existing}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    files = _find(root)
    cut = None if existing is None else load_vocabulary(existing)  # before `begin`: a wrong folder leaves no trace
    prepared.begin(out, options)
    if existing is None or cut is None:
        make_vocabulary(out, partial(_sentences, files["train"]), vocab_size)
        cut = load_vocabulary(out)
    else:
        copy_vocabulary(existing, out)
    for split, path in files.items():
        write_lines(out / f"{split}.txt", encoded(_sentences(path), cut))
    summary = {split: count_tokens(out / f"{split}.txt") for split in SPLITS}
    for split, count in summary.items():
        if not count:
            raise LeapformerError(f"{files[split]} holds no text; check the file")
    prepared.finish(out, options, summary)
    return summary


def _find(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        raise LeapformerError(f"{NAME} root {root} is not a folder; check the path")
    files = {}
    for split in SPLITS:
        names = [f"{split}.txt", f"wiki.{split}.tokens"]
        path = find_text(root, names)
        if path is None:
            raise LeapformerError(f"{root} holds no {' and no '.join(names)}, nor with .gz; check the folder")
        files[split] = path
    return files


def _sentences(path: Path) -> Iterator[str]:
    return _with_single_breaks(tidy(line) for line in read_lines(path))


def _with_single_breaks(lines: Iterable[str]) -> Iterator[str]:
    """The lines with a single empty line between documents, and none at the start or the end."""
    started = False
    for has_text, paragraph in groupby(lines, bool):
        if has_text:
            yield from [""] if started else []
            yield from paragraph
            started = True
