"""Translation quality, mostly with sacreBLEU; each score has a signature that says how it was computed."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from ..runtime.formats import jsonl
from ..support.errors import LeapformerError
from ..support.lines import read_lines
from .significance import Measure

_ANSWERS = 'it answers {"score": N} for each segment, then {"system": N, "name": "...", "version": "..."}'
FREQUENT = 100  # most frequent words of the training text, which a model may write whether they were said or not


@dataclass(frozen=True)
class QualityScore:
    """A corpus score from 0 to 100, its signature, and the same score for each sentence.

    `measure` computes it from the sentences, for resampling; None if another program did.
    """

    name: str
    value: float
    signature: str
    per_sentence: tuple[float, ...]
    measure: Measure | None = None


def quality(
    predictions: Sequence[str], references: Sequence[str], tokenize: str = "13a", training: str | Path | None = None
) -> tuple[QualityScore, ...]:
    """BLEU, chrF and, if `training` names a text that the model was trained on, the recall of rare words, if any.

    Raises LeapformerError for a tokenizer that cannot be used, or a text that cannot be read.
    """
    scores = bleu(predictions, references, tokenize), chrf(predictions, references)
    if training is None:
        return scores
    recall = rare_recall(predictions, references, read_lines(Path(training), "--training-text"), tokenize)
    return scores if recall is None else (*scores, recall)


def bleu(predictions: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> QualityScore:
    """Corpus BLEU of detokenised text, with one reference each (Papineni et al., 2002; Post, 2018, arXiv:1804.08771).

    `tokenize`: 13a for languages with spaces, zh for Chinese, ja-mecab for Japanese. Sentence scores use the effective
    order: n-grams longer than the sentence do not count. Raises LeapformerError for a tokenizer that is unknown or not
    installed.
    """
    corpus, sentence = _bleu(tokenize), _bleu(tokenize, effective_order=True)
    return _score("BLEU", corpus, sentence, predictions, references)


def _bleu(tokenize: str, effective_order: bool = False, lowercase: bool = False) -> BLEU:
    if tokenize not in BLEU.TOKENIZERS:
        choices = ", ".join(sorted(BLEU.TOKENIZERS))
        raise LeapformerError(f"sacreBLEU has no tokenizer {tokenize!r}; choose from {choices}")
    try:
        return BLEU(lowercase, tokenize=tokenize, effective_order=effective_order)
    except (ImportError, RuntimeError) as error:
        raise LeapformerError(f"tokenizer {tokenize!r} cannot be used: {' '.join(str(error).split())}") from error


def chrf(predictions: Sequence[str], references: Sequence[str]) -> QualityScore:
    """Corpus chrF2 (Popović, 2015, W15-3049): the F-score of character n-grams, independent of any tokenizer."""
    return _score("chrF", CHRF(), CHRF(), predictions, references)


def rare_recall(
    predictions: Sequence[str], references: Sequence[str], training: Iterable[str], tokenize: str = "13a"
) -> QualityScore | None:
    """Recall of rare words: the percentage of them in the references that the prediction of the same sentence has, too.

    None if the references have none. A word is rare unless it is among the `FREQUENT` most frequent ones of the
    training text; words are lower-case, as cut by the tokenizer. A model that writes fluent sentences about something
    else gets some BLEU for frequent words, but nothing here. A sentence without rare words has 100.
    """
    # Private, but sacreBLEU has no other access to its tokenisation and case folding.
    prepare = _bleu(tokenize, lowercase=True)._preprocess_segment

    def words(text: str) -> list[str]:
        return str(prepare(text)).split()

    frequent = {word for word, _ in Counter(chain.from_iterable(map(words, training))).most_common(FREQUENT)}
    recalled, totals = list[int](), list[int]()
    for prediction, reference in zip(predictions, references, strict=True):
        predicted = Counter(words(prediction))
        rare = {word: count for word, count in Counter(words(reference)).items() if word not in frequent}
        totals.append(sum(rare.values()))
        recalled.append(sum(min(count, predicted[word]) for word, count in rare.items()))
    if not sum(totals):
        return None
    shares = zip(recalled, totals, strict=True)
    per_sentence = tuple(100 * count / total if total else 100.0 for count, total in shares)
    sums = np.array([recalled, totals], float).T
    measure = Measure(sums, lambda sums: float(100 * sums[0] / max(1, sums[1])))
    signature = f"frequent:{FREQUENT}|case:lc|tok:{tokenize}|words:{sum(totals)}"
    return QualityScore("rare_recall", measure.value, signature, per_sentence, measure)


def _score(
    name: str,
    corpus: BLEU | CHRF,
    sentence: BLEU | CHRF,
    predictions: Sequence[str],
    references: Sequence[str],
) -> QualityScore:
    if len(predictions) != len(references) or not references:
        raise LeapformerError(f"{len(predictions)} predictions for {len(references)} references; give one for each")
    # Not by sacreBLEU's own resampling, which fails if chrF of a resample is 0; it has no public function for the sums.
    sums = np.array(corpus._extract_corpus_statistics(list(predictions), [list(references)]), float)
    measure = Measure(sums, lambda sums: float(corpus._compute_score_from_stats([*map(round, sums)]).score))
    pairs = zip(predictions, references, strict=True)
    per_sentence = tuple(sentence.sentence_score(prediction, [reference]).score for prediction, reference in pairs)
    return QualityScore(name, measure.value, str(corpus.get_signature()), per_sentence, measure)


# ------------------------------------------------------------------------------------------------- another program
def score_by_command(
    command: str, predictions: Sequence[str], references: Sequence[str], transcripts: str | None = None
) -> QualityScore:
    """Score segments with a program in another environment, such as COMET, whose requirements conflict with ours.

    The program reads a line of JSON for each segment, {"src": ..., "mt": ..., "ref": ...}, from standard input, also
    for segments without output. It answers {"score": 0.83} for each, in order, and finally {"system": 0.81, "name":
    "XCOMET-XL", "version": "2.2.6"}. `transcripts` names a file with the source text of the segments, one per line.
    Raises LeapformerError if the command cannot be run, fails, or does not answer so.
    """
    sources = _sources(transcripts, len(predictions))
    entries = [
        {"src": source, "mt": prediction, "ref": reference}
        for source, prediction, reference in zip(sources, predictions, references, strict=True)
    ]
    lines = _answers(command, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
    where = [f"--quality-command, line {number} of its output" for number in range(1, len(lines) + 1)]
    answers = [jsonl.parse(line, place) for line, place in zip(lines, where, strict=True)]
    if len(answers) != len(entries) + 1:
        raise LeapformerError(f"--quality-command wrote {len(answers)} lines for {len(entries)} segments; {_ANSWERS}")
    *segments, (last, place) = zip(answers, where, strict=True)
    scores = [jsonl.field(answer, "score", jsonl.number, line, _ANSWERS) for answer, line in segments]
    name, version = (jsonl.field(last, key, jsonl.text, place, _ANSWERS) for key in ("name", "version"))
    system = jsonl.field(last, "system", jsonl.number, place, _ANSWERS)
    return QualityScore(name, system, f"{name}|version:{version}", tuple(scores))


def _answers(command: str, text: str) -> list[str]:
    try:
        process = subprocess.run(shlex.split(command), input=text, capture_output=True, encoding="utf-8", check=True)
    except (OSError, ValueError, IndexError) as error:
        raise LeapformerError(f"--quality-command {command!r} cannot be run ({error}); check the command") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise LeapformerError(
            f"--quality-command ended with status {error.returncode}: {last}; run it by hand to see why"
        ) from error
    return [line for line in process.stdout.splitlines() if line.strip()]


def _sources(transcripts: str | None, n_segments: int) -> list[str]:
    if transcripts is None:
        return [""] * n_segments
    lines = [line.strip() for line in read_lines(transcripts, "--transcripts")]
    if len(lines) != n_segments:
        raise LeapformerError(
            f"--transcripts {transcripts} has {len(lines)} lines for {n_segments} segments; give one line for each"
        )
    return lines
