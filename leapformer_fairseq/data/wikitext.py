"""WikiText as published, with words separated by spaces, for `fairseq-preprocess --only-source`.

Writes OUT/{train,valid,test}.txt. Rare words are `<unk>` in the release. All lines are kept, even empty ones: line ends
are predicted like words, as in published perplexities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from ..support.errors import LeapformerError
from ..support.lines import find_text, read_lines, write_lines
from . import prepared, releases

SIZES = {"wikitext2": 2, "wikitext103": 103}
SPLITS = releases.WIKITEXT_SPLITS
TRAINING_SHARE = 0.9  # of the validation text's words, if it serves for training too


def prepare(
    dataset: str,
    root: str | Path | None,
    out: str | Path,
    files: Mapping[str, str | None],
    train_on_valid: bool = False,
    download: bool = False,
) -> prepared.Summary:
    """Prepare the text in the folder `root`, or in `files` (by split), for training in `out`; skip finished work.

    With `train_on_valid`, the last tenth of the validation text is the new validation text and the rest of it the
    training text. Returns the number of tokens per split, of different words in the training text, and of words of the
    test text that the training text lacks. Raises LeapformerError for missing or empty files and an `out` that contains
    other data.
    """
    out = Path(out).absolute()
    chosen = {split: str(path) for split, path in files.items() if path}
    options = {"dataset": dataset, "train_on_valid": train_on_valid, "files": chosen}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    paths = _find(dataset, None if root is None else Path(root).absolute(), chosen, train_on_valid, download)
    prepared.begin(out, options)
    if train_on_valid:
        lines = list(_normalized(paths["valid"]))
        cut = _cut(lines)
        texts = {"train": iter(lines[:cut]), "valid": iter(lines[cut:]), "test": _normalized(paths["test"])}
    else:
        texts = {split: _normalized(paths[split]) for split in SPLITS}
    for split, text in texts.items():
        write_lines(out / f"{split}.txt", text)
    summary = _summary(out)
    prepared.finish(out, options, summary)
    return summary


def count_tokens(path: str | Path) -> int:
    """The number of words and line ends in a text, all of which a language model predicts."""
    return sum(len(line.split()) + 1 for line in read_lines(Path(path)))


def _find(
    dataset: str, root: Path | None, files: Mapping[str, str], train_on_valid: bool, download: bool
) -> dict[str, Path]:
    """The file of every split that is needed: that of `files`, or else that in the folder."""
    needed = [split for split in SPLITS if not (split == "train" and train_on_valid)]
    if root is None and not files.keys() >= set(needed):
        raise LeapformerError(f"{dataset} needs its folder, or --{', --'.join(needed)} with a file each")
    if root is not None:
        if not root.is_dir() and not download:
            raise LeapformerError(f"{dataset} root {root} is not a folder; check the path")
        if not all(split in files or _in_folder(root, split) for split in needed):
            releases.wikitext(root, SIZES[dataset], download)
    paths = {}
    for split in needed:
        path = Path(files[split]) if split in files else _in_folder(root, split) if root else None
        if path is None or not path.is_file():
            raise LeapformerError(_missing(split, files.get(split), root))
        paths[split] = path
    return paths


def _in_folder(root: Path, split: str) -> Path | None:
    return find_text(root, [f"wiki.{split}.tokens", f"{split}.txt"])


def _missing(split: str, path: str | None, root: Path | None) -> str:
    """The message for a split whose file does not exist."""
    if path:
        return f"--{split} {path}: no such file; check the path"
    remedy = f"check the folder, give --{split} FILE, or let --download fetch it"
    if split == "train":
        remedy += "; or train on the validation text with --train-on-valid"
    return f"{root} holds no wiki.{split}.tokens and no {split}.txt, nor with .gz; {remedy}"


def _normalized(path: Path) -> Iterator[str]:
    """Lines with single spaces, so that no exotic white space splits a word or a line in a later step."""
    return (" ".join(line.split()) for line in read_lines(path))


def _cut(lines: list[str]) -> int:
    """The number of lines that hold the training share of the words. Raises LeapformerError if that is all of them."""
    words = list(accumulate(len(line.split()) + 1 for line in lines))
    cut = 1 + sum(count < TRAINING_SHARE * words[-1] for count in words)  # the line that reaches the share included
    if cut >= len(lines):
        raise LeapformerError(f"the validation text has {len(lines)} lines, too few to train on; give --train FILE")
    return cut


def _summary(out: Path) -> prepared.Summary:
    vocabulary = {word for line in read_lines(out / "train.txt") for word in line.split()}
    unknown = sum(word not in vocabulary for line in read_lines(out / "test.txt") for word in line.split())
    tokens = {split: count_tokens(out / f"{split}.txt") for split in SPLITS}
    for split, count in tokens.items():
        if not count:
            raise LeapformerError(f"the {split} text is empty; check its file")
    return {"tokens": tokens, "words": len(vocabulary), "unknown_in_test": unknown}
