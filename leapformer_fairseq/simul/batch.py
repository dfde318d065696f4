"""Wait-k translation of many whole utterances at once: the output of a TranslationStream in a fraction of the time.

The states of a streaming encoder do not depend on later audio, so it may read whole utterances; the decoder keeps to
the schedule (`models.simulst.WaitKDecoder`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..models.simulst import END_CLOSED
from ..modules import IncrementalState
from ..runtime.beam import repeating
from ..runtime.simul.features import FeatureStream
from ..runtime.simul.silence import Beginning
from ..runtime.simul.stream import DecodingOptions, System, TranslationStream
from .engine import IncrementalEngine, engine_for
from .system import TranslationSystem


def serves_batches(system: System, options: DecodingOptions) -> TypeGuard[TranslationSystem]:
    """Whether the tokens follow from a schedule over whole utterances.

    A length limit that grows more slowly than the text (`max_len_a` below one token per step) may delay tokens until
    more source has arrived, which they would then see.
    """
    policy, a = system.policy, options.max_len_a
    return (
        isinstance(system, TranslationSystem)
        and policy.name == "wait-k"
        and policy.catch_up == 1
        and options.early_eos == "mask"
        and options.beam == 1
        and (a == 0 or a * system.step_frames >= 1)
        and engine_for(system.model, system.engine) is IncrementalEngine
        and getattr(system.model, "lagging", None) is not None  # its cross-attention can follow wait-k
    )


def translate_batch(
    system: TranslationSystem, options: DecodingOptions, batch: Sequence[np.ndarray]
) -> list[TranslationStream]:
    """A stream for each utterance, samples (T,) in [-1, 1] at 16 kHz, that writes without further computation.

    Push the utterance's samples into it; it returns text at the same times as a separate stream.
    """
    heard = [_after_silence(options, samples) for samples in batch]
    frames = {i: found for i, samples in enumerate(heard) if (found := _frames(system, samples)) is not None}
    written = dict(zip(frames, _wait_k(system, options, list(frames.values())), strict=True)) if frames else {}
    engines = [_Replay(system, written.get(i, [])) for i in range(len(batch))]
    return [TranslationStream(system, options, engine=engine) for engine in engines]


class _Replay(IncrementalEngine):
    """An engine whose tokens are already known, which are committed as if they were computed."""

    def __init__(self, system: TranslationSystem, tokens: Sequence[int]) -> None:
        super().__init__(system.model, system.eos)
        self._script = [*tokens, system.eos]

    def best(self, visible: int, forbidden: Sequence[int], layer: int | None = None) -> int:
        return self._script[self.n_tokens]


def _after_silence(options: DecodingOptions, samples: np.ndarray) -> np.ndarray:
    """The samples of an utterance that a `TranslationStream` would keep."""
    beginning = Beginning.of_utterance(options.silence_db, options.lead_ms)
    return np.concatenate([beginning.push(samples), beginning.finish()])


def _frames(system: TranslationSystem, samples: np.ndarray) -> Tensor | None:
    """All frames of an utterance, (T, n_bins); None when it is too short for one."""
    features = FeatureStream(sys.maxsize, system.cmvn)
    features.push(samples)
    frames = features.next_step(final=True)
    return None if frames is None else torch.from_numpy(frames)


def _wait_k(system: TranslationSystem, options: DecodingOptions, frames: list[Tensor]) -> list[list[int]]:
    """The tokens of each utterance, without the end of sentence, by the policy's schedule."""
    model = system.model
    with model.following(system.policy.k, system.step_frames // model.encoder.pooling_ratio()):
        return _greedy(system, options, frames)


@torch.no_grad()
def _greedy(system: TranslationSystem, options: DecodingOptions, frames: list[Tensor]) -> list[list[int]]:
    """Greedy search; the length limit is that of the longest utterance."""
    model, weight = system.model, next(system.model.parameters())
    lengths = torch.tensor([len(row) for row in frames], device=weight.device)
    encoder_out = model.encoder(src_tokens=pad_sequence(frames, batch_first=True).to(weight), src_lengths=lengths)
    limit = math.floor(options.max_len_a * int(lengths.max()) + options.max_len_b)
    forbidden = torch.tensor(system.forbidden, device=weight.device)
    state: IncrementalState = {}
    rows, written = list(range(len(frames))), [list[int]() for _ in frames]
    tokens = torch.full((len(frames), 1), system.eos, device=weight.device)
    for _ in range(min(limit, model.max_decoder_positions() - 1)):
        logits, extra = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
        logits = logits[:, -1].float().index_fill_(1, forbidden, -math.inf)
        logits[:, system.eos].masked_fill_(extra[END_CLOSED], -math.inf)
        for place, row in enumerate(rows if options.no_repeat_ngram_size else ()):
            logits[place, repeating(written[row], options.no_repeat_ngram_size)] = -math.inf
        best = logits.argmax(1)
        tokens = torch.cat([tokens, best.unsqueeze(1)], 1)
        for row, token in zip(rows, best.tolist(), strict=True):
            if token != system.eos:
                written[row].append(token)
        going = best.ne(system.eos).nonzero().squeeze(1)
        if len(going) < len(rows):
            if not len(going):
                break
            rows, tokens = [rows[i] for i in going.tolist()], tokens[going]
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, going)
            model.decoder.reorder_incremental_state_scripting(state, going)
    return written
