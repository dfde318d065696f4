"""The sentences that a seed gives, which published scores of the synthetic corpora depend on."""

import hashlib

import numpy as np
import pytest

from leapformer_fairseq.data.corpus import grammar
from leapformer_fairseq.data.corpus.choices import Choices

# Of each kind of sentence: how many there are, and hashes of the first 300 (of all: 3,000) of seeds 1, 2, 3.
SENTENCES = {
    "all": (2638595259456, "fa3a6043deff54b9 20706784d1c09a93 8dc70c49673c21fa"),
    "statement": (456446782076, "8763fd5390344b29 bb3ede17a3bf74ac 9627032d8fe97736"),
    "fronted": (330864415462, "617bf2630580c3ff 6ee09ed16f7d7203 ad3e916dbf6e2a06"),
    "question": (11888868912, "065efda9a3f29146 0c7432f498796b44 a706a7282ca8db22"),
    "when": (636685854, "a7c535a989ebafa9 5845299574dfe780 5c636a6669102457"),
    "why": (11884802608, "e830dceac21a286c 8da11be70628840b fbd525ae53db16cf"),
    "that": (1059445261056, "f2cb2fb72fbe5f96 6500ef2333afbc98 f6448a5a4bd5f6d9"),
    "whether": (264861315264, "088e351cbba77599 92a5e4169e7de44d 09e5187533533eac"),
    "because": (122243683968, "26b8587add09f0d2 38f2b7b7ab7cb4de d9a4ad7ef8cbfe78"),
    "if": (40747894656, "bd4954db0af5f625 dae0b9a7bed00d7f 7b81af07b7766904"),
    "condition": (339565788800, "1b2679630a93e1b0 693087a3085f1b8d 68a54cd81ec0c35d"),
    "there are": (9486400, "749cf7332dcaa9d0 2f21503ede267b44 6240f96f4f50b643"),
    "costs": (274400, "f7f236b9292d20dd 5693acc2da76e1a3 0398c08f45803027"),
}


def kinds() -> dict[str, Choices]:
    statement, fronted, question, when, why, joined, there_are, costs = grammar.SENTENCES.branches
    that, whether, because, if_, condition = joined.branches
    values = grammar.SENTENCES, statement, fronted, question, when, why, that, whether, because, if_, condition
    return dict(zip(SENTENCES, (*values, there_are, costs), strict=True))


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_seed_gives_the_same_sentences(kind):
    node, (size, expected) = kinds()[kind], SENTENCES[kind]
    assert node.size == size
    digests = []
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        pairs = (node.sample(rng) for _ in range(3000 if kind == "all" else 300))
        lines = "".join(f"{english}\t{german}\n" for english, german in pairs)
        digests.append(hashlib.sha256(lines.encode()).hexdigest()[:16])
    assert " ".join(digests) == expected
