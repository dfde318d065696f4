"""The basic English inflection that the corpus needs: articles, plurals, verb forms, number words."""

from __future__ import annotations

UNITS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
UNIT_ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
)  # fmt: skip
TEN_ORDINALS = ("twentieth", "thirtieth")


def number(value: int) -> str:
    """1..99 in words: `twenty one`."""
    if value < 20:
        return UNITS[value - 1]
    tens, units = divmod(value, 10)
    return " ".join([TENS[tens - 2], *UNITS[units - 1 : units]] if units else [TENS[tens - 2]])


def ordinal(day: int) -> str:
    """1..31 as a day of the month: `twenty first`."""
    if day < 20:
        return UNIT_ORDINALS[day - 1]
    tens, units = divmod(day, 10)
    return f"{TENS[tens - 2]} {UNIT_ORDINALS[units - 1]}" if units else TEN_ORDINALS[tens - 2]


def with_s(word: str) -> str:
    """The word with the ending of the plural and of the third person: boxes, cherries, boys, goes."""
    if word.endswith(("s", "sh", "ch", "x", "z", "o")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def indefinite(following: str) -> str:
    """`a` or `an` before the given words; the lexicon has no exceptions to the rule by first letter (hour, union)."""
    return f"an {following}" if following[0] in "aeiou" else f"a {following}"
