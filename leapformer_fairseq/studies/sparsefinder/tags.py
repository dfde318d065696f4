"""Distribution of the tokens of each part of speech over the buckets of k-means (Treviso et al., 2022, figure 6).

A tagger splits text into words, a model into subwords. A subword has the tag of the word that contains its first
letter; white space is ignored, and symbols such as the end of a sentence have no tag. The paper does not state its
rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.vocabulary import load_spelling
from ...scoring.table import Table
from ...support.errors import LeapformerError
from ...support.files import write_text
from ...support.lines import read_lines
from .extraction import Graphs, Sentence
from .grids import Point
from .sweep import mechanisms

Tagged = Sequence[tuple[str, str]]  # words of a sentence with their tags
OTHER = "other"
SIDES = {"queries": "q", "keys": "k"}
MARKS = {"<s>", "</s>", "<pad>", "<unk>", "<mask>"}
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # sentencepiece's symbol for a space


def texts(sentences: Iterable[Sentence], vocabulary: str | None) -> list[str]:
    """Return the sentences as text for a tagger, one line each."""
    return [
        b"".join(spelled).decode("utf-8", "replace").strip().replace("\n", " ")
        for spelled in _spelled(sentences, vocabulary)
    ]


def read_tags(path: str) -> list[Tagged]:
    """Read sentences from a TSV with a word and its tag per line, and an empty line after each sentence.

    Raises LeapformerError for a line of another form.
    """
    lines = list(read_lines(path, "--tags"))
    for number, line in enumerate(lines, 1):
        if line.strip() and line.count("\t") != 1:
            raise LeapformerError(f"--tags {path}, line {number}: {line!r} is no word, tab and tag; mend it")
    return [
        [(word, tag) for word, _, tag in (line.partition("\t") for line in group)]
        for filled, group in groupby(lines, key=lambda line: bool(line.strip()))
        if filled
    ]


def tag_with_spacy(lines: Iterable[str], pipeline: str) -> list[Tagged]:
    """Tag lines with universal tags by a spaCy pipeline. Raises LeapformerError if it is not installed."""
    try:
        import spacy

        model = spacy.load(pipeline)
    except (ImportError, OSError) as error:
        raise LeapformerError(
            f"--spacy {pipeline}: {' '.join(str(error).split())}; install spacy and this pipeline, or give the tags as "
            "--tags"
        ) from error
    return [[(token.text, token.pos_) for token in document] for document in model.pipe(lines)]


def tags_of_subwords(
    sentences: Sequence[Sentence], tagged: Sequence[Tagged], vocabulary: str | None
) -> list[list[str | None]]:
    """Return the tag of each subword, or None.

    Raises LeapformerError if the tags belong to other text.
    """
    if len(tagged) != len(sentences):
        raise LeapformerError(
            f"there are tags for {len(tagged)} sentences, and {len(sentences)} sentences; tag each line of text.txt, "
            "with an empty line after it"
        )
    tags: list[list[str | None]] = []
    for number, (spelled, words) in enumerate(zip(_spelled(sentences, vocabulary), tagged, strict=True), 1):
        letters = [b"".join(piece.split()) for piece in spelled]
        owners = [(byte, tag) for word, tag in words for byte in b"".join(word.encode().split())]
        if bytes(byte for byte, _ in owners) != b"".join(letters):
            raise LeapformerError(
                f"the tags of sentence {number} are of other words than line {number} of text.txt has"
            )
        ends = torch.tensor([0, *map(len, letters)]).cumsum(0).tolist()
        tags.append([owners[end][1] if piece else None for end, piece in zip(ends, letters, strict=False)])
    return tags


class Buckets:
    """Counts of tags per bucket, head and layer: `counts` (sides, L, H, c, tags).

    Sides are the queries and, in self-attention, the keys: a token is in the bucket of the centroid nearest to its
    query, and in that of the centroid nearest to its key.
    """

    def __init__(self, graphs: Graphs, file: str, centroids: int, names: Sequence[str]) -> None:
        point = Point("sparsefinder-kmeans", {"sparsefinder_centroids": centroids})
        self.layers: list[Any] = list(mechanisms(graphs, point, "none", [file], 0))
        self.sides = list(SIDES)[: 1 if graphs.about["block"] == "decoder-cross" else 2]
        self.names = list(names)
        shape = len(self.sides), len(self.layers), graphs.about["heads"], centroids, len(names)
        self.counts = torch.zeros(shape, dtype=torch.long)

    def add(self, sentence: Sentence, tags: Sequence[str | None]) -> None:
        tagged = torch.tensor([i for i, tag in enumerate(tags) if tag is not None])
        columns = torch.tensor(
            [self.names.index(tag if tag in self.names else OTHER) for tag in tags if tag is not None]
        )
        for layer, mechanism in enumerate(self.layers):
            for counts, side in zip(self.counts, self.sides, strict=True):
                x = getattr(sentence, SIDES[side])[layer][:, tagged].unsqueeze(0)
                project = mechanism.project_queries if side == "queries" else mechanism.project_keys
                cells = mechanism.buckets(project(x))[0, :, :, 0] * len(self.names) + columns  # (H, T)
                of_layer = counts[layer]
                for head, of_head in enumerate(cells):
                    of_layer[head] += of_head.bincount(minlength=of_layer[head].numel()).view_as(of_layer[head])


def most_frequent(tags: Iterable[Sequence[str | None]], count: int) -> list[str]:
    """Return the `count` most frequent tags and, if there are more, `OTHER`."""
    frequencies = Counter(tag for sentence in tags for tag in sentence if tag is not None)
    names = [tag for tag, _ in frequencies.most_common(count)]
    return names if len(frequencies) <= count else [*names, OTHER]


def information(counts: Tensor) -> float:
    """Return the mutual information, in bits, of a token's bucket and its tag, from counts (c, tags)."""
    joint = counts.double() / counts.sum()
    apart = joint.sum(0) * joint.sum(1, keepdim=True)
    return float(torch.where(joint > 0, joint * (joint / apart).log2(), 0.0).sum())


def write_tags(
    buckets: Buckets, folder: Path, draw: Callable[[Mapping[str, Tensor], Sequence[str], Path, str], None]
) -> str:
    """Write tags.csv (all counts), tags.md (each head's information on tags), and a picture per head; return tags.md.

    `draw` receives the shares (c, tags) of each side, which add up to 1 for each tag, the tags, a path and a title.
    """
    lines: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for layer, of_layer in enumerate(buckets.counts.unbind(1), 1):
        for head, of_head in enumerate(of_layer.unbind(1)):
            sides, place = dict(zip(buckets.sides, of_head, strict=True)), {"layer": layer, "head": head}
            for side, counts in sides.items():
                for bucket, line in enumerate(counts.tolist()):
                    of_tags = dict(zip(buckets.names, line, strict=True))
                    lines.append({**place, "side": side, "bucket": bucket, **of_tags})
            bits = {f"bits of {side}": f"{information(counts):.3f}" for side, counts in sides.items()}
            used = {f"buckets in use of {side}": int((x.sum(1) > 0).sum()) for side, x in sides.items()}
            rows.append({**place, **bits, **used})
            shares = {side: counts / counts.sum(0).clamp(min=1) for side, counts in sides.items()}
            title = f"layer {layer}, head {head}: buckets of each tag"
            draw(shares, buckets.names, folder / f"tags-layer{layer}-head{head}.svg", title)
    write_text(folder / "tags.csv", Table.of(lines).csv(), "--out")
    table = Table.of(rows).markdown()
    write_text(folder / "tags.md", table + "\n", "--out")
    return table


def _spelled(sentences: Iterable[Sentence], vocabulary: str | None) -> list[list[bytes]]:
    """Return the text of each subword with its white space; symbols in `MARKS` are empty."""
    if vocabulary is not None:
        spell = load_spelling(vocabulary)
        return [[b"" if word in MARKS else spell(word) for word in sentence.words] for sentence in sentences]
    sentences = list(sentences)
    pieces = any(SPACE in word for sentence in sentences for word in sentence.words)
    if not pieces and all(word.isdigit() for s in sentences for word in s.words if word not in MARKS):
        raise LeapformerError(
            "the subwords of these graphs are numbers; give the folder with encoder.json and vocab.bpe as --vocabulary"
        )
    return [
        [
            b"" if word in MARKS else (word.replace(SPACE, " ") if pieces else word + " ").encode()
            for word in sentence.words
        ]
        for sentence in sentences
    ]
