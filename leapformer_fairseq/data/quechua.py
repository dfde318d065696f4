"""Quechua-Spanish of IWSLT 2023, a part of Siminchik (Cardenas et al., 2018): 1.67 h of training, 1.03 h of validation.

Reads ROOT/que_spa_clean/{train,valid}/{wav/*.wav, txt/SPLIT.{yaml,que,spa}}. The test split is published without texts,
so results are those of the validation split.
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
RELEASED_AS = {"train": "train", "dev": "valid"}  # our splits -> their names in the release


def read_split(root: Path, split: str) -> list[Recording]:
    """All utterances of a split, in the order of the release's texts.

    Raises LeapformerError that names the missing folder, file, row or field.
    """
    name = RELEASED_AS[split]
    folder = root / FOLDER / name
    if not folder.is_dir():
        raise LeapformerError(f"no folder {folder}; the Quechua root is the folder that holds {FOLDER}/{name}")
    texts = folder / "txt"
    return read_segments(folder / "wav", texts / f"{name}.yaml", texts / f"{name}.que", texts / f"{name}.spa")


# Transcripts in characters: in a few hours of speech, most subwords occur too rarely (docs/own_speech.md).
DATASET = SpeechDataset(
    NAME, tuple(RELEASED_AS), read_split, read_segment, tidy, vocab_size=1_000, transcript_type="char"
)
