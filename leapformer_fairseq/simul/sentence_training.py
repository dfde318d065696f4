"""Training of `runtime.sentences.SentenceModel`: sentences are joined at random, so their ends are known.

Joined recordings follow each other with and without pauses, with and without the silence at their edges, and at
different levels, so that neither silence nor loudness alone tells where one ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..data.manifests import read_manifest
from ..models.augmentation import LONGEST_PAUSE, pause
from ..runtime.audio import FRAME_MS, UNIT_MS
from ..runtime.sentences import FRAMES, SentenceModel
from ..support.errors import LeapformerError, first_line
from ..support.files import write_with
from ..support.progress import Watch, unwatched

EDGE_DB = 25.0  # silence at an edge is so much quieter than the loudest frame
MARGIN = 3  # frames of it that stay
LEVEL_DB = 3.0  # standard deviation of the level of a recording
TRIMMED, PAUSES = 0.7, 0.4  # shares of recordings without silence at the edges, and of ends with a pause
SECONDS = 12.0  # least length of a sample
ROWS, CLIP, WARM_UP = 16, 1.0, 50
KEPT_EVERY = 25  # updates between two states of the training on disk, a minute or less
RARE = -3.0  # logit of a step at the beginning of training
NEAR, POSITIVE = 0.5, 3.0  # target one step beside an end; weight of steps with an end
EXACT = 0.2  # weight of the error of an end, in steps
FOUND_WITHIN = 200 // FRAME_MS  # frames that an end may be found too early or too late
APART = 500 // UNIT_MS  # steps between two ends
STATISTICS = 500  # recordings whose mean and deviation count
THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(1, 20))

Features = Callable[[int], np.ndarray]  # frames (T, F) of a recording by its number


@dataclass(frozen=True)
class Settings:
    """How to train: `ahead_ms` of the next sentence are heard before an end is told."""

    updates: int = 1500
    ahead_ms: int = 320
    units: int = 96
    rate: float = 2e-3
    seed: int = 1

    def __post_init__(self) -> None:
        if self.updates < 1 or self.units < 1:
            raise LeapformerError(f"--updates {self.updates} and --units {self.units}: give at least 1")
        if self.ahead_ms < 0 or self.ahead_ms % UNIT_MS:
            raise LeapformerError(f"--ahead-ms {self.ahead_ms}: give a multiple of {UNIT_MS}, or 0")
        if not 0 < self.rate < math.inf:
            raise LeapformerError(f"--lr {self.rate}: give a number above 0")


@dataclass(frozen=True)
class Counts:
    """How many ends were found, were missed, and were found where none is; `off_ms` of those found, in all."""

    right: int = 0
    missed: int = 0
    wrong: int = 0
    off_ms: float = 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / max(1, 2 * self.right + self.missed + self.wrong)

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(ours + theirs for ours, theirs in pairs))


class Recordings:
    """The filterbank frames of a manifest's recordings, (T, F) each, read when they are needed."""

    def __init__(self, manifest: str | Path) -> None:
        """Raises LeapformerError for a manifest that is missing, or has fewer than two recordings."""
        if not Path(manifest).is_file():
            raise LeapformerError(f"{manifest}: no such manifest; `leapformer prepare` or `corpus` writes it")
        self._root = Path(manifest).parent
        self._addresses = [row["audio"] for row in read_manifest(Path(manifest), "audio")]
        if len(self._addresses) < 2:
            raise LeapformerError(f"{manifest} has fewer than two recordings, so none follows another")

    def __len__(self) -> int:
        return len(self._addresses)

    def __getitem__(self, index: int) -> np.ndarray:
        from fairseq.data.audio.audio_utils import get_features_or_waveform

        address = str(self._root / self._addresses[index])
        try:
            frames: np.ndarray = get_features_or_waveform(address)
        except (OSError, ValueError) as error:
            raise LeapformerError(f"{address} cannot be read ({error}); prepare the data again") from error
        if frames.ndim != 2:
            raise LeapformerError(f"{address} holds a waveform; prepare filterbanks, as `leapformer prepare` does")
        return frames


class Network(nn.Module):
    """From steps (B, T, 4 F) of normalised frames the logits (B, T) that a sentence ended around `ahead` steps before,
    and how many frames after that (B, T).
    """

    def __init__(self, bins: int, units: int) -> None:
        super().__init__()
        self.enter = nn.Linear(FRAMES * bins, units)
        self.unit = nn.GRU(units, units, batch_first=True)
        self.leave = nn.Linear(units, 2)
        nn.init.constant_(self.leave.bias, RARE)

    def forward(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        logits, after = self.leave(self.unit(torch.relu(self.enter(steps)))[0]).unbind(-1)
        return logits, after

    def numpy(self, mean: np.ndarray, std: np.ndarray, ahead: int, threshold: float, about: dict[str, Any]) -> Any:
        """The same without PyTorch."""
        unit: Any = self.unit
        arrays = {
            "enter_weight": self.enter.weight, "enter_bias": self.enter.bias,
            "input_weight": unit.weight_ih_l0, "input_bias": unit.bias_ih_l0,
            "state_weight": unit.weight_hh_l0, "state_bias": unit.bias_hh_l0,
            "leave_weight": self.leave.weight, "leave_bias": self.leave.bias,
        }  # fmt: skip
        values = {name: array.detach().numpy().copy() for name, array in arrays.items()}
        return SentenceModel(mean, std, **values, ahead=ahead, threshold=threshold, about=about)


def train(
    recordings: Sequence[np.ndarray] | Recordings,
    held_out: Sequence[np.ndarray] | Recordings,
    settings: Settings,
    signature: str = "",
    watch: Watch = unwatched,
    unfinished: Path | None = None,
) -> SentenceModel:
    """Train on recordings of single sentences, and choose the threshold that finds most ends of those `held_out`.

    The file `unfinished` holds the training while it runs; an interrupted training resumes from it. Raises
    LeapformerError if it belongs to other settings or recordings.
    """
    rng, ahead = np.random.default_rng(settings.seed), settings.ahead_ms // UNIT_MS
    torch.manual_seed(settings.seed)
    mean, std = statistics(recordings, rng)
    network = Network(len(mean), settings.units)
    optimizer = torch.optim.Adam(network.parameters(), settings.rate)
    all_of_it = {**asdict(settings), "recordings": len(recordings), "mean": mean.tolist(), "std": std.tolist()}
    training = _Training(all_of_it, network, optimizer, rng)
    begin = training.resume(unfinished) if unfinished is not None and unfinished.is_file() else 0
    for update in range(begin, settings.updates):
        if unfinished is not None and update % KEPT_EVERY == 0 and update > begin:
            training.keep(unfinished, update)
        watch(update, settings.updates)
        share = min(1.0, (update + 1) / WARM_UP) * (1 - update / settings.updates)
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * share
        rows = [labelled(*joined(recordings, rng), ahead) for _ in range(ROWS)]
        loss = _loss(network, [row._replace(frames=(row.frames - mean) / std) for row in rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
    watch(settings.updates, settings.updates)
    counts = evaluate(network, mean, std, held_out, ahead)
    threshold = max(counts, key=lambda threshold: counts[threshold].f1)
    about = {"settings": asdict(settings), "found": asdict(counts[threshold]), "signature": signature}
    model: SentenceModel = network.numpy(mean, std, ahead, threshold, about)
    return model


class _Training(NamedTuple):
    """What changes from update to update, and what of the training does not."""

    about: dict[str, Any]
    network: Network
    optimizer: torch.optim.Adam
    rng: np.random.Generator

    def keep(self, path: Path, update: int) -> None:
        """Write all that the updates from this one on need."""
        state = {"about": self.about, "update": update, "rng": self.rng.bit_generator.state}
        state |= {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        write_with(path, partial(torch.save, state))

    def resume(self, path: Path) -> int:
        """Take up what `keep` wrote, and return the next update."""
        try:
            state = torch.load(path, weights_only=True)
            theirs, update = state["about"], int(state["update"])
        except Exception as error:  # of pickle, zipfile or torch, whatever a file holds
            raise LeapformerError(
                f"{path} holds no training ({first_line(error)}); delete it to begin again"
            ) from error
        if theirs != self.about:
            other = next((name for name in self.about if theirs.get(name) != self.about[name]), "settings")
            raise LeapformerError(
                f"{path} holds an interrupted training with another {other.replace('_', '-')}; repeat its command, or "
                "delete it to begin again"
            )
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
        return update


def statistics(
    recordings: Sequence[np.ndarray] | Recordings, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of frames, (F,) each."""
    chosen = rng.permutation(len(recordings))[:STATISTICS]
    frames = np.concatenate([recordings[int(index)] for index in chosen])
    return frames.mean(0), frames.std(0) + np.float32(1e-5)


def joined(
    recordings: Sequence[np.ndarray] | Recordings, rng: np.random.Generator, pauses: float = PAUSES
) -> tuple[np.ndarray, list[int]]:
    """Frames (T, F) of random recordings, one after the other, and where all but the last one end."""
    parts, ends, length = list[np.ndarray](), list[int](), 0
    while length < SECONDS * 1000 / UNIT_MS * FRAMES or len(ends) < 2:
        frames = recordings[int(rng.integers(len(recordings)))]
        if rng.random() < TRIMMED:
            frames = trimmed(frames)
        if parts and rng.random() < pauses:
            parts.append(pause(parts[-1], int(rng.integers(1, LONGEST_PAUSE + 1)), rng))
            length += len(parts[-1])
        parts.append(frames + np.float32(rng.normal(0, LEVEL_DB) * NEPERS))
        length += len(frames)
        ends.append(length)
    return np.concatenate(parts), ends[:-1]


NEPERS = math.log(10) / 10  # of energy, in a decibel


def trimmed(frames: np.ndarray) -> np.ndarray:
    """Frames without silence at the edges."""
    levels = frames.mean(1)
    loud = np.flatnonzero(levels > levels.max() - EDGE_DB * NEPERS)
    return frames[max(0, loud[0] - MARGIN) : loud[-1] + 1 + MARGIN]


class Sample(NamedTuple):
    """The frames of S whole steps; for each step, whether a sentence ended around `ahead` before, and how many frames
    after that.
    """

    frames: np.ndarray  # (4 S, F)
    ended: np.ndarray  # (S,)
    after: np.ndarray  # (S,)


def labelled(frames: np.ndarray, ends: Sequence[int], ahead: int) -> Sample:
    """What the network is to learn from frames in which sentences end."""
    steps = len(frames) // FRAMES
    ended, after = np.zeros((2, steps), np.float32)
    for end in ends:
        at = round(end / FRAMES) + ahead
        for near, value in (at - 1, NEAR), (at + 1, NEAR), (at, 1.0):
            if 0 <= near < steps:
                ended[near], after[near] = value, end - (near - ahead) * FRAMES
    return Sample(frames[: steps * FRAMES], ended, after)


def _loss(network: Network, rows: Sequence[Sample]) -> Tensor:
    """Cross-entropy of the steps of all rows, and the error of the ends in steps."""
    steps = nn.utils.rnn.pad_sequence([_steps(row.frames) for row in rows], batch_first=True)
    outputs = [
        torch.cat([row[: len(sample.ended)] for row, sample in zip(part, rows, strict=True)]) for part in network(steps)
    ]
    ended, after = (torch.from_numpy(np.concatenate(part)) for part in list(zip(*rows, strict=True))[1:])
    error = ((outputs[1] - after).abs() * (ended > 0)).sum() / FRAMES / max(1, int((ended > 0).sum()))
    return binary_cross_entropy_with_logits(outputs[0], ended, pos_weight=torch.tensor(POSITIVE)) + EXACT * error


def _steps(frames: np.ndarray) -> Tensor:
    """Frames (S * 4, F) as steps (S, 4 F)."""
    return torch.from_numpy(frames.reshape(len(frames) // FRAMES, -1).astype(np.float32))


@torch.no_grad()
def evaluate(
    network: Network, mean: np.ndarray, std: np.ndarray, recordings: Sequence[np.ndarray] | Recordings, ahead: int
) -> dict[float, Counts]:
    """What is found with each threshold, half of the samples without a pause."""
    rng = np.random.default_rng(0)
    total = dict.fromkeys(THRESHOLDS, Counts())
    for number in range(40):
        frames, ends = joined(recordings, rng, pauses=number % 2)
        frames = labelled(frames, ends, ahead).frames
        logits, after = (part[0].numpy() for part in network(_steps((frames - mean) / std)[None]))
        for threshold in THRESHOLDS:
            steps = steps_told(logits, math.log(threshold / (1 - threshold)))
            total[threshold] += counts_of([(step - ahead) * FRAMES + after[step] for step in steps], ends)
    return total


def steps_told(logits: np.ndarray, threshold: float) -> list[int]:
    """The steps at which an end is told."""
    steps: list[int] = []
    for step in np.flatnonzero(logits > threshold):
        if not steps or step - steps[-1] > APART:
            steps.append(int(step))
    return steps


def counts_of(places: Sequence[float], ends: Sequence[int]) -> Counts:
    """Ends that were places beside those that are there, both in frames."""
    left, errors = list(ends), list[float]()
    for place in places:
        near = min(left, key=lambda end: abs(end - place), default=math.inf)
        if abs(near - place) <= FOUND_WITHIN:
            left.remove(int(near))
            errors.append(float(abs(near - place)) * FRAME_MS)
    return Counts(len(errors), len(left), len(places) - len(errors), sum(errors))
