"""English sentences with their German translations, generated from the YAML files of the folder `language`.

The files hold all words and rules, and say at their top how to add to them; this module reads them. A sentence is a
tree of patterns and words: `choices` draws it, and `Phrase` turns it into text. English is lower-case without
punctuation, like a transcript; German has capitals and commas between clauses, but no final punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...support.errors import LeapformerError, suggestion
from .choices import AnyOf, Choices, Combine, OneOf

FOLDER = Path(__file__).parent / "language"
RULES = ("classes", "tables", "spelling")
SECTIONS = (*RULES, "words", "lists", "choices", "patterns")
SENTENCES = "sentences"  # the choice that sentences are drawn from
WRITTEN = {"str": "a text, in quotes if it has braces", "list": "[a list]", "Entry": "{key: value}"}
SLOT = re.compile(r"\{([^{}]*)\}")
DEEPEST = 20  # slots within slots of a form; more are taken for a circle

Sentence = tuple[str, str]


@cache
def grammar() -> Grammar:
    """The grammar of the package."""
    return Grammar(FOLDER)


def sample(rng: np.random.Generator) -> Sentence:
    """Draw a sentence as (English transcript, German translation)."""
    return grammar().sample(rng)


class Entry(dict[str, Any]):
    """A mapping of a file, such as a word; `at` is the file and the line where it begins."""

    at = ""


@dataclass(frozen=True, eq=False)
class Pattern:
    """A pattern of the files, which makes a phrase of a value for each slot; `at` is where it stands."""

    at: str
    slots: tuple[str, ...]
    forms: Mapping[str, str]
    tables: Mapping[str, Any]

    def __call__(self, *values: Entry | Phrase) -> Phrase:
        return Phrase(self, dict(zip(self.slots, values, strict=True)))


@dataclass(frozen=True, eq=False)
class Phrase:
    """A pattern with a word or a phrase in each slot: `phrase[name]` is that value, the text of a form, or a table."""

    pattern: Pattern
    values: dict[str, Any]  # of slots, and of forms once they are known

    def __getitem__(self, name: str) -> Any:
        if name not in self.values and name not in self.pattern.forms:
            return self.pattern.tables[name]
        if name not in self.values:
            self.values[name] = self.filled(self.pattern.forms[name])
        return self.values[name]

    def filled(self, text: str) -> str:
        """The text with its slots filled, the innermost first; what they hold may have slots again."""
        for _ in range(DEEPEST):
            if "{" not in text:
                return text
            text = SLOT.sub(self._found, text)
        raise LeapformerError(f"{self.pattern.at}: {text[:60]!r} fills itself; remove the circle from its forms")

    def _found(self, slot: re.Match[str]) -> str:
        value: Any = self
        try:
            for name in slot[1].split("."):
                value = value[name]
        except (KeyError, TypeError, RecursionError):
            value = None
        if not isinstance(value, str):
            raise LeapformerError(f"{self.pattern.at}: {slot[0]} is no text; correct it, or add the form")
        return value


class Grammar:
    """The words and patterns in the YAML files of a folder. Raises LeapformerError where a file is wrong."""

    def __init__(self, folder: Path) -> None:
        sections = _read(folder)
        self._tables, classes = sections["tables"], _keyed(sections["classes"], str(folder), "classes", {}, Entry)
        self._spelling = {language: _rules(sections["spelling"], language) for language in ("en", "de")}
        self._entries: dict[str, tuple[list[str], Any]] = {}  # parameters and content by name
        self._nodes: dict[str, Choices | None] = {}  # by reference; None while it is made
        for section in SECTIONS[len(RULES) :]:
            for heading, content in sections[section].items():
                name, parameters = _split(heading)
                at = getattr(content, "at", sections[section].at)
                if section == "words":
                    kind, rows, at = content
                    content = _words(name, kind, rows, at, classes)
                elif section == "lists":
                    _keyed(content, at, name, {"of": list}, {"only": list, "without": list})
                elif section == "patterns":
                    _keyed(_keyed(content, at, name, {"slots": Entry}, str)["slots"], at, f"slots of {name}", {}, str)
                elif not isinstance(content, str):
                    _keyed(content, at, name, {}, str)
                self._entries[name] = parameters, content
        self.sentences = self.node(SENTENCES, str(folder))
        for phrase in self._examples(self.sentences, {}):
            self.sentence(phrase)

    def sample(self, rng: np.random.Generator) -> Sentence:
        """Draw a sentence as (English transcript, German translation)."""
        return self.sentence(self.sentences.sample(rng))

    def sentence(self, phrase: Phrase) -> Sentence:
        """One of `sentences` as text."""
        german = self.text(phrase, "de")
        return self.text(phrase, "en"), german[:1].upper() + german[1:]

    def text(self, phrase: Entry | Phrase, form: str) -> str:
        """A form as it is written; the names of English forms begin with `en`."""
        raw = phrase.filled(f"{{{form}}}") if isinstance(phrase, Phrase) else phrase[form]
        text = " ".join(raw.split())
        for rule, written in self._spelling["en" if form.startswith("en") else "de"]:
            text = rule.sub(written, text)
        return text

    def node(self, reference: str, at: str = "") -> Choices:
        """The list, choice or pattern `name` or `name(argument, ...)`; `at` is where it is referred to."""
        if reference not in self._nodes:
            self._nodes[reference] = None
            self._nodes[reference] = self._made(reference, at)
        node = self._nodes[reference]
        if node is None:
            raise LeapformerError(f"{at}: {reference!r} contains itself; remove it from what it is made of")
        if not node.size:
            raise LeapformerError(f"{at}: {reference!r} has nothing to choose from; add a word or a branch to it")
        return node

    def _made(self, reference: str, at: str) -> Choices:
        name, arguments = _split(reference)
        if name not in self._entries:
            near = suggestion(name, self._entries)
            raise LeapformerError(f"{at}: no list, choice or pattern is named {name!r}; {near}add it or correct it")
        parameters, content = self._entries[name]
        if len(arguments) != len(parameters):
            wanted = f"{len(parameters)} names in brackets"
            raise LeapformerError(f"{at}: {reference!r} needs {wanted}, not {len(arguments)}; correct them")
        given = dict(zip(parameters, arguments, strict=True))
        at = getattr(content, "at", at)

        def inner(part: str) -> Choices:
            return self.node(re.sub(r"[^(),]+", lambda word: given.get(word[0].strip(), word[0].strip()), part), at)

        if isinstance(content, OneOf):
            return content
        if isinstance(content, str):
            return inner(content)
        if "of" in content:
            return OneOf(self._picked(content, [word for part in content["of"] for word in inner(part)]))
        if "slots" in content:
            forms = {form: text for form, text in content.items() if form != "slots"}
            pattern = Pattern(at, tuple(content["slots"]), forms, self._tables)
            return Combine(pattern, *map(inner, content["slots"].values()))
        return AnyOf(*((_weight(weight, inner(part), at), inner(part)) for part, weight in content.items()))

    def _picked(self, content: Entry, words: list[Any]) -> list[Any]:
        """The words that a list takes of others."""
        if len(content) == 1:
            return words
        by_name = {self.text(word, "en"): word for word in words}
        only, without = content.get("only", list(by_name)), content.get("without", [])
        for name in (*only, *without):
            if name not in by_name:
                near = suggestion(name, by_name)
                raise LeapformerError(
                    f"{content.at}: no word of {content['of']} is {name!r}; {near}correct or remove it"
                )
        return [by_name[name] for name in only if name not in without]

    def _examples(self, node: Choices, known: dict[Choices, list[Any]]) -> list[Any]:
        """A few values in which every branch below the node takes part; tries all forms of the phrases among them."""
        if node in known:
            return known[node]
        if isinstance(node, OneOf):
            values = list({tuple(item) if isinstance(item, Entry) else item.pattern: item for item in node}.values())
        elif isinstance(node, AnyOf):
            values = [value for branch in node.branches for value in self._examples(branch, known)]
        elif isinstance(node, Combine):
            parts = [self._examples(part, known) for part in node.parts]
            count = max(map(len, parts), default=1)
            values = [node.make(*(part[index % len(part)] for part in parts)) for index in range(count)]
            for phrase in values:
                phrase.filled("".join(f"{{{form}}}" for form in phrase.pattern.forms))
        known[node] = values
        return values


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Reads every value as text (`on` too), keeps line numbers, and refuses a key without a value or given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Entry:
        entry = Entry()
        for key, value in node.value:
            name, at = self.construct_object(key, deep), f"{key.start_mark.name}, line {key.start_mark.line + 1}"
            if name in entry:
                raise LeapformerError(f"{at}: {name!r} is given twice; remove or rename one")
            if value.value == "" and not value.style:
                raise LeapformerError(f'{at}: {name!r} has no value; give one (quote braces), or "" for nothing')
            entry[name] = self.construct_object(value, deep)
        entry.at = f"{node.start_mark.name}, line {node.start_mark.line + 1}"
        return entry


def _read(folder: Path) -> dict[str, Entry]:
    """The sections of all files of a folder; `words` has (class, rows, place) by the name of a list."""
    sections: dict[str, Entry] = {section: Entry() for section in SECTIONS}
    for entry in sections.values():
        entry.at = str(folder)
    names: set[tuple[str, str]] = set()
    for path in sorted(folder.glob("*.yaml")):
        try:
            with path.open(encoding="utf-8") as file:
                content = yaml.load(file, _Loader)
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise LeapformerError(f"{path} is no YAML ({' '.join(str(error).split())[:200]}); correct it") from error
        for section, entries in _keyed(content, str(path), "the file", {}, dict.fromkeys(SECTIONS, Entry)).items():
            headed = list(entries.items())
            if section == "words":
                lists = [(kind, _keyed(rows, entries.at, kind, {}, list)) for kind, rows in headed]
                headed = [(name, (kind, rows[name], rows.at)) for kind, rows in lists for name in rows]
            for heading, entry in headed:
                name = section if section in RULES else "list, choice or pattern", _split(heading)[0]
                if name in names:
                    raise LeapformerError(f"{entries.at}: another {name[0]} is named {name[1]!r}; rename one")
                names.add(name)
                sections[section][heading] = entry
            sections[section].at = entries.at
    return sections


def _keyed(entry: Any, at: str, what: str, needs: Mapping[str, type], others: Mapping[str, type] | type) -> Entry:
    """The entry, if it is a mapping of the keys it needs and of others that are known, with values of these types."""
    if not isinstance(entry, Entry):
        raise LeapformerError(f"{at}: {what!r} has no keys; write it as {{key: value}}")
    for key in needs:
        if key not in entry:
            raise LeapformerError(f"{entry.at}: {what!r} lacks {key!r} (it has {', '.join(entry)}); add it")
    known = needs if isinstance(others, type) else {**needs, **others}
    for key, value in entry.items():
        kind = known.get(key, others if isinstance(others, type) else None)
        if kind is None:
            near = suggestion(key, known)
            raise LeapformerError(f"{entry.at}: {what!r} has no key {key!r}; {near}correct it ({', '.join(known)})")
        if not isinstance(value, kind):
            raise LeapformerError(f"{entry.at}: {key!r} of {what!r} is {value!r}; write {WRITTEN[kind.__name__]}")
    return entry


def _words(name: str, kind: str, rows: list[Any], at: str, classes: Entry) -> OneOf:
    """The words of a list, with all forms of their class."""
    if kind not in classes:
        raise LeapformerError(f"{at}: no class is named {kind!r}; {suggestion(kind, classes)}add it or correct it")
    forms = _keyed(classes[kind], classes.at, kind, {"needs": list}, {"else": Entry, "one of": Entry})
    otherwise, words = forms.get("else", {}), []
    for row in rows:
        given = _keyed(row, at, name, dict.fromkeys(forms["needs"], str), dict.fromkeys(otherwise, str))
        word = Entry({**otherwise, **given})
        for form, allowed in forms.get("one of", {}).items():
            if word[form] not in allowed:
                raise LeapformerError(f"{row.at}: {form!r} of {name!r} is {word[form]!r}; give {' or '.join(allowed)}")
        for _ in otherwise:  # a form may be made of others, which are made of others
            for form, text in word.items():
                word[form] = SLOT.sub(lambda slot, word=word: word.get(slot[1], slot[0]), text)  # type: ignore[misc]
        words.append(word)
    return OneOf(words)


def _rules(spelling: Entry, language: str) -> list[tuple[re.Pattern[str], str]]:
    """The spelling rules of a language."""
    rules = _keyed(spelling, spelling.at, "spelling", {"en": Entry, "de": Entry}, {})[language]
    try:
        return [(re.compile(rule), written) for rule, written in _keyed(rules, rules.at, language, {}, str).items()]
    except re.error as error:
        message = f"{rules.at}: {error.pattern!r} is no regular expression ({error}); correct it"
        raise LeapformerError(message) from error


def _split(reference: str) -> tuple[str, list[str]]:
    """`name(first, second(third))` as the name and what the brackets hold."""
    name, _, inner = reference.partition("(")
    parts, depth = [""], 0
    for sign in inner.strip().removesuffix(")"):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return name.strip(), [part.strip() for part in parts if part.strip()]


def _weight(weight: str, node: Choices, at: str) -> float:
    """A number, or the number of choices for the slot of this name."""
    if isinstance(node, Combine) and isinstance(node.make, Pattern) and weight in node.make.slots:
        return node.parts[node.make.slots.index(weight)].size
    if not re.fullmatch(r"(?=.*[1-9])\d+(\.\d+)?", weight):
        raise LeapformerError(f"{at}: {weight!r} is no weight; give a number above 0, or a slot of the pattern")
    return float(weight)
