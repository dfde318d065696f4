"""Every English word that the grammar can generate, collected from the lexicon."""

from __future__ import annotations

from . import english, lexicon, verbs

# Words of the sentence patterns themselves, and of times and places.
FUNCTION_WORDS = (
    "am is are was were do does did there that whether because if when why with to at on in of half past quarter"
    " o'clock years old costs euros"
)
BOTH_NUMBERS = lexicon.PEOPLE + lexicon.THINGS + lexicon.OPENABLE + lexicon.DEVICES + lexicon.FOODS
ONE_NUMBER = lexicon.DISHES + lexicon.DRINKS + lexicon.VEHICLES + lexicon.EVENTS
PLACES = lexicon.HOME_PLACES + lexicon.PUBLIC_PLACES
ADJECTIVES = lexicon.PERSON_ADJECTIVES + lexicon.THING_ADJECTIVES + lexicon.FOOD_ADJECTIVES + lexicon.STATES
DETERMINERS = (lexicon.THE, lexicon.THIS, lexicon.EVERY, lexicon.A, *lexicon.POSSESSIVES)


def vocabulary() -> list[str]:
    """All distinct English word forms in alphabetical order; `book` and `books` are two forms."""
    phrases = [
        FUNCTION_WORDS,
        "an",
        *(noun.english for noun in BOTH_NUMBERS + ONE_NUMBER),
        *(noun.english_many for noun in BOTH_NUMBERS),
        *(word for determiner in DETERMINERS for word in (determiner.english, determiner.english_plural)),
        *(word for place in PLACES for word in (place.english, place.noun.english)),
        *(adjective.english for adjective in ADJECTIVES),
        *(modal.english for modal in verbs.MODALS),
        *(form for verb in verbs.ALL_VERBS for form in verb_forms(verb)),
        *(name.lower() for name in lexicon.NAMES),
        *(row[0] for row in (*lexicon.PRONOUNS, *lexicon.OBJECT_PRONOUNS, *lexicon.NEAR, *lexicon.CITIES)),
        *(row[0] for row in (*verbs.MANNERS, *verbs.FREQUENCIES, *verbs.PRESENT_DAYS, *verbs.PAST_DAYS)),
        *(row[0] for row in (*verbs.WEEKDAYS, *verbs.DAY_PARTS, *verbs.MONTHS)),
        *(english.number(value) for value in range(1, 100)),
        *(english.ordinal(day) for day in range(1, 32)),
    ]
    return sorted(set(" ".join(phrases).split()))


def verb_forms(verb: lexicon.Verb) -> tuple[str, str, str]:
    """The base form, the third person singular and the past of a verb."""
    return verb.english.replace("|", " "), english.with_s(verb.english_head), verb.past
