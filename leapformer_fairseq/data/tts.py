"""The input of fairseq's text_to_speech task: manifests with phonemes and their durations, dictionary, configuration.

The formats are those of fairseq's `examples/speech_synthesis`, with log-mels in .npy files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime import espeak as espeak_ng
from ..runtime.acoustics.mel import MelConfig
from ..runtime.audio import SAMPLE_RATE
from ..runtime.spoken import Manifests, Script
from ..support.errors import LeapformerError
from ..support.lines import write_lines
from .alignments import Interval, frame_durations, with_single_pauses
from .manifests import CMVN, read_manifest, write_manifest, write_yaml

CONFIG, VOCABULARY = "config.yaml", "vocab.txt"
COLUMNS = ("id", "audio", "n_frames", "tgt_text", "speaker", "duration", "src_text", "recording")
WINDOW_S, HOP_S = 0.05, 0.0125  # as in Tacotron 2
MAX_HZ = 8000.0


@dataclass(frozen=True)
class Row:
    """An utterance in a manifest: `mel` and `recording` are files below the audio root, `frames` counts log-mel frames.

    `durations` are the numbers of frames of the phonemes; None if there is no alignment.
    """

    id: str
    mel: str
    frames: int
    phonemes: Sequence[str]
    speaker: str
    durations: Sequence[int] | None
    text: str
    recording: str


def mel_config(sample_rate: int = SAMPLE_RATE) -> MelConfig:
    """80 log-mel bins up to 8 kHz, windows of 50 ms and a hop of 12.5 ms, to the nearest sample of the rate (Hz).

    Raises LeapformerError for a sample rate that is too low for 8 kHz.
    """
    if sample_rate < 2 * MAX_HZ:
        raise LeapformerError(f"--sample-rate {sample_rate} has no {MAX_HZ:g} Hz; give at least {2 * MAX_HZ:g}")
    window = round(WINDOW_S * sample_rate)
    return MelConfig(
        sample_rate=sample_rate,
        n_fft=1 << (window - 1).bit_length(),  # the least power of two that holds a window
        win_length=window,
        hop_length=round(HOP_S * sample_rate),
        f_max=MAX_HZ,
    )


def phonemes_with_durations(
    intervals: Sequence[Interval], frames: int, config: MelConfig
) -> tuple[list[str], list[int]]:
    """The phonemes of a recording with pauses merged, and the number of frames of each, `frames` in total.

    The intervals start at 0. Raises LeapformerError if there are more phonemes than frames.
    """
    phonemes = with_single_pauses(intervals)
    durations = frame_durations(phonemes, frames, config.hop_length / config.sample_rate)
    return [phoneme.text for phoneme in phonemes], durations


def write_tts_manifest(path: Path, rows: Sequence[Row]) -> None:
    """Write a manifest for fairseq's text_to_speech task; unless all rows have durations, that column is omitted."""
    aligned = all(row.durations is not None for row in rows)
    fields = (
        (row.id, row.mel, str(row.frames), " ".join(row.phonemes), row.speaker)
        + ((" ".join(map(str, row.durations or ())),) if aligned else ())
        + (row.text, row.recording)
        for row in rows
    )
    write_manifest(path, fields, [column for column in COLUMNS if aligned or column != "duration"])


def write_vocabulary(path: Path, rows: Iterable[Row]) -> None:
    """Write fairseq's dictionary of the phonemes in `rows`, most frequent first."""
    counts = Counter(phoneme for row in rows for phoneme in row.phonemes)
    # Equal counts are sorted by name, so that the same data always gives the same dictionary.
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    write_lines(path, (f"{phoneme} {count}" for phoneme, count in ordered))


def scripts_of(manifests: Manifests, subset: str, speakers: Mapping[str, int] | None = None) -> list[Script]:
    """The sentences of a manifest, in order; `speakers` are the indices of the model's speakers, by name.

    Raises LeapformerError for a missing manifest, and with the line of a row that is not valid.
    """
    manifest = manifests.folder / f"{subset}.tsv"
    if not manifest.is_file():
        raise LeapformerError(f"there is no manifest {manifest}; choose another --subset or --data")
    scripts = dict[str, Script]()
    rows = read_manifest(manifest, "id", "tgt_text", "n_frames")
    for number, row in enumerate(rows, 2):  # line 1 holds the names of the columns
        try:
            name, phonemes, frames = row["id"], row["tgt_text"], int(row["n_frames"])
        except (KeyError, TypeError, ValueError) as error:
            raise LeapformerError(
                f"{manifest}, line {number}: id, tgt_text or n_frames is missing or wrong ({error}); correct the row"
            ) from None
        if name in scripts or Path(name).name != name:
            raise LeapformerError(
                f"{manifest}, line {number}: id {name!r} cannot name its files; give it a unique name without a slash"
            )
        spoken_by = row.get("speaker") or ""
        if speakers is not None and spoken_by not in speakers:
            raise LeapformerError(
                f"{manifest}, line {number}: the model does not know the speaker {spoken_by!r}; take one of its data"
            )
        scripts[name] = Script(
            id=name,
            phonemes=phonemes,
            text=" ".join((row.get("src_text") or phonemes).split()),
            speaker=0 if speakers is None else speakers[spoken_by],
            recording=manifests.root / row["recording"] if row.get("recording") else None,
            frames=frames,
        )
    return list(scripts.values())


def write_tts_config(path: Path, config: MelConfig, espeak: Mapping[str, Any] | None) -> None:
    """Write fairseq's data configuration for the data beside it, with global CMVN.

    Paths are relative, as in `manifests.write_config`. If espeak-ng made the phonemes, `espeak` has the `voice` and
    whether there is `silence` around each text.
    """
    write_yaml(
        path,
        {
            **({} if espeak is None else {espeak_ng.CONFIG: dict(espeak)}),
            "audio_root": ".",
            "vocab_filename": VOCABULARY,
            "sample_rate": config.sample_rate,
            "features": config.features(),
            "global_cmvn": {"stats_npz_path": CMVN},
            "feature_transforms": {"*": ["global_cmvn"]},
        },
    )
