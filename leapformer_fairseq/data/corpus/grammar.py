"""The sentences of the corpus: which clauses exist and how they are joined.

`sample` draws an English sentence with its German translation, and `sentence_count` counts all sentences. English is
lower-case without punctuation, like a transcript; German has capitals and commas before subordinate clauses, but no
final punctuation. The numbers in `AnyOf` are weights, chosen so that no kind of sentence dominates.
"""

from __future__ import annotations

import numpy as np

from . import english, german, lexicon, phrases, verbs
from .choices import AnyOf, Choices, Combine, OneOf
from .clauses import Adverb, Clause, Predicate, Tense, accusative, aged, being, dative, giving, intransitive
from .german import ACCUSATIVE
from .lexicon import FOOD_ADJECTIVES, PEOPLE, PERSON_ADJECTIVES, THING_ADJECTIVES, Verb
from .phrases import Bilingual, NounPhrase, counted, mass, perhaps

Sentence = tuple[str, str]


def sample(rng: np.random.Generator) -> Sentence:
    """Draw a sentence as (English transcript, German translation)."""
    return SENTENCES.sample(rng)


def sentence_count() -> int:
    """The exact number of different sentences that the grammar generates."""
    return SENTENCES.size


# ---- joining clauses -----------------------------------------------------------------------------------------------


def capitalised(text: str) -> str:
    """The text with a capital first letter; the rest keeps its case."""
    return text[0].upper() + text[1:]


def statement(clause: Clause) -> Sentence:
    """A main clause as a sentence."""
    return clause.english(), capitalised(clause.german())


def fronted_statement(clause: Clause) -> Sentence:
    """A main clause that begins with its time, as a sentence."""
    return clause.english_fronted(), capitalised(clause.german_fronted())


def question(clause: Clause) -> Sentence:
    """A clause as a yes-or-no question."""
    return clause.english_question(), capitalised(clause.german_question())


def asked_with(word: Bilingual, clause: Clause) -> Sentence:
    """A question with a question word: `why does anna call the doctor`, `Warum ruft Anna den Arzt an`."""
    return f"{word.english} {clause.english_question()}", f"{capitalised(word.german)} {clause.german_question()}"


def with_subordinate(main: Clause, conjunction: Bilingual, clause: Clause) -> Sentence:
    """`he knows that anna calls the doctor`, `Er weiß, dass Anna den Arzt anruft`."""
    return (
        f"{main.english()} {conjunction.english} {clause.english()}",
        f"{capitalised(main.german())}, {conjunction.german} {clause.german_subordinate()}",
    )


def after_condition(condition: Clause, main: Clause) -> Sentence:
    """`if anna calls the doctor we must wait`, `Wenn Anna den Arzt anruft, müssen wir warten`."""
    return (
        f"if {condition.english()} {main.english()}",
        f"Wenn {condition.german_subordinate()}, {main.german_question()}",
    )


def there_are(tense: Tense, phrase: NounPhrase, place: Bilingual) -> Sentence:
    """`there are nine books in the kitchen`, `In der Küche gibt es neun Bücher`."""
    english_verb, german_verb = ("were", "gab") if tense == "past" else ("are", "gibt")
    place_first = capitalised(place.german)
    return (
        f"there {english_verb} {phrase.english} {place.english}",
        f"{place_first} {german_verb} es {phrase.german[ACCUSATIVE]}",
    )


def costs(phrase: NounPhrase, euros: int) -> Sentence:
    """`this coat costs nine euros`, `Dieser Mantel kostet neun Euro`."""
    return (
        f"{phrase.english} costs {english.number(euros)} euros",
        f"{capitalised(phrase.german[0])} kostet {german.number(euros)} Euro",
    )


# ---- when, how often and in which tense -----------------------------------------------------------------------------

TimedTense = tuple[Tense, Adverb]


def frequent(tense: Tense, adverb: Bilingual) -> TimedTense:
    """A tense with an adverb that English puts before the verb."""
    return tense, Adverb(before=adverb.english, german=adverb.german)


def timed(tense: Tense, time: Bilingual) -> TimedTense:
    """A tense with a time that English puts at the end."""
    return tense, Adverb(after=time.english, german=time.german)


PRESENT, PAST = OneOf(["present"]), OneOf(["past"])
MODAL = OneOf(verbs.MODALS)
NOW = AnyOf((3, PRESENT), (2, MODAL))
ANY_TENSE = AnyOf((3, PRESENT), (2, MODAL), (3, PAST))
IF_TENSE = AnyOf((2, PRESENT), (1, OneOf(verbs.CONDITION_MODALS)))

UNTIMED = Combine(timed, ANY_TENSE, phrases.NOTHING)
FREQUENT = Combine(frequent, ANY_TENSE, phrases.FREQUENCIES)
DAYS = AnyOf((2, Combine(timed, NOW, phrases.PRESENT_DAYS)), (1, Combine(timed, PAST, phrases.PAST_DAYS)))
ON_WEEKDAY = Combine(timed, ANY_TENSE, phrases.WEEKDAYS)
BRIEFLY_TIMED = AnyOf((1, UNTIMED), (1, FREQUENT), (2, DAYS), (1, ON_WEEKDAY))
LONG_TIMED = Combine(timed, ANY_TENSE, phrases.LONG_TIMES)
SUBORDINATE_TIMED = AnyOf((2, UNTIMED), (1, FREQUENT), (1, ON_WEEKDAY))
FRONTED_TIMED = AnyOf((2, DAYS), (1, ON_WEEKDAY), (6, LONG_TIMED))
IF_TIMED = Combine(timed, IF_TENSE, phrases.NOTHING)
SIMPLE_NOW = Combine(timed, NOW, phrases.NOTHING)
WITHOUT_MODAL = Combine(timed, AnyOf((1, PRESENT), (1, PAST)), phrases.NOTHING)
LATELY = AnyOf((1, Combine(timed, PRESENT, phrases.PRESENT_DAYS)), (1, Combine(timed, PAST, phrases.PAST_DAYS)))

# ---- who does what -------------------------------------------------------------------------------------------------

ACTORS = AnyOf((2, phrases.SUBJECT_PRONOUNS), (2, phrases.NAMES), (1, phrases.phrases(PEOPLE)))
DESCRIBED_ACTORS = AnyOf((1, ACTORS), (1, phrases.phrases(PEOPLE, OneOf(PERSON_ADJECTIVES))))
SPEAKERS = AnyOf((1, phrases.SUBJECT_PRONOUNS), (1, phrases.NAMES))


def things(nouns: tuple[lexicon.Noun, ...], adjectives: tuple[lexicon.Adjective, ...]) -> Choices:
    """Phrases of these nouns, with a number in two samples of five."""
    return AnyOf((3, phrases.phrases(nouns, perhaps(adjectives))), (2, counted(nouns, perhaps(adjectives))))


THINGS = lexicon.THINGS + lexicon.OPENABLE + lexicon.DEVICES
THING_OBJECTS = things(lexicon.THINGS, THING_ADJECTIVES)
FOOD_OBJECTS = AnyOf((3, things(lexicon.FOODS, FOOD_ADJECTIVES)), (2, mass(lexicon.DISHES, perhaps(FOOD_ADJECTIVES))))
PERSON_OBJECTS = AnyOf((1, phrases.OBJECT_PRONOUNS), (3, phrases.phrases(PEOPLE, perhaps(PERSON_ADJECTIVES))))
GIFTS = phrases.phrases(THINGS + lexicon.FOODS)
RECEIVERS = AnyOf((1, phrases.OBJECT_PRONOUNS), (3, phrases.phrases(PEOPLE)))


def doing(verb_choices: tuple[Verb, ...], objects: Choices) -> tuple[float, Choices]:
    """A branch of verbs with accusative objects, weighted by the number of verbs so that none is rare."""
    return len(verb_choices), Combine(accusative, OneOf(verb_choices), objects)


OBJECT_PREDICATES = AnyOf(
    doing(verbs.THING_VERBS, THING_OBJECTS),
    doing(verbs.OPENING_VERBS, things(lexicon.OPENABLE, THING_ADJECTIVES)),
    doing(verbs.DEVICE_VERBS, things(lexicon.DEVICES, THING_ADJECTIVES)),
    doing(verbs.FOOD_VERBS, FOOD_OBJECTS),
    doing(verbs.DRINK_VERBS, mass(lexicon.DRINKS, perhaps(FOOD_ADJECTIVES))),
    doing(verbs.PERSON_VERBS, PERSON_OBJECTS),
    (len(verbs.PERSON_DATIVE_VERBS), Combine(dative, OneOf(verbs.PERSON_DATIVE_VERBS), PERSON_OBJECTS)),
)
GIVING_PREDICATES = Combine(giving, OneOf(verbs.GIVING_VERBS), RECEIVERS, GIFTS)
ACTIVITY_PREDICATES = Combine(intransitive, OneOf(verbs.ACTIVITIES))
COMPLEMENTS = AnyOf((2, phrases.AT_PLACES), (1, phrases.COMPANIONS), (1, phrases.MANNERS))
PLACED_PREDICATES = AnyOf(
    (8, Combine(Predicate.plus, ACTIVITY_PREDICATES, COMPLEMENTS)),
    (6, Combine(Predicate.plus, Combine(intransitive, OneOf(verbs.MOTION_VERBS)), phrases.TO_PLACES)),
    (4, Combine(Predicate.plus, Combine(intransitive, OneOf(verbs.CITY_VERBS)), phrases.TO_CITIES)),
)

ARTICLES = OneOf([lexicon.THE, lexicon.THIS, lexicon.POSSESSIVES[-1]])
VEHICLES = Combine(phrases.noun_phrase, ARTICLES, phrases.NO_ADJECTIVE, OneOf(lexicon.VEHICLES))
EVENTS = Combine(phrases.noun_phrase, ARTICLES, phrases.NO_ADJECTIVE, OneOf(lexicon.EVENTS))
VEHICLE_PREDICATES = Combine(intransitive, OneOf(verbs.VEHICLE_VERBS))
EVENT_PREDICATES = Combine(intransitive, OneOf(verbs.EVENT_VERBS))
STATES = Combine(being, OneOf(lexicon.STATES))


def clauses(subjects: Choices, predicates: Choices, timing: Choices) -> Choices:
    """All combinations of these subjects, predicates and times as clauses."""

    def make(subject: NounPhrase, predicate: Predicate, tense_and_adverb: TimedTense) -> Clause:
        return Clause(subject, predicate, *tense_and_adverb)

    return Combine(make, subjects, predicates, timing)


def events(timing: Choices) -> Choices:
    """Clauses about vehicles and events: trains arrive, concerts begin."""
    return AnyOf((2, clauses(VEHICLES, VEHICLE_PREDICATES, timing)), (3, clauses(EVENTS, EVENT_PREDICATES, timing)))


def short_clauses(timing: Choices) -> Choices:
    """Clauses that are short enough to be combined with another one."""
    return AnyOf(
        (7, clauses(ACTORS, OBJECT_PREDICATES, timing)),
        (3, clauses(ACTORS, ACTIVITY_PREDICATES, timing)),
        (1, events(timing)),
    )


# ---- descriptions --------------------------------------------------------------------------------------------------


def described(nouns: tuple[lexicon.Noun, ...], adjectives: tuple[lexicon.Adjective, ...]) -> Choices:
    """Clauses that attribute a fitting adjective to these nouns: `the book was old`."""
    timing = AnyOf((1, WITHOUT_MODAL), (2, LATELY))
    return clauses(phrases.phrases(nouns), Combine(being, OneOf(adjectives)), timing)


DESCRIPTIONS = AnyOf(
    (2, described(THINGS, THING_ADJECTIVES)),
    (1, described(lexicon.FOODS, FOOD_ADJECTIVES)),
    (2, described(PEOPLE, PERSON_ADJECTIVES + lexicon.STATES)),
    (1, clauses(ACTORS, Combine(aged, phrases.NUMBERS), WITHOUT_MODAL)),
)
PRICED = Combine(
    phrases.noun_phrase,
    OneOf([lexicon.THE, lexicon.THIS, *lexicon.POSSESSIVES]),
    perhaps(THING_ADJECTIVES),
    OneOf(THINGS),
)
COUNTED_THINGS = counted(THINGS, perhaps(THING_ADJECTIVES))

# ---- sentences -----------------------------------------------------------------------------------------------------

STATEMENTS = AnyOf(
    (4, clauses(ACTORS, OBJECT_PREDICATES, LONG_TIMED)),
    (4, clauses(DESCRIBED_ACTORS, OBJECT_PREDICATES, BRIEFLY_TIMED)),
    (3, clauses(ACTORS, GIVING_PREDICATES, BRIEFLY_TIMED)),
    (8, clauses(DESCRIBED_ACTORS, PLACED_PREDICATES, BRIEFLY_TIMED)),
    (2, events(AnyOf((1, ON_WEEKDAY), (6, LONG_TIMED)))),
    (2, DESCRIPTIONS),
)
FRONTED_STATEMENTS = AnyOf(
    (4, clauses(ACTORS, OBJECT_PREDICATES, FRONTED_TIMED)),
    (1, clauses(ACTORS, ACTIVITY_PREDICATES, FRONTED_TIMED)),
    (1, events(FRONTED_TIMED)),
)
YES_NO_QUESTIONS = AnyOf(
    (2, clauses(ACTORS, OBJECT_PREDICATES, BRIEFLY_TIMED)),
    (2, clauses(ACTORS, PLACED_PREDICATES, UNTIMED)),
    (1, events(BRIEFLY_TIMED)),
)
WHEN, WHY = OneOf([Bilingual("when", "wann")]), OneOf([Bilingual("why", "warum")])
THAT, WHETHER = OneOf([Bilingual("that", "dass")]), OneOf([Bilingual("whether", "ob")])
BECAUSE, IF = OneOf([Bilingual("because", "weil")]), OneOf([Bilingual("if", "wenn")])
PRESENT_STATE = clauses(SPEAKERS, STATES, Combine(timed, PRESENT, phrases.NOTHING))

COMPLEX = AnyOf(
    (
        4,
        Combine(
            with_subordinate,
            clauses(SPEAKERS, Combine(intransitive, OneOf(verbs.THAT_VERBS)), WITHOUT_MODAL),
            THAT,
            short_clauses(SUBORDINATE_TIMED),
        ),
    ),
    (
        1,
        Combine(
            with_subordinate,
            clauses(SPEAKERS, Combine(intransitive, OneOf(verbs.WHETHER_VERBS)), WITHOUT_MODAL),
            WHETHER,
            short_clauses(SUBORDINATE_TIMED),
        ),
    ),
    (2, Combine(with_subordinate, clauses(SPEAKERS, STATES, WITHOUT_MODAL), BECAUSE, short_clauses(UNTIMED))),
    (1, Combine(with_subordinate, PRESENT_STATE, IF, short_clauses(IF_TIMED))),
    (2, Combine(after_condition, short_clauses(IF_TIMED), clauses(SPEAKERS, ACTIVITY_PREDICATES, SIMPLE_NOW))),
)
SENTENCES: Choices = AnyOf(
    (14, Combine(statement, STATEMENTS)),
    (4, Combine(fronted_statement, FRONTED_STATEMENTS)),
    (2, Combine(question, YES_NO_QUESTIONS)),
    (1, Combine(asked_with, WHEN, short_clauses(UNTIMED))),
    (1, Combine(asked_with, WHY, short_clauses(BRIEFLY_TIMED))),
    (9, COMPLEX),
    (1, Combine(there_are, AnyOf((1, PRESENT), (1, PAST)), COUNTED_THINGS, phrases.AT_PLACES)),
    (1, Combine(costs, PRICED, phrases.NUMBERS)),
)
