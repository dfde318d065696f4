"""Whether an exported folder does what its checkpoint does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..runtime.beam import Hypothesis, Search, go_on, translate
from ..runtime.engine import Graphs
from ..runtime.folder import LANGUAGE, Folder
from ..runtime.simul.exported import ExportedSystem
from ..runtime.simul.times import ComputeTimes
from ..runtime.spoken import Manner
from ..runtime.text import subwords_of
from ..runtime.voice import ExportedVoice, kept
from ..simul.system import TranslationSystem
from .plain import sample_of
from .synthesis import dropped

LONGEST, MORE = 40, 20  # tokens of a random source; tokens that a target may have beyond it
FIRST = 4  # number of the first symbol that is a word
FRAMES = 100, 600  # of random speech


class Compared(NamedTuple):
    """Of random sources, how many have the same output, and the largest difference of scores, or of log-mels."""

    sources: int
    equal: int
    error: float


def compared(model: Any, task: Any, folder: Folder, count: int, beam: int = 5) -> Compared:
    """Beam search in fairseq and in the runtime, for `count` random lines: sources, or prompts of a language model.

    Both go the way of plain text: from subwords to text, and to subwords and numbers again.
    """
    graphs, words, rng = Graphs(folder), task.source_dictionary, torch.Generator().manual_seed(1)
    cut, joined = subwords_of(folder)
    vocabulary = folder.vocabularies["target" if folder.task == LANGUAGE else "source"]
    options = Search(beam=beam, max_len_a=1.0, max_len_b=MORE)
    longest = model.max_decoder_positions()
    generator = SequenceGenerator(
        [model], task.target_dictionary, beam_size=beam, max_len_a=1.0, max_len_b=MORE, max_len=longest
    )
    equal, error = 0, 0.0
    for _ in range(count):
        length = int(torch.randint(1, LONGEST, (1,), generator=rng))
        given = torch.randint(FIRST, len(words), (length,), generator=rng).tolist()
        pieces = cut(joined([words[number] for number in given]))
        read = words.encode_line(" ".join(pieces), add_if_not_exist=False).long()
        if folder.task == LANGUAGE:
            assert folder.language is not None
            expected = _gone_on(generator, model, read[:-1].tolist(), folder.language.first)
            found = go_on(graphs, vocabulary.numbers(pieces)[:-1], options)
        else:
            sample = sample_of(task, read)
            step = getattr(task, "inference_step", None)
            expected = (generator.generate([model], sample) if step is None else step(generator, [model], sample))[0]
            found = translate(graphs, vocabulary.numbers(pieces), options)
        equal += [one["tokens"].tolist() for one in expected] == [one.tokens for one in found]
        error = max([error, *_differences(expected, found)])
    return Compared(count, equal, error)


def _gone_on(generator: SequenceGenerator, model: Any, prompt: list[int], first: int) -> list[dict[str, Any]]:
    """What fairseq's generator makes of a prompt."""
    tokens = torch.tensor([prompt])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([len(prompt)])}}
    return generator.generate([model], sample, prefix_tokens=tokens, bos_token=first)[0]


def _differences(expected: list[dict[str, Any]], found: list[Hypothesis]) -> list[float]:
    return [abs(float(one["score"]) - other.score) for one, other in zip(expected, found, strict=True)]


@torch.no_grad()
def compared_synthesis(model: Any, voice: ExportedVoice, count: int, max_steps: int = 60) -> Compared:
    """Speech of `count` random sentences, whose frames PyTorch is given, too: those before each step, all at once.

    Frames that each side made itself would drift apart, where no sentence is said: every step repeats the difference of
    the step before. The pre-net drops the same units. Speech is equal if it ends at the same step.
    """
    equal, error, vocabulary, manner = 0, 0.0, voice.folder.vocabularies["source"], Manner(max_steps=max_steps)
    for number in range(count):
        rng = np.random.default_rng(number)
        numbers = [*rng.integers(FIRST, len(vocabulary.symbols), rng.integers(1, LONGEST)).tolist(), vocabulary.eos]
        speaker = int(rng.integers(len(voice.speakers or [""])))
        found, ended = voice.steps(voice.read(numbers, speaker), manner, np.random.default_rng(number))
        drawn, steps = np.random.default_rng(number), len(ended)
        units = torch.from_numpy(np.concatenate([kept(voice.speaking, drawn) for _ in range(steps)], 2))
        before = torch.from_numpy(np.pad(found[:, :-1], ((0, 0), (1, 0), (0, 0))))
        by = torch.tensor([[speaker]])
        encoded = model.forward_encoder(torch.tensor([numbers]), torch.tensor([len(numbers)]), speaker=by)
        with _dropping(model.decoder.prenet, units):
            refined, end, extra = model.decoder(before, encoded, target_lengths=torch.tensor([steps]))
        probabilities = end[0, :, 0].sigmoid().numpy()
        equal += bool(((probabilities > manner.threshold) == (ended > manner.threshold)).all())
        pairs = (extra["feature_out"].numpy(), found), (refined.numpy(), voice.refined(found)), (probabilities, ended)
        error = max([error, *(float(np.abs(one - other).max()) for one, other in pairs)])
    return Compared(count, equal, error)


def _dropping(prenet: Any, units: Tensor) -> RemovableHandle:
    """Until the hook is removed, the pre-net's units are multiplied by these, (layers, 1, T, units)."""
    drops, projection = prenet
    hook: RemovableHandle = prenet.register_forward_hook(lambda _, x, out: projection(dropped(drops, x[0], units)))
    return hook


def compared_speech(system: TranslationSystem, folder: Folder, count: int) -> Compared:
    """A token after each pre-decision step, in PyTorch and in the runtime, of `count` utterances of random frames."""
    exported, rng = ExportedSystem.load(folder.path, system.policy), torch.Generator().manual_seed(1)
    equal, error, never = 0, 0.0, list(system.forbidden)
    for _ in range(count):
        length = int(torch.randint(*FRAMES, (1,), generator=rng))
        frames = torch.randn(length, system.model.encoder.input_dim, generator=rng).numpy()
        ours, theirs = system.begin(ComputeTimes()), exported.begin(ComputeTimes())
        same = True
        for start in range(0, length, system.step_frames):
            for engine in (ours, theirs):
                engine.feed(frames[start : start + system.step_frames])
                if start + system.step_frames >= length:
                    engine.finish()
            if not ours.ready:
                continue
            scores, found = ours.step().log_softmax(-1), torch.from_numpy(theirs.scores())
            error = max(error, float((scores - found).abs().max()))
            scores[never] = found[never] = -torch.inf
            token = int(scores.argmax())
            same = same and token == int(found.argmax())
            ours.commit(token)
            theirs.commit(token)
        equal += same
    return Compared(count, equal, error)
