"""Subword vocabularies shared between the data of pre-training and of fine-tuning.

A vocabulary is a folder with fairseq's dictionary, dict.txt, and either spm.model, one of our sentencepiece models, or
encoder.json and vocab.bpe, the GPT-2 byte pairs of the released RoBERTa.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import sentencepiece

from ..support.errors import LeapformerError
from .manifests import train_subwords

DICTIONARY = "dict.txt"
LINES = 2_000_000  # at most this many lines, evenly spread over the text, train the subword model
_SENTENCEPIECE, _GPT2 = ("spm.model",), ("encoder.json", "vocab.bpe")

Cut = Callable[[str], Iterable[object]]  # splits a line into subwords


def make_vocabulary(folder: Path, read: Callable[[], Iterator[str]], size: int) -> None:
    """Learn a vocabulary of at most `size` byte pairs from the lines that `read` yields, and write it to `folder`.

    `read` is called twice: to count the lines, and to sample them. Raises LeapformerError if there is no text, or if
    the letters do not fit in the vocabulary.
    """
    every = math.ceil(sum(1 for _ in read()) / LINES) or 1
    prefix = folder / "spm"
    train_subwords(prefix, (line for line in islice(read(), 0, None, every) if line), size, "bpe")
    prefix.with_suffix(".txt").replace(folder / DICTIONARY)


def copy_vocabulary(source: str | Path, folder: Path) -> None:
    """Copy the vocabulary in `source` to `folder`. Raises LeapformerError if `source` is not a vocabulary."""
    for name in (DICTIONARY, *_files(Path(source))):
        shutil.copyfile(Path(source, name), folder / name)


def load_vocabulary(folder: str | Path) -> Cut:
    """The function that splits a line into subwords. Raises LeapformerError if a file is missing or damaged."""
    paths = [str(Path(folder, name)) for name in _files(Path(folder))]
    try:
        if len(paths) == 1:
            processor = sentencepiece.SentencePieceProcessor(model_file=paths[0])
            return lambda line: processor.encode(line, out_type=str)
        from fairseq.data.encoders.gpt2_bpe_utils import get_encoder  # slow to import, and rarely needed

        return get_encoder(*paths).encode
    except (OSError, RuntimeError, ValueError) as error:
        raise LeapformerError(f"the vocabulary {folder} cannot be read ({error}); make or download it again") from error


def load_spelling(folder: str | Path) -> Callable[[str], bytes]:
    """The function that maps an entry of RoBERTa's dictionary, a number in text form, to the bytes of its byte pair.

    Raises LeapformerError if encoder.json or vocab.bpe is missing or damaged.
    """
    try:
        from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

        encoder = get_encoder(*(str(Path(folder, name)) for name in _GPT2))
    except (OSError, ValueError) as error:
        raise LeapformerError(f"the vocabulary {folder} cannot be read ({error}); make or download it again") from error
    return lambda number: bytes(encoder.byte_decoder[letter] for letter in encoder.decoder[int(number)])


def encoded(lines: Iterable[str], cut: Cut) -> Iterator[str]:
    """Lines in the format of `fairseq-preprocess`, with subwords separated by spaces."""
    return (" ".join(map(str, cut(line))) for line in lines)


def _files(folder: Path) -> tuple[str, ...]:
    """The names of the vocabulary's files besides the dictionary. Raises LeapformerError if it has neither kind."""
    for names in (_SENTENCEPIECE, _GPT2):
        if all((folder / name).is_file() for name in (DICTIONARY, *names)):
            return names
    raise LeapformerError(
        f"{folder} holds no vocabulary: {DICTIONARY} and {' '.join(_SENTENCEPIECE)}, as `leapformer prepare mlm` makes "
        f"them, or {DICTIONARY}, {' and '.join(_GPT2)} of RoBERTa; check the path"
    )
