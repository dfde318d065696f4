"""Light clean-up of transcripts and translations.

Only training text is cleaned. References keep every word and punctuation mark of the release (white space aside), so
that BLEU is comparable with other work; the LeaPformer authors' clean-up also changes the references.
"""

from __future__ import annotations

import re
import unicodedata

_NOTE = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")  # (Applause), [unclear]
_MUSIC = re.compile(r"[♪♫]+")
_QUOTES = re.compile('["“”„‟«»]')
_SPACE_BEFORE_MARK = re.compile(r"\s+(?=[.,])")


def tidy(text: str) -> str:
    """Collapse every run of white space and control characters, line breaks included, into one space.

    >>> tidy("Danke\\u00a0 schön.\\t")
    'Danke schön.'
    """
    spaced = "".join(" " if unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Zs") else letter for letter in text)
    return " ".join(spaced.split())


def without_notes(text: str) -> str:
    """Remove a captioner's notes, which nobody said; a model trained on them writes "(Applause)" for noise.

    >>> without_notes("Thank you. (Applause)")
    'Thank you.'
    """
    return tidy(_SPACE_BEFORE_MARK.sub("", _MUSIC.sub(" ", _NOTE.sub(" ", text))))


def without_quotes(text: str) -> str:
    """Remove double quotation marks, which cannot be heard, and keep apostrophes.

    >>> without_quotes('Il dit : "C\\'est tout."')
    "Il dit : C'est tout."
    """
    return tidy(_QUOTES.sub(" ", text))
