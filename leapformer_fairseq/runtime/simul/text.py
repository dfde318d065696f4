"""Convert target tokens to text for display: only what no later token can change.

SimulEval joins the writes of word units with spaces, so half a word would become a word ("Ha" + "llo" -> "Ha llo"). The
emitters therefore always decode all tokens from the first on and return the new suffix, never single pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, Self

import sentencepiece

from ...support.errors import LeapformerError

WORD_START = "\u2581"  # sentencepiece's mark of a space before the piece


class Symbols(Protocol):
    """The part of fairseq's Dictionary that is used: id -> symbol."""

    def __getitem__(self, index: int) -> str: ...

    def __len__(self) -> int: ...


class Detokenizer:
    """Target ids to text: the dictionary maps ids to pieces, and the sentencepiece model decodes them."""

    def __init__(self, symbols: Symbols, model_file: str | Path) -> None:
        """Raises LeapformerError when `model_file` is missing or no sentencepiece model."""
        if not Path(model_file).is_file():
            raise LeapformerError(f"no sentencepiece model at {model_file}; check bpe_tokenizer in the config yaml")
        self._symbols, self.model_file = symbols, Path(model_file)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_file=str(model_file))
        except (OSError, RuntimeError) as error:
            raise LeapformerError(f"{model_file} is not a sentencepiece model; check bpe_tokenizer") from error

    def __len__(self) -> int:
        """The number of ids."""
        return len(self._symbols)

    def piece(self, token: int) -> str:
        return self._symbols[token]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._processor.decode_pieces([self._symbols[token] for token in tokens])


class WordEmitter:
    """Emits whole words: a word is complete when the next piece starts a new one, or at the end."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._tokens: list[int] = []
        self._n_sent = 0  # tokens whose text was handed out
        self._sent_chars = 0

    def push(self, tokens: Iterable[int]) -> None:
        """Append written tokens."""
        self._tokens.extend(tokens)

    def fork(self) -> Self:
        """An independent copy."""
        other = copy.copy(self)
        other._tokens = list(self._tokens)
        return other

    def starts(self) -> list[int]:
        """The indices of the tokens at which a word begins."""
        return [i for i in range(len(self._tokens)) if not i or self._begins(i)]

    def letters(self, count: int) -> int:
        """How many letters the text of the first so many tokens has, up to the start of a word; spaces are none."""
        return sum(not letter.isspace() for letter in self._detokenizer.decode(self._tokens[:count]))

    def forget(self, count: int) -> None:
        """Drop the first tokens up to the start of a word whose text was emitted; later text is unaffected."""
        self._tokens, self._n_sent = self._tokens[count:], self._n_sent - count
        self._sent_chars = len(self._detokenizer.decode(self._tokens[: self._n_sent]))

    def flush(self, final: bool) -> str:
        """Text that has become final since the last call, without outer spaces; with `final`, all remaining text."""
        end = len(self._tokens) if final else self._stable_end()
        if end <= self._n_sent:
            return ""
        text = self._detokenizer.decode(self._tokens[:end])
        suffix = text[self._sent_chars :]
        self._n_sent, self._sent_chars = end, len(text)
        return suffix.strip()

    def _stable_end(self) -> int:
        """How many tokens make up text that later tokens cannot change."""
        for index in range(len(self._tokens) - 1, self._n_sent, -1):
            if self._begins(index):
                return index
        return self._n_sent

    def _begins(self, index: int) -> bool:
        """Whether a token is the first of a word."""
        return self._detokenizer.piece(self._tokens[index]).startswith(WORD_START)


class CharEmitter(WordEmitter):
    """Emits every piece at once, for scripts without spaces, where the next word boundary may never come.

    Only the bytes of an unfinished character are held back (sentencepiece's byte fallback writes one as several
    pieces).
    """

    def _stable_end(self) -> int:
        end = len(self._tokens)
        start = end
        while start > self._n_sent and self._byte(self._tokens[start - 1]) is not None:
            start -= 1
        run = bytes(byte for byte in map(self._byte, self._tokens[start:]) if byte is not None)
        try:
            run.decode("utf-8")
        except UnicodeDecodeError:
            return start
        return end

    def _begins(self, index: int) -> bool:
        """Every piece, but for bytes behind others."""
        return None in (self._byte(token) for token in self._tokens[index - 1 : index + 1])

    def _byte(self, token: int) -> int | None:
        """The value of a byte-fallback piece such as <0xE4>, None for any other piece."""
        piece = self._detokenizer.piece(token)
        is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
        return int(piece[3:5], 16) if is_byte else None


EMITTERS: dict[str, type[WordEmitter]] = {"word": WordEmitter, "char": CharEmitter}
