"""Talks made of single sentences: recordings joined with pauses, without pauses, or with overlaps, optionally in noise.

They test long-form translation where no real talks are available. A talk is written while it is joined: only one
sentence, and the part of its end that the next one may overlap, are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from ..runtime.audio import INT16_SCALE, SAMPLE_RATE, read_speech
from ..support.errors import LeapformerError
from ..support.files import replacing
from ..support.lines import read_lines
from .corpus.synthesize import coloured_noise
from .manifests import read_manifest
from .recordings import Recording, need_file

FRAME = SAMPLE_RATE // 100
EDGE_DB, EDGE_FRAMES = 25.0, 3  # silence at an edge is so much quieter than the loudest 10 ms, but for the last 30 ms
PINK, FLAT_BELOW_HZ = 1.0, 50
NOISE_PERIOD = 2**20  # samples, 66 s, then it is repeated


@dataclass(frozen=True)
class Joining:
    """How sentences are joined: the number of `talks`, and the least `minutes` of each.

    `gap_s`: minimum and maximum seconds between two sentences; below 0 they overlap, by at most half of the shorter.
    `snr_db`: level of the talk's speech above the noise that runs through it, in decibels; None for no noise.
    """

    talks: int = 4
    minutes: float = 5.0
    gap_s: tuple[float, float] = (0.3, 1.5)
    snr_db: float | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if self.talks < 1:
            raise LeapformerError(f"--talks {self.talks}: give at least 1")
        if not 0 < self.minutes < float("inf"):
            raise LeapformerError(f"--minutes {self.minutes:g}: give a length above 0")
        if not -float("inf") < self.gap_s[0] <= self.gap_s[1] < float("inf"):
            raise LeapformerError(f"--gap-s {self.gap_s[0]:g} {self.gap_s[1]:g} is no range; give the lower one first")
        if self.snr_db is not None and not np.isfinite(self.snr_db):
            raise LeapformerError(f"--snr-db {self.snr_db}: give decibels, or leave it out for no noise")
        if self.seed < 0:
            raise LeapformerError(f"--seed {self.seed}: give 0 or more")

    @property
    def about(self) -> dict[str, Any]:
        return {**asdict(self), "gap_s": list(self.gap_s)}


@dataclass(frozen=True)
class Placed:
    """A sentence in a talk: its samples from `first` to `last` begin at sample `start` of the talk."""

    sentence: Recording
    first: int
    last: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.last - self.first

    def samples(self) -> np.ndarray:
        return read_speech(self.sentence.path)[self.first : self.last]


def read_sentences(root: Path, split: str) -> list[Recording]:
    """The sentences of a split in `root`, as `leapformer corpus` or `leapformer prepare` wrote them.

    Raises LeapformerError if a file is missing or the lists do not match.
    """
    paths, targets = (root / f"{split}.{part}" for part in ("source", "target"))
    for path in (paths, targets):
        need_file(path)
    recordings, references = (list(read_lines(path)) for path in (paths, targets))
    manifest = root / f"{split}_asr.tsv"
    rows = read_manifest(manifest, "tgt_text") if manifest.is_file() else [{"tgt_text": ""} for _ in recordings]
    spoken = [row["tgt_text"] for row in rows]
    if not len(recordings) == len(references) == len(spoken) > 0:
        counts = f"{len(recordings)} recordings, {len(references)} references, {len(spoken)} transcripts"
        raise LeapformerError(f"split {split} of {root} does not fit together: {counts}; prepare it again")
    found = zip(recordings, references, spoken, strict=True)
    return [Recording(Path(path).stem, Path(path), "", said, wanted) for path, wanted, said in found]


def join(sentences: Sequence[Recording], joining: Joining, folder: Path) -> tuple[list[Recording], dict[str, Any]]:
    """Write the talks to `folder`/wav; return their segments and what `talks.prepare` adds to its summary.

    Every sentence is used once before any is repeated. Raises LeapformerError for unreadable recordings.
    """
    (folder / "wav").mkdir(exist_ok=True)
    order = _endless(len(sentences), np.random.default_rng([joining.seed, 0]))
    digest, clipped, segments, different = hashlib.sha256(), 0, list[Recording](), set[Path]()
    for number in range(joining.talks):
        rng = np.random.default_rng([joining.seed, 1, number])
        path = folder / "wav" / f"talk{number + 1:0{len(str(joining.talks))}}.wav"
        placed, power = _place((sentences[index] for index in order), joining, rng)
        noise = None
        if joining.snr_db is not None:
            flat_below = FLAT_BELOW_HZ * NOISE_PERIOD // SAMPLE_RATE
            noise = coloured_noise(int(rng.integers(2**31)), PINK, NOISE_PERIOD, flat_below)
            noise *= np.sqrt(power / np.mean(noise**2)) * 10 ** (-joining.snr_db / 20)
        with (
            replacing(path) as partial,
            soundfile.SoundFile(str(partial), "w", SAMPLE_RATE, 1, "PCM_16", format="WAV") as file,
        ):
            for block in mixed(placed, noise):
                scaled = np.rint(block * INT16_SCALE)
                whole = np.clip(scaled, -INT16_SCALE, INT16_SCALE - 1).astype("<i2")
                clipped += int(np.count_nonzero(whole != scaled))
                digest.update(whole.tobytes())
                file.write(whole)
        segments += [_segment(one, path, rank) for rank, one in enumerate(placed)]
        different |= {one.sentence.path for one in placed}
    for one in segments:
        digest.update(f"{one.start}\t{one.duration}\t{one.source}\t{one.target}\n".encode())
    return segments, {"sentences": len(different), "clipped_samples": clipped, "checksum": digest.hexdigest()}


def mixed(placed: Sequence[Placed], noise: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """The samples of a talk, float64, in blocks; `noise` is repeated throughout the talk."""
    begin, waiting = 0, np.zeros(0)  # the talk from sample `begin` on, which later sentences may still add to
    for one in placed:
        if one.start > begin:
            ready = np.zeros(one.start - begin)
            ready[: len(waiting)] = waiting[: len(ready)]
            yield _over(noise, ready, begin)
            begin, waiting = one.start, waiting[len(ready) :]
        samples = one.samples()
        longer = np.zeros(max(len(waiting), len(samples)))
        longer[: len(waiting)] = waiting
        longer[: len(samples)] += samples
        waiting = longer
    yield _over(noise, waiting, begin)


def spoken_part(samples: np.ndarray) -> tuple[int, int]:
    """Range of samples that contain speech, without the silence at both edges."""
    frames = np.square(samples[: len(samples) // FRAME * FRAME], dtype=np.float64).reshape(-1, FRAME).mean(axis=1)
    if not frames.any():
        return 0, len(samples)
    (loud,) = np.nonzero(frames >= frames.max() * 10 ** (-EDGE_DB / 10))
    first, last = (int(loud[0]) - EDGE_FRAMES) * FRAME, (int(loud[-1]) + 1 + EDGE_FRAMES) * FRAME
    return max(0, first), min(len(samples), last)


def _endless(count: int, rng: np.random.Generator) -> Iterator[int]:
    """0 to count - 1 in random order, then again in another, without end."""
    while True:
        yield from map(int, rng.permutation(count))


def _place(sentences: Iterator[Recording], joining: Joining, rng: np.random.Generator) -> tuple[list[Placed], float]:
    """Sentences one after the other until the talk is long enough, and the mean power of what is said."""
    placed, energy, spoken, before = list[Placed](), 0.0, 0, 0
    for sentence in sentences:
        samples = read_speech(sentence.path)
        first, last = spoken_part(samples)
        length = last - first
        gap = max(round(float(rng.uniform(*joining.gap_s)) * SAMPLE_RATE), -(min(before, length) // 2))
        placed.append(Placed(sentence, first, last, gap + (placed[-1].end if placed else 0)))
        energy += float(np.sum(np.square(samples[first:last], dtype=np.float64)))
        spoken, before = spoken + length, length
        if placed[-1].end >= joining.minutes * 60 * SAMPLE_RATE:
            break
    return placed, energy / spoken


def _over(noise: np.ndarray | None, block: np.ndarray, begin: int) -> np.ndarray:
    """A block that begins at a sample of the talk, in the noise there."""
    if noise is not None:
        block = block + np.resize(np.roll(noise, -(begin % len(noise))), len(block))
    return block


def _segment(one: Placed, talk: Path, rank: int) -> Recording:
    start, duration = one.start / SAMPLE_RATE, (one.last - one.first) / SAMPLE_RATE
    return Recording(f"{talk.stem}_{rank}", talk, "", one.sentence.source, one.sentence.target, start, duration)
