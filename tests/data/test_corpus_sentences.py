"""The sentences that a seed gives, on which published scores of the synthetic corpora depend, and files with faults."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from leapformer_fairseq.data.corpus.choices import Choices
from leapformer_fairseq.data.corpus.grammar import FOLDER, Grammar, grammar
from leapformer_fairseq.support.errors import LeapformerError

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
    statement, fronted, question, when, why, joined, there_are, costs = grammar().sentences.branches
    that, whether, because, if_, condition = joined.branches
    values = grammar().sentences, statement, fronted, question, when, why, that, whether, because, if_, condition
    return dict(zip(SENTENCES, (*values, there_are, costs), strict=True))


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_seed_gives_the_same_sentences(kind):
    node, (size, expected) = kinds()[kind], SENTENCES[kind]
    assert node.size == size
    digests = []
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        pairs = (grammar().sentence(node.sample(rng)) for _ in range(3000 if kind == "all" else 300))
        lines = "".join(f"{english}\t{german}\n" for english, german in pairs)
        digests.append(hashlib.sha256(lines.encode()).hexdigest()[:16])
    assert " ".join(digests) == expected


# ---- the files -----------------------------------------------------------------------------------------------------


def changed(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the files in which texts are replaced: (file, before, after)."""
    shutil.copytree(FOLDER, folder)
    for name, before, after in changes:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, before
        (folder / name).write_text(text.replace(before, after), encoding="utf-8")
    return folder


MAN = "      - {en: man, de: Mann, gender: m, plural: Männer, en_plural: men}\n"
BUY = "      - {en: buy, past: bought, de: kaufen, participle: gekauft}\n"
PAINT = "      - {en: paint, past: painted, prefix: an, de: malen, participle: gemalt}\n"
COSTS = '    de: "{what.nom} kostet {price.de} Euro"\n'
WEIGHT = "    there are: 1\n"


def test_a_word_or_a_pattern_is_added_in_the_files_alone(tmp_path):
    more = Grammar(
        changed(
            tmp_path / "language",
            ("words.yaml", MAN, "      - {en: fox, de: Fuchs, gender: m, plural: Füchse}\n" + MAN),
            ("words.yaml", BUY, PAINT + BUY),
            ("grammar.yaml", WEIGHT, WEIGHT + "    wish: 3\n"),
            ("grammar.yaml", COSTS, COSTS + '''
  wish:
    slots: {who: "plural(plural determiners, perhaps(person adjectives), people)", what: manners}
    en: "long live {who.en} {what.en}"
    de: "es leben {who.nom} {what.de}"
'''),
        )
    )  # fmt: skip
    assert more.node("people").size == grammar().node("people").size + 1
    rng = np.random.default_rng(1)
    said = [more.sample(rng) for _ in range(1000)]
    texts = "\n".join(f"{english} | {german}" for english, german in said)
    assert "the foxes" in texts and "Füchse" in texts and " painted " in texts and " angemalt" in texts
    assert "long live the foxes quickly | Es leben die Füchse schnell" in texts
    assert sum("fox" in english for english, _ in said) > 50
    assert all(("fox" in english) == ("Fuchs" in german or "Füchse" in german) for english, german in said)


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("words.yaml", ", plural: Männer", "", r"words.yaml, line \d+: 'people' lacks 'plural' \(it has .*\); add it"),
        ("words.yaml", "plural: Männer", "plurl: Männer", "'people' lacks 'plural'"),
        ("words.yaml", "en_plural: men", "en_plurl: men", "'people' has no key 'en_plurl'; did you mean en_plural"),
        ("words.yaml", "de: Mann, gender: m", "de: Mann, gender: x", "'gender' of 'people' is 'x'; give m or f or n"),
        ("words.yaml", "plural: Männer", "plural: [Männer]", r"'plural' of 'people' is .*; write a text"),
        ("words.yaml", "plural: Männer", "plural: ", "'plural' has no value; give one"),
        ("words.yaml", "plural: Männer", "de: Männer", r"words.yaml, line \d+: 'de' is given twice"),
        ("words.yaml", "{en: man, de: Mann", "{en: man, de: Mann}", "words.yaml is no YAML"),
        ("words.yaml", MAN, "      - man\n", "'people' has no keys; write it as"),
        (
            "words.yaml",
            "    giving verbs:",
            "    gift verbs:",
            "is named 'giving verbs'; did you mean thing verbs or gift verbs",
        ),
        ("words.yaml", "  modal:\n", "  mode:\n", "no class is named 'mode'; did you mean modal"),
        ("words.yaml", "    devices:", "    things:", "'things' is given twice"),
        ("words.yaml", "    modals:", "    people:", "another list, choice or pattern is named 'people'; rename"),
        ("words.yaml", "words:\n", "word:\n", "'the file' has no key 'word'; did you mean words"),
        ("grammar.yaml", COSTS, "", r"grammar.yaml, line \d+: \{de\} is no text"),
        (
            "grammar.yaml",
            COSTS,
            COSTS.replace("what.nom", "what.nim"),
            r"\{what.nim\} is no text; correct it",
        ),
        ("grammar.yaml", COSTS, COSTS.replace("what.nom", "what"), r"\{what\} is no text; correct it"),
        ("grammar.yaml", COSTS, COSTS.replace("{price.de}", "{de}"), "fills itself|is no text"),
        ("grammar.yaml", COSTS, COSTS.replace('"', ""), "is no YAML"),
        ("grammar.yaml", "price: numbers", "price: number", "is named 'number'; did you mean numbers"),
        ("grammar.yaml", "price: numbers", "price: [numbers]", "'price' of 'slots of costs' is"),
        ("grammar.yaml", WEIGHT, "    there are: often\n", "'often' is no weight; give a number above 0, or"),
        ("grammar.yaml", WEIGHT, "    there are: 0\n", "'0' is no weight"),
        ("grammar.yaml", "of: [large number]", "of: []", "'large numbers' has nothing to choose from; add"),
        ("grammar.yaml", "  en:\n    '(s|sh", "  english:\n    '(s|sh", "'spelling' lacks 'en'"),
        (
            "grammar.yaml",
            "    happening(late timed): 2",
            "    happening: 2",
            "'happening' needs 1 names in brackets, not 0",
        ),
        ("grammar.yaml", "  speakers: {subject", "  speakers: {speakers: 1, subject", "'speakers' contains itself"),
        ("grammar.yaml", "only: [old, new,", "only: [old, knew,", "no word of .* is 'knew'; did you mean new"),
        ("grammar.yaml", "{of: [things, things to", "{off: [things, things to", "'all things' lacks 'of'"),
        ("grammar.yaml", "' ,': ','", "'( ,': ','", "is no regular expression"),
    ],
)
def test_a_fault_in_a_file_is_one_line_with_its_place_and_remedy(file, before, after, message, tmp_path):
    folder = changed(tmp_path / "language", (file, before, after))
    with pytest.raises(LeapformerError, match=message) as refused:
        Grammar(folder)
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
