"""Text as subwords, by the sentencepiece model of an exported folder."""

from __future__ import annotations

from collections.abc import Callable

from .folder import SUBWORDS, Folder


def subwords_of(folder: Folder) -> tuple[Callable[[str], list[str]], Callable[[list[str]], str]]:
    """Functions that split text into subwords and join them; without a sentencepiece model, at spaces."""
    if SUBWORDS not in folder.files:
        return str.split, " ".join
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder.file(SUBWORDS)))
    return model.encode_as_pieces, model.decode_pieces
