"""Signals that resemble speech, and folders of synthesised speech, made of nothing but numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import soundfile

from leapformer_fairseq.runtime.acoustics.mel import MelConfig

RATE = 16_000
COLUMNS = ("id", "text", "audio", "frames", "stopped", "reference", "reference_frames")


def voiced(seconds: float = 0.6, pitch: float = 120.0, rate: int = RATE) -> np.ndarray:
    """Harmonics of a moving pitch below two moving resonances, loud in the middle, (T,).

    The course is the same whatever the duration, so another duration is a time-stretched copy.
    """
    count = int(seconds * rate)
    place = np.arange(count) / count
    tone = pitch * (1 + 0.2 * np.sin(2 * np.pi * place))
    phase = 2 * np.pi * np.cumsum(tone) / rate
    first, second = 400 + 500 * place, 2300 - 1100 * place
    samples = np.zeros(count)
    for harmonic in range(1, int(0.45 * rate / pitch)):
        hertz = harmonic * tone
        resonance = np.exp(-(((hertz - first) / 200) ** 2)) + 0.5 * np.exp(-(((hertz - second) / 400) ** 2))
        samples += (0.02 + resonance) * np.cos(harmonic * phase + harmonic**2) * (hertz < 0.48 * rate)
    return (0.05 * samples * np.sin(np.pi * place) ** 0.5).astype(np.float32)


def write_speech(path: Path, samples: np.ndarray, rate: int = RATE) -> Path:
    """The samples bit by bit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, subtype="FLOAT")
    return path


def write_run(
    folder: Path, spoken: Mapping[str, np.ndarray], recorded: Mapping[str, np.ndarray], mels: MelConfig | None = None
) -> Path:
    """A folder as `leapformer tts` leaves it: sentences by id, of which the last was cut off."""
    mels = mels or MelConfig()
    rows = ["\t".join(COLUMNS)]
    for name, samples in spoken.items():
        write_speech(folder / "wav" / f"{name}.wav", samples, mels.sample_rate)
        recording = write_speech(folder.parent / "recordings" / f"{name}.wav", recorded[name], mels.sample_rate)
        frames, reference_frames = (1 + len(one) // mels.hop_length for one in (samples, recorded[name]))
        stopped = int(name != list(spoken)[-1])
        cells = (name, f"{name} costs $5", f"wav/{name}.wav", frames, stopped, recording, reference_frames)
        rows.append("\t".join(map(str, cells)))
    (folder / "manifest.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    description = {"features": mels.features(), "signature": f"made:{folder.name}", "updates": 7}
    (folder / "run.json").write_text(json.dumps(description), encoding="utf-8")
    return folder
