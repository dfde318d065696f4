"""The grammar: its German against sentences written by hand, its size and vocabulary against enumeration."""

import numpy as np
import pytest

from leapformer_fairseq.data.corpus import english, german, grammar, lexicon, phrases, verbs
from leapformer_fairseq.data.corpus.choices import AnyOf, Choices, Combine, OneOf
from leapformer_fairseq.data.corpus.clauses import Adverb, Clause, Tense, accusative, aged, being, dative, giving
from leapformer_fairseq.data.corpus.clauses import intransitive as alone
from leapformer_fairseq.data.corpus.phrases import Bilingual, NounPhrase, counted_phrase, noun_phrase
from leapformer_fairseq.data.corpus.vocabulary import vocabulary

VERBS = {verb.english: verb for verb in verbs.ALL_VERBS}
NOUNS = {
    noun.english: noun
    for noun in (
        *lexicon.PEOPLE, *lexicon.THINGS, *lexicon.OPENABLE, *lexicon.DEVICES, *lexicon.FOODS, *lexicon.DISHES,
        *lexicon.DRINKS, *lexicon.VEHICLES, *lexicon.EVENTS,
    )
}  # fmt: skip
ADJECTIVES = {a.english: a for a in (*lexicon.PERSON_ADJECTIVES, *lexicon.THING_ADJECTIVES, *lexicon.FOOD_ADJECTIVES)}
DETERMINERS = {
    d.english: d for d in (lexicon.THE, lexicon.A, lexicon.THIS, lexicon.EVERY, lexicon.BARE, *lexicon.POSSESSIVES)
}
SUBJECTS = {phrase.english: phrase for phrase in (*phrases.SUBJECT_PRONOUNS, *phrases.NAMES)}
OBJECTS = {phrase.english: phrase for phrase in phrases.OBJECT_PRONOUNS}
MODALS = {modal.english: modal for modal in verbs.MODALS}
PLAIN = Adverb()
ON_MONDAY = Adverb(after="on monday", german="am Montag")
OFTEN = Adverb(before="often", german="oft")
DOCTOR = noun_phrase(lexicon.THE, None, NOUNS["doctor"])


def phrase(determiner: str, adjective: str, noun: str, plural: bool = False) -> NounPhrase:
    return noun_phrase(DETERMINERS[determiner], ADJECTIVES.get(adjective), NOUNS[noun], plural)


def calls(subject: str = "anna", tense: Tense = "present", adverb: Adverb = PLAIN) -> Clause:
    return Clause(SUBJECTS[subject], accusative(VERBS["call"], DOCTOR), tense, adverb)


# ---- numbers, times, dates -----------------------------------------------------------------------------------------


def test_every_number_puts_the_unit_before_the_ten():
    units = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    tens = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
    teens = ["zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
    from_twenty = [word for ten in tens for word in (ten, *(f"{unit}und{ten}" for unit in units))]
    expected = ["eins", *units[1:], *teens, *from_twenty]
    assert [german.number(value) for value in range(1, 100)] == expected
    assert (german.number(21), german.number(67), german.number(90)) == ("einundzwanzig", "siebenundsechzig", "neunzig")
    assert (english.number(21), english.number(40), english.number(99)) == ("twenty one", "forty", "ninety nine")


def test_all_number_words_differ():
    for language in (english, german):
        assert len({language.number(value) for value in range(1, 100)}) == 99
        assert len({language.ordinal(day) for day in range(1, 32)}) == 31


@pytest.mark.parametrize(
    ("hour", "form", "expected"),
    [
        (7, 0, ("at seven o'clock", "um sieben Uhr")),
        (1, 0, ("at one o'clock", "um ein Uhr")),
        (7, 1, ("at half past seven", "um halb acht")),
        (12, 1, ("at half past twelve", "um halb eins")),
        (3, 2, ("at quarter past three", "um Viertel nach drei")),
        (4, 3, ("at quarter to four", "um Viertel vor vier")),
        (1, 4, ("at five past one", "um fünf nach eins")),
        (9, 9, ("at twenty to nine", "um zwanzig vor neun")),
    ],
)
def test_clock_times(hour, form, expected):
    time = phrases.clock_time(hour, phrases.CLOCK_FORMS[form])
    assert (time.english, time.german) == expected


def test_dates():
    dates = {date.english: date.german for date in phrases.DATES}
    assert len(dates) == 366
    assert dates["on the first of january"] == "am ersten Januar"
    assert dates["on the third of may"] == "am dritten Mai"
    assert dates["on the seventh of july"] == "am siebten Juli"
    assert dates["on the twentieth of june"] == "am zwanzigsten Juni"
    assert dates["on the twenty first of march"] == "am einundzwanzigsten März"
    assert Bilingual("on friday evening", "am Freitagabend") in list(phrases.WEEKDAY_PARTS)


# ---- noun phrases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "english_words", "cases"),
    [
        (("the", "old", "teacher"), "the old teacher", ("der alte Lehrer", "den alten Lehrer", "dem alten Lehrer")),
        (("an", "old", "teacher"), "an old teacher", ("ein alter Lehrer", "einen alten Lehrer", "einem alten Lehrer")),
        (("a", "young", "sister"), "a young sister", ("eine junge Schwester",) * 2 + ("einer jungen Schwester",)),
        (("my", "rich", "child"), "my rich child", ("mein reiches Kind",) * 2 + ("meinem reichen Kind",)),
        (("the", "rich", "child"), "the rich child", ("das reiche Kind",) * 2 + ("dem reichen Kind",)),
        (("our", "", "aunt"), "our aunt", ("unsere Tante", "unsere Tante", "unserer Tante")),
        (("this", "", "boy"), "this boy", ("dieser Junge", "diesen Jungen", "diesem Jungen")),
        (("every", "poor", "student"), "every poor student",
         ("jeder arme Student", "jeden armen Studenten", "jedem armen Studenten")),
        (("a", "expensive", "hat"), "an expensive hat", ("ein teurer Hut", "einen teuren Hut", "einem teuren Hut")),
        (("the", "dark", "lamp"), "the dark lamp", ("die dunkle Lampe", "die dunkle Lampe", "der dunklen Lampe")),
        (("", "cold", "milk"), "cold milk", ("kalte Milch", "kalte Milch", "kalter Milch")),
        (("", "hot", "tea"), "hot tea", ("heißer Tee", "heißen Tee", "heißem Tee")),
        (("", "fresh", "bread"), "fresh bread", ("frisches Brot", "frisches Brot", "frischem Brot")),
    ],
)  # fmt: skip
def test_singular_phrases(words, english_words, cases):
    determiner = "a" if words[0] == "an" else words[0]
    made = phrase(determiner, *words[1:])
    assert (made.english, made.german) == (english_words, cases)


def test_plural_phrases():
    assert phrase("the", "old", "child", True).german == ("die alten Kinder", "die alten Kinder", "den alten Kindern")
    assert phrase("this", "", "radio", True).english == "these radios"
    assert phrase("my", "new", "radio", True).german == ("meine neuen Radios",) * 2 + ("meinen neuen Radios",)
    made = counted_phrase(21, ADJECTIVES["old"], NOUNS["book"])
    assert made.english == "twenty one old books"
    assert made.german == ("einundzwanzig alte Bücher",) * 2 + ("einundzwanzig alten Büchern",)


def test_places_contract_preposition_and_article():
    at, to = [{p.english: p.german for p in places} for places in (phrases.AT_PLACES, phrases.TO_PLACES)]
    assert at["at the station"] == "am Bahnhof"
    assert at["at the old station"] == "am alten Bahnhof"
    assert at["in the museum"] == "im Museum"
    assert at["in the kitchen"] == "in der Küche"
    assert at["at the market"] == "auf dem Markt"
    assert at["in front of the church"] == "vor der Kirche"
    assert at["in munich"] == "in München"
    assert (to["to the station"], to["to the school"], to["to italy"]) == ("zum Bahnhof", "zur Schule", "nach Italien")


# ---- verbs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("buy", "kaufe kaufst kauft kaufen kaufen"),
        ("work", "arbeite arbeitest arbeitet arbeiten arbeiten"),
        ("find", "finde findest findet finden finden"),
        ("dance", "tanze tanzt tanzt tanzen tanzen"),
        ("collect", "sammle sammelst sammelt sammeln sammeln"),
        ("celebrate", "feiere feierst feiert feiern feiern"),
        ("sleep", "schlafe schläfst schläft schlafen schlafen"),
        ("invite", "lade lädst lädt laden laden"),
        ("eat", "esse isst isst essen essen"),
        ("throw|away", "werfe wirfst wirft werfen werfen"),
        ("drive", "fahre fährst fährt fahren fahren"),
        ("know", "weiß weißt weiß wissen wissen"),
    ],
)
def test_present_tense(verb, forms):
    assert [VERBS[verb].finite(person) for person in german.PERSONS] == forms.split()


def test_an_e_is_inserted_only_where_it_must_be():
    assert [german.present(verb, "er") for verb in ("öffnen", "zeichnen", "warten", "lernen", "wohnen", "filmen")] == [
        "öffnet", "zeichnet", "wartet", "lernt", "wohnt", "filmt",
    ]  # fmt: skip


# ---- clauses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clause", "sentence"),
    [
        (calls(), ("anna calls the doctor", "Anna ruft den Arzt an")),
        (calls("you", "past"), ("you called the doctor", "Du hast den Arzt angerufen")),
        (calls("we", MODALS["must"]), ("we must call the doctor", "Wir müssen den Arzt anrufen")),
        (calls("i", MODALS["will"], OFTEN), ("i will often call the doctor", "Ich werde oft den Arzt anrufen")),
        (calls(adverb=OFTEN), ("anna often calls the doctor", "Anna ruft oft den Arzt an")),
        (calls(adverb=ON_MONDAY), ("anna calls the doctor on monday", "Anna ruft am Montag den Arzt an")),
    ],
)
def test_statements_put_the_finite_verb_second_and_the_rest_last(clause, sentence):
    assert grammar.statement(clause) == sentence


def test_time_in_front_inverts_subject_and_verb():
    assert grammar.fronted_statement(calls(adverb=ON_MONDAY)) == (
        "on monday anna calls the doctor", "Am Montag ruft Anna den Arzt an",
    )  # fmt: skip


def test_pronoun_objects_precede_the_time():
    picks = Clause(SUBJECTS["she"], accusative(VERBS["pick|up"], OBJECTS["him"]), "present", ON_MONDAY)
    assert grammar.statement(picks) == ("she picks him up on monday", "Sie holt ihn am Montag ab")
    picks = Clause(SUBJECTS["she"], accusative(VERBS["pick|up"], DOCTOR), "past", ON_MONDAY)
    assert grammar.statement(picks) == ("she picked up the doctor on monday", "Sie hat am Montag den Arzt abgeholt")
    listens = Clause(SUBJECTS["they"], dative(VERBS["listen to"], OBJECTS["her"]), "present", OFTEN)
    assert grammar.statement(listens) == ("they often listen to her", "Sie hören ihr oft zu")


def test_dative_objects_and_gifts():
    helps = Clause(SUBJECTS["peter"], dative(VERBS["help"], phrase("the", "old", "neighbor")))
    assert grammar.statement(helps) == ("peter helps the old neighbor", "Peter hilft dem alten Nachbarn")
    offer = giving(VERBS["offer"], phrase("the", "", "guest"), phrase("a", "", "apple"))
    assert grammar.statement(Clause(SUBJECTS["peter"], offer, MODALS["can"])) == (
        "peter can offer the guest an apple", "Peter kann dem Gast einen Apfel anbieten",
    )  # fmt: skip
    offer = giving(VERBS["offer"], OBJECTS["them"], phrase("a", "", "cake"))
    assert grammar.statement(Clause(SUBJECTS["we"], offer, "present", ON_MONDAY)) == (
        "we offer them a cake on monday", "Wir bieten ihnen am Montag einen Kuchen an",
    )  # fmt: skip


def test_verbs_of_motion_take_sein_in_the_perfect():
    flies = Clause(SUBJECTS["i"], alone(VERBS["fly"]).plus(Bilingual("to rome", "nach Rom")), "past", ON_MONDAY)
    assert grammar.statement(flies) == ("i flew to rome on monday", "Ich bin am Montag nach Rom geflogen")
    wakes = Clause(SUBJECTS["he"], alone(VERBS["wake|up"]), "present", OFTEN)
    assert grammar.statement(wakes) == ("he often wakes up", "Er wacht oft auf")


@pytest.mark.parametrize(
    ("tense", "ending"),
    [
        ("present", ("anna calls the doctor on monday", "Anna am Montag den Arzt anruft")),
        ("past", ("anna called the doctor on monday", "Anna am Montag den Arzt angerufen hat")),
        (MODALS["should"], ("anna should call the doctor on monday", "Anna am Montag den Arzt anrufen sollte")),
    ],
)
@pytest.mark.parametrize(
    ("verb", "conjunction", "beginning"),
    [
        ("know", Bilingual("that", "dass"), ("he knows that", "Er weiß, dass")),
        ("ask", Bilingual("whether", "ob"), ("he asks whether", "Er fragt, ob")),
        ("dance", Bilingual("because", "weil"), ("he dances because", "Er tanzt, weil")),
        ("sing", Bilingual("if", "wenn"), ("he sings if", "Er singt, wenn")),
    ],
)
def test_subordinate_clauses_put_the_finite_verb_last(verb, conjunction, beginning, tense, ending):
    main = Clause(SUBJECTS["he"], alone(VERBS[verb]))
    made = grammar.with_subordinate(main, conjunction, calls(tense=tense, adverb=ON_MONDAY))
    assert made == tuple(f"{first} {rest}" for first, rest in zip(beginning, ending, strict=True))


def test_a_condition_in_front_is_followed_by_the_verb():
    waits = Clause(SUBJECTS["we"], alone(VERBS["wait"]), MODALS["must"])
    assert grammar.after_condition(calls(), waits) == (
        "if anna calls the doctor we must wait", "Wenn Anna den Arzt anruft, müssen wir warten",
    )  # fmt: skip


def test_questions():
    assert grammar.question(calls("you")) == ("do you call the doctor", "Rufst du den Arzt an")
    assert grammar.question(calls(tense="past")) == ("did anna call the doctor", "Hat Anna den Arzt angerufen")
    why = grammar.asked_with(Bilingual("why", "warum"), calls(tense=MODALS["can"], adverb=ON_MONDAY))
    assert why == ("why can anna call the doctor on monday", "Warum kann Anna am Montag den Arzt anrufen")


def test_descriptions_counts_ages_and_prices():
    soup = Clause(phrase("my", "", "soup"), being(ADJECTIVES["hot"]), "past")
    assert grammar.statement(soup) == ("my soup was hot", "Meine Suppe war heiß")
    assert grammar.statement(Clause(SUBJECTS["i"], aged(33))) == (
        "i am thirty three years old", "Ich bin dreiunddreißig Jahre alt",
    )  # fmt: skip
    chairs = counted_phrase(45, ADJECTIVES["heavy"], NOUNS["chair"])
    assert grammar.there_are("present", chairs, Bilingual("in the garden", "im Garten")) == (
        "there are forty five heavy chairs in the garden", "Im Garten gibt es fünfundvierzig schwere Stühle",
    )  # fmt: skip
    assert grammar.costs(phrase("this", "red", "coat"), 21) == (
        "this red coat costs twenty one euros", "Dieser rote Mantel kostet einundzwanzig Euro",
    )  # fmt: skip


# ---- size ----------------------------------------------------------------------------------------------------------


def shrunk(choices: Choices, keep: int) -> Choices:
    """The same grammar with only the first items of every leaf, small enough to list."""
    if isinstance(choices, OneOf):
        return OneOf(choices.items[:keep])
    if isinstance(choices, Combine):
        return Combine(choices.make, *[shrunk(part, keep) for part in choices.parts])
    assert isinstance(choices, AnyOf)
    return AnyOf(*[(1, shrunk(branch, keep)) for branch in choices.branches])


def test_the_grammar_is_counted_exactly():
    """Listing a small copy shows that no two derivations give the same sentence, so sizes multiply to the count."""
    small = shrunk(grammar.SENTENCES, 1)
    listed = list(small)
    assert small.size == len(listed) == len({sentence for sentence, _ in listed})
    questions = shrunk(grammar.SENTENCES.branches[2], 2)
    assert questions.size == len({sentence for sentence, _ in questions})
    assert grammar.sentence_count() == grammar.SENTENCES.size >= 10**6


def test_an_overlap_of_branches_would_be_noticed():
    doubled = AnyOf((1, OneOf(["a", "b"])), (1, OneOf(["b"])))
    assert doubled.size == 3 > len(set(doubled))


def test_no_word_has_two_translations():
    """Within a class of words, so that an English sentence has one German sentence."""
    classes = (*(getattr(verbs, name) for name in dir(verbs) if name.endswith("_VERBS")), tuple(NOUNS.values()))
    for members in classes:
        assert len({word.english for word in members}) == len(members)
    assert all(verb.past != verb.english_head for verb in verbs.ALL_VERBS)


def test_vocabulary_is_exactly_what_is_said():
    rng = np.random.default_rng(0)
    said = {word for _ in range(20_000) for word in grammar.sample(rng)[0].split()}
    assert sorted(said) == vocabulary()
    assert len(vocabulary()) >= 400


def test_sentences_are_transcripts_of_a_speakable_length():
    rng = np.random.default_rng(1)
    for _ in range(3000):
        transcript, translation = grammar.sample(rng)
        assert 3 <= len(transcript.split()) <= 15
        assert transcript == transcript.lower() and "," not in transcript
        assert translation[0].isupper() and translation[-1] not in ".?!" and "  " not in translation
