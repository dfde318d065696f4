"""MuST-C English-German (Di Gangi et al., 2019, N19-1202; Cattoni et al., 2021): TED talks cut into segments.

Reads ROOT/en-de/data/{train,dev,tst-COMMON,tst-HE}/{wav/*.wav, txt/SPLIT.{yaml,en,de}}. The YAML file lists the
segments (wav, offset, duration, speaker_id) in the order of the lines of the two texts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from ..support.errors import LeapformerError
from ..support.lines import read_lines
from .recordings import Recording, need_file, read_segment
from .speech import SpeechDataset
from .text import without_notes

PAIR = "en-de"
SOURCE, TARGET = PAIR.split("-")
SPLITS = ("train", "dev", "tst-COMMON", "tst-HE")


def read_split(root: Path, split: str) -> list[Recording]:
    """All segments of a split, in the order of the release's texts.

    Raises LeapformerError that names the missing folder, file, row or field.
    """
    folder = root / PAIR / "data" / split
    if not folder.is_dir():
        raise LeapformerError(f"no folder {folder}; the MuST-C root is the folder that holds {PAIR}/data/{split}")
    texts = [folder / "txt" / f"{split}.{language}" for language in (SOURCE, TARGET)]
    return read_segments(folder / "wav", folder / "txt" / f"{split}.yaml", *texts)


def read_segments(wavs: Path, segments: Path, source: Path, target: Path) -> list[Recording]:
    """The segments of the talks in the folder `wavs`.

    `segments` is a YAML list of {wav, offset, duration}, in seconds, with the optional field speaker_id; `source` and
    `target` have one line for each. Raises LeapformerError that names the missing file, row or field.
    """
    rows, texts = _read_yaml(segments), [_read_lines(path) for path in (source, target)]
    if not len(rows) == len(texts[0]) == len(texts[1]):
        counts = f"{len(rows)} segments, {len(texts[0])} {source.suffix[1:]} and {len(texts[1])} {target.suffix[1:]}"
        raise LeapformerError(f"{target.parent} does not fit together: {counts} lines; download it again")
    seen: Counter[str] = Counter()
    recordings = []
    for number, (row, transcript, translation) in enumerate(zip(rows, *texts, strict=True), 1):
        place = f"{segments.name}, segment {number}"
        wav = wavs / str(_field(row, "wav", place))
        recordings.append(
            Recording(
                id=f"{wav.stem}_{seen[wav.stem]}",
                path=wav,
                speaker=str(row.get("speaker_id", wav.stem)),
                source=transcript,
                target=translation,
                start=_seconds(row, "offset", place),
                duration=_seconds(row, "duration", place),
            )
        )
        seen[wav.stem] += 1
    return recordings


def _read_lines(path: Path) -> list[str]:
    need_file(path)
    return list(read_lines(path))


def _read_yaml(path: Path) -> list[Any]:
    need_file(path)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # fast: the training split has 230,000 segments
    with open(path, encoding="utf-8") as file:
        try:
            segments = yaml.load(file, Loader=loader)
        except yaml.YAMLError as error:
            raise LeapformerError(f"{path} is not YAML ({' '.join(str(error).split())}); download it again") from error
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
