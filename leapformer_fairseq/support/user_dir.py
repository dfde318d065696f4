"""A folder of one's own with attention mechanisms (`--user-dir`): its name, for this process and those that it starts.

`leapformer` takes the option from the words of any command and sets the variable. `compat.register` imports the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import PLUGIN_DIR
from .errors import LeapformerError

FLAG, VARIABLE = "--user-dir", "LEAPFORMER_USER_DIR"


def given() -> str:
    """The folder that was given, "" if none was."""
    return os.environ.get(VARIABLE, "")


@contextmanager
def taken(words: Sequence[str]) -> Iterator[list[str]]:
    """The words of a command without --user-dir, whose folder is `given` inside the `with` block.

    A path to this package is not needed and is ignored. Raises LeapformerError for a missing or a second folder, and
    for another copy of this package.
    """
    rest, folders = list[str](), list[str]()
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name != FLAG:
            rest.append(word)
        elif folder := value if equals else next(left, ""):
            folders += [] if _is_ours(folder) else [folder]
        else:
            raise LeapformerError(f"{FLAG} needs a folder, as in {FLAG} my_attention")
    if len({*folders}) > 1:
        raise LeapformerError(f"{FLAG} is given twice, {' and '.join(folders)}; let one folder import the other")
    folder = folders[0] if folders else given()
    # A process that is started may be in another place; what does not exist here may be below fairseq's own folder.
    with _set_to(os.path.abspath(folder) if folder and Path(folder).exists() else folder):
        yield rest


def option() -> list[str]:
    """The words that give the folder of this process to a command of `leapformer`, for commands that are printed."""
    return [FLAG, given()] if given() else []


def typed(program: str, words: Sequence[str]) -> list[str]:
    """A command as it has to be typed to get the folder of this process."""
    if program == "leapformer" or not given():
        return [program, *words, *option()]
    return ["env", f"{VARIABLE}={given()}", program, *words]


@contextmanager
def _set_to(folder: str) -> Iterator[None]:
    before = given()
    try:
        os.environ[VARIABLE] = folder
        yield
    finally:
        os.environ[VARIABLE] = before


def _is_ours(folder: str) -> bool:
    """Whether a path leads to this package. Raises LeapformerError for another copy of it."""
    path = Path(folder)
    # fairseq also looks for a bare name in its own folder, independent of the current one.
    if path.samefile(PLUGIN_DIR) if path.exists() else folder == PLUGIN_DIR.name:
        return True
    if path.name == PLUGIN_DIR.name and path.is_dir():
        raise LeapformerError(
            f"{FLAG} {folder} is a second copy of the plugin, {PLUGIN_DIR} is already in use; leave {FLAG} out, or "
            "give it a folder of your own"
        )
    return False
