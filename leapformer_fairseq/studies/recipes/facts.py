"""What recipes have to know of every attention mechanism, as data: importing the mechanisms themselves takes seconds.

`python -m leapformer_fairseq.studies.recipes.facts` writes facts.json again, after a mechanism has changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...support.errors import LeapformerError
from ...support.files import read_json, write_json
from . import configuration

if TYPE_CHECKING:
    from ...attention import Mask

FILE = Path(__file__).with_name("facts.json")
BLOCKS = ("encoder-self", "decoder-self", "decoder-cross")
# Names of masks.
MASKS = WHOLE, CHUNKS, WAIT, WAIT_CROSS = ("whole", "chunks", "wait-k", "wait-k-cross")


def mask_of(name: str) -> Mask:
    """The mask of this name."""
    from ...attention import ChunkMask, PrefixMask

    return {WHOLE: None, CHUNKS: ChunkMask(), WAIT: PrefixMask(), WAIT_CROSS: PrefixMask(2)}[name]


@cache
def _facts() -> dict[str, Any]:
    return read_json(FILE, ("options", "serves", "settings"), "install the package again")


def are_served(plans: Mapping[str, str], masks: Mapping[str, str], options: Mapping[str, str | None]) -> bool:
    """Whether models can be built with these plans of blocks, masks of these names, and options of the training.

    If not, or if options of mechanisms are not those of one of our configurations, ask `modules.plan.check_plans`: the
    mechanism may be a user's own, and options change what one can do.
    """
    parts = [(block, part.strip()) for block, plan in plans.items() for part in plan.split(",")]
    if _text(options, _facts()["options"]) not in _facts()["settings"]:
        return False
    if not all(re.fullmatch(r"[\w-]+(\*[1-9]\d*)?", part) for _, part in parts):
        return False
    serves = _facts()["serves"]
    return all(masks[block] in serves.get(part.partition("*")[0], {}).get(block, "").split() for block, part in parts)


def _text(options: Mapping[str, str | None], known: Collection[str]) -> str:
    """The options with a name in `known`, as text."""
    return " ".join(f"{name}={value or ''}" for name, value in sorted(options.items()) if name in known)


def collect() -> dict[str, Any]:
    """The facts.

    options:  the names of all options of mechanisms, without leading dashes.
    settings: the options that our configurations give to mechanisms, as text, which change nothing in the following.
    serves:   for each mechanism and block, the masks that it serves there.
    """
    from ...attention import MECHANISMS, OPTIONS
    from ...modules.plan import check_plans

    def served(name: str, options: Mapping[str, str | None]) -> dict[str, str]:
        return {block: " ".join(mask for mask in MASKS if serves(name, block, mask, options)) for block in BLOCKS}

    def serves(name: str, block: str, mask: str, options: Mapping[str, str | None]) -> bool:
        try:
            check_plans({block: name}, options.items(), {block: mask_of(mask)})
        except LeapformerError:
            return False
        return True

    known = {option.flag.removeprefix("--"): option for option in OPTIONS.values()}
    plain = {name: served(name, {}) for name in sorted(MECHANISMS)}
    settings = {"": True}
    for options in _configured():
        ours = {flag: value for flag, value in options.items() if flag in known}
        if (text := _text(ours, known)) not in settings:
            concerned = [name for name in plain if {known[flag] for flag in ours} & {*MECHANISMS[name].options}]
            settings[text] = all(served(name, ours) == plain[name] for name in concerned)
    return {"options": sorted(known), "settings": [text for text, same in settings.items() if same], "serves": plain}


def _configured() -> Iterator[dict[str, str | None]]:
    """The options of trainings in our configurations."""
    for folder in sorted(path for path in configuration.configs().iterdir() if path.is_dir()):
        for paper in configuration.names(folder.name):
            configured = configuration.load(folder.name, paper)
            yield {**configured.get("train", {}), **configured.get("st", {})}


if __name__ == "__main__":
    write_json(FILE, collect())
