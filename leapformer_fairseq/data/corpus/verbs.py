"""Verbs by the complements they take, modal verbs, and adverbs of manner, frequency and time."""

from __future__ import annotations

from dataclasses import dataclass

from .german import PERSONS, Person
from .lexicon import Verb


@dataclass(frozen=True)
class Modal:
    """A modal verb; `forms` are the German present forms for ich, du, er, wir, sie."""

    english: str
    forms: tuple[str, str, str, str, str]

    def finite(self, person: Person) -> str:
        """The form that agrees with the subject."""
        return self.forms[PERSONS.index(person)]


MODALS = (
    Modal("can", ("kann", "kannst", "kann", "können", "können")),
    Modal("must", ("muss", "musst", "muss", "müssen", "müssen")),
    Modal("should", ("sollte", "solltest", "sollte", "sollten", "sollten")),
    Modal("will", ("werde", "wirst", "wird", "werden", "werden")),
)
CONDITION_MODALS = MODALS[:3]  # English has no `will` after `if`

HAVE = Verb("have", "had", "haben", "gehabt", irregular_present=("habe", "hast", "hat", "haben", "haben"))
BE = Verb("be", "was", "sein", "gewesen", irregular_present=("bin", "bist", "ist", "sind", "sind"))
WAS: tuple[str, str, str, str, str] = ("war", "warst", "war", "waren", "waren")

THING_VERBS = (
    Verb("buy", "bought", "kaufen", "gekauft"),
    Verb("find", "found", "finden", "gefunden"),
    Verb("bring", "brought", "mit|bringen", "mitgebracht"),
    Verb("repair", "repaired", "reparieren", "repariert"),
    Verb("borrow", "borrowed", "aus|leihen", "ausgeliehen"),
    Verb("throw|away", "threw", "weg|werfen", "weggeworfen", "wirf"),
    Verb("pack", "packed", "ein|packen", "eingepackt"),
    Verb("collect", "collected", "sammeln", "gesammelt"),
    Verb("choose", "chose", "aus|wählen", "ausgewählt"),
)
OPENING_VERBS = (
    Verb("open", "opened", "auf|machen", "aufgemacht"),
    Verb("close", "closed", "zu|machen", "zugemacht"),
)
DEVICE_VERBS = (
    Verb("switch|on", "switched", "ein|schalten", "eingeschaltet"),
    Verb("switch|off", "switched", "aus|schalten", "ausgeschaltet"),
)
FOOD_VERBS = (
    Verb("eat", "ate", "essen", "gegessen", "iss"),
    Verb("cook", "cooked", "kochen", "gekocht"),
    Verb("prepare", "prepared", "vor|bereiten", "vorbereitet"),
)
DRINK_VERBS = (Verb("drink", "drank", "trinken", "getrunken"), Verb("order", "ordered", "bestellen", "bestellt"))
PERSON_VERBS = (
    Verb("visit", "visited", "besuchen", "besucht"),
    Verb("invite", "invited", "ein|laden", "eingeladen", "läd"),
    Verb("call", "called", "an|rufen", "angerufen"),
    Verb("pick|up", "picked", "ab|holen", "abgeholt"),
    Verb("meet", "met", "treffen", "getroffen", "triff"),
    Verb("wake", "woke", "wecken", "geweckt"),
)
PERSON_DATIVE_VERBS = (
    Verb("help", "helped", "helfen", "geholfen", "hilf"),
    Verb("thank", "thanked", "danken", "gedankt"),
    Verb("listen to", "listened", "zu|hören", "zugehört"),
)
GIVING_VERBS = (
    Verb("give", "gave", "geben", "gegeben", "gib"),
    Verb("show", "showed", "zeigen", "gezeigt"),
    Verb("lend", "lent", "leihen", "geliehen"),
    Verb("offer", "offered", "an|bieten", "angeboten"),
)
ACTIVITIES = (
    Verb("sleep", "slept", "schlafen", "geschlafen", "schläf"),
    Verb("work", "worked", "arbeiten", "gearbeitet"),
    Verb("sing", "sang", "singen", "gesungen"),
    Verb("dance", "danced", "tanzen", "getanzt"),
    Verb("wait", "waited", "warten", "gewartet"),
    Verb("celebrate", "celebrated", "feiern", "gefeiert"),
    Verb("wake|up", "woke", "auf|wachen", "aufgewacht", auxiliary="sein"),
    Verb("get|up", "got", "auf|stehen", "aufgestanden", auxiliary="sein"),
    Verb("fall|asleep", "fell", "ein|schlafen", "eingeschlafen", "schläf", auxiliary="sein"),
    Verb("come|back", "came", "zurück|kommen", "zurückgekommen", auxiliary="sein"),
)
MOTION_VERBS = (
    Verb("travel", "traveled", "reisen", "gereist", auxiliary="sein"),
    Verb("drive", "drove", "fahren", "gefahren", "fähr", auxiliary="sein"),
    Verb("return", "returned", "zurück|kehren", "zurückgekehrt", auxiliary="sein"),
)
CITY_VERBS = (
    Verb("fly", "flew", "fliegen", "geflogen", auxiliary="sein"),
    Verb("move", "moved", "um|ziehen", "umgezogen", auxiliary="sein"),
)
VEHICLE_VERBS = (
    Verb("arrive", "arrived", "an|kommen", "angekommen", auxiliary="sein"),
    Verb("depart", "departed", "ab|fahren", "abgefahren", "fähr", auxiliary="sein"),
)
EVENT_VERBS = (
    Verb("begin", "began", "an|fangen", "angefangen", "fäng"),
    Verb("end", "ended", "auf|hören", "aufgehört"),
    Verb("take place", "took", "statt|finden", "stattgefunden"),
)
THAT_VERBS = (
    Verb("know", "knew", "wissen", "gewusst", irregular_present=("weiß", "weißt", "weiß", "wissen", "wissen")),
    Verb("hope", "hoped", "hoffen", "gehofft"),
    Verb("say", "said", "sagen", "gesagt"),
    Verb("hear", "heard", "hören", "gehört"),
)
WHETHER_VERBS = (Verb("ask", "asked", "fragen", "gefragt"),)

ALL_VERBS = (
    THING_VERBS + OPENING_VERBS + DEVICE_VERBS + FOOD_VERBS + DRINK_VERBS + PERSON_VERBS + PERSON_DATIVE_VERBS
    + GIVING_VERBS + ACTIVITIES + MOTION_VERBS + CITY_VERBS + VEHICLE_VERBS + EVENT_VERBS + THAT_VERBS + WHETHER_VERBS
)  # fmt: skip

MANNERS = (("quickly", "schnell"), ("slowly", "langsam"), ("quietly", "leise"), ("alone", "allein"))
FREQUENCIES = (
    ("always", "immer"), ("often", "oft"), ("sometimes", "manchmal"), ("rarely", "selten"), ("never", "nie"),
)  # fmt: skip
PRESENT_DAYS = (
    ("today", "heute"), ("tomorrow", "morgen"), ("tonight", "heute Abend"), ("soon", "bald"),
    ("every day", "jeden Tag"), ("next week", "nächste Woche"),
)  # fmt: skip
PAST_DAYS = (
    ("yesterday", "gestern"), ("last week", "letzte Woche"), ("last month", "letzten Monat"),
    ("last year", "letztes Jahr"),
)  # fmt: skip
WEEKDAYS = (
    ("monday", "Montag"), ("tuesday", "Dienstag"), ("wednesday", "Mittwoch"), ("thursday", "Donnerstag"),
    ("friday", "Freitag"), ("saturday", "Samstag"), ("sunday", "Sonntag"),
)  # fmt: skip
DAY_PARTS = (("morning", "morgen"), ("afternoon", "nachmittag"), ("evening", "abend"))
MONTHS = (
    ("january", "Januar", 31), ("february", "Februar", 29), ("march", "März", 31), ("april", "April", 30),
    ("may", "Mai", 31), ("june", "Juni", 30), ("july", "Juli", 31), ("august", "August", 31),
    ("september", "September", 30), ("october", "Oktober", 31), ("november", "November", 30),
    ("december", "Dezember", 31),
)  # fmt: skip
