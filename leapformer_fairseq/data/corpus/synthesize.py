"""The worker that speaks a plan: `python -m leapformer_fairseq.data.corpus.synthesize PLAN FOLDER SPEAKERS INDEX`.

It is a program of its own because espeak-ng repeats itself only in a fresh process (see `espeak`). PLAN holds one JSON
utterance a line, of which this one of SPEAKERS workers speaks every SPEAKERS-th from INDEX on; the recordings go below
FOLDER as 16-bit wav. The first worker shows its progress, and so that of all, on stderr.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import soundfile
from tqdm import tqdm

from ...audio import SAMPLE_RATE
from .espeak import Espeak
from .plan import SPLITS, Utterance

PEAK = 0.6  # of full scale, which leaves room for the noise


def main(arguments: list[str]) -> int:
    """Speak this worker's lines of the plan; returns the exit status."""
    plan_path, folder = map(Path, arguments[:2])
    speakers, index = map(int, arguments[2:])
    lines = plan_path.read_text(encoding="utf-8").splitlines()[index::speakers]
    for split in SPLITS:
        (folder / "wav" / split).mkdir(parents=True, exist_ok=True)
    espeak = Espeak()
    for line in tqdm(lines, desc="speech", unit="utt", mininterval=1.0, disable=index > 0):
        utterance = Utterance(**json.loads(line))
        speech = espeak.say(utterance.english, utterance.voice, utterance.rate, utterance.pitch)
        noisy = with_noise(speech * (PEAK / max(np.abs(speech).max(), 1e-6)), utterance)
        soundfile.write(str(folder / utterance.wav), noisy, SAMPLE_RATE, subtype="PCM_16")
    return 0


def with_noise(speech: np.ndarray, utterance: Utterance) -> np.ndarray:
    """Speech plus noise of the utterance's colour and signal-to-noise ratio; float32, shape (T,), within [-1, 1]."""
    white = np.random.default_rng(utterance.noise_seed).standard_normal(len(speech))
    spectrum = np.fft.rfft(white)
    bins = np.maximum(np.arange(len(spectrum)), 1)
    noise = np.fft.irfft(spectrum * bins ** (-utterance.noise_colour / 2), n=len(speech))
    wanted = np.sqrt(np.mean(np.square(speech, dtype=np.float64))) * 10 ** (-utterance.snr_db / 20)
    noise *= wanted / np.sqrt(np.mean(noise**2))
    return np.clip(speech + noise, -1.0, 1.0).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
