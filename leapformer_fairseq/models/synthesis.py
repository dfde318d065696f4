"""Speech synthesis with a trained text-to-speech model: from phonemes to log-mel frames, step by step.

Shapes: B sentences, S phonemes, T decoder steps, M mel channels.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.cmvn import Cmvn
from ..runtime.spoken import Manifests, Manner, Script, Utterance
from .averaging import describe_checkpoint
from .loading import load_model


@torch.no_grad()
def synthesise(
    model: Any,
    tokens: Tensor,
    lengths: Tensor,
    manner: Manner,
    speaker: Tensor | None = None,
    target_lengths: Tensor | None = None,
    alignments: bool = False,
) -> list[Utterance]:
    """Synthesise a batch of phonemes (B, S), padded on the right; frames are normalised as in the training data.

    `lengths` (B,) and `target_lengths` (B,), in decoder steps, are the true lengths; the latter are for an oracle.
    `alignments` requests the attention maps. fairseq's pre-net applies dropout even here: seed torch first.
    """
    model.compose_attention(alignments)
    encoder_out = model.forward_encoder(tokens, lengths, speaker=speaker, target_lengths=target_lengths)
    decoder, state = model.decoder, dict[str, Any]()
    step = encoder_out["encoder_out"][0].new_zeros(len(tokens), 1, decoder.out_dim)
    frames, ended, maps = [], [], []
    last = torch.full((len(tokens),), manner.max_steps, device=tokens.device)
    for t in range(1, manner.max_steps + 1):
        so_far = torch.full_like(last, t)  # no padding: finished sentences continue, and the rest is cut off
        _, end, extra = decoder(step, encoder_out, state, so_far, speaker)
        step = extra["feature_out"]
        frames.append(step)
        ended.append(end[:, :, 0].sigmoid())
        maps.append(extra["attn"])
        # The first step above the threshold ends a sentence; later ones no longer lower `last`.
        last = torch.where(ended[-1][:, 0] > manner.threshold, last.clamp_max(t), last)
        if bool((last <= t).all()):
            break
    probabilities = _array(torch.cat(ended, 1))
    refined = decoder.refine(torch.cat(frames, 1), last).unflatten(-1, (decoder.n_frames_per_step, -1)).flatten(1, 2)
    attention = _array(torch.cat(maps, 2).mT) if alignments else None
    predicted, spoken = model.predicted_length(encoder_out), _array(refined)
    return [
        Utterance(
            frames=spoken[i, : n * decoder.n_frames_per_step],
            stopped=bool(probabilities[i, n - 1] > manner.threshold),
            ended=probabilities[i, :n],
            predicted=None if predicted is None else float(predicted[i]),
            alignment=None if attention is None else attention[i, :n, : lengths[i]],
        )
        for i, n in enumerate(last.tolist())
    ]


def _array(x: Tensor) -> np.ndarray:
    return x.float().cpu().numpy()


class TrainedVoice:
    """A checkpoint as a `spoken.Voice`, on a GPU if available."""

    def __init__(self, checkpoint: str, overrides: Mapping[str, Any], on_cpu: bool = False) -> None:
        """Load a checkpoint; `overrides` and errors as in `loading.load_model`."""
        self.model, self.task = load_model(checkpoint, ("leapformer_tts",), "speech", dict(overrides))
        if torch.cuda.is_available() and not on_cpu:
            self.model = self.model.cuda()
        self.data: Mapping[str, Any] = self.task.data_cfg.config
        self.origin: Mapping[str, Any] = describe_checkpoint(checkpoint)
        root = Path(self.task.data_cfg.audio_root)
        self.manifests: Manifests | None = Manifests(Path(self.task.args.data), root)
        self.speakers: Mapping[str, int] | None = self.task.speaker_to_id
        statistics = self.task.data_cfg.global_cmvn_stats_npz
        self.cmvn = None if statistics is None else Cmvn.load(statistics)

    def numbers(self, script: Script) -> list[int]:
        dictionary = self.task.src_dict
        return [*script.numbers(dictionary.index, dictionary.unk()), dictionary.eos()]

    def speak(
        self, scripts: Sequence[Script], manner: Manner, done: Container[str] = ()
    ) -> Iterator[tuple[Script, Utterance]]:
        """As `Voice.speak`, a batch at a time.

        Random numbers depend only on the seed and the batch's place, so skipping what is `done` changes nothing else.
        """
        task, per_step, device = self.task, self.model.decoder.n_frames_per_step, next(self.model.parameters()).device
        for start in range(0, len(scripts), manner.batch_size):
            batch = scripts[start : start + manner.batch_size]
            if all(script.id in done for script in batch):
                continue
            rows = [torch.tensor(self.numbers(script)) for script in batch]
            tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=task.src_dict.pad())
            speakers = torch.tensor([[script.speaker] for script in batch]) if self.speakers else None
            # True lengths, for an oracle, are either known for all sentences of a batch or not used.
            steps = [script.frames // per_step for script in batch if script.frames is not None]
            targets = torch.tensor(steps) if len(steps) == len(batch) else None
            torch.manual_seed(manner.seed * 1_000_003 + start)
            utterances = synthesise(
                self.model,
                tokens.to(device),
                torch.tensor([len(row) for row in rows], device=device),
                manner,
                None if speakers is None else speakers.to(device),
                None if targets is None else targets.to(device),
                alignments=start < manner.alignments,
            )
            for i, (script, utterance) in enumerate(zip(batch, utterances, strict=True), start):
                if script.id not in done:
                    alignment = utterance.alignment if i < manner.alignments else None
                    frames = utterance.frames if self.cmvn is None else self.cmvn.undo(utterance.frames)
                    yield script, replace(utterance, frames=frames, alignment=alignment)
