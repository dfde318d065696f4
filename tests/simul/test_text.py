from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from leapformer_fairseq.runtime.simul.text import CharEmitter, Detokenizer, WordEmitter
from leapformer_fairseq.support.errors import LeapformerError


@pytest.fixture
def encode(spm_model: Path, symbols: list[str]):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm_model))
    return lambda text: [symbols.index(piece) for piece in processor.encode(text, out_type=str)]


def flush_after_each(emitter: WordEmitter, tokens: list[int]) -> list[str]:
    writes = []
    for token in tokens:
        emitter.push([token])
        writes.append(emitter.flush(final=False))
    return [*writes, emitter.flush(final=True)]


@pytest.mark.parametrize("text", ["hallo welt das ist ein test", "läuft, 你好 läuft!", "eins"])
def test_words_are_whole_and_joined_by_spaces_they_are_the_text(detokenizer, encode, text: str) -> None:
    writes = [write for write in flush_after_each(WordEmitter(detokenizer), encode(text)) if write]
    assert " ".join(writes) == text
    assert [word for write in writes for word in write.split()] == text.split()


def test_half_a_word_is_held_until_the_next_word_starts(detokenizer, symbols: list[str]) -> None:
    emitter = WordEmitter(detokenizer)
    emitter.push([symbols.index("▁"), symbols.index("h")])
    assert emitter.flush(final=False) == ""
    emitter.push([symbols.index("a")])
    assert emitter.flush(final=False) == ""
    emitter.push([symbols.index("▁")])
    assert emitter.flush(final=False) == "ha"
    assert emitter.flush(final=False) == ""  # nothing twice


def test_final_flush_sends_the_rest_once(detokenizer, encode) -> None:
    emitter = WordEmitter(detokenizer)
    emitter.push(encode("hallo welt"))
    assert emitter.flush(final=True) == "hallo welt"
    assert emitter.flush(final=True) == ""


def test_nothing_pushed_gives_nothing(detokenizer) -> None:
    assert WordEmitter(detokenizer).flush(final=True) == ""
    assert CharEmitter(detokenizer).flush(final=False) == ""


def test_characters_are_sent_at_once(detokenizer, encode) -> None:
    writes = flush_after_each(CharEmitter(detokenizer), encode("park"))
    assert "".join(writes) == "park"
    assert writes[-1] == ""  # nothing was left for the end


def test_bytes_of_an_unfinished_character_are_held(detokenizer, symbols: list[str]) -> None:
    tokens = [symbols.index(f"<0x{byte:02X}>") for byte in "你好".encode()]
    assert flush_after_each(CharEmitter(detokenizer), tokens) == ["", "", "你", "", "", "好", ""]


def test_broken_bytes_do_not_block_what_follows(detokenizer, symbols: list[str]) -> None:
    emitter = CharEmitter(detokenizer)
    emitter.push([symbols.index("<0xE4>"), symbols.index("a")])
    assert emitter.flush(final=False) == "\ufffda"


def test_unknown_symbols_do_not_break_the_suffixes(detokenizer, encode, symbols: list[str]) -> None:
    tokens = [*encode("hallo"), symbols.index("<unk>"), *encode("welt")]
    writes = flush_after_each(WordEmitter(detokenizer), tokens)
    assert " ".join(filter(None, writes)).split() == detokenizer.decode(tokens).split()


def test_missing_or_broken_model_is_one_clear_line(tmp_path: Path, symbols: list[str]) -> None:
    with pytest.raises(LeapformerError, match="no sentencepiece model"):
        Detokenizer(symbols, tmp_path / "none.model")
    (tmp_path / "bad.model").write_bytes(b"nonsense")
    with pytest.raises(LeapformerError, match="is not a sentencepiece model"):
        Detokenizer(symbols, tmp_path / "bad.model")
