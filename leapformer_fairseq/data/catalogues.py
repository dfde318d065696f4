"""Message catalogues of gettext (.po): pairs of messages and their translations.

https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..support.lines import read_lines

_STRING = re.compile(r'(?:(msgctxt|msgid|msgid_plural|msgstr|msgstr\[\d+\])\s+)?"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass
class Message:
    """An entry of a catalogue. `texts` has its strings by keyword: msgid, msgstr, msgctxt, msgid_plural, msgstr[0].

    `damaged`: a line of it cannot be read.
    """

    flags: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    damaged: bool = False


def read_messages(path: Path) -> Iterator[Message]:
    """The messages of a catalogue, without its header, whose msgid is empty; obsolete entries (#~) are comments.

    Raises LeapformerError for a file that is no text.
    """
    return (message for message in _entries(path) if message.texts.get("msgid"))


def _entries(path: Path) -> Iterator[Message]:
    message, keyword = Message(), ""
    for line in map(str.strip, read_lines(path)):
        if not line or line.startswith("#"):
            if message.texts:  # comments stand before their message
                yield message
                message, keyword = Message(), ""
            if line.startswith("#,"):
                message.flags.update(flag.strip() for flag in line[2:].split(","))
            continue
        found = _STRING.fullmatch(line)
        if found is None or not (found[1] or keyword):
            message.damaged = True
            continue
        if found[1] in ("msgid", "msgctxt") and "msgid" in message.texts:  # no empty line between two messages
            yield message
            message = Message()
        keyword = found[1] or keyword
        text = _ESCAPE.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), found[2])
        message.texts[keyword] = message.texts.get(keyword, "") + text
    yield message
