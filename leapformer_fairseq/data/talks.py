"""Test sets of whole talks, for the evaluation of simultaneous translation: recordings, segments and their texts.

A folder of talks contains `recordings.txt`, the path of one recording per line, absolute or relative to the folder;
`segments.yaml`, one {wav, offset, duration} per line, in seconds, grouped by recording and in order; and
`references.txt` and `transcripts.txt`, the translation and the transcript of each segment. These are the formats of
simulstream, OmniSTEval and `leapformer score --segments`. `talks.json` records how the set was made.

The recordings of published talks are not copied. These are MuST-C (see `speech_releases`) and ACL 60/60 (Salesky et
al., 2023, 2023.iwslt-1.2), in ROOT/2/acl_6060/{dev,eval}/{full_wavs/*.wav,
text/txt/ACL.6060.SPLIT.en-xx.LANGUAGE.txt}. The latter lacks segment times, which IWSLT publishes as a YAML file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..runtime.audio import check_file
from ..support.errors import LeapformerError
from ..support.files import locked_folder, read_json, write_json
from ..support.lines import read_lines, write_lines
from .recordings import Recording, need_file, need_recordings
from .speech_releases import read_segments
from .text import tidy

RECORDINGS, SEGMENTS, REFERENCES, TRANSCRIPTS = "recordings.txt", "segments.yaml", "references.txt", "transcripts.txt"
RECORD, SUMMARY = "talks.json", "summary.json"
ACL_LANGUAGES = ("ar", "de", "fa", "fr", "ja", "nl", "pt", "ru", "tr", "zh")  # of the translations


def prepare(
    out: str | Path, about: Mapping[str, Any], make: Callable[[Path], tuple[list[Recording], dict[str, Any]]]
) -> dict[str, Any]:
    """Make the folder of talks that `about` describes, unless it is finished, and return its summary.

    `make(folder)` returns the segments of the talks, whose recordings it may write to the folder, and additions to the
    summary. Raises LeapformerError as `make` does, and for a folder that contains something else.
    """
    folder = locked_folder(Path(out).absolute(), RECORD, about, "set of talks")
    finished = folder / SUMMARY  # written last
    if finished.is_file():
        return read_json(finished)
    segments, additions = make(folder)
    summary = {**_write(folder, segments), **additions}
    write_json(finished, summary)
    return summary


def read_recordings(folder: str | Path) -> list[Path]:
    """The recordings of a folder of talks.

    Raises LeapformerError for missing files or recordings, and for two recordings with the same name.
    """
    folder = Path(folder)
    for name in (RECORDINGS, SEGMENTS, REFERENCES):
        if not (folder / name).is_file():
            raise LeapformerError(
                f"--talks {folder} has no {name}; make such a folder with `leapformer prepare talks`, `mustc-talks` or "
                "`acl6060`"
            )
    recordings = [folder / line for line in read_lines(folder / RECORDINGS) if line]
    if not recordings:
        raise LeapformerError(f"{folder / RECORDINGS} lists no recording; give one path per line")
    names = set[str]()
    for recording in recordings:
        if not recording.is_file():
            raise LeapformerError(
                f"{folder / RECORDINGS} lists {recording}, which does not exist; prepare the talks again"
            )
        if recording.stem in names:  # logs and scores tell talks apart by this name
            raise LeapformerError(f"{folder / RECORDINGS} lists two recordings {recording.stem}; rename one")
        names.add(recording.stem)
    return recordings


def published(segments: Sequence[Recording], split: str) -> tuple[list[Recording], dict[str, Any]]:
    """Check the segments of published talks and return what `prepare` expects of `make`; nothing is copied.

    Raises LeapformerError for recordings that are missing, not 16 kHz mono, or end before a segment begins.
    """
    need_recordings(segments, split)
    for path, of_talk in _by_talk(segments):
        seconds = check_file(path)
        last = of_talk[-1]
        if last.start >= seconds:
            raise LeapformerError(
                f"{path} ends at {seconds:.2f} s, before segment {last.id} begins ({last.start:.2f} s); is the "
                "file truncated?"
            )
    return list(segments), {}


def read_acl6060(root: Path, split: str, language: str, times: Path) -> list[Recording]:
    """The segments of a split of ACL 60/60, translated into `language`; `times` is the YAML file with segment times.

    Raises LeapformerError for a missing folder or file, and for texts that do not match the segments.
    """
    places = [root / "2" / "acl_6060", root / "acl_6060", root]
    folder = next((place / split for place in places if (place / split / "full_wavs").is_dir()), None)
    if folder is None:
        raise LeapformerError(f"no folder {places[0] / split / 'full_wavs'}; ROOT is where the release was unpacked")
    need_file(times)
    texts = [folder / "text" / "txt" / f"ACL.6060.{split}.en-xx.{name}.txt" for name in ("en", language)]
    return read_segments(folder / "full_wavs", times, *texts)


def _by_talk(segments: Sequence[Recording]) -> list[tuple[Path, list[Recording]]]:
    """Each recording with its segments in order of time; recordings are in the order of their first segments."""
    order = list(dict.fromkeys(segment.path for segment in segments))
    ordered = sorted(segments, key=lambda segment: (order.index(segment.path), segment.start))
    return [(path, list(of_talk)) for path, of_talk in groupby(ordered, key=lambda segment: segment.path)]


def _write(folder: Path, segments: Sequence[Recording]) -> dict[str, Any]:
    """Write the lists of a folder of talks; return numbers of talks and segments, and seconds of audio and segments."""
    talks = _by_talk(segments)
    ordered = [segment for _, of_talk in talks for segment in of_talk]
    entries = [{"wav": each.path.name, "offset": each.start, "duration": each.duration} for each in ordered]
    # JSON is valid YAML, and keeps an entry on one line.
    write_lines(folder / SEGMENTS, (f"- {json.dumps(entry, ensure_ascii=False)}" for entry in entries))
    write_lines(folder / REFERENCES, (tidy(segment.target) for segment in ordered))
    if all(segment.source for segment in ordered):
        write_lines(folder / TRANSCRIPTS, (tidy(segment.source) for segment in ordered))
    paths = [path for path, _ in talks]
    # Relative paths within the folder, which can then be moved.
    write_lines(folder / RECORDINGS, (path.relative_to(folder) if folder in path.parents else path for path in paths))
    return {
        "talks": len(talks),
        "segments": len(ordered),
        "audio_s": sum(map(check_file, paths)),
        "segments_s": sum(segment.duration or 0.0 for segment in ordered),
    }
