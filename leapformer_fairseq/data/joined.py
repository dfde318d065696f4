"""Talks made of single sentences: recordings joined with pauses, without pauses, or with overlaps, optionally in noise.

They test long-form translation when no real talks are available. A talk is written while it is mixed: memory holds only
one sentence and the end of the one before, which it may overlap.
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
from ..support.options import at_least
from .corpus.synthesize import coloured_noise
from .manifests import read_manifest
from .recordings import Recording, need_file

FRAME = SAMPLE_RATE // 100
EDGE_DB, EDGE_FRAMES = 25.0, 3  # silence is this much below the loudest 10 ms; 30 ms of it are kept at each edge
PINK, FLAT_BELOW_HZ = 1.0, 50
NOISE_PERIOD = 2**20  # samples, 66 s, after which the noise repeats


@dataclass(frozen=True)
class Joining:
    """How sentences are joined: the number of `talks`, and the minimum `minutes` of each.

    `gap_s` is the range of seconds between two sentences; negative gaps make them overlap, by at most half of the
    shorter one. `snr_db` is the level of the speech above the noise of the talk, in decibels; None is no noise.
    """

    talks: int = 4
    minutes: float = 5.0
    gap_s: tuple[float, float] = (0.3, 1.5)
    snr_db: float | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        at_least(1, talks=self.talks)
        if not 0 < self.minutes < float("inf"):
            raise LeapformerError(f"--minutes {self.minutes:g}: give a length above 0")
        if not -float("inf") < self.gap_s[0] <= self.gap_s[1] < float("inf"):
            raise LeapformerError(
                f"--gap-s {self.gap_s[0]:g} {self.gap_s[1]:g} is not a range; give the lower one first"
            )
        if self.snr_db is not None and not np.isfinite(self.snr_db):
            raise LeapformerError(f"--snr-db {self.snr_db}: give decibels, or leave it out for no noise")
        if self.seed < 0:
            raise LeapformerError(f"--seed {self.seed}: give 0 or more")

    @property
    def about(self) -> dict[str, Any]:
        return {**asdict(self), "gap_s": list(self.gap_s)}


@dataclass(frozen=True)
class Placed:
    """A sentence in a talk: its samples [first, last) begin at sample `start` of the talk."""

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
    sentences = zip(recordings, references, spoken, strict=True)
    return [Recording(Path(path).stem, Path(path), "", source, target) for path, target, source in sentences]


def join(sentences: Sequence[Recording], joining: Joining, folder: Path) -> tuple[list[Recording], dict[str, Any]]:
    """Write the talks to `folder`/wav; return their segments and what `talks.prepare` adds to its summary.

    Every sentence is used once before any is repeated. Raises LeapformerError for unreadable recordings.
    """
    # A generator for the order and one for each talk, so that gaps and noise of a talk do not depend on the others.
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
                scaled = np.rint(block * INT16_SCALE)  # overlaps and noise may exceed full scale
                samples = np.clip(scaled, -INT16_SCALE, INT16_SCALE - 1).astype("<i2")
                clipped += int(np.count_nonzero(samples != scaled))
                digest.update(samples.tobytes())
                file.write(samples)
        segments += [_segment(part, path, rank) for rank, part in enumerate(placed)]
        different |= {part.sentence.path for part in placed}
    for segment in segments:
        digest.update(f"{segment.start}\t{segment.duration}\t{segment.source}\t{segment.target}\n".encode())
    return segments, {"sentences": len(different), "clipped_samples": clipped, "checksum": digest.hexdigest()}


def mixed(placed: Sequence[Placed], noise: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """Yield the samples of a talk, float64, in blocks; `noise` repeats throughout the talk."""
    begin, waiting = 0, np.zeros(0)  # the talk from sample `begin` on, to which later sentences may still add
    for part in placed:
        if part.start > begin:
            ready = np.zeros(part.start - begin)
            ready[: len(waiting)] = waiting[: len(ready)]
            yield _with_noise(noise, ready, begin)
            begin, waiting = part.start, waiting[len(ready) :]
        samples = part.samples()
        longer = np.zeros(max(len(waiting), len(samples)))
        longer[: len(waiting)] = waiting
        longer[: len(samples)] += samples
        waiting = longer
    yield _with_noise(noise, waiting, begin)


def spoken_part(samples: np.ndarray) -> tuple[int, int]:
    """The range [first, last) of samples between the silences at both edges; all of them if there is no sound."""
    powers = np.square(samples[: len(samples) // FRAME * FRAME], dtype=np.float64).reshape(-1, FRAME).mean(axis=1)
    if not powers.any():
        return 0, len(samples)
    (loud,) = np.nonzero(powers >= powers.max() * 10 ** (-EDGE_DB / 10))
    first, last = (int(loud[0]) - EDGE_FRAMES) * FRAME, (int(loud[-1]) + 1 + EDGE_FRAMES) * FRAME
    return max(0, first), min(len(samples), last)


def _endless(count: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield 0 to count - 1 in random order, then again in another, endlessly."""
    while True:
        yield from map(int, rng.permutation(count))


def _place(sentences: Iterator[Recording], joining: Joining, rng: np.random.Generator) -> tuple[list[Placed], float]:
    """Place sentences one after the other until the talk is long enough; return them and the mean power of speech."""
    placed, energy, spoken, before = list[Placed](), 0.0, 0, 0
    for sentence in sentences:
        samples = read_speech(sentence.path)
        first, last = spoken_part(samples)
        length = last - first
        # An overlap of at most half of the shorter one keeps three sentences from sounding at once.
        gap = max(round(float(rng.uniform(*joining.gap_s)) * SAMPLE_RATE), -(min(before, length) // 2))
        placed.append(Placed(sentence, first, last, gap + (placed[-1].end if placed else 0)))
        energy += float(np.sum(np.square(samples[first:last], dtype=np.float64)))
        spoken, before = spoken + length, length
        if placed[-1].end >= joining.minutes * 60 * SAMPLE_RATE:
            break
    return placed, energy / spoken


def _with_noise(noise: np.ndarray | None, block: np.ndarray, begin: int) -> np.ndarray:
    """A block of the talk that begins at sample `begin`, with the noise of that place added."""
    if noise is not None:
        block = block + np.resize(np.roll(noise, -(begin % len(noise))), len(block))
    return block


def _segment(placed: Placed, talk: Path, rank: int) -> Recording:
    start, duration = placed.start / SAMPLE_RATE, (placed.last - placed.first) / SAMPLE_RATE
    return Recording(f"{talk.stem}_{rank}", talk, "", placed.sentence.source, placed.sentence.target, start, duration)
