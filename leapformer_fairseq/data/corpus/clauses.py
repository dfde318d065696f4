"""Clauses: one meaning in English word order and in the three German word orders.

German places the finite verb second in a statement, first in a question and last in a subordinate clause; particles,
participles and infinitives end the clause. In between come, in this order: pronouns, time, objects, the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import english, german, verbs
from .german import ACCUSATIVE, DATIVE, NOMINATIVE, Person
from .lexicon import Adjective, Verb
from .phrases import Bilingual, NounPhrase
from .verbs import Modal

Tense = Literal["present", "past"] | Modal


def join(*words: str) -> str:
    """The non-empty words, separated by spaces."""
    return " ".join(filter(None, words))


@dataclass(frozen=True)
class Predicate:
    """A verb and its complements, without subject, tense and time.

    `english_rest` is everything after the first English word (`up the child`); the German words are divided by their
    position in the clause.
    """

    verb: Verb
    english_rest: str = ""
    german_pronouns: str = ""
    german_objects: str = ""
    german_rest: str = ""

    def plus(self, more: Bilingual) -> Predicate:
        """The predicate with a place, manner or company added at its end."""
        rest, german_rest = join(self.english_rest, more.english), join(self.german_rest, more.german)
        return Predicate(self.verb, rest, self.german_pronouns, self.german_objects, german_rest)


@dataclass(frozen=True)
class Adverb:
    """When or how often; English puts `before` in front of the verb (often) and `after` at the end (on monday)."""

    before: str = ""
    after: str = ""
    german: str = ""


@dataclass(frozen=True)
class Clause:
    """Who does what, in which tense and when; each method gives one word order of one language, uncapitalised."""

    subject: NounPhrase
    predicate: Predicate
    tense: Tense = "present"
    adverb: Adverb = Adverb()

    def english(self) -> str:
        """Subject first: `anna often calls the doctor`, `anna calls the doctor on monday`."""
        return join(self.subject.english, self._english_verb(), self.predicate.english_rest, self.adverb.after)

    def english_fronted(self) -> str:
        """Time first: `on monday anna calls the doctor`."""
        return join(self.adverb.after, self.subject.english, self._english_verb(), self.predicate.english_rest)

    def english_question(self) -> str:
        """The question, with `do` unless there is a modal: `does anna call the doctor`."""
        verb, base = self.predicate.verb, self.predicate.verb.english_head
        if isinstance(self.tense, Modal):
            first = self.tense.english
        elif verb is verbs.BE:
            first, base = be(self.subject, self.tense), ""
        else:
            first = "did" if self.tense == "past" else "does" if self.subject.person == "er" else "do"
        adverb = self.adverb
        return join(first, self.subject.english, adverb.before, base, self.predicate.english_rest, adverb.after)

    def _english_verb(self) -> str:
        verb, before = self.predicate.verb, self.adverb.before
        if isinstance(self.tense, Modal):
            return join(self.tense.english, before, verb.english_head)
        if verb is verbs.BE:
            return join(be(self.subject, self.tense), before)
        if self.tense == "past":
            return join(before, verb.past)
        return join(before, english.with_s(verb.english_head) if self.subject.person == "er" else verb.english_head)

    def german(self) -> str:
        """Verb second: `Anna ruft am Montag den Arzt an`."""
        finite, last, _ = self._german_verb()
        return join(self.subject.german[NOMINATIVE], finite, self._middle(self.adverb.german), last)

    def german_fronted(self) -> str:
        """Time first, verb second: `am Montag ruft Anna den Arzt an`."""
        finite, last, _ = self._german_verb()
        return join(self.adverb.german, finite, self.subject.german[NOMINATIVE], self._middle(""), last)

    def german_question(self) -> str:
        """Verb first, also after a subordinate clause or a question word: `ruft Anna am Montag den Arzt an`."""
        finite, last, _ = self._german_verb()
        return join(finite, self.subject.german[NOMINATIVE], self._middle(self.adverb.german), last)

    def german_subordinate(self) -> str:
        """Verb last: `Anna am Montag den Arzt anruft`."""
        _, _, final = self._german_verb()
        return join(self.subject.german[NOMINATIVE], self._middle(self.adverb.german), final)

    def _middle(self, time: str) -> str:
        predicate = self.predicate
        return join(predicate.german_pronouns, time, predicate.german_objects, predicate.german_rest)

    def _german_verb(self) -> tuple[str, str, str]:
        """The finite verb, and the words that end a main clause and a subordinate clause."""
        verb, person = self.predicate.verb, self.subject.person
        if isinstance(self.tense, Modal):
            finite = self.tense.finite(person)
            return finite, verb.infinitive, f"{verb.infinitive} {finite}"
        if verb is verbs.BE and self.tense == "past":
            finite = verbs.WAS[german.PERSONS.index(person)]
            return finite, "", finite
        if self.tense == "past":
            finite = (verbs.BE if verb.auxiliary == "sein" else verbs.HAVE).finite(person)
            return finite, verb.participle, f"{verb.participle} {finite}"
        finite = verb.finite(person)
        return finite, verb.particle, verb.particle + finite


def be(subject: NounPhrase, tense: Tense) -> str:
    """The form of `be` that agrees with the subject; `tense` is present or past."""
    forms: dict[Person, tuple[str, str]] = {"ich": ("am", "was"), "er": ("is", "was")}
    return forms.get(subject.person, ("are", "were"))[tense == "past"]


def intransitive(verb: Verb) -> Predicate:
    """A predicate without objects."""
    return Predicate(verb, english_rest=after_head(verb))


def after_head(verb: Verb) -> str:
    """The part after the first English word of a verb: `up` of `pick up`."""
    return join(*verb.english.replace("|", " ").split()[1:])


def accusative(verb: Verb, phrase: NounPhrase) -> Predicate:
    """A verb with a direct object: `ruft den Arzt an`."""
    return transitive(verb, phrase, ACCUSATIVE)


def dative(verb: Verb, phrase: NounPhrase) -> Predicate:
    """A verb whose only object is in the dative: `hilft dem Arzt`."""
    return transitive(verb, phrase, DATIVE)


def transitive(verb: Verb, phrase: NounPhrase, case: int) -> Predicate:
    """A verb with an object in `case`.

    A separable English particle follows a pronoun (`picks him up`) and precedes any other object.
    """
    order = [after_head(verb), phrase.english]
    if phrase.is_pronoun and "|" in verb.english:
        order.reverse()
    if phrase.is_pronoun:
        return Predicate(verb, join(*order), german_pronouns=phrase.german[case])
    return Predicate(verb, join(*order), german_objects=phrase.german[case])


def giving(verb: Verb, receiver: NounPhrase, gift: NounPhrase) -> Predicate:
    """`gives the child a book`, `gibt dem Kind ein Buch`."""
    rest, to, what = join(receiver.english, gift.english), receiver.german[DATIVE], gift.german[ACCUSATIVE]
    if receiver.is_pronoun:
        return Predicate(verb, rest, german_pronouns=to, german_objects=what)
    return Predicate(verb, rest, german_objects=join(to, what))


def being(adjective: Adjective) -> Predicate:
    """A state or a quality: `is tired`, `ist müde`."""
    return Predicate(verbs.BE, adjective.english, german_rest=adjective.german)


def aged(years: int) -> Predicate:
    """`is twenty one years old`, `ist einundzwanzig Jahre alt`."""
    return Predicate(verbs.BE, f"{english.number(years)} years old", german_rest=f"{german.number(years)} Jahre alt")
