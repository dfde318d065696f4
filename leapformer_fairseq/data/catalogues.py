"""Reader of gettext's message catalogues (.po), which pair messages with their translations.

Format: https://www.gnu.org/software/gettext/manual/html_node/PO-Files.html
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
    """An entry of a catalogue; `texts` are its strings by keyword: msgid, msgstr, msgctxt, msgid_plural, msgstr[0].

    It is `damaged` if one of its lines cannot be parsed.
    """

    flags: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    damaged: bool = False


def read_messages(path: Path) -> Iterator[Message]:
    """The messages of a catalogue, without obsolete entries (#~) and without the header, whose msgid is empty.

    Raises LeapformerError if the file is not text.
    """
    return (message for message in _entries(path) if message.texts.get("msgid"))


def _entries(path: Path) -> Iterator[Message]:
    message, keyword = Message(), ""
    for line in map(str.strip, read_lines(path)):
        if not line or line.startswith("#"):
            if message.texts:  # a comment belongs to the message that follows
                yield message
                message, keyword = Message(), ""
            if line.startswith("#,"):
                message.flags.update(flag.strip() for flag in line[2:].split(","))
            continue
        match = _STRING.fullmatch(line)
        if match is None or not (match[1] or keyword):
            message.damaged = True
            continue
        if match[1] in ("msgid", "msgctxt") and "msgid" in message.texts:  # no empty line between two messages
            yield message
            message = Message()
        keyword = match[1] or keyword  # without one, the string continues the previous line's
        text = _ESCAPE.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), match[2])
        message.texts[keyword] = message.texts.get(keyword, "") + text
    yield message
