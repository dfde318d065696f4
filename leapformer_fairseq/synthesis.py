"""Speech from a trained text to speech model: phonemes in, log-mel frames out, one decoder step after the other.

Shapes: B sentences, S phonemes, T decoder steps, M mel channels.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import LeapformerError


@dataclass(frozen=True)
class Manner:
    """How to speak: when a sentence ends, how many at a time, and for how many of the first to keep the alignment.

    A sentence ends with the first step whose probability of being the last exceeds `threshold`, or after `max_steps`.
    """

    threshold: float = 0.5
    max_steps: int = 1000
    batch_size: int = 16
    seed: int = 1
    alignments: int = 0


@dataclass(frozen=True)
class Script:
    """A sentence to speak: its name, phonemes and written text; and, if somebody spoke it, the recording."""

    id: str
    phonemes: str
    text: str = ""
    speaker: int = 0
    recording: Path | None = None
    frames: int | None = None  # of the recording


@dataclass(frozen=True)
class Utterance:
    """What the model said.

    frames:    (T * frames per step, M), log-mels.
    stopped:   True when its end was predicted, False when it was cut off.
    ended:     (T,), the probability of having ended at each step.
    predicted: the length its attention reckoned with, in steps, where there is a predictor.
    alignment: (T, S), cross-attention of the last layer averaged over heads, if it was asked for.
    """

    frames: Tensor
    stopped: bool
    ended: Tensor
    predicted: float | None = None
    alignment: Tensor | None = None


@torch.no_grad()
def synthesise(
    model: Any,
    tokens: Tensor,
    lengths: Tensor,
    speaker: Tensor | None = None,
    target_lengths: Tensor | None = None,
    manner: Manner = Manner(),
    alignments: bool = False,
) -> list[Utterance]:
    """Speak a batch of phonemes (B, S), padded on the right: normalised frames, as the model was trained on.

    With linear attention the decoder's state has the same size from the first step to the last. `target_lengths` (B,)
    are for a model whose length predictor is an oracle. fairseq's pre-net drops at random even here: seed torch first.
    """
    model.compose_attention(alignments)
    encoder_out = model.forward_encoder(tokens, lengths, speaker=speaker, target_lengths=target_lengths)
    decoder, state = model.decoder, dict[str, Any]()
    step = encoder_out["encoder_out"][0].new_zeros(len(tokens), 1, decoder.out_dim)
    frames, ended, maps = [], [], []
    last = torch.full((len(tokens),), manner.max_steps, device=tokens.device)
    for t in range(1, manner.max_steps + 1):
        so_far = torch.full_like(last, t)  # no padding: a finished sentence continues, unused
        _, end, extra = decoder(step, encoder_out, state, so_far, speaker)
        step = extra["feature_out"]
        frames.append(step)
        ended.append(end[:, :, 0].sigmoid())
        maps.append(extra["attn"])
        last = torch.where(ended[-1][:, 0] > manner.threshold, last.clamp_max(t), last)
        if bool((last <= t).all()):
            break
    probabilities = torch.cat(ended, 1)
    refined = decoder.refine(torch.cat(frames, 1), last).unflatten(-1, (decoder.n_frames_per_step, -1)).flatten(1, 2)
    attention = torch.cat(maps, 2).mT if alignments else None
    predicted = model.predicted_length(encoder_out)
    return [
        Utterance(
            frames=refined[i, : n * decoder.n_frames_per_step],
            stopped=bool(probabilities[i, n - 1] > manner.threshold),
            ended=probabilities[i, :n],
            predicted=None if predicted is None else float(predicted[i]),
            alignment=None if attention is None else attention[i, :n, : lengths[i]],
        )
        for i, n in enumerate(last.tolist())
    ]


def speak(
    model: Any, task: Any, scripts: Sequence[Script], manner: Manner = Manner(), done: Container[str] = ()
) -> Iterator[tuple[Script, Utterance]]:
    """Every sentence but those whose id is in `done`, with log-mels as they are, on the CPU.

    The chances of a batch depend on the seed and its place only, so what is said does not depend on what is done.
    """
    device, per_step, normal = next(model.parameters()).device, model.decoder.n_frames_per_step, Normalisation.of(task)
    for start in range(0, len(scripts), manner.batch_size):
        batch = scripts[start : start + manner.batch_size]
        if all(script.id in done for script in batch):
            continue
        tokens, lengths = encoded(batch, task.src_dict)
        speakers = torch.tensor([[script.speaker] for script in batch]) if task.speaker_to_id else None
        steps = [script.frames // per_step for script in batch if script.frames is not None]
        targets = torch.tensor(steps) if len(steps) == len(batch) else None
        torch.manual_seed(manner.seed * 1_000_003 + start)
        said = synthesise(
            model,
            tokens.to(device),
            lengths.to(device),
            None if speakers is None else speakers.to(device),
            None if targets is None else targets.to(device),
            manner,
            alignments=start < manner.alignments,
        )
        for i, (script, utterance) in enumerate(zip(batch, said, strict=True), start):
            if script.id not in done:
                frames, alignment = normal.undo(utterance.frames.float().cpu()), utterance.alignment
                yield script, replace(utterance, frames=frames, alignment=alignment if i < manner.alignments else None)


def encoded(scripts: Sequence[Script], dictionary: Any) -> tuple[Tensor, Tensor]:
    """Phonemes as tokens (B, S) padded on the right, and their lengths (B,); LeapformerError for an unknown one."""
    rows = []
    for script in scripts:
        words = script.phonemes.split()
        if not words:
            raise LeapformerError(
                f"sentence {script.id}: there is nothing to say; remove the line, or give its phonemes"
            )
        unknown = [word for word in words if dictionary.index(word) == dictionary.unk()]
        if unknown:
            raise LeapformerError(
                f"sentence {script.id}: the model does not know the phoneme {unknown[0]!r}; "
                "take those of the dictionary it was trained with"
            )
        rows.append(torch.tensor([*map(dictionary.index, words), dictionary.eos()]))
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=dictionary.pad())
    return tokens, torch.tensor([len(row) for row in rows])


@dataclass(frozen=True)
class Normalisation:
    """The mean and deviation (M,) by which a data set's frames were normalised; None where they were not."""

    mean: Tensor | None = None
    deviation: Tensor | None = None

    @classmethod
    def of(cls, task: Any) -> Normalisation:
        path = task.data_cfg.global_cmvn_stats_npz
        if path is None:
            return cls()
        try:
            with np.load(path) as stats:
                return cls(torch.from_numpy(stats["mean"]).float(), torch.from_numpy(stats["std"]).float())
        except (OSError, KeyError, ValueError) as error:
            raise LeapformerError(
                f"{path}: the statistics of the frames cannot be read ({error}); prepare the data again"
            ) from None

    def undo(self, frames: Tensor) -> Tensor:
        """Frames (T, M) as they were before."""
        if self.mean is None or self.deviation is None:
            return frames
        return frames * self.deviation.to(frames) + self.mean.to(frames)
