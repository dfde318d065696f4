"""The text translation corpus: sentences of the speech corpus with their translations, as plain parallel text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ...support.lines import write_lines
from .. import prepared
from .plan import MAX_UTTERANCES, SEED, SPLITS, check, drawn_splits

NAME = "text"
SIZES: Mapping[str, int] = {"train": 10_000, "dev": 500, "test": 500}
FILES = {"train": "train", "dev": "valid", "test": "test"}  # split -> name before the language, as recipes read it


def build(out: str | Path, sizes: Mapping[str, int] = SIZES, seed: int = SEED) -> prepared.Summary:
    """Write {train,valid,test}.{en,de} to the folder `out`, or reuse them; no English sentence occurs twice.

    Returns the sizes and the SHA-256 of all lines: the same options give the same bytes. Raises LeapformerError for
    impossible options, and an `out` with other files.
    """
    check(sizes, seed, MAX_UTTERANCES)
    options = {"corpus": NAME, **sizes, "seed": seed}
    out = Path(out)
    if (summary := prepared.begin(out, options)) is not None:
        return summary
    sentences, digest = drawn_splits(sizes, seed), hashlib.sha256()
    for split in SPLITS:
        pairs = [pair for part, _, pair in sentences if part == split]
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            write_lines(out / f"{FILES[split]}.{language}", lines)
            digest.update("".join(f"{line}\n" for line in lines).encode())
    summary = {"splits": dict(sizes), "checksum": digest.hexdigest()}
    prepared.finish(out, options, summary)
    return summary
