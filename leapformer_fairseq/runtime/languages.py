"""The tokens by which a model of several languages is told those of a source and of its target."""

from __future__ import annotations

from typing import NamedTuple

from ..support.errors import LeapformerError
from .folder import END, OF_SOURCE, OF_TARGET, Folder


class Marks(NamedTuple):
    """Tokens besides the subwords: `before` and `after` those of a source; a target follows `first`, and begins with
    `begin`.
    """

    before: list[int]
    after: list[int]
    first: int
    begin: list[int]


def marks_of(folder: Folder, source: str | None = None, target: str | None = None) -> Marks:
    """The tokens for a source and a target in these languages; None: those of the folder.

    Raises LeapformerError for languages that the model does not know, or does not take, and for missing ones.
    """
    words, model = folder.vocabularies, folder.multilingual
    if model is None:
        if given := source or target:
            raise LeapformerError(f"language {given}: {folder.path} is not told languages; leave it out")
        end = words["target"].eos
        return Marks([], [words.get("source", words["target"]).eos], end, [])
    symbols = {OF_SOURCE: _symbol(folder, OF_SOURCE, source), OF_TARGET: _symbol(folder, OF_TARGET, target)}

    def tokens(side: str, roles: list[str]) -> list[int]:
        known = words[side]
        return [known.eos if role == END else known.number(symbols[role]) for role in roles]

    (first,) = tokens("target", [model.first])
    return Marks(tokens("source", model.before), tokens("source", model.after), first, tokens("target", model.begin))


def _symbol(folder: Folder, side: str, given: str | None) -> str:
    """The symbol of a language; "" if the model is not told that of this side, and none is given."""
    model = folder.multilingual
    assert model is not None
    language = given or getattr(model, side)
    remedy = f"give one of {', '.join(model.tokens)}"
    if language is None:
        if side not in (*model.before, *model.after, model.first, *model.begin):
            return ""
        raise LeapformerError(f"the {side} language is missing (--{side}-lang): {folder.path} knows several; {remedy}")
    if language not in model.tokens:
        raise LeapformerError(f"--{side}-lang {language}: {folder.path} does not know this language; {remedy}")
    return model.tokens[language]
