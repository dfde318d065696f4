"""Quechua-Spanish of IWSLT 2023 (a part of Siminchik; Cardenas et al., 2018): 1.67 h to train on, 1.03 h to validate.

ROOT/que_spa_clean/{train,valid}/{wav/*.wav, txt/SPLIT.{yaml,que,spa}}. The recordings of the test split are published
without texts, so results are of the validation split.
"""

from __future__ import annotations

from pathlib import Path

from ..support.errors import LeapformerError
from .mustc import read_segments
from .recordings import Recording, read_segment
from .speech import SpeechDataset
from .text import tidy

NAME = "quechua"
FOLDER = "que_spa_clean"
CALLED = {"train": "train", "dev": "valid"}  # our splits, and what the release calls them


def read_split(root: Path, split: str) -> list[Recording]:
    """All utterances of a split, in the order of the release's texts. Raises LeapformerError with what is missing."""
    name = CALLED[split]
    folder = root / FOLDER / name
    if not folder.is_dir():
        raise LeapformerError(f"no folder {folder}; the Quechua root is the folder that holds {FOLDER}/{name}")
    texts = folder / "txt"
    return read_segments(folder / "wav", texts / f"{name}.yaml", texts / f"{name}.que", texts / f"{name}.spa")


DATASET = SpeechDataset(NAME, tuple(CALLED), read_split, read_segment, tidy, vocab_size=1_000, transcript_type="char")
