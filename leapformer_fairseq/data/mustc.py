"""MuST-C English-German (Di Gangi et al., 2019, N19-1202; Cattoni et al., 2021): TED talks cut into segments.

ROOT/en-de/data/{train,dev,tst-COMMON,tst-HE}/{wav/*.wav, txt/SPLIT.{yaml,en,de}}: the yaml lists the segments (wav,
offset, duration, speaker_id) in the order of the lines of the two texts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from ..errors import LeapformerError
from .recordings import Recording, need_file, read_segment
from .speech import SpeechDataset
from .text import without_notes

PAIR = "en-de"
SOURCE, TARGET = PAIR.split("-")
SPLITS = ("train", "dev", "tst-COMMON", "tst-HE")


def read_split(root: Path, split: str) -> list[Recording]:
    """All segments of a split in the order of the release's texts.

    Raises LeapformerError naming the folder, file, row or field that is missing.
    """
    folder = root / PAIR / "data" / split
    if not folder.is_dir():
        raise LeapformerError(f"no folder {folder}; the MuST-C root is the folder that holds {PAIR}/data/{split}")
    texts = [_read_lines(folder / "txt" / f"{split}.{language}") for language in (SOURCE, TARGET)]
    segments = _read_yaml(folder / "txt" / f"{split}.yaml")
    if not len(segments) == len(texts[0]) == len(texts[1]):
        counts = f"{len(segments)} segments, {len(texts[0])} {SOURCE} and {len(texts[1])} {TARGET} lines"
        raise LeapformerError(f"{folder / 'txt'} does not fit together: {counts}; download it again")
    seen: Counter[str] = Counter()
    recordings = []
    for row, (segment, source, target) in enumerate(zip(segments, *texts, strict=True), 1):
        place = f"{split}.yaml, segment {row}"
        wav = folder / "wav" / str(_field(segment, "wav", place))
        recordings.append(
            Recording(
                id=f"{wav.stem}_{seen[wav.stem]}",
                path=wav,
                speaker=str(_field(segment, "speaker_id", place)),
                source=source,
                target=target,
                start=_seconds(segment, "offset", place),
                duration=_seconds(segment, "duration", place),
            )
        )
        seen[wav.stem] += 1
    return recordings


def _read_lines(path: Path) -> list[str]:
    need_file(path)
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _read_yaml(path: Path) -> list[Any]:
    need_file(path)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the training split has 230,000 segments
    with open(path, encoding="utf-8") as file:
        try:
            segments = yaml.load(file, Loader=loader)
        except yaml.YAMLError as error:
            raise LeapformerError(f"{path} is no yaml ({' '.join(str(error).split())}); download it again") from error
    if not isinstance(segments, list):
        raise LeapformerError(f"{path} holds no list of segments; download it again")
    return segments


def _field(segment: Any, name: str, place: str) -> Any:
    if not isinstance(segment, dict) or name not in segment:
        raise LeapformerError(f"{place} has no {name!r}; download the file again")
    return segment[name]


def _seconds(segment: Any, name: str, place: str) -> float:
    value = _field(segment, name, place)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise LeapformerError(f"{place}: {name} is {value!r}, a number of seconds is needed") from error


DATASET = SpeechDataset("mustc", SPLITS, read_split, read_segment, without_notes)
