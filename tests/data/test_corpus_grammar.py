"""The grammar: its German against sentences written by hand, its size and vocabulary against enumeration."""

import numpy as np
import pytest

from leapformer_fairseq.data.corpus import grammar
from leapformer_fairseq.data.corpus.choices import AnyOf, Choices, Combine, OneOf
from leapformer_fairseq.data.corpus.grammar import Entry, Phrase

GRAMMAR = grammar.grammar()
CASES = ("nom", "acc", "dat")
PERSONS = ("ich", "du", "er", "wir", "sie")
NOUN_LISTS = ("people", "things", "things to open", "devices", "foods", "dishes", "drinks", "vehicles", "events")
VERB_LISTS = (
    "thing verbs", "opening verbs", "device verbs", "food verbs", "drink verbs", "person verbs", "person dative verbs",
    "giving verbs", "activities", "motion verbs", "city verbs", "vehicle verbs", "event verbs", "that verbs",
    "whether verbs",
)  # fmt: skip


def words(*lists: str) -> dict[str, Entry]:
    return {english_verb(word): word for name in lists for word in GRAMMAR.node(name)}


def english_verb(word: Entry) -> str:
    """The word, with its particle or preposition if it is a verb that has one: `pick up`, `listen to`."""
    return " ".join(filter(None, (word["en"], word.get("particle"), word.get("with"))))


def make(pattern: str, *values: Entry | Phrase, brackets: int = 0) -> Phrase:
    """A phrase of a pattern that has so many names in brackets."""
    node = GRAMMAR.node(f"{pattern}({', '.join(['nothing'] * brackets)})" if brackets else pattern)
    assert isinstance(node, Combine)
    return node.make(*values)


def forms(phrase: Entry | Phrase, *names: str) -> tuple[str, ...]:
    return tuple(GRAMMAR.text(phrase, name) for name in names)


VERBS = words(*VERB_LISTS)
NOUNS = words(*NOUN_LISTS)
ADJECTIVES = words("no adjective", "person adjectives", "thing adjectives", "food adjectives", "states")
DETERMINERS = words("no determiner", "determiners")
SUBJECTS = words("subject pronouns", "names")
OBJECTS = words("object pronouns")
TENSES = {"present": next(iter(GRAMMAR.node("present"))), "past": next(iter(GRAMMAR.node("past"))), **words("modals")}
NOTHING = next(iter(GRAMMAR.node("nothing")))


def timed(tense: str = "present", when: str = "") -> Phrase:
    """A tense and a time: a frequency, or words as given in English and German."""
    if when == "often":
        return make("often", TENSES[tense], words("frequencies")["often"])
    monday = make("on weekday", words("weekdays")["monday"])
    return make("timed", TENSES[tense], monday if when == "on monday" else NOTHING, brackets=2)


def phrase(determiner: str, adjective: str, noun: str, plural: bool = False) -> Phrase:
    number = "plural" if plural else "singular"
    return make(number, DETERMINERS[determiner], ADJECTIVES[adjective], NOUNS[noun], brackets=3)


def counted(number: int, adjective: str, noun: str) -> Phrase:
    return make("counted", NUMBERS[number - 2], ADJECTIVES[adjective], NOUNS[noun], brackets=2)


def acting(verb: str, thing: Entry | Phrase, how: str = "acting on") -> Phrase:
    return make(how, VERBS[verb], thing, brackets=2)


def alone(verb: str) -> Phrase:
    return make("alone", VERBS[verb], brackets=1)


def clause(subject: str, predicate: Phrase, tense: str = "present", when: str = "") -> Phrase:
    return make("clause", SUBJECTS[subject], predicate, timed(tense, when), brackets=3)


def calls(subject: str = "anna", tense: str = "present", when: str = "") -> Phrase:
    return clause(subject, acting("call", phrase("the", "", "doctor")), tense, when)


def said_by(pattern: str, *values: Entry | Phrase, brackets: int = 0) -> tuple[str, str]:
    return GRAMMAR.sentence(make(pattern, *values, brackets=brackets))


NUMBERS = [*GRAMMAR.node("small numbers"), *GRAMMAR.node("large numbers")]


# ---- numbers, times, dates -----------------------------------------------------------------------------------------


def test_every_number_puts_the_unit_before_the_ten():
    units = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
    tens = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
    teens = ["zehn", "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"]
    from_twenty = [word for ten in tens for word in (ten, *(f"{unit}und{ten}" for unit in units))]
    assert [GRAMMAR.text(number, "de") for number in NUMBERS] == [*units[1:], *teens, *from_twenty]
    assert forms(NUMBERS[21 - 2], "en", "de") == ("twenty one", "einundzwanzig")
    assert forms(NUMBERS[67 - 2], "en", "de") == ("sixty seven", "siebenundsechzig")
    assert forms(NUMBERS[90 - 2], "en", "de") == ("ninety", "neunzig")
    hours = [forms(hour, "de", "clock", "next") for hour in GRAMMAR.node("hours")]
    assert [hour[0] for hour in hours] == ["eins", *units[1:], *teens[:3]] == [hours[n - 1][2] for n in range(12)]
    assert [hour[1] for hour in hours] == ["ein", *units[1:], *teens[:3]]


def test_all_number_words_differ():
    for language in ("en", "de"):
        assert len({GRAMMAR.text(number, language) for number in NUMBERS}) == 98
        assert len({GRAMMAR.text(day, language) for day in GRAMMAR.node("days of a month")}) == 31


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
    time = make("clock time", list(GRAMMAR.node("hours"))[hour - 1], list(GRAMMAR.node("clock forms"))[form])
    assert forms(time, "en", "de") == expected


def test_dates():
    dates = dict(forms(date, "en", "de") for date in GRAMMAR.node("dates"))
    assert len(dates) == 366
    assert dates["on the first of january"] == "am ersten Januar"
    assert dates["on the third of may"] == "am dritten Mai"
    assert dates["on the seventh of july"] == "am siebten Juli"
    assert dates["on the twentieth of june"] == "am zwanzigsten Juni"
    assert dates["on the twenty first of march"] == "am einundzwanzigsten März"
    parts = [forms(part, "en", "de") for part in GRAMMAR.node("weekday parts")]
    assert ("on friday evening", "am Freitagabend") in parts


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
    assert forms(made, "en", *CASES) == (english_words, *cases)


def test_plural_phrases():
    assert forms(phrase("the", "old", "child", True), *CASES) == (*("die alten Kinder",) * 2, "den alten Kindern")
    assert forms(phrase("this", "", "radio", True), "en") == ("these radios",)
    assert forms(phrase("my", "new", "radio", True), *CASES) == (*("meine neuen Radios",) * 2, "meinen neuen Radios")
    made = counted(21, "old", "book")
    assert forms(made, "en") == ("twenty one old books",)
    assert forms(made, *CASES) == (*("einundzwanzig alte Bücher",) * 2, "einundzwanzig alten Büchern")


def test_places_contract_preposition_and_article():
    at, to = [dict(forms(p, "en", "de") for p in GRAMMAR.node(places)) for places in ("at places", "to places")]
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
        ("throw away", "werfe wirfst wirft werfen werfen"),
        ("drive", "fahre fährst fährt fahren fahren"),
        ("know", "weiß weißt weiß wissen wissen"),
    ],
)
def test_present_tense(verb, forms):
    assert [GRAMMAR.text(VERBS[verb], person) for person in PERSONS] == forms.split()


def test_an_e_is_inserted_only_where_it_must_be():
    verbs = ("öffnen", "zeichnen", "warten", "lernen", "wohnen", "filmen")
    assert [GRAMMAR.text(Entry(er=f"{verb}~+t"), "er") for verb in verbs] == [
        "öffnet", "zeichnet", "wartet", "lernt", "wohnt", "filmt",
    ]  # fmt: skip
    changed = Entry(du="hält+st", er="hält+t")  # a changed stem takes none, and no second t
    assert [GRAMMAR.text(changed, person) for person in ("du", "er")] == ["hältst", "hält"]


# ---- clauses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clause", "sentence"),
    [
        (calls(), ("anna calls the doctor", "Anna ruft den Arzt an")),
        (calls("you", "past"), ("you called the doctor", "Du hast den Arzt angerufen")),
        (calls("we", "must"), ("we must call the doctor", "Wir müssen den Arzt anrufen")),
        (calls("i", "will", "often"), ("i will often call the doctor", "Ich werde oft den Arzt anrufen")),
        (calls(when="often"), ("anna often calls the doctor", "Anna ruft oft den Arzt an")),
        (calls(when="on monday"), ("anna calls the doctor on monday", "Anna ruft am Montag den Arzt an")),
    ],
)
def test_statements_put_the_finite_verb_second_and_the_rest_last(clause, sentence):
    assert said_by("statement", clause) == sentence


def test_time_in_front_inverts_subject_and_verb():
    assert said_by("fronted statement", calls(when="on monday")) == (
        "on monday anna calls the doctor", "Am Montag ruft Anna den Arzt an",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("subject", "predicate", "tense", "when", "sentence"),
    [  # pronouns precede the time
        ("she", acting("pick up", OBJECTS["him"]), "present", "on monday",
         ("she picks him up on monday", "Sie holt ihn am Montag ab")),
        ("she", acting("pick up", phrase("the", "", "doctor")), "past", "on monday",
         ("she picked up the doctor on monday", "Sie hat am Montag den Arzt abgeholt")),
        ("they", acting("listen to", OBJECTS["her"], "acting for"), "present", "often",
         ("they often listen to her", "Sie hören ihr oft zu")),
    ],
)  # fmt: skip
def test_pronoun_objects_precede_the_time(subject, predicate, tense, when, sentence):
    assert said_by("statement", clause(subject, predicate, tense, when)) == sentence


def test_dative_objects_and_gifts():
    helps = clause("peter", acting("help", phrase("the", "old", "neighbor"), "acting for"))
    assert said_by("statement", helps) == ("peter helps the old neighbor", "Peter hilft dem alten Nachbarn")
    offer = make("giving", VERBS["offer"], phrase("the", "", "guest"), phrase("a", "", "apple"))
    assert said_by("statement", clause("peter", offer, "can")) == (
        "peter can offer the guest an apple", "Peter kann dem Gast einen Apfel anbieten",
    )  # fmt: skip
    offer = make("giving", VERBS["offer"], OBJECTS["them"], phrase("a", "", "cake"))
    assert said_by("statement", clause("we", offer, "present", "on monday")) == (
        "we offer them a cake on monday", "Wir bieten ihnen am Montag einen Kuchen an",
    )  # fmt: skip


def test_verbs_of_motion_take_sein_in_the_perfect():
    to_rome = make("placed", VERBS["fly"], make("to city", words("cities")["rome"]), brackets=2)
    flies = clause("i", to_rome, "past", "on monday")
    assert said_by("statement", flies) == ("i flew to rome on monday", "Ich bin am Montag nach Rom geflogen")
    wakes = clause("he", alone("wake up"), "present", "often")
    assert said_by("statement", wakes) == ("he often wakes up", "Er wacht oft auf")


@pytest.mark.parametrize(
    ("tense", "ending"),
    [
        ("present", ("anna calls the doctor on monday", "Anna am Montag den Arzt anruft")),
        ("past", ("anna called the doctor on monday", "Anna am Montag den Arzt angerufen hat")),
        ("should", ("anna should call the doctor on monday", "Anna am Montag den Arzt anrufen sollte")),
    ],
)
@pytest.mark.parametrize(
    ("verb", "conjunction", "beginning"),
    [
        ("know", "that", ("he knows that", "Er weiß, dass")),
        ("ask", "whether", ("he asks whether", "Er fragt, ob")),
        ("dance", "because", ("he dances because", "Er tanzt, weil")),
        ("sing", "if", ("he sings if", "Er singt, wenn")),
    ],
)
def test_subordinate_clauses_put_the_finite_verb_last(verb, conjunction, beginning, tense, ending):
    main, (joined,) = clause("he", alone(verb)), GRAMMAR.node(conjunction)
    made = said_by("subordinate", main, joined, calls(tense=tense, when="on monday"), brackets=3)
    assert made == tuple(f"{first} {rest}" for first, rest in zip(beginning, ending, strict=True))


def test_a_condition_in_front_is_followed_by_the_verb():
    assert said_by("condition", calls(), clause("we", alone("wait"), "must")) == (
        "if anna calls the doctor we must wait", "Wenn Anna den Arzt anruft, müssen wir warten",
    )  # fmt: skip


def test_questions():
    assert said_by("question", calls("you")) == ("do you call the doctor", "Rufst du den Arzt an")
    assert said_by("question", calls(tense="past")) == ("did anna call the doctor", "Hat Anna den Arzt angerufen")
    why = said_by("question word", *GRAMMAR.node("why"), calls(tense="can", when="on monday"), brackets=2)
    assert why == ("why can anna call the doctor on monday", "Warum kann Anna am Montag den Arzt anrufen")


def test_descriptions_counts_ages_and_prices():
    soup = make("being", phrase("my", "", "soup"), ADJECTIVES["hot"], timed("past"), brackets=3)
    assert said_by("statement", soup) == ("my soup was hot", "Meine Suppe war heiß")
    old = make("being", SUBJECTS["i"], make("age", NUMBERS[33 - 2]), timed(), brackets=3)
    assert said_by("statement", old) == ("i am thirty three years old", "Ich bin dreiunddreißig Jahre alt")
    garden = make("at place", ADJECTIVES[""], words("home places")["garden"], brackets=2)
    assert said_by("there are", TENSES["present"], counted(45, "heavy", "chair"), garden) == (
        "there are forty five heavy chairs in the garden", "Im Garten gibt es fünfundvierzig schwere Stühle",
    )  # fmt: skip
    assert said_by("costs", phrase("this", "red", "coat"), NUMBERS[21 - 2]) == (
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


@pytest.mark.parametrize(
    ("name", "keep"),
    [("sentences", 1), ("question word(when, short clause(untimed))", 2),
     ("clause(actors, placed predicates, briefly timed)", 2), ("there are", 2)],
)  # fmt: skip
def test_the_grammar_is_counted_exactly(name, keep):
    """Listing a small copy shows that no two derivations give the same sentence, so sizes multiply to the count."""
    small = shrunk(GRAMMAR.node(name), keep)
    listed = [GRAMMAR.text(phrase, "en") for phrase in small]
    assert small.size == len(listed) == len(set(listed)) >= 10**2
    assert GRAMMAR.sentences.size >= 10**6


def test_an_overlap_of_branches_would_be_noticed():
    doubled = AnyOf((1, OneOf(["a", "b"])), (1, OneOf(["b"])))
    assert doubled.size == 3 > len(set(doubled))


def test_no_word_has_two_translations():
    """Within a class of words, so that an English sentence has one German sentence."""
    for name in (*NOUN_LISTS, *VERB_LISTS):
        assert len(words(name)) == GRAMMAR.node(name).size
    assert len(NOUNS) == sum(GRAMMAR.node(name).size for name in NOUN_LISTS)
    assert all(verb["past"] != verb["en"] for verb in VERBS.values())


def leaves(node: Choices) -> set[str]:
    """All English forms of the words below a node."""
    if isinstance(node, OneOf):
        items = [Entry(en=item["en"]) if isinstance(item, Phrase) else item for item in node]
        items = [item for item in items if "{" not in item.get("en", "{")]
        found = [Entry(en=item[form]) for item in items for form in item if form in ENGLISH or form[:2] == "en"]
        found += [Entry(en=item["en"] + "+s") for item in items if "past" in item]
        return {GRAMMAR.text(form, "en") for form in found}
    parts = node.branches if isinstance(node, AnyOf) else node.parts
    return {word for part in parts for word in leaves(part)}


VOCABULARY = 497  # words and their forms
ENGLISH = ("past", "particle", "with", "at")  # and those that begin with `en`
OF_PATTERNS = (
    "am an are at costs did do does euros half if in is o'clock of old on past quarter the there to was were with years"
)


def test_vocabulary_is_exactly_what_is_said():
    rng = np.random.default_rng(0)
    said = {word for _ in range(20_000) for word in grammar.sample(rng)[0].split()}
    assert {word for form in leaves(GRAMMAR.sentences) for word in form.split()} | set(OF_PATTERNS.split()) == said
    assert len(said) == VOCABULARY


def test_sentences_are_transcripts_of_a_speakable_length():
    rng = np.random.default_rng(1)
    for _ in range(3000):
        transcript, translation = grammar.sample(rng)
        assert 3 <= len(transcript.split()) <= 15
        assert transcript == transcript.lower() and "," not in transcript
        assert translation[0].isupper() and translation[-1] not in ".?!" and "  " not in translation
        assert not set("+~{}") & set(transcript + translation)
