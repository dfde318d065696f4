"""Text as subwords and back, as an exported folder says: sentencepiece, BPE or GPT-2's, and Moses' words or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..support.errors import LeapformerError
from .folder import CODES, GPT2, SUBWORDS, Folder
from .gpt2 import functions_of, read_codes

SEPARATOR = "@@"  # ends a piece of BPE after which the word goes on
Cut = Callable[[str], list[str]]
Joined = Callable[[list[str]], str]


def subwords_of(folder: Folder) -> tuple[Cut, Cut, Joined]:
    """Functions that split a source and a target into subwords, and join those of a target; with neither a model nor
    codes, at spaces.

    Raises LeapformerError if a library is missing.
    """
    cut, joined = _pieces(folder)
    if folder.moses is None:
        return cut, cut, joined
    source, target, text = _moses(folder, *folder.moses)
    return lambda line: cut(source(line)), lambda line: cut(target(line)), lambda pieces: text(joined(pieces))


def _pieces(folder: Folder) -> tuple[Cut, Joined]:
    if SUBWORDS in folder.files:
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(folder.file(SUBWORDS)))
        return model.encode_as_pieces, model.decode_pieces
    if GPT2[0] in folder.files:
        encoder, merges = map(folder.file, GPT2)
        return functions_of(read_codes(encoder, merges))
    if CODES not in folder.files:
        return str.split, " ".join
    try:
        from subword_nmt.apply_bpe import BPE
    except ImportError as error:
        raise _missing(folder, "subword-nmt") from error
    with folder.file(CODES).open(encoding="utf-8") as file:
        codes = BPE(file, separator=SEPARATOR)
    return (
        lambda line: codes.process_line(line).split(),
        lambda pieces: (" ".join(pieces) + " ").replace(f"{SEPARATOR} ", "").rstrip(),
    )


def _moses(folder: Folder, source: str, target: str) -> list[Callable[[str], str]]:
    """The words of a source and of a target, and the text of a target's words.

    As fairseq's `--tokenizer moses`: dashes are split, quotes and the like escaped.
    """
    try:
        from sacremoses import MosesDetokenizer, MosesTokenizer
    except ImportError as error:
        raise _missing(folder, "sacremoses") from error
    detokenizer = MosesDetokenizer(target)
    splits = [
        partial(MosesTokenizer(language).tokenize, aggressive_dash_splits=True, return_str=True)
        for language in (source, target)
    ]
    return [*splits, lambda text: str(detokenizer.detokenize(text.split()))]


def _missing(folder: Folder, library: str) -> LeapformerError:
    return LeapformerError(f"{folder.path} needs {library}; pip install 'leapformer-fairseq[words]'")
