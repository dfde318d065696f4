"""The words of the corpus: the German translation of each English word, and its grammatical properties.

To add a word, add a line. Two rules ensure that every English sentence has one translation: no verb whose past equals
its base form (put, cut, read), and no English word twice in one class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import english, german
from .german import Gender, Person


@dataclass(frozen=True)
class Noun:
    """A noun; `oblique` is the accusative and dative singular of weak nouns (der Junge, den Jungen)."""

    english: str
    german: str
    gender: Gender
    plural: str = ""
    english_plural: str = ""
    oblique: str = ""

    @property
    def english_many(self) -> str:
        """The English plural."""
        return self.english_plural or english.with_s(self.english)


@dataclass(frozen=True)
class Adjective:
    """An adjective; `stem` is the form that endings are added to, if it differs: teuer, ein teurer Hut."""

    english: str
    german: str
    stem: str = ""

    def declined(self, ending: str) -> str:
        """The adjective with an ending, as before a noun."""
        return (self.stem or self.german) + ending


@dataclass(frozen=True)
class Verb:
    """A verb; `|` marks a separable particle in either language: `pick|up`, `ab|holen`.

    An English preposition that stays with the verb follows a space (`listen to`). `changed_stem` is the stem of du and
    er forms; `past` is the English simple past of the first word, `participle` the German one with its particle.
    """

    english: str
    past: str
    german: str
    participle: str
    changed_stem: str = ""
    auxiliary: Literal["haben", "sein"] = "haben"
    irregular_present: tuple[str, str, str, str, str] | None = None

    @property
    def english_head(self) -> str:
        """The word that is inflected: `pick`."""
        return self.english.replace("|", " ").split()[0]

    @property
    def particle(self) -> str:
        """The separable German particle, empty if there is none: `ab`."""
        return self.german.split("|")[0] if "|" in self.german else ""

    @property
    def infinitive(self) -> str:
        """The German infinitive, as after a modal verb: `abholen`."""
        return self.german.replace("|", "")

    def finite(self, person: Person) -> str:
        """The German present tense for a person, without the particle."""
        if self.irregular_present:
            return self.irregular_present[german.PERSONS.index(person)]
        return german.present(self.german.split("|")[-1], person, self.changed_stem)


@dataclass(frozen=True)
class Determiner:
    """A determiner; `kind` chooses its endings and those of a following adjective."""

    english: str
    english_plural: str
    german: str
    kind: Literal["der", "dies", "ein", "none"]


@dataclass(frozen=True)
class Place:
    """A place; `english` and `german` are the prepositions for being there; going there is `to` and `zu`."""

    noun: Noun
    english: str
    german: str


THE = Determiner("the", "the", "d", "der")
THIS = Determiner("this", "these", "dies", "dies")
EVERY = Determiner("every", "", "jed", "dies")
A = Determiner("a", "", "ein", "ein")
BARE = Determiner("", "", "", "none")
POSSESSIVES = tuple(
    Determiner(my, my, mein, "ein")
    for my, mein in (("my", "mein"), ("your", "dein"), ("his", "sein"), ("her", "ihr"), ("our", "unser"))
)

PEOPLE = (
    Noun("man", "Mann", "m", "Männer", "men"),
    Noun("woman", "Frau", "f", "Frauen", "women"),
    Noun("child", "Kind", "n", "Kinder", "children"),
    Noun("boy", "Junge", "m", "Jungen", oblique="Jungen"),
    Noun("girl", "Mädchen", "n", "Mädchen"),
    Noun("teacher", "Lehrer", "m", "Lehrer"),
    Noun("doctor", "Arzt", "m", "Ärzte"),
    Noun("neighbor", "Nachbar", "m", "Nachbarn", oblique="Nachbarn"),
    Noun("friend", "Freund", "m", "Freunde"),
    Noun("guest", "Gast", "m", "Gäste"),
    Noun("brother", "Bruder", "m", "Brüder"),
    Noun("sister", "Schwester", "f", "Schwestern"),
    Noun("daughter", "Tochter", "f", "Töchter"),
    Noun("aunt", "Tante", "f", "Tanten"),
    Noun("uncle", "Onkel", "m", "Onkel"),
    Noun("student", "Student", "m", "Studenten", oblique="Studenten"),
    Noun("colleague", "Kollege", "m", "Kollegen", oblique="Kollegen"),
    Noun("waitress", "Kellnerin", "f", "Kellnerinnen"),
)

THINGS = (
    Noun("book", "Buch", "n", "Bücher"),
    Noun("key", "Schlüssel", "m", "Schlüssel"),
    Noun("bicycle", "Fahrrad", "n", "Fahrräder"),
    Noun("table", "Tisch", "m", "Tische"),
    Noun("chair", "Stuhl", "m", "Stühle"),
    Noun("picture", "Bild", "n", "Bilder"),
    Noun("coat", "Mantel", "m", "Mäntel"),
    Noun("hat", "Hut", "m", "Hüte"),
    Noun("dress", "Kleid", "n", "Kleider"),
    Noun("shoe", "Schuh", "m", "Schuhe"),
    Noun("cup", "Tasse", "f", "Tassen"),
    Noun("knife", "Messer", "n", "Messer", "knives"),
    Noun("flower", "Blume", "f", "Blumen"),
    Noun("newspaper", "Zeitung", "f", "Zeitungen"),
    Noun("umbrella", "Regenschirm", "m", "Regenschirme"),
    Noun("guitar", "Gitarre", "f", "Gitarren"),
    Noun("candle", "Kerze", "f", "Kerzen"),
)
OPENABLE = (
    Noun("window", "Fenster", "n", "Fenster"),
    Noun("door", "Tür", "f", "Türen"),
    Noun("box", "Kiste", "f", "Kisten"),
    Noun("letter", "Brief", "m", "Briefe"),
)
DEVICES = (
    Noun("lamp", "Lampe", "f", "Lampen"),
    Noun("computer", "Computer", "m", "Computer"),
    Noun("camera", "Kamera", "f", "Kameras"),
    Noun("radio", "Radio", "n", "Radios", "radios"),
)
FOODS = (
    Noun("apple", "Apfel", "m", "Äpfel"),
    Noun("egg", "Ei", "n", "Eier"),
    Noun("potato", "Kartoffel", "f", "Kartoffeln"),
    Noun("cake", "Kuchen", "m", "Kuchen"),
    Noun("cherry", "Kirsche", "f", "Kirschen"),
    Noun("onion", "Zwiebel", "f", "Zwiebeln"),
)
DISHES = (
    Noun("bread", "Brot", "n"),
    Noun("cheese", "Käse", "m"),
    Noun("rice", "Reis", "m"),
    Noun("soup", "Suppe", "f"),
    Noun("meat", "Fleisch", "n"),
)
DRINKS = (
    Noun("milk", "Milch", "f"),
    Noun("coffee", "Kaffee", "m"),
    Noun("tea", "Tee", "m"),
    Noun("water", "Wasser", "n"),
)
VEHICLES = (
    Noun("train", "Zug", "m", "Züge"),
    Noun("bus", "Bus", "m", "Busse"),
    Noun("tram", "Straßenbahn", "f", "Straßenbahnen"),
    Noun("ferry", "Fähre", "f", "Fähren"),
)
EVENTS = (
    Noun("concert", "Konzert", "n", "Konzerte"),
    Noun("film", "Film", "m", "Filme"),
    Noun("course", "Kurs", "m", "Kurse"),
    Noun("party", "Feier", "f", "Feiern"),
    Noun("exhibition", "Ausstellung", "f", "Ausstellungen"),
)

HOME_PLACES = (
    Place(Noun("kitchen", "Küche", "f"), "in", "in"),
    Place(Noun("garden", "Garten", "m"), "in", "in"),
    Place(Noun("cellar", "Keller", "m"), "in", "in"),
)
PUBLIC_PLACES = (
    Place(Noun("station", "Bahnhof", "m"), "at", "an"),
    Place(Noun("airport", "Flughafen", "m"), "at", "an"),
    Place(Noun("market", "Markt", "m"), "at", "auf"),
    Place(Noun("beach", "Strand", "m"), "at", "an"),
    Place(Noun("school", "Schule", "f"), "in", "in"),
    Place(Noun("church", "Kirche", "f"), "in", "in"),
    Place(Noun("bakery", "Bäckerei", "f"), "in", "in"),
    Place(Noun("park", "Park", "m"), "in", "in"),
    Place(Noun("hotel", "Hotel", "n"), "in", "in"),
    Place(Noun("museum", "Museum", "n"), "in", "in"),
    Place(Noun("hospital", "Krankenhaus", "n"), "in", "in"),
    Place(Noun("bridge", "Brücke", "f"), "on", "auf"),
)
NEAR = (("in front of", "vor"), ("behind", "hinter"), ("next to", "neben"))
CITIES = (
    ("berlin", "Berlin"), ("hamburg", "Hamburg"), ("vienna", "Wien"), ("munich", "München"), ("cologne", "Köln"),
    ("rome", "Rom"), ("prague", "Prag"), ("italy", "Italien"), ("spain", "Spanien"), ("norway", "Norwegen"),
)  # fmt: skip

NAMES = ("Anna", "Peter", "Julia", "Thomas", "Maria", "David", "Laura", "Felix", "Nina", "Oscar")
PRONOUNS: tuple[tuple[str, str, german.Person], ...] = (
    ("i", "ich", "ich"), ("you", "du", "du"), ("he", "er", "er"), ("she", "sie", "er"), ("we", "wir", "wir"),
    ("they", "sie", "sie"),
)  # fmt: skip
OBJECT_PRONOUNS = (("him", "ihn", "ihm"), ("her", "sie", "ihr"), ("them", "sie", "ihnen"))

PERSON_ADJECTIVES = (
    Adjective("old", "alt"), Adjective("young", "jung"), Adjective("friendly", "freundlich"),
    Adjective("famous", "berühmt"), Adjective("rich", "reich"), Adjective("poor", "arm"),
    Adjective("shy", "schüchtern"), Adjective("clever", "klug"), Adjective("polite", "höflich"),
)  # fmt: skip
THING_ADJECTIVES = (
    Adjective("old", "alt"), Adjective("new", "neu"), Adjective("red", "rot"), Adjective("blue", "blau"),
    Adjective("green", "grün"), Adjective("black", "schwarz"), Adjective("white", "weiß"), Adjective("big", "groß"),
    Adjective("small", "klein"), Adjective("heavy", "schwer"), Adjective("cheap", "billig"),
    Adjective("expensive", "teuer", "teur"), Adjective("beautiful", "schön"), Adjective("broken", "kaputt"),
    Adjective("dark", "dunkel", "dunkl"),
)  # fmt: skip
FOOD_ADJECTIVES = (
    Adjective("fresh", "frisch"), Adjective("hot", "heiß"), Adjective("cold", "kalt"), Adjective("sweet", "süß"),
    Adjective("sour", "sauer", "saur"), Adjective("warm", "warm"),
)  # fmt: skip
PLACE_ADJECTIVES = tuple(a for a in THING_ADJECTIVES if a.english in ("old", "new", "big", "small", "beautiful"))
STATES = (
    Adjective("happy", "glücklich"), Adjective("sad", "traurig"), Adjective("angry", "wütend"),
    Adjective("nervous", "nervös"), Adjective("proud", "stolz"), Adjective("tired", "müde"),
)  # fmt: skip
