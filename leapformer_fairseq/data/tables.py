"""The user's own recordings: one table per split, with tabs (.tsv) or commas (.csv) and column names in the first line.

Columns: `audio`, a path relative to the table or to --audio-root; `text`, the transcript; `translation`, without which
the target is the transcript; and optionally `speaker`, `id`, and `start` and `end` in seconds, which select a segment
of a longer recording. Audio may have any format that libsndfile reads, any sample rate and any number of channels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import sentencepiece

from ..runtime.audio import FRAME_MS, SAMPLE_RATE, AudioError, open_audio
from ..runtime.schedule import STATE_FRAMES, fitting_ratio
from ..support.errors import LeapformerError
from ..support.lines import read_table
from .manifests import read_manifest
from .recordings import Recording, need_file, read_audible
from .speech import FEW_HOURS, SpeechDataset
from .text import tidy

NAME = "speech"
NEEDED, OPTIONAL = ("audio", "text"), ("translation", "speaker", "id", "start", "end")
COLUMNS = (*NEEDED, *OPTIONAL)
VOCAB_SIZE = 1_000
EXPECTED = {  # hours of training speech, below which they are ...; what was measured: docs/own_speech.md
    1.0: "enough to try the commands, not to translate what is new",
    20.0: "enough for a small vocabulary (2.5 h taught ten digits), not for open speech (after 3.7 h, 30 % of the "
    "characters were wrong, and translations had 7 BLEU)",
    float("inf"): "more than we have measured; published are 5 to 11 BLEU from 20 h of open speech, 47 from 150 h; "
    "with hundreds of hours, begin with configs/mustc instead of a tiny model",
}


def dataset(
    tables: Mapping[str, Path], names: Mapping[str, str], audio_root: Path | None, vocab_type: str, transcript_type: str
) -> SpeechDataset:
    """The data set of the `tables`, by split, training split first; `names` maps our columns to those of the tables.

    Raises LeapformerError for a column that is not one of ours.
    """
    for column in names:
        if column not in COLUMNS:
            raise LeapformerError(f"--columns {column}=...: choose from {', '.join(COLUMNS)}")
    # The name is recorded in the prepared folder, which must not be resumed with other tables.
    name = f"{NAME} ({', '.join(f'{split} {path}' for split, path in tables.items())})"
    columns = {column: names.get(column, column) for column in COLUMNS}
    read = cache(partial(_read_split, tables, columns, audio_root))  # read twice: by `kinds_of_audio`, and to prepare
    return SpeechDataset(
        name, tuple(tables), read, read_audible, tidy, vocab_type=vocab_type, transcript_type=transcript_type
    )


def _read_split(
    tables: Mapping[str, Path], names: Mapping[str, str], audio_root: Path | None, _: Path, split: str
) -> list[Recording]:
    """The recordings in a table. Raises LeapformerError with the line of a row that is not valid."""
    table, recordings, seen = tables[split], list[Recording](), dict[str, int]()
    for line, row in _rows(table, names):
        value = {column: (row.get(name) or "").strip() for column, name in names.items()}
        if not value["audio"]:
            raise LeapformerError(f"{table}, line {line}: no {names['audio']}; name the audio file, or delete the line")
        start, duration = _span(table, line, value["start"], value["end"])
        name = value["id"] or f"{split}-line{line:06d}"
        if name in seen:
            raise LeapformerError(f"{table}, line {line}: id {name} is that of line {seen[name]}; give each its own")
        if "/" in name:
            raise LeapformerError(f"{table}, line {line}: id {name} has a slash, but it names files; replace it")
        seen[name] = line
        path = (audio_root or table.parent) / value["audio"]
        if not path.is_file():
            raise LeapformerError(f"{table}, line {line}: no file {path}; correct the path, or give --audio-root")
        target = value["translation"] if names["translation"] in row else value["text"]
        recordings.append(Recording(name, path, value["speaker"] or "speaker", value["text"], target, start, duration))
    return recordings


def _rows(table: Path, names: Mapping[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows. Raises LeapformerError for a file that is not a table, or lacks a needed column."""
    need_file(table)
    needed = {names[column]: f"say which is meant with --columns {column}=NAME" for column in NEEDED}
    return read_table(table, needed)


def _span(table: Path, line: int, start: str, end: str) -> tuple[float, float | None]:
    """Start and duration in seconds; without an end, the duration is None. Raises LeapformerError for other values."""
    try:
        first, last = float(start or 0), float(end) if end else None
    except ValueError:
        raise LeapformerError(f"{table}, line {line}: start {start!r}, end {end!r}; give seconds") from None
    if not 0 <= first < (float("inf") if last is None else last) or last == float("inf"):
        raise LeapformerError(f"{table}, line {line}: start {start or 0}, end {end}; the end comes after the start")
    return first, None if last is None else last - first


def kinds_of_audio(recordings: Sequence[Recording]) -> list[str]:
    """Describe the files that are resampled or mixed down, one line per sample rate and number of channels."""
    counts: Counter[tuple[int, int]] = Counter()
    for path in sorted({recording.path for recording in recordings}):
        try:
            with open_audio(path) as file:
                kind = file.samplerate, file.channels
        except AudioError:
            continue  # `prepare` leaves it out and counts it
        if kind != (SAMPLE_RATE, 1):
            counts[kind] += 1
    return [
        f"{count} files of {rate:,} Hz with {channels} channel{'s' * (channels > 1)} become {SAMPLE_RATE:,} Hz mono"
        for (rate, channels), count in sorted(counts.items())
    ]


@dataclass(frozen=True)
class Measured:
    """Properties of prepared training data: hours, mean seconds per target token, and a suitable pre-decision ratio."""

    hours: float
    token_seconds: float
    ratio: int

    @property
    def step_ms(self) -> int:
        """Milliseconds of speech in a wait-k step with this `ratio`."""
        return self.ratio * STATE_FRAMES * FRAME_MS

    @property
    def batch(self) -> int:
        """Batch size in frames; with a few hours of speech, small batches learn more (docs/own_speech.md)."""
        return 4_000 if self.hours < FEW_HOURS else 40_000

    @property
    def updates(self) -> int:
        """Number of updates: about 60 epochs of a few hours, at least 6,000 updates, or about 40 epochs of more."""
        passes, least = (60, 6_000) if self.hours < FEW_HOURS else (40, 1_500)
        return max(least, round(passes * self.hours * 3_600 * 1_000 / FRAME_MS / self.batch))


def measure(out: Path) -> Measured:
    """Measure the data prepared in `out`. Raises LeapformerError if a file of it is missing."""
    need_file(out / "spm_st.model")
    model = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm_st.model"))
    tokens = frames = 0
    for row in read_manifest(out / "train_st.tsv", "tgt_text", "n_frames"):
        tokens += len(model.encode(row["tgt_text"])) + 1  # the end
        frames += int(row["n_frames"])
    seconds = frames * FRAME_MS / 1000
    return Measured(seconds / 3600, seconds / tokens, fitting_ratio(frames / STATE_FRAMES, tokens))


def advice(out: Path, recipe: str = NAME) -> list[str]:
    """What to expect of the data prepared in `out`, a suitable wait-k step, and the next command of the `recipe`."""
    measured = measure(out)
    expected = next(text for hours, text in EXPECTED.items() if measured.hours < hours)
    # A recipe looks for its prepared data in OUT/data.
    arguments = f"train evaluate --out {out.parent}" if out.name == "data" else "with this data and --out DIR"
    return [
        f"a target token lasts {measured.token_seconds:.2f} s on average: for wait-k, --fixed-pre-decision-ratio "
        f"{measured.ratio} writes one for each {measured.step_ms} ms; a much smaller ratio asks for "
        "words before they are said",
        f"{measured.hours:.1f} h to train on are {expected}",
        f"next, a recogniser, then a wait-k model that begins with its encoder: leapformer recipe {recipe} {arguments}",
    ]
