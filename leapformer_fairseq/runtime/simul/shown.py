"""How the events of a session change a display: tokens that appear, and tokens of a draft that are taken back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..formats.streamlog import WORD_START
from .session import Event


class Change(NamedTuple):
    """Remove the `deleted` tokens from the end of the display, then append the `new` ones.

    A token is a word with `WORD_START` before it or, if the unit is a character, a character, with `WORD_START` for a
    space. `at_start`: nothing is displayed before them.
    """

    new: tuple[str, ...]
    deleted: tuple[str, ...]
    at_start: bool

    @property
    def strings(self) -> tuple[str, str]:
        """Both as text."""
        new, deleted = (text_of(tokens) for tokens in (self.new, self.deleted))
        return (new.removeprefix(" "), deleted.removeprefix(" ")) if self.at_start else (new, deleted)


class Shown:
    """Final words stay; a draft follows them until the next event takes it back.

    Tokens of a draft that do not change are neither deleted nor new.
    """

    def __init__(self, unit: str) -> None:
        """`unit`: "word" or "char", as in `DecodingOptions`."""
        self.unit = unit
        self._n_final = 0
        self._draft: list[str] = []

    def changed(self, events: Iterable[Event], ends: bool = False) -> Change:
        """The change made by these events. `ends`: no draft remains after the final words."""
        added, draft = list[str](), self._draft
        for event in events:
            tokens = self._tokens(event.text)
            added, draft = (added + tokens, []) if event.final else (added, tokens)
        draft = [] if ends else draft
        shown, now = self._draft, added + draft
        same = 0
        while same < min(len(shown), len(now)) and shown[same] == now[same]:
            same += 1
        at_start = not self._n_final + same
        self._n_final, self._draft = self._n_final + len(added), draft
        return Change(tuple(now[same:]), tuple(shown[same:]), at_start)

    def _tokens(self, text: str) -> list[str]:
        if self.unit == "char":
            return list(text.replace(" ", WORD_START))
        return [WORD_START + word for word in text.split()]


def text_of(tokens: Iterable[str]) -> str:
    """Tokens as text that continues the display, with the space before a word."""
    return "".join(tokens).replace(WORD_START, " ")
