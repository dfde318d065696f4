"""Reading speech and computing log-mel filterbanks, whole or while the audio arrives.

Everything here follows Kaldi's filterbank as fairseq uses it (25 ms windows every 10 ms, povey window, pre-emphasis
0.97, no dither, samples at 16-bit integer scale). `kaldi-native-fbank` computes both the offline and the online form,
so a model sees while streaming what it saw in training. No import of fairseq or torchaudio.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import kaldi_native_fbank as knf
import numpy as np
import soundfile

from .errors import LeapformerError

SAMPLE_RATE = 16_000
FRAME_MS = 10  # hop between two filterbank frames
WINDOW_MS = 25
STATE_MS = 40  # of an encoder state: four frames
INT16_SCALE = 2.0**15  # [-1, 1] samples times this are at the scale that fairseq's features are computed on
MAX_AMPLITUDE = 8.0  # loud floats may pass 1 a little; 16-bit integers pass this at the first sound
PCM_BYTES = 3_200  # 100 ms, at most so much is read at once
FILE_MARKS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"FORM")  # what audio files begin with


def read_speech(path: str | Path, sample_rate: int = SAMPLE_RATE) -> np.ndarray:
    """Samples in [-1, 1], shape (T,), of a mono recording at `sample_rate`.

    Raises LeapformerError when the file is missing, unreadable, empty, not mono, has another rate, or samples that are
    no numbers or far beyond [-1, 1].
    """
    with _opened(path, sample_rate) as file:
        samples = file.read(dtype="float32")
    check_samples(samples, str(path))
    return samples


def read_blocks(path: str | Path, size: int, sample_rate: int = SAMPLE_RATE) -> Iterator[np.ndarray]:
    """Samples of a mono recording of any length, `size` at a time, (size,) and at the end what is left.

    Raises LeapformerError as `read_speech` does, for samples when it comes to them.
    """
    done = 0
    with _opened(path, sample_rate) as file:
        while len(block := file.read(size, dtype="float32")):
            check_samples(block, f"{path}, at {done / sample_rate:.1f} s,")
            yield block
            done += len(block)


def read_pcm(file: BufferedReader, name: str) -> Iterator[np.ndarray]:
    """Samples in [-1, 1], (T,), of raw 16-bit little-endian mono PCM as they arrive.

    Half a sample at the end is left out. Raises LeapformerError for input that begins as an audio file does.
    """
    odd = b""
    first = True
    while data := file.read1(PCM_BYTES):
        if first and data.startswith(FILE_MARKS):
            raise LeapformerError(
                f"{name} begins with {data[:4].decode('latin-1')}, raw PCM is needed; give the file by its name, or "
                f"`sox in.wav -t raw -r {SAMPLE_RATE} -c 1 -e signed -b 16 -`"
            )
        first, data = False, odd + data
        whole = len(data) - len(data) % 2
        odd = data[whole:]
        yield pcm_samples(data[:whole])


def pcm_samples(data: bytes) -> np.ndarray:
    """Samples in [-1, 1] of raw 16-bit little-endian mono PCM, (T,)."""
    return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(INT16_SCALE)


@contextmanager
def _opened(path: str | Path, sample_rate: int) -> Iterator[soundfile.SoundFile]:
    """A mono recording with samples in it."""
    path = Path(path)
    if not path.is_file():
        raise LeapformerError(f"no audio file at {path}; check the path, the manifest or the --audio root")
    try:
        with soundfile.SoundFile(str(path)) as file:
            check_speech(file.channels, file.samplerate, str(path), sample_rate)
            if not file.frames:
                raise LeapformerError(f"{path} holds no samples; remove it from the list")
            yield file
    except (soundfile.LibsndfileError, TypeError) as error:  # TypeError: raw samples, of which it must be told all
        raise LeapformerError(f"{path} cannot be read as audio ({error}); is the file truncated?") from error


def check_samples(samples: np.ndarray, name: str) -> None:
    """Refuse samples that are no numbers, or beyond any clipping: 16-bit integers taken for floats, say."""
    if samples.size and not np.abs(samples).max() <= MAX_AMPLITUDE:  # also when it is not a number
        raise LeapformerError(f"{name} has samples of {np.abs(samples).max():g}; they must be floats in [-1, 1]")


def check_speech(channels: int, rate: int, name: str, sample_rate: int = SAMPLE_RATE) -> None:
    """Refuse audio that the features were not made for; a wrong rate or channel would give useless output silently."""
    if channels != 1:
        raise LeapformerError(
            f"{name} has {channels} channels, mono is needed; mix it down, e.g. `sox in.wav -c 1 out.wav`"
        )
    if rate != sample_rate:
        raise LeapformerError(
            f"{name} is sampled at {rate} Hz, {sample_rate} Hz is needed; "
            f"resample it, e.g. `sox in.wav -r {sample_rate} out.wav`"
        )


class OnlineFbank:
    """Filterbank frames of audio that arrives piece by piece; every frame is computed once.

    `push` takes samples in [-1, 1] and returns the frames they completed, shape (n, n_bins), n may be 0. Any cutting of
    the audio gives the frames of `fbank` on the whole (no frame is padded: the last incomplete window is dropped).
    """

    def __init__(self, sample_rate: int = SAMPLE_RATE, n_bins: int = 80) -> None:
        options = knf.FbankOptions()
        options.frame_opts.samp_freq = float(sample_rate)
        options.frame_opts.dither = 0.0
        options.frame_opts.snip_edges = True
        options.mel_opts.num_bins = n_bins
        self.sample_rate, self.n_bins = sample_rate, n_bins
        self._fbank = knf.OnlineFbank(options)
        self._done = 0
        self._tail = np.empty(0, np.float32)  # samples of frames to come

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take in samples, (T,), and return the frames they completed, (n, n_bins)."""
        if len(samples):
            scaled = np.asarray(samples, dtype=np.float32) * np.float32(INT16_SCALE)
            self._fbank.accept_waveform(float(self.sample_rate), scaled.tolist())
        ready = self._fbank.num_frames_ready
        frames = np.empty((ready - self._done, self.n_bins), dtype=np.float32)
        for row, index in enumerate(range(self._done, ready)):
            frames[row] = self._fbank.get_frame(index)
        self._fbank.pop(ready - self._done)
        self._tail = np.concatenate([self._tail, samples])[len(frames) * self.sample_rate * FRAME_MS // 1000 :]
        self._done = ready
        return frames

    def fork(self) -> OnlineFbank:
        """An independent copy: of what was heard, only the samples of frames to come matter."""
        other = OnlineFbank(self.sample_rate, self.n_bins)
        other.push(self._tail)
        return other


def fbank(samples: np.ndarray, sample_rate: int = SAMPLE_RATE, n_bins: int = 80) -> np.ndarray:
    """Log-mel filterbank, (frames, n_bins), of a whole recording with samples in [-1, 1], shape (T,)."""
    return OnlineFbank(sample_rate, n_bins).push(samples)
