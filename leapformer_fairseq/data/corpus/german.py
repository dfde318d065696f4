"""German inflection as tables and rules: articles, adjective endings, verbs, numbers.

Cases are indices into triples (nominative, accusative, dative). Genders are "m", "f", "n", and "p" for every plural.
Persons are named by their pronoun: "ich", "du", "er" (also she, it and all singular nouns), "wir", "sie" (plural).
"""

from __future__ import annotations

from typing import Literal

Gender = Literal["m", "f", "n", "p"]
Person = Literal["ich", "du", "er", "wir", "sie"]
Declension = Literal["weak", "mixed", "strong"]
Cases = tuple[str, str, str]

NOMINATIVE, ACCUSATIVE, DATIVE = 0, 1, 2
PERSONS: tuple[Person, ...] = ("ich", "du", "er", "wir", "sie")

DEFINITE: dict[Gender, Cases] = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "den"),
}
DIES_ENDINGS: dict[Gender, Cases] = {
    "m": ("er", "en", "em"),
    "f": ("e", "e", "er"),
    "n": ("es", "es", "em"),
    "p": ("e", "e", "en"),
}
EIN_ENDINGS: dict[Gender, Cases] = {**DIES_ENDINGS, "m": ("", "en", "em"), "n": ("", "", "em")}

ADJECTIVE_ENDINGS: dict[Declension, dict[Gender, Cases]] = {
    "weak": {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en"), "p": ("en", "en", "en")},
    "mixed": {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en"), "p": ("en", "en", "en")},
    "strong": DIES_ENDINGS,  # without an article the adjective carries the article's ending
}

UNITS = (
    "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
TENS = (
    "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig",
)  # fmt: skip
IRREGULAR_ORDINALS = {1: "ersten", 3: "dritten", 7: "siebten", 8: "achten"}

CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur"}


def number(value: int) -> str:
    """1..99 in one word, the unit before the ten: 21 is `einundzwanzig`."""
    if value < 20:
        return UNITS[value - 1]
    tens, units = divmod(value, 10)
    if not units:
        return TENS[tens - 2]
    return ("ein" if units == 1 else UNITS[units - 1]) + "und" + TENS[tens - 2]


def ordinal(day: int) -> str:
    """1..31 as a day of the month, in the form after `am`: `einundzwanzigsten`."""
    return IRREGULAR_ORDINALS.get(day) or number(day) + ("ten" if day < 20 else "sten")


def dative_plural(plural: str) -> str:
    """The dative of a plural: Bücher, but `mit Büchern`; plurals in n or s do not change."""
    return plural if plural.endswith(("n", "s")) else plural + "n"


def contract(preposition: str, article: str) -> str:
    """Contract a preposition and an article if there is a short form: `in` + `dem` is `im`."""
    return CONTRACTIONS.get(f"{preposition} {article}", f"{preposition} {article}")


def present(infinitive: str, person: Person, changed_stem: str = "") -> str:
    """Present tense of a verb without its separable particle; `changed_stem` replaces the stem in du and er forms."""
    if person in ("wir", "sie"):
        return infinitive
    # sammeln, feiern: the stem keeps its e, which only ich drops after an l (ich sammle).
    stem = infinitive.removesuffix("n") if infinitive.endswith(("eln", "ern")) else infinitive.removesuffix("en")
    if person == "ich":
        return stem[:-2] + "le" if infinitive.endswith("eln") else stem + "e"
    if changed_stem:
        stem = changed_stem
    elif needs_e(stem):
        stem += "e"
    if person == "du":
        return stem + ("t" if stem.endswith(("s", "ß", "z")) else "st")  # du tanzt, without a second s
    return stem if changed_stem and stem.endswith("t") else stem + "t"


def needs_e(stem: str) -> bool:
    """Whether an e precedes the ending, for pronunciation: arbeitest, findet, zeichnest, but wohnst, lernt, filmt."""
    if stem.endswith(("t", "d")):
        return True
    return stem[-1] in "mn" and (stem[-2] not in "aeiouäöülrhmn" or stem.endswith(("chn", "chm")))
