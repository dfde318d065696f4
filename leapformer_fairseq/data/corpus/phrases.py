"""Noun phrases, times and places, the parts of a sentence, each in English and German."""

from __future__ import annotations

from dataclasses import dataclass

from . import english, german, lexicon, verbs
from .choices import AnyOf, Choices, Combine, OneOf
from .german import DATIVE, Cases, Gender, Person
from .lexicon import Adjective, Determiner, Noun, Place


@dataclass(frozen=True)
class NounPhrase:
    """A noun phrase, in German in nominative, accusative and dative, and its person for verb agreement."""

    english: str
    german: Cases
    person: Person
    is_pronoun: bool = False


@dataclass(frozen=True)
class Bilingual:
    """Words whose form does not depend on the context: an adverb, a date, a place."""

    english: str = ""
    german: str = ""


NOTHING = OneOf([Bilingual()])


def pairs(rows: tuple[tuple[str, str], ...]) -> OneOf:
    """Rows of (English, German) as choices."""
    return OneOf([Bilingual(*row) for row in rows])


def noun_phrase(determiner: Determiner, adjective: Adjective | None, noun: Noun, plural: bool = False) -> NounPhrase:
    """A determiner, perhaps an adjective, and a noun: `an old book`, `ein altes Buch`."""
    gender: Gender = "p" if plural else noun.gender
    described = adjective.english if adjective else ""
    words = " ".join(filter(None, [described, noun.english_many if plural else noun.english]))
    if determiner is lexicon.A:
        words = english.indefinite(words)
    else:
        words = " ".join(filter(None, [determiner.english_plural if plural else determiner.english, words]))
    return NounPhrase(words, decline(determiner, adjective, noun, gender), "sie" if plural else "er")


def plural_phrase(determiner: Determiner, adjective: Adjective | None, noun: Noun) -> NounPhrase:
    """`these old books`, `diese alten Bücher`."""
    return noun_phrase(determiner, adjective, noun, plural=True)


def counted_phrase(count: int, adjective: Adjective | None, noun: Noun) -> NounPhrase:
    """`twenty one old books`, `einundzwanzig alte Bücher`; after numerals from two on, the adjective is strong."""
    bare = noun_phrase(lexicon.BARE, adjective, noun, plural=True)
    nominative, accusative, dative = (f"{german.number(count)} {form}" for form in bare.german)
    return NounPhrase(f"{english.number(count)} {bare.english}", (nominative, accusative, dative), "sie")


def decline(determiner: Determiner, adjective: Adjective | None, noun: Noun, gender: Gender) -> Cases:
    """The phrase in nominative, accusative and dative."""
    forms = []
    for case in range(3):
        words = [article(determiner, gender, case)]
        if adjective:
            words.append(adjective.declined(german.ADJECTIVE_ENDINGS[declension(determiner)][gender][case]))
        words.append(noun_form(noun, gender, case))
        forms.append(" ".join(filter(None, words)))
    return forms[0], forms[1], forms[2]


def article(determiner: Determiner, gender: Gender, case: int) -> str:
    """The determiner's form; empty for a bare noun."""
    if determiner.kind == "none":
        return ""
    if determiner.kind == "der":
        return german.DEFINITE[gender][case]
    endings = german.DIES_ENDINGS if determiner.kind == "dies" else german.EIN_ENDINGS
    return determiner.german + endings[gender][case]


def declension(determiner: Determiner) -> german.Declension:
    """The endings that an adjective takes after this determiner."""
    if determiner.kind == "none":
        return "strong"
    return "mixed" if determiner.kind == "ein" else "weak"


def noun_form(noun: Noun, gender: Gender, case: int) -> str:
    """The noun in this case; only weak masculines and dative plurals change."""
    if gender == "p":
        return german.dative_plural(noun.plural) if case == DATIVE else noun.plural
    return noun.oblique if noun.oblique and case != german.NOMINATIVE else noun.german


def name(word: str) -> NounPhrase:
    """A name as a phrase; transcripts are lower-case."""
    return NounPhrase(word.lower(), (word, word, word), "er")


SINGULAR = OneOf([lexicon.THE, lexicon.A, lexicon.THIS, lexicon.EVERY, *lexicon.POSSESSIVES])
PLURAL = OneOf([lexicon.THE, lexicon.THIS, *lexicon.POSSESSIVES])
MASS = OneOf([lexicon.BARE, lexicon.THE, lexicon.POSSESSIVES[0]])
NUMBERS = AnyOf((1, OneOf(range(2, 20))), (2, OneOf(range(20, 100))))
NO_ADJECTIVE = OneOf([None])


def phrases(nouns: tuple[Noun, ...], adjective: Choices = NO_ADJECTIVE) -> Choices:
    """Singular and plural phrases with a determiner."""
    return AnyOf(
        (2, Combine(noun_phrase, SINGULAR, adjective, OneOf(nouns))),
        (1, Combine(plural_phrase, PLURAL, adjective, OneOf(nouns))),
    )


def counted(nouns: tuple[Noun, ...], adjective: Choices) -> Choices:
    """Plural phrases with a number."""
    return Combine(counted_phrase, NUMBERS, adjective, OneOf(nouns))


def mass(nouns: tuple[Noun, ...], adjective: Choices) -> Choices:
    """Singular phrases of uncountable nouns, also without an article."""
    return Combine(noun_phrase, MASS, adjective, OneOf(nouns))


def perhaps(adjectives: tuple[Adjective, ...]) -> Choices:
    """An adjective in half of the samples, and None in the others."""
    return AnyOf((1, NO_ADJECTIVE), (1, OneOf(adjectives)))


SUBJECT_PRONOUNS = OneOf([NounPhrase(en, (de, "", ""), person, True) for en, de, person in lexicon.PRONOUNS])
OBJECT_PRONOUNS = OneOf([NounPhrase(en, ("", acc, dat), "er", True) for en, acc, dat in lexicon.OBJECT_PRONOUNS])
NAMES = OneOf([name(word) for word in lexicon.NAMES])


def in_place(preposition: tuple[str, str], adjective: Adjective | None, noun: Noun) -> Bilingual:
    """Where something is, always dative: `in front of the old church`, `vor der alten Kirche`."""
    phrase = noun_phrase(lexicon.THE, adjective, noun)
    article_, rest = phrase.german[DATIVE].split(" ", 1)
    return Bilingual(f"{preposition[0]} {phrase.english}", f"{german.contract(preposition[1], article_)} {rest}")


def at_place(adjective: Adjective | None, place: Place) -> Bilingual:
    """Where something is, with the preposition of the place itself."""
    return in_place((place.english, place.german), adjective, place.noun)


def to_place(place: Place) -> Bilingual:
    """Where someone goes: `to the station`, `zum Bahnhof`."""
    return in_place(("to", "zu"), None, place.noun)


def with_person(phrase: NounPhrase) -> Bilingual:
    """Company, always dative: `with my brother`, `mit meinem Bruder`."""
    return Bilingual(f"with {phrase.english}", f"mit {phrase.german[DATIVE]}")


PUBLIC_NOUNS = tuple(place.noun for place in lexicon.PUBLIC_PLACES)
AT_PLACES = AnyOf(
    (1, Combine(at_place, NO_ADJECTIVE, OneOf(lexicon.HOME_PLACES))),
    (2, Combine(at_place, perhaps(lexicon.PLACE_ADJECTIVES), OneOf(lexicon.PUBLIC_PLACES))),
    (1, Combine(in_place, OneOf(lexicon.NEAR), NO_ADJECTIVE, OneOf(PUBLIC_NOUNS))),
    (1, OneOf([Bilingual(f"in {en}", f"in {de}") for en, de in lexicon.CITIES])),
)
TO_CITIES = OneOf([Bilingual(f"to {en}", f"nach {de}") for en, de in lexicon.CITIES])
TO_PLACES = AnyOf((1, Combine(to_place, OneOf(lexicon.PUBLIC_PLACES))), (1, TO_CITIES))
COMPANIONS = Combine(
    with_person,
    Combine(noun_phrase, OneOf([lexicon.THE, *lexicon.POSSESSIVES]), NO_ADJECTIVE, OneOf(lexicon.PEOPLE)),
)


def clock_time(hour: int, spoken: tuple[str, str]) -> Bilingual:
    """A time of day in 12 hours; German names `half past seven` after the next hour, `halb acht`."""
    in_english, in_german = spoken
    named = hour % 12 + 1 if in_german == "halb {}" else hour
    german_hour = "ein" if named == 1 and in_german.endswith("Uhr") else german.number(named)  # ein Uhr, halb eins
    return Bilingual("at " + in_english.format(english.number(hour)), "um " + in_german.format(german_hour))


CLOCK_FORMS = (
    ("{} o'clock", "{} Uhr"),
    ("half past {}", "halb {}"),
    ("quarter past {}", "Viertel nach {}"),
    ("quarter to {}", "Viertel vor {}"),
    *((f"{english.number(m)} past {{}}", f"{german.number(m)} nach {{}}") for m in (5, 10, 20)),
    *((f"{english.number(m)} to {{}}", f"{german.number(m)} vor {{}}") for m in (5, 10, 20)),
)
CLOCK_TIMES = Combine(clock_time, OneOf(range(1, 13)), OneOf(CLOCK_FORMS))
DATES = OneOf(
    [
        Bilingual(f"on the {english.ordinal(day)} of {in_english}", f"am {german.ordinal(day)} {in_german}")
        for in_english, in_german, days in verbs.MONTHS
        for day in range(1, days + 1)
    ]
)
WEEKDAYS = OneOf([Bilingual(f"on {en}", f"am {de}") for en, de in verbs.WEEKDAYS])
WEEKDAY_PARTS = OneOf(
    [Bilingual(f"on {day} {part}", f"am {tag}{teil}") for day, tag in verbs.WEEKDAYS for part, teil in verbs.DAY_PARTS]
)
LONG_TIMES = AnyOf((1, WEEKDAY_PARTS), (2, CLOCK_TIMES), (4, DATES))
PRESENT_DAYS, PAST_DAYS = pairs(verbs.PRESENT_DAYS), pairs(verbs.PAST_DAYS)
FREQUENCIES, MANNERS = pairs(verbs.FREQUENCIES), pairs(verbs.MANNERS)
