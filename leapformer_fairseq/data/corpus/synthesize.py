"""Synthesise a plan: `synthesize` starts workers, `python -m leapformer_fairseq.data.corpus.synthesize` is a worker.

A worker is a separate program because espeak-ng is reproducible only in a fresh process (see `espeak`). It takes the
arguments TASK PLAN FOLDER SPEAKERS INDEX: PLAN contains one JSON utterance per line, of which the worker speaks every
SPEAKERS-th from INDEX on; recordings are written below FOLDER as 16-bit wav. The first worker shows its progress on
stderr, as an estimate of that of all.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import soundfile
from tqdm import tqdm

from ... import PLUGIN_DIR
from ...runtime.audio import SAMPLE_RATE
from ...runtime.spoken import PAUSE
from ...support.errors import LeapformerError
from ...support.lines import read_lines
from ..alignments import PHONES, Interval, moved, write_textgrid
from .espeak import Espeak
from .plan import Line, Reading, Utterance

SPEAKERS = 2  # processes that synthesise speech
PEAK = 0.6  # peak of utterances relative to full scale, which leaves room for the noise
GAIN = 0.6  # of readings; a constant keeps espeak-ng's differences in loudness, and leaves room for resampling
EDGE_S = 0.05  # silence before and after a reading


def synthesize(folder: Path, utterances: Sequence[Line], task: str) -> None:
    """Speak the plan in fresh processes, without which espeak-ng is not reproducible.

    Each speaks every SPEAKERS-th utterance, in order. The number of processes is the same on every machine, because
    espeak-ng's output depends on what it spoke before. Raises LeapformerError if a process fails.
    """
    path = folder / "plan.jsonl"
    path.write_text("".join(json.dumps(asdict(u)) + "\n" for u in utterances), encoding="utf-8")
    # Workers must import the same copy of the package, whether it is installed or not.
    search_path = os.pathsep.join(filter(None, [str(PLUGIN_DIR.parent), os.environ.get("PYTHONPATH")]))
    module = f"{__package__}.synthesize"
    worker = [sys.executable, "-m", module, task, str(path), str(folder), str(SPEAKERS)]
    environment = {**os.environ, "PYTHONPATH": search_path}
    with ExitStack() as stack:
        speakers = [stack.enter_context(Popen([*worker, str(i)], env=environment)) for i in range(SPEAKERS)]
        for speaker in speakers:
            stack.callback(speaker.terminate)  # if another one fails, or on Ctrl-C
        for speaker in speakers:
            if speaker.wait():
                raise LeapformerError(f"speech synthesis failed with status {speaker.returncode}; its message is above")


def main(arguments: list[str]) -> int:
    """Speak this worker's lines of the plan; return the exit status."""
    kind, speak = TASKS[arguments[0]]
    plan_path, folder = map(Path, arguments[1:3])
    speakers, index = map(int, arguments[3:])
    lines = list(read_lines(plan_path))[index::speakers]
    espeak = Espeak()
    for line in tqdm(lines, desc="speech", unit="utt", mininterval=1.0, disable=index > 0):
        speak(espeak, kind(**json.loads(line)), folder)
    return 0


def speak_in_noise(espeak: Espeak, utterance: Utterance, folder: Path) -> None:
    """Write the recording of an utterance of the speech translation corpus."""
    speech = espeak.say(utterance.english, utterance.voice, utterance.rate, utterance.pitch)
    write_wav(folder / utterance.wav, with_noise(speech * (PEAK / max(np.abs(speech).max(), 1e-6)), utterance))


def with_noise(speech: np.ndarray, utterance: Utterance) -> np.ndarray:
    """Speech (T,) plus noise of the utterance's colour and signal-to-noise ratio; (T,) float32, clipped to [-1, 1]."""
    noise = coloured_noise(utterance.noise_seed, utterance.noise_colour, len(speech))
    rms = np.sqrt(np.mean(np.square(speech, dtype=np.float64))) * 10 ** (-utterance.snr_db / 20)
    noise *= rms / np.sqrt(np.mean(noise**2))
    return np.clip(speech + noise, -1.0, 1.0).astype(np.float32)


def coloured_noise(seed: int, colour: float, length: int, flat_below: int = 1) -> np.ndarray:
    """Periodic noise with power proportional to 1 / frequency ** colour, (length,) float64.

    Below `flat_below` cycles per `length`, the power is constant.
    """
    from scipy import fft  # bit for bit numpy's result in 0.6 of its time; slow to import, and rarely needed

    spectrum = fft.rfft(np.random.default_rng(seed).standard_normal(length))
    bins = np.maximum(np.arange(len(spectrum)), flat_below)
    return fft.irfft(spectrum * bins ** (-colour / 2), n=length)


def read_aloud(espeak: Espeak, reading: Reading, folder: Path) -> None:
    """Write the recording of a reading, with EDGE_S of silence at both ends, and its phonemes as a TextGrid."""
    speech = espeak.say_with_phonemes(reading.english, reading.voice, reading.rate, reading.pitch)
    spoken = [phoneme for phoneme in speech.phonemes if phoneme.text != PAUSE]
    start, end = spoken[0].start, spoken[-1].end
    edge = np.zeros(round(EDGE_S * SAMPLE_RATE), dtype=np.float32)
    samples = speech.samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
    recording = np.concatenate([edge, GAIN * samples, edge])
    write_wav(folder / reading.wav, recording)
    inner = [phoneme for phoneme in speech.phonemes if start <= phoneme.start < end]
    inner = [phoneme._replace(text=phoneme.text.replace(PAUSE, "")) for phoneme in moved(inner, EDGE_S - start)]
    length = len(recording) / SAMPLE_RATE
    phonemes = [Interval(0.0, EDGE_S, ""), *inner, Interval(inner[-1].end, length, "")]
    path = folder / reading.textgrid
    path.parent.mkdir(parents=True, exist_ok=True)
    write_textgrid(path, {PHONES: phonemes})


def write_wav(path: Path, samples: np.ndarray) -> None:
    """Write samples (T,) in [-1, 1] as 16-bit wav at 16 kHz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(str(path), samples, SAMPLE_RATE, subtype="PCM_16")


TASKS: dict[str, tuple[type[Any], Callable[[Espeak, Any, Path], None]]] = {
    "st": (Utterance, speak_in_noise),
    "tts": (Reading, read_aloud),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
