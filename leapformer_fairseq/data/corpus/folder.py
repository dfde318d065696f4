"""The folder of a corpus: complete or absent, reproducible byte for byte, and never written over other results."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...support.errors import LeapformerError
from ...support.files import LOCK, holds_files, owned, write_json
from ...support.signature import version_of
from . import espeak
from .plan import SPLITS, Line, of_split

INFO = "corpus.json"
TASK = "task"  # option of all corpora except speech translation, whose older folders lack it
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

    `options` tell corpora apart. `fill(folder, root)` writes everything except `corpus.json` to a folder, with the
    absolute paths that files will have below `root`, and returns its `checksum` and `splits`. `locate(folder, root)`
    rewrites only the files with absolute paths. `libraries` are those that the bytes depend on.
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
    # The process that locks the temporary folder builds; others wait for the lock, and then reuse the corpus.
    with owned(out.with_name(f".{out.name}.partial"), waits=True) as partial:
        info = read_info(out)
        if info is None or (info["options"] != recipe.options and overwrite):
            info = _make(out, recipe, partial)
        elif info["options"] != recipe.options:
            raise LeapformerError(
                f"{out} holds another corpus ({difference(info['options'], recipe.options)}); "
                "choose another --out, or replace it with --overwrite"
            )
        elif info["root"] != str(out):  # the folder was moved
            recipe.locate(out, out)
            info["root"] = str(out)
            write_json(out / INFO, info)
    splits = {split: SplitSummary(**values) for split, values in info["splits"].items()}
    return Corpus(out, info["checksum"], splits)


def _make(out: Path, recipe: Recipe, partial: Path) -> dict[str, Any]:
    """Make the corpus in the folder `partial`, rename that to `out`, and return the content of `corpus.json`."""
    espeak.require_loader()
    _clear(partial)
    try:
        contents = recipe.fill(partial, out)
    except LeapformerError:
        _clear(partial)
        raise
    libraries = {name: version_of(name) or "unknown" for name in recipe.libraries}
    info = {"options": recipe.options, "root": str(out), **contents, "libraries": libraries}
    write_json(partial / INFO, info)  # marks the corpus as finished
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    (out / LOCK).unlink()  # after the renaming, lest a waiting process acquire the folder that is about to be renamed
    return info


def _clear(folder: Path) -> None:
    """Delete everything in a folder except its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def read_info(out: Path) -> dict[str, Any] | None:
    """The content of `corpus.json`, or None for a new folder. Raises LeapformerError if the folder is not a corpus."""
    path = out / INFO
    if not path.is_file():
        if out.exists() and (not out.is_dir() or holds_files(out)):
            raise LeapformerError(f"{out} exists and is not a corpus (no {INFO} in it); choose another --out")
        return None
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        missing = {"options", "root", "checksum", "splits"} - info.keys()
    except (ValueError, AttributeError):
        missing = {"valid JSON"}
    if missing:
        raise LeapformerError(f"{path} lacks {', '.join(sorted(missing))}; remove {out}, or choose another --out")
    return info


def difference(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """Describe the differences between the options of an existing and of a requested corpus."""
    existing, requested = ({TASK: SPEECH_TRANSLATION, **options} for options in (existing, requested))
    names = [name for name in requested if name != "plan_sha256" and existing.get(name) != requested[name]]
    if not names:
        return "from another version of the grammar"
    if TASK in names:
        names = [TASK]  # the options of different tasks cannot be compared
    return ", ".join(f"{name} {existing.get(name)} there, {requested[name]} asked for" for name in names)


def contents(
    utterances: Sequence[Line], seconds: Mapping[str, float], records: Iterable[tuple[Sequence[str], Sequence[Path]]]
) -> dict[str, Any]:
    """The return value of `Recipe.fill`: checksum, and sizes by split; `seconds` are by utterance id.

    The checksum is the SHA-256 over all records, each consisting of texts (joined by tabs) and the bytes of files.
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
