"""Words of a talk and reference segments: against a plain dynamic programme, and the field's own results."""

from __future__ import annotations

import random

import pytest

from leapformer_fairseq.scoring.alignment import PUNCTUATION, mwer_segments, soft_segments
from leapformer_fairseq.support.errors import LeapformerError

REFERENCES = ["der Hund bellt laut.", "die Katze schläft nicht gern", "Gute Nacht!"]
PREDICTION = "der Hunde bellt die Katze schläft gern gute Nacht! danke"


def similarity(one: str, other: str) -> float:
    if (one in PUNCTUATION) != (other in PUNCTUATION):
        return -float("inf")
    return len(set(one) & set(other)) / len(set(one) | set(other))


def by_loops(references: list[list[str]], units: list[str]) -> list[int]:
    """The paper's alignment, cell by cell, and the rule for gaps, word by word."""
    words = [(word, i) for i, segment in enumerate(references) for word in segment]
    best = [[0.0] * (len(units) + 1) for _ in range(len(words) + 1)]
    back = [["insert"] * (len(units) + 1)] + [["delete"] + [""] * len(units) for _ in words]
    for i, (word, _) in enumerate(words, 1):
        for j, unit in enumerate(units, 1):
            ways = {
                "match": best[i - 1][j - 1] + similarity(word, unit),
                "delete": best[i - 1][j],
                "insert": best[i][j - 1],
            }
            back[i][j] = max(ways, key=lambda name: ways[name])  # the first of equal ones
            best[i][j] = ways[back[i][j]]
    i, j, path = len(words), len(units), []
    while i or j:
        step = back[i][j]
        i, j = i - (step != "insert"), j - (step != "delete")
        path.append((i if step != "insert" else None, j if step != "delete" else None))
    path.reverse()
    found: dict[int, int] = {}
    for rank, (i, j) in enumerate(path):
        if j is None:
            continue
        if i is None:
            before = next((a for a, _ in reversed(path[:rank]) if a is not None), None)
            after = next((a for a, _ in path[rank:] if a is not None), None)
            started = rank and path[rank - 1][0] is None and found.get(j - 1) == "after"
            scores = [-1.0 if a is None else similarity(words[a][0], units[j]) for a in (before, after)]
            forward = started or before is None or (after is not None and scores[1] > scores[0])
            found[j] = "after" if forward else "before"
            path[rank] = (None, j)
            found[j, "at"] = after if forward else before
        else:
            found[j], found[j, "at"] = "match", i
    return [words[found[j, "at"]][1] for j in range(len(units))]


@pytest.mark.parametrize("lang", [None, "de"])
def test_the_specifications_talk(lang):
    found = soft_segments([text.split() for text in REFERENCES], PREDICTION.split(), lang=lang)
    assert [found.count(i) for i in range(3)] == [3, 4, 3]


def test_the_specifications_characters():
    found = soft_segments([list("今天很好。"), list("我们走吧")], list("今天好。我走"), by_character=True)
    assert found == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_dynamic_programme(seed):
    draw = random.Random(seed)
    words = ["a", "ab", "abc", "cab", "de", "fgh", "da", ".", "?", "ge", "hund", "hunde"]
    references = [[draw.choice(words) for _ in range(draw.randint(1, 6))] for _ in range(draw.randint(1, 4))]
    units = [draw.choice(words) for _ in range(draw.randint(1, 14))]
    assert soft_segments(references, units) == by_loops(references, units)


def test_segments_never_go_back_and_nothing_is_lost():
    draw = random.Random(1)
    references = [["".join(draw.choices("abcdefgh", k=4)) for _ in range(9)] for _ in range(30)]
    units = [word for segment in references for word in segment if draw.random() > 0.3]
    found = soft_segments(references, units)
    assert found == sorted(found) and len(found) == len(units)
    right = [i for i, segment in enumerate(references) for word in segment]
    assert soft_segments(references, [word for segment in references for word in segment]) == right


@pytest.mark.parametrize(("references", "units"), [([["a"]], []), ([[], []], ["a", "b"])])
def test_nothing_to_align(references, units):
    assert soft_segments(references, units) == [0] * len(units)


def test_moses_cuts_marks_off():
    """With the comma a word of its own, a mark alone in the output finds its sentence."""
    references, units = [["ja,"], ["nein"]], ["ja", ",", "nein"]
    assert soft_segments(references, units, lang="de") == [0, 0, 1]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mweralign", None)
    with pytest.raises(LeapformerError, match="mweralign is not installed; pip install"):
        mwer_segments(REFERENCES, PREDICTION.split())
    monkeypatch.setitem(__import__("sys").modules, "sacremoses", None)
    with pytest.raises(LeapformerError, match="--lang de: the package sacremoses is not installed"):
        soft_segments([["a"]], ["a"], lang="de")
