"""fairseq reads the options of every command by hydra: the same here, in half of the time, since tests run hundreds."""

from __future__ import annotations

import copy
import inspect
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from hydra._internal import config_repository, utils
from hydra.core.override_parser.overrides_parser import OverridesParser


def compose_quickly() -> None:
    """Leave out what changes no option.

    These are the source code of all callers, of which tests have many; a deep copy of a list that is replaced; and
    parsing the words of an earlier command again.
    """
    utils.inspect = SimpleNamespace(**{**vars(inspect), "stack": partial(inspect.stack, 0)})
    config_repository.copy = SimpleNamespace(deepcopy=copy.copy)
    parse = cache(OverridesParser.create().parse_rule)

    def parsed(self: OverridesParser, words: str, rule: str) -> Any:
        return copy.copy(parse(words, rule))

    OverridesParser.parse_rule = parsed
