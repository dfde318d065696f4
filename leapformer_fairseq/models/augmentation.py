"""Augmentation of speech training sets, drawn again in each epoch: joined recordings, and other speeds.

A model that has only seen single sentences fails if an utterance contains more than one, as in talks without pauses.
Speed perturbation makes better use of a few hours of speech (Ko et al., 2015, Interspeech).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from fairseq.data.audio.audio_utils import get_features_or_waveform
from fairseq.data.audio.dataset_transforms import CompositeAudioDatasetTransform
from fairseq.data.audio.dataset_transforms.concataugment import ConcatAugment
from fairseq.data.audio.feature_transforms import CompositeAudioFeatureTransform
from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDataset
from torch import Tensor

from ..runtime.acoustics.mel import htk_hz, htk_mel
from ..runtime.audio import FRAME_MS, SAMPLE_RATE, fbank
from ..support.errors import LeapformerError

PAUSES = 0.5  # share of sentence boundaries that get a pause
LONGEST_PAUSE = 1500 // FRAME_MS
SILENT = 0.5  # share of pauses that are digital silence; the others repeat quiet frames of the sentence before
LOWEST_HZ = 20  # lower edge of Kaldi's filterbanks
QUIET = 0.1  # share of a recording's frames that counts as its background noise


class JoinedSentences(ConcatAugment):
    """Join each recording with up to `most` - 1 others, drawn from the seed, the epoch and its index.

    fairseq asks a data set's `ConcatAugment` which recordings to join, and joins their texts itself.
    """

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(rate=1.0)
        self.most, self.seed, self.epoch = most, seed, 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}(most={self.most}, seed={self.seed})"

    def find_indices(self, index: int, n_frames: list[int], n_samples: int) -> list[int]:
        # Not the process's generator: a resumed run repeats the epoch, whatever its workers have drawn before.
        rng = self.generator(index)
        return [index, *map(int, rng.integers(n_samples, size=rng.integers(self.most)))]

    def generator(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, *numbers])

    def source(self, dataset: SpeechToTextDataset, indices: list[int]) -> Tensor:
        """Filterbanks (T, bins) of joined recordings, with pauses and the data set's transforms."""
        rng, parts = self.generator(*indices), list[np.ndarray]()
        for index in indices:
            if parts and rng.random() < PAUSES:
                parts.append(pause(parts[-1], int(rng.integers(1, LONGEST_PAUSE + 1)), rng))
            path, augmented = dataset.audio_paths[index], dataset.waveform_transforms
            parts.append(get_features_or_waveform(path, waveform_transforms=augmented))
        frames = np.concatenate(parts)
        if dataset.feature_transforms is not None:
            frames = dataset.feature_transforms(frames)
        return torch.from_numpy(frames).float()


def pause(before: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` filterbank frames of a pause after a recording: digital silence, or its own background noise."""
    if rng.random() < SILENT:
        silence = fbank(np.zeros(SAMPLE_RATE // 10, np.float32), SAMPLE_RATE, before.shape[1])
        return np.repeat(silence[:1], count, axis=0)
    quietest = np.argsort(before.mean(axis=1))[: max(1, round(QUIET * len(before)))]
    return before[rng.choice(quietest, count)]


def join_sentences(dataset: SpeechToTextDataset, most: int, seed: int) -> None:
    """Make a training set join up to `most` recordings.

    Raises LeapformerError if `most` < 1, or if the data configuration already joins recordings or reads waveforms.
    """
    if most == 1:
        return
    if most < 1:
        raise LeapformerError(f"--join-sentences {most}: give at least 1")
    if dataset.cfg.use_audio_input:
        raise LeapformerError("--join-sentences joins filterbanks, but this data set has waveforms; leave it out")
    if dataset.dataset_transforms.has_transform(ConcatAugment):
        raise LeapformerError("--join-sentences: concataugment in the data configuration joins already; remove one")
    joined, others = JoinedSentences(most, seed), dataset.dataset_transforms.transforms
    dataset.dataset_transforms = CompositeAudioDatasetTransform([*others, joined])
    dataset.set_epoch = partial(setattr, joined, "epoch")


class SpeedPerturbation:
    """A feature transform that plays filterbanks at a speed drawn uniformly from 1 - `most` to 1 + `most`."""

    def __init__(self, most: float) -> None:
        self.most = most

    def __repr__(self) -> str:
        return f"{type(self).__name__}(most={self.most})"

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Filterbanks (T, bins) to (T / rate, bins)."""
        # The process's generator, like fairseq's SpecAugment.
        return change_speed(frames, 1 + self.most * (2 * np.random.random() - 1))


def change_speed(frames: np.ndarray, rate: float) -> np.ndarray:
    """Filterbanks (T, bins) as if the recording were played at `rate` times its speed, (T / rate, bins).

    As in resampling of the waveform, durations are divided by the rate and frequencies multiplied by it. Values are
    interpolated linearly between frames and between the centres of Kaldi's mel bins, which end at 8 kHz; at a lower
    rate, the empty bins at the top repeat the highest one. The result has at least one frame.
    """
    from scipy.ndimage import map_coordinates  # slow to import, and few trainings need it

    count, bins = frames.shape
    low, high = htk_mel(np.array([LOWEST_HZ, SAMPLE_RATE / 2])).tolist()
    mels = np.linspace(low, high, bins + 2)  # edges and centres of the bins; bin i has its centre at i + 1
    source_mels = htk_mel(htk_hz(mels[1:-1]) / rate)
    source_bins = (source_mels - mels[1]) / (mels[1] - mels[0])
    source_frames = np.linspace(0, count - 1, max(1, round(count / rate)))
    grid = np.meshgrid(source_frames, source_bins, indexing="ij")
    return np.asarray(map_coordinates(frames, grid, order=1, mode="nearest"))


def perturb_speed(dataset: SpeechToTextDataset, most: float) -> None:
    """Make a training set play recordings at speeds from 1 - `most` to 1 + `most`.

    Raises LeapformerError unless 0 <= `most` < 1, and for a data set of waveforms.
    """
    if not 0 <= most < 1:
        raise LeapformerError(f"--speed-perturbation {most}: give a share from 0 to less than 1, e.g. 0.1")
    if not most:
        return
    if dataset.cfg.use_audio_input:
        raise LeapformerError("--speed-perturbation changes filterbanks, but this data set has waveforms; leave it out")
    others = [] if dataset.feature_transforms is None else dataset.feature_transforms.transforms
    # First, since the masks of SpecAugment must not be interpolated.
    dataset.feature_transforms = CompositeAudioFeatureTransform([SpeedPerturbation(most), *others])
