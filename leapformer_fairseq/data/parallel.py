"""Prepare parallel text for training: one subword model for both languages, and encoded splits.

OUT/{train,valid,test}.LANGUAGE are encoded, for `fairseq-preprocess` with the dictionary OUT/spm.txt; OUT/spm.model
decodes them. OUT/raw/{valid,test}.LANGUAGE are the unchanged references. Documents are encoded as windows of sentences;
their references are single sentences, the last of each window. Releases without splits are split here, in which case
OUT/raw/train.LANGUAGE is the training text and OUT/left_out.tsv lists the pairs left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import sentencepiece

from ..support.errors import LeapformerError
from ..support.files import replacing
from ..support.lines import find_text, read_pairs, write_lines
from . import distinct, pairs, prepared, releases
from .manifests import train_subwords
from .text import tidy

SPLITS = ("train", "valid", "test")
SUBWORD_PAIRS = 1_000_000  # at most this many sentence pairs, evenly spread, train the subword model
BATCH = 10_000  # sentence pairs encoded by one call of sentencepiece

OWN = "text"  # the user's own data

Pairs = Iterator[tuple[str, str]]
Encode = Callable[[Iterable[tuple[str, str]]], Iterator["Sentences"]]


@dataclass(frozen=True)
class ParallelText:
    """A data set: its languages, default direction first, and per split the names of its files before .LANGUAGE.

    Without languages, any two are accepted. `provide` creates the files from the release, and may download it. Training
    pairs longer than `longest` subwords, or whose lengths differ by more than a factor of `ratio`, are left out. The
    rarest letters beyond `coverage` of the text become unknown; text from the web has thousands of them.

    In a data set of documents, whose files have an empty line between documents, `window` sentences are translated
    together (see `windows`). Training pairs that are left out are also missing from the windows of other pairs.

    An `unsplit` release is read in the order of `languages` and split here; it has no files per split.
    """

    name: str
    languages: tuple[str, ...]
    vocab_size: int
    provide: Callable[[Path, Sequence[str], bool], None] = releases.nothing
    stems: Mapping[str, Sequence[str]] = field(default_factory=dict)
    longest: int = 1024
    ratio: float = math.inf
    coverage: float = 1.0
    window: int | None = None
    unsplit: distinct.Unsplit | None = None

    @property
    def pair(self) -> str:
        """The default direction, e.g. en-de; "" if there is none."""
        return "-".join(self.languages[:2])

    def separates(self, pair: Sentences) -> bool:
        """Whether a pair separates two documents."""
        return self.window is not None and is_break(pair)


_NAMES = {split: (split,) for split in SPLITS}
_MULTI30K = {"train": ("train",), "valid": ("val", "valid"), "test": ("test_2016_flickr", "test")}
DATASETS = {
    dataset.name: dataset
    for dataset in (
        ParallelText("multi30k", ("en", "de", "fr"), 8_000, releases.multi30k, _MULTI30K),
        ParallelText("iwslt14", ("de", "en"), 10_000, releases.iwslt14, _NAMES, longest=175, ratio=1.5),
        # No `ratio`: a pair left out would be missing from the windows of others. Four sentences of the `longest` fit
        # into the 1,024 positions of fairseq's transformer.
        ParallelText(
            "iwslt14-documents", ("es", "en"), 30_000, releases.iwslt14_documents, _NAMES, longest=175, window=4
        ),
        ParallelText("iwslt17", ("en", "de", "fr"), 32_000, releases.iwslt17, _NAMES, longest=250),
        ParallelText("wmt14", ("en", "de"), 32_000, releases.wmt14, _NAMES, longest=250, ratio=1.5, coverage=0.9999),
        ParallelText(OWN, (), 8_000, stems=_NAMES, longest=250, coverage=0.9999),
        ParallelText(
            "tatoeba",
            ("de", "en"),
            8_000,
            coverage=0.9999,
            unsplit=distinct.Unsplit(releases.tatoeba, {"valid": 2_000, "test": 4_000}),
        ),
        ParallelText(
            "python_docs",
            ("en", "es"),
            8_000,
            coverage=0.9999,
            unsplit=distinct.Unsplit(releases.python_docs, {"valid": 1_000, "test": 2_000}),
        ),
    )
}


def prepare(
    dataset: ParallelText, root: str | Path, out: str | Path, pair: str, vocab_size: int, download: bool = False
) -> prepared.Summary:
    """Prepare the text in `root` for training and evaluation in `out`; finished work is not repeated.

    Returns, per split, the number of sentence pairs kept, the number of documents if there are windows, and the number
    of pairs left out by reason. Raises LeapformerError for missing, damaged or misaligned files, and an `out` that
    contains other data.
    """
    root, out = Path(root).absolute(), Path(out).absolute()
    languages = _languages(dataset, pair)
    options = {"dataset": dataset.name, "pair": pair, "vocab_size": vocab_size}
    if dataset.window is not None:
        if dataset.window < 1:
            raise LeapformerError(f"--window {dataset.window}: give a whole number of sentences from 1")
        options["window"] = dataset.window
    if (out / prepared.STATE).is_file() and (summary := prepared.begin(out, options)) is not None:
        return summary
    if dataset.unsplit is None:
        files, split = _find(dataset, root, languages, download), None
        prepared.begin(out, options)
    else:
        _need_root(dataset, root)
        split = distinct.split(dataset.unsplit, root)
        prepared.begin(out, options)
        files = _write_split(out, split, languages, reverse=languages != dataset.languages)
    _write_subwords(out, files["train"], vocab_size, dataset)
    encode = partial(_encoded, sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model")))
    (out / "raw").mkdir(exist_ok=True)
    summary = {}
    for name in SPLITS:
        pairs = _tidied(files[name])
        if name == "train":
            summary[name] = _write_training(out, languages, encode, pairs, dataset)
        else:
            summary[name] = _write_evaluation(out, name, languages, encode, pairs, dataset)
        if split is not None:
            summary[name]["dropped"] |= split.dropped(name)
    prepared.finish(out, options, summary)
    return summary


def _languages(dataset: ParallelText, pair: str) -> tuple[str, str]:
    if not dataset.languages:
        return pairs.of_text(pair)
    source, _, target = pair.partition("-")
    if source == target or not {source, target} <= {*dataset.languages}:
        choice = ", ".join(dataset.languages)
        raise LeapformerError(f"--pair {pair}: {dataset.name} has {choice}; give two of them, e.g. {dataset.pair}")
    return source, target


def _find(
    dataset: ParallelText, root: Path, languages: tuple[str, str], download: bool
) -> dict[str, tuple[Path, Path]]:
    """The source and the target file of every split. Raises LeapformerError if one is missing or empty."""
    if not download:
        _need_root(dataset, root)
    dataset.provide(root, languages, download)
    files: dict[str, tuple[Path, Path]] = {}
    for split in SPLITS:
        paths = []
        for language in languages:
            names = [f"{stem}.{language}" for stem in dataset.stems[split]]
            path = find_text(root, names)
            if path is None:
                remedy = "" if dataset.name == OWN else ", or let --download fetch it"
                raise LeapformerError(f"no file {root / names[0]}, nor with .gz; check the data folder{remedy}")
            if not path.stat().st_size:
                raise LeapformerError(f"{path} is empty; check the data folder")
            paths.append(path)
        files[split] = (paths[0], paths[1])
    return files


def _need_root(dataset: ParallelText, root: Path) -> None:
    if not root.is_dir():
        raise LeapformerError(f"{dataset.name} root {root} is not a folder; check the path")


def _write_split(
    out: Path, split: distinct.Split, languages: tuple[str, str], reverse: bool
) -> dict[str, tuple[Path, Path]]:
    """Write the text of all splits and the list of pairs left out; return the two files of every split."""
    (out / "raw").mkdir(exist_ok=True)
    sides = (1, 0) if reverse else (0, 1)
    rows = ("\t".join((of, reason, pair[sides[0]], pair[sides[1]])) for of, reason, *pair in split.left_out)
    write_lines(out / "left_out.tsv", chain(["\t".join(("split", "reason", *languages))], rows))
    files = {}
    for name in SPLITS:
        source, target = (out / "raw" / f"{name}.{language}" for language in languages)
        for path, side in zip((source, target), sides, strict=True):
            write_lines(path, (pair[side] for pair in split.pairs[name]))
        files[name] = source, target
    return files


def _tidied(files: tuple[Path, Path]) -> Pairs:
    """Sentence pairs with single spaces and no control characters."""
    return ((tidy(source), tidy(target)) for source, target in read_pairs(*files))


# ----------------------------------------------------------------------------------------------------------- windows
# A sentence is translated together with the preceding ones of its document: it ends one window. A test set is
# translated by taking the last sentence of every window's translation; the target context is what the model itself
# wrote before it. ABC (Peng et al., 2022, arXiv:2110.02488, appendix C.2) uses windows of four.
SEPARATOR = "<sep>"  # between the sentences of a window; a dictionary entry that subword encoding never produces

Sentences = tuple[list[str], list[str]]  # the subwords of a sentence and of its translation


def is_break(pair: Sentences) -> bool:
    """Whether both sides are empty: such a pair separates documents."""
    return not any(pair)


def split_documents(pairs: Iterable[Sentences]) -> Iterator[list[Sentences]]:
    """The documents in a stream of sentence pairs."""
    for separates, document in groupby(pairs, is_break):
        if not separates:
            yield list(document)


def windows(document: Sequence[Sentences], size: int) -> Iterator[Sentences]:
    """For every sentence pair of a document, the window of at most `size` pairs that ends with it.

    >>> list(windows([(["uno"], ["one"]), (["dos"], ["two"]), (["tres"], ["three"])], 2))[-1]
    (['dos', '<sep>', 'tres'], ['two', '<sep>', 'three'])
    """
    for end in range(1, len(document) + 1):
        source, target = zip(*document[max(0, end - size) : end], strict=True)
        yield _joined(source), _joined(target)


def _joined(sentences: Iterable[list[str]]) -> list[str]:
    return [piece for sentence in sentences for piece in (SEPARATOR, *sentence)][1:]


# ---------------------------------------------------------------------------------------------------------- subwords
def _write_subwords(out: Path, files: tuple[Path, Path], vocab_size: int, dataset: ParallelText) -> None:
    count = sum(1 for _ in read_pairs(*files))
    every = math.ceil(count / SUBWORD_PAIRS) or 1
    pairs = (pair for n, pair in enumerate(_tidied(files)) if n % every == 0)
    train_subwords(out / "spm", (text for pair in pairs for text in pair), vocab_size, "bpe", dataset.coverage)
    if dataset.window is not None:  # only in the dictionary: the subword model never produces the separator
        with open(out / "spm.txt", "a", encoding="utf-8") as dictionary:
            dictionary.write(f"{SEPARATOR} 1\n")


def _encoded(model: sentencepiece.SentencePieceProcessor, pairs: Iterable[tuple[str, str]]) -> Iterator[Sentences]:
    """Split both sentences of all pairs into subwords, in batches."""
    remaining = iter(pairs)
    while batch := list(islice(remaining, BATCH)):
        yield from zip(*(model.encode([pair[side] for pair in batch], out_type=str) for side in (0, 1)), strict=True)


# ------------------------------------------------------------------------------------------------------------ splits
def _write_training(
    out: Path, languages: tuple[str, str], encode: Encode, pairs: Pairs, dataset: ParallelText
) -> dict[str, Any]:
    """Encode the pairs that are fit for training; return the counts of pairs kept and left out."""
    dropped: Counter[str] = Counter()

    def fit() -> Iterator[Sentences]:
        for source, target in encode(pairs):
            reason = _reason(len(source), len(target), dataset)
            if reason is None or dataset.separates((source, target)):
                yield source, target
            else:
                dropped[reason] += 1

    written = _write_pairs(out, "train", languages, fit(), dataset.window)
    if not written["pairs"]:
        raise LeapformerError(
            f"no sentence pair of {dataset.name} is fit for training ({dict(dropped)}); check the files"
        )
    return {**written, "dropped": dict(dropped)}


def _reason(source: int, target: int, dataset: ParallelText) -> str | None:
    """Why a pair of these lengths (subwords) is left out of training; None if it is kept."""
    if not source or not target:
        return "empty"
    if max(source, target) > dataset.longest:
        return "too long"
    return "lengths differ" if max(source, target) > dataset.ratio * min(source, target) else None


def _write_evaluation(
    out: Path, split: str, languages: tuple[str, str], encode: Encode, pairs: Pairs, dataset: ParallelText
) -> dict[str, Any]:
    """Encode all pairs, since one left out would not be scored, and write the references."""
    texts = list(pairs)  # evaluation sets fit into the memory, unlike training sets
    encoded = list(encode(texts))
    for side, language in enumerate(languages):
        sentences = (text[side] for text, pair in zip(texts, encoded, strict=True) if not dataset.separates(pair))
        write_lines(out / "raw" / f"{split}.{language}", sentences)
    return {**_write_pairs(out, split, languages, encoded, dataset.window), "dropped": {}}


def _write_pairs(
    out: Path, split: str, languages: tuple[str, str], pairs: Iterable[Sentences], window: int | None
) -> dict[str, int]:
    """Write both sides in step, as windows of documents if `window` is given; return the counts of what was written."""
    paths = [out / f"{split}.{language}" for language in languages]
    counts = {"pairs": 0} if window is None else {"pairs": 0, "documents": 0}

    def windowed(size: int) -> Iterator[Sentences]:
        for document in split_documents(pairs):
            counts["documents"] += 1
            yield from windows(document, size)

    with ExitStack() as stack:
        partials = [stack.enter_context(replacing(path)) for path in paths]
        files = [stack.enter_context(open(partial, "w", encoding="utf-8")) for partial in partials]
        # `pairs` is consumed while it is encoded: training sets do not fit into the memory.
        for pair in pairs if window is None else windowed(window):
            for file, pieces in zip(files, pair, strict=True):
                file.write(" ".join(pieces) + "\n")
            counts["pairs"] += 1
    return counts
