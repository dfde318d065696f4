"""The files by which plain text is split into the symbols of a model's dictionary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..runtime.gpt2 import read_codes
from ..runtime.text import SEPARATOR
from ..support.errors import LeapformerError
from ..support.lines import read_lines
from ..support.options import flag

VERSION = "#version: 0.2"  # of subword-nmt's codes: the end of a word belongs to its last symbol, as in fastBPE
END = "</w>"  # of a word, in codes


class Subwords(NamedTuple):
    """How plain text is split into the symbols of the dictionaries; none of them: at spaces.

    sentencepiece: its model.
    codes:         of BPE, a file of subword-nmt or of fastBPE.
    gpt2:          of GPT-2's BPE, encoder.json and vocab.bpe.
    moses:         languages of source and target, for Moses' words before that.
    """

    sentencepiece: Path | None = None
    codes: Path | None = None
    moses: tuple[str, str] | None = None
    gpt2: tuple[Path, Path] | None = None


PLAIN = Subwords()


def check_subwords(given: Subwords, symbols: Sequence[str], named: Callable[[str], str] = flag) -> None:
    """Raise LeapformerError for files that split text into others than these symbols of a dictionary.

    `named`: what messages call an option, given the name under which it is stored.
    """
    if given.sentencepiece is not None:
        import sentencepiece

        name = f"{named('sentencepiece_model')} {given.sentencepiece}"
        try:
            model = sentencepiece.SentencePieceProcessor(model_file=str(given.sentencepiece))
        except (RuntimeError, OSError) as error:
            raise LeapformerError(f"{name} is no model of sentencepiece; give the training's") from error
        pieces = {model.id_to_piece(number) for number in range(model.get_piece_size())}
        _compare(name, pieces, symbols)
    if given.codes is not None:
        merged = {line.replace(" ", "") for line in codes_of(given.codes)}
        pieces = {one.removesuffix(END) if one.endswith(END) else f"{one}{SEPARATOR}" for one in merged}
        longer = [one for one in symbols if len(one.removesuffix(SEPARATOR)) > 1]
        _compare(f"{named('bpe_codes')} {given.codes}", pieces, longer)
    if given.gpt2 is not None:
        numbers = read_codes(*given.gpt2, "--gpt2-bpe").numbers
        _compare(f"--gpt2-bpe {given.gpt2[0]}", set(map(str, numbers.values())), symbols)


def _compare(name: str, pieces: Collection[str], symbols: Sequence[str]) -> None:
    """A dictionary may have other symbols, too, such as those of languages, but not more of them."""
    words = [symbol for symbol in symbols if not symbol.startswith("<")]
    known = sum(word in pieces for word in words)
    if 2 * known < len(words):
        raise LeapformerError(
            f"{name} is of another vocabulary: it makes {known:,} of the dictionary's {len(words):,} symbols; give "
            "what the training's text was split by"
        )


def codes_of(path: Path) -> Iterator[str]:
    """The lines of a file of BPE codes in the form of subword-nmt. fastBPE's have counts, and no version.

    Raises LeapformerError for another file.
    """
    remedy = "give the codes of subword-nmt (two symbols a line) or of fastBPE (and a count)"
    for number, line in enumerate(read_lines(path, "--bpe-codes", remedy), 1):
        fields = line.split(" ")
        counted = len(fields) == 3 and fields[2].isdigit()
        if number == 1 and counted:
            yield VERSION
        if number > 1 or not line.startswith("#version:"):
            if len(fields) != 2 and not counted or not all(fields):
                raise LeapformerError(f"--bpe-codes {path}, line {number}: {line[:40]!r} are no two symbols; {remedy}")
            line = " ".join(fields[:2])
        yield line
