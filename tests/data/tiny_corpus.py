"""A corpus of a few utterances for tests: synthesised in about two seconds, complete in every file."""

from pathlib import Path

from leapformer_fairseq.data.corpus.build import build
from leapformer_fairseq.data.corpus.folder import Corpus

from ..made import made

TINY_SIZES = {"train": 12, "dev": 4, "test": 4}


def build_tiny(path: Path, workers: int = 1) -> Corpus:
    """The same corpus in every test run; needs the espeakng-loader wheel, no network."""
    return build(path, TINY_SIZES, seed=1, vocab_size=100, workers=workers)


def tiny_corpus() -> Path:
    """The one that all tests of a run may read."""
    return made("tiny_corpus", lambda folder: build_tiny(folder / "corpus")) / "corpus"
