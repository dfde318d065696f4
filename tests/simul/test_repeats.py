"""The guard against repetition: fairseq's n-grams, in each utterance by itself, whatever else its session does."""

from __future__ import annotations

import inspect

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock

from leapformer_fairseq.runtime.beam import repeating
from leapformer_fairseq.runtime.simul.stream import DecodingOptions, TranslationStream


def test_by_hand() -> None:
    tokens = [4, 5, 6, 4, 5, 7, 4, 5]
    assert repeating(tokens, 3) == [6, 7] and repeating(tokens, 2) == [6, 7] and repeating(tokens, 4) == []
    assert sorted(set(repeating(tokens, 1))) == [4, 5, 6, 7]
    assert repeating(tokens, 0) == repeating([], 1) == repeating([], 3) == repeating([4], 3) == []
    assert repeating([4, 4, 4], 3) == [4] and repeating([4, 4], 3) == []


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("seed", range(10))
def test_it_is_that_of_fairseq(size: int, seed: int) -> None:
    """Its tokens begin with the end of a sentence before."""
    torch.manual_seed(seed)
    tokens = torch.randint(4, 8, (1, 30))
    guard, theirs = NGramRepeatBlock(size, use_extension=False), inspect.unwrap(NGramRepeatBlock._no_repeat_ngram)
    for length in range(31):
        known = torch.cat([torch.tensor([[2]]), tokens[:, :length]], 1)
        scores = theirs(guard, known, torch.zeros(1, 9), 1, 1, length)
        assert scores[0].isinf().nonzero().flatten().tolist() == sorted(
            set(repeating(tokens[0, :length].tolist(), size))
        )


def written(system, samples, size: int, **options) -> list[int]:
    stream = TranslationStream(system, DecodingOptions(max_len_b=60, no_repeat_ngram_size=size, **options))
    stream.push(samples)
    assert stream.advance(source_finished=True)
    return stream.engine.tokens


def ngrams(tokens: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stream_says_nothing_twice(make_system, speech, size: int) -> None:
    system, samples = make_system(eos_bias=-50.0), speech(4.0, 3)
    free, guarded = (ngrams(written(system, samples, n), size) for n in (0, size))
    assert len(set(free)) < len(free) and len(set(guarded)) == len(guarded) > 20
    again = written(system, samples, size)
    assert ngrams(again, size) == guarded, "every utterance begins without the last one"


def test_a_fork_goes_its_own_way(make_system, speech) -> None:
    """What one of two streams writes is no repetition for the other."""
    system, samples = make_system(eos_bias=-50.0), speech(4.0, 3)
    options = DecodingOptions(max_len_b=60, no_repeat_ngram_size=1)
    stream = TranslationStream(system, options)
    stream.push(samples[:32_000])
    stream.advance(source_finished=False)
    other, begun = stream.fork(), stream.engine.tokens
    other.push(speech(2.0, 9))
    other.advance(source_finished=True)
    stream.push(samples[32_000:])
    stream.advance(source_finished=True)
    assert stream.engine.tokens == written(system, samples, 1) and other.engine.tokens[: len(begun)] == begun
    assert set(other.engine.tokens) & set(stream.engine.tokens[len(begun) :])
