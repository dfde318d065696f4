"""The folder of a corpus: complete or absent, reproducible byte by byte, and never overwriting other results."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ...support.files import LOCK, holds_files, owned, write_json
from . import espeak
from .plan import SPLITS, Line, of_split

INFO = "corpus.json"
TASK = "task"  # option of all corpora but those for speech translation, which were there first
SPEECH_TRANSLATION = "st"


@dataclass(frozen=True)
class SplitSummary:
    """The size of a split; `words` counts English words, `word_types` distinct ones."""

    utterances: int
    seconds: float
    words: int
    word_types: int


@dataclass(frozen=True)
class Corpus:
    """A finished corpus: its folder, the sha256 of all recordings and texts, and its size by split."""

    folder: Path
    checksum: str
    splits: dict[str, SplitSummary]


@dataclass(frozen=True)
class Recipe:
    """How a corpus is made and identified.

    `options` distinguish two corpora. `fill(folder, root)` writes everything except `corpus.json` to a folder, with the
    absolute paths that files will have below `root`, and returns its `checksum` and `splits`. `locate(folder, root)`
    writes only the files with absolute paths. `libraries` are those that the bytes depend on.
    """

    options: dict[str, Any]
    fill: Callable[[Path, Path], dict[str, Any]]
    locate: Callable[[Path, Path], None]
    libraries: Sequence[str]


def provide(out: str | Path, recipe: Recipe, overwrite: bool) -> Corpus:
    """Make the corpus in the folder `out`, or return the existing one if it was made with the same options.

    The corpus is built in a folder next to `out` that is renamed at the end, so an interrupted build leaves nothing
    that looks finished. Raises LeapformerError if espeak-ng is missing, or if `out` contains something else.
    """
    out = Path(out).resolve()
    # It is built in this folder, whose owner builds; others wait at the lock, and find what was built.
    with owned(out.with_name(f".{out.name}.partial"), waits=True) as partial:
        return _provide(out, recipe, overwrite, partial)


def _provide(out: Path, recipe: Recipe, overwrite: bool, partial: Path) -> Corpus:
    found = read_info(out)
    if found is not None and found["options"] == recipe.options:
        return reuse(out, found, recipe)
    if found is not None and not overwrite:
        raise LeapformerError(
            f"{out} holds another corpus ({difference(found['options'], recipe.options)}); "
            "choose another --out, or replace it with --overwrite"
        )
    return _make(out, recipe, partial)


def _make(out: Path, recipe: Recipe, partial: Path) -> Corpus:
    espeak.require_loader()
    _clear(partial)
    try:
        contents = recipe.fill(partial, out)
    except LeapformerError:
        _clear(partial)
        raise
    libraries = {name: library_version(name) for name in recipe.libraries}
    info = {"options": recipe.options, "root": str(out), **contents, "libraries": libraries}
    write_info(partial, info)
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    (out / LOCK).unlink()  # not before: whoever waits for it must not take the folder that is renamed
    return summary(out, info)


def _clear(folder: Path) -> None:
    """Delete what is in a folder but its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def read_info(out: Path) -> dict[str, Any] | None:
    """The content of `corpus.json`, None for a new folder; raises LeapformerError for a folder that is not a corpus."""
    path = out / INFO
    if not path.is_file():
        if out.exists() and (not out.is_dir() or holds_files(out)):
            raise LeapformerError(f"{out} exists and is no corpus (no {INFO} in it); choose another --out")
        return None
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        missing = {"options", "root", "checksum", "splits"} - info.keys()
    except (ValueError, AttributeError):
        missing = {"valid JSON"}
    if missing:
        raise LeapformerError(f"{path} lacks {', '.join(sorted(missing))}; remove {out}, or choose another --out")
    return info


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """Write `corpus.json`, which marks a finished corpus."""
    write_json(folder / INFO, info)


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """A description of the differences between two sets of options."""
    found, wanted = ({TASK: SPEECH_TRANSLATION, **options} for options in (found, wanted))
    names = [name for name in wanted if name != "plan_sha256" and found.get(name) != wanted[name]]
    if not names:
        return "from another version of the grammar"
    if TASK in names:
        names = [TASK]  # the rest cannot be compared
    return ", ".join(f"{name} {found.get(name)} there, {wanted[name]} asked for" for name in names)


def reuse(out: Path, info: dict[str, Any], recipe: Recipe) -> Corpus:
    """Return the existing corpus; only absolute paths are updated, in case the folder was moved."""
    if info["root"] != str(out):
        recipe.locate(out, out)
        write_info(out, {**info, "root": str(out)})
    return summary(out, info)


def summary(out: Path, info: dict[str, Any]) -> Corpus:
    """The return value of a build, from the content of `corpus.json`."""
    splits = {split: SplitSummary(**values) for split, values in info["splits"].items()}
    return Corpus(out, info["checksum"], splits)


def contents(
    utterances: Sequence[Line], seconds: Mapping[str, float], records: Iterable[tuple[Sequence[str], Sequence[Path]]]
) -> dict[str, Any]:
    """The return value of `Recipe.fill`: the size by split, from the seconds by id, and the checksum.

    The checksum is the sha256 over all records; each consists of some texts (joined by tabs) and the bytes of some
    files.
    """
    splits = {}
    for split in SPLITS:
        members = of_split(utterances, split)
        words = [word for utterance in members for word in utterance.english.split()]
        total = round(sum(seconds[utterance.id] for utterance in members), 2)
        splits[split] = asdict(SplitSummary(len(members), total, len(words), len(set(words))))
    digest = hashlib.sha256()
    for texts, paths in records:
        digest.update(("\t".join(texts) + "\n").encode())
        for path in paths:
            digest.update(path.read_bytes())
    return {"checksum": digest.hexdigest(), "splits": splits}


def library_version(name: str) -> str:
    """The version of an installed library."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
