"""WikiText as it is published, with words separated by spaces, for `fairseq-preprocess --only-source`.

OUT/{train,valid,test}.txt. Rare words are already `<unk>`. All lines are kept, including empty ones: their ends are
predicted like words, as in the published perplexities.
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
TRAINING_SHARE = 0.9  # of the words, when the validation text has to do for training too


def prepare(
    dataset: str,
    root: str | Path | None,
    out: str | Path,
    files: Mapping[str, str | None],
    train_on_valid: bool = False,
    download: bool = False,
) -> prepared.Summary:
    """Prepare the text in the folder `root`, or in `files` (by split), in `out`; finished work is not repeated.

    With `train_on_valid`, the validation text without its last tenth is the training text, and that tenth is the
    validation text. Returns the number of tokens per split, and the number of words of the test set that the training
    text lacks. Raises LeapformerError for missing files and an `out` that contains other data.
    """
    out = Path(out).absolute()
    given = {split: str(path) for split, path in files.items() if path}
    options = {"dataset": dataset, "train_on_valid": train_on_valid, "files": given}
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    found = _find(dataset, None if root is None else Path(root).absolute(), given, train_on_valid, download)
    prepared.begin(out, options)
    if train_on_valid:
        lines = list(_words(found["valid"]))
        cut = _cut(lines)
        texts = {"train": iter(lines[:cut]), "valid": iter(lines[cut:]), "test": _words(found["test"])}
    else:
        texts = {split: _words(found[split]) for split in SPLITS}
    for split, lines_of in texts.items():
        write_lines(out / f"{split}.txt", lines_of)
    summary = _summary(out)
    prepared.finish(out, options, summary)
    return summary


def count_tokens(path: str | Path) -> int:
    """The number of words and line ends in a text, which is what a language model predicts."""
    return sum(len(line.split()) + 1 for line in read_lines(Path(path)))


def _find(
    dataset: str, root: Path | None, files: Mapping[str, str], train_on_valid: bool, download: bool
) -> dict[str, Path]:
    """The file of every split that is needed: the one that was given, or the one in the folder."""
    needed = [split for split in SPLITS if not (split == "train" and train_on_valid)]
    if root is None and not files.keys() >= set(needed):
        raise LeapformerError(f"{dataset} needs its folder, or --{', --'.join(needed)} with a file each")
    if root is not None:
        if not root.is_dir() and not download:
            raise LeapformerError(f"{dataset} root {root} is not a folder; check the path")
        if not all(split in files or _in_folder(root, split) for split in needed):
            releases.wikitext(root, SIZES[dataset], download)
    found = {}
    for split in needed:
        path = Path(files[split]) if split in files else _in_folder(root, split) if root else None
        if path is None or not path.is_file():
            raise LeapformerError(_absent(split, files.get(split), root))
        found[split] = path
    return found


def _in_folder(root: Path, split: str) -> Path | None:
    return find_text(root, [f"wiki.{split}.tokens", f"{split}.txt"])


def _absent(split: str, given: str | None, root: Path | None) -> str:
    """What to say about a file that is not there."""
    if given:
        return f"--{split} {given}: no such file; check the path"
    remedy = f"check the folder, give --{split} FILE, or let --download fetch it"
    if split == "train":
        remedy += "; or train on the validation text with --train-on-valid"
    return f"{root} holds no wiki.{split}.tokens and no {split}.txt, nor with .gz; {remedy}"


def _words(path: Path) -> Iterator[str]:
    """Lines with single blanks: no other character may break a line or a word later."""
    return (" ".join(line.split()) for line in read_lines(path))


def _cut(lines: list[str]) -> int:
    """The number of lines that hold the training share of the words."""
    taken = list(accumulate(len(line.split()) + 1 for line in lines))
    cut = 1 + sum(count < TRAINING_SHARE * taken[-1] for count in taken)
    if cut >= len(lines):
        raise LeapformerError(f"the validation text has {len(lines)} lines, too few to train on; give --train FILE")
    return cut


def _summary(out: Path) -> prepared.Summary:
    known = {word for line in read_lines(out / "train.txt") for word in line.split()}
    unknown = sum(word not in known for line in read_lines(out / "test.txt") for word in line.split())
    tokens = {split: count_tokens(out / f"{split}.txt") for split in SPLITS}
    for split, count in tokens.items():
        if not count:
            raise LeapformerError(f"the {split} text is empty; check its file")
    return {"tokens": tokens, "words": len(known), "unknown_in_test": unknown}
