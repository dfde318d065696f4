"""Comparisons of an exported folder with its checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data.audio.feature_transforms import CompositeAudioFeatureTransform
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..runtime.beam import Hypothesis, Search
from ..runtime.cmvn import Cmvn
from ..runtime.folder import Folder
from ..runtime.languages import marks_of
from ..runtime.recordings import SpeechToText
from ..runtime.simul.exported import ExportedSystem
from ..runtime.simul.times import ComputeTimes
from ..runtime.spoken import Manner
from ..runtime.translator import TooLong, Translator
from ..runtime.voice import ExportedVoice, kept
from ..simul.system import TranslationSystem
from .plain import in_languages, pairs_of, sample_of
from .synthesis import dropped

LONGEST, MORE = 40, 20  # random sources have fewer tokens; a target may have this many more than its source
FIRST = 4  # index of the first symbol that is a word
FRAMES = 100, 600  # range of the number of random frames, without its end


class Compared(NamedTuple):
    """The number of random sources, how many have equal outputs, and the largest difference in scores or log-mels."""

    sources: int
    equal: int
    error: float


def compared(model: Any, task: Any, folder: Folder, count: int, beam: int = 5) -> Compared:
    """Compare beam search in fairseq and in the runtime for `count` random lines: sources, of all pairs of languages in
    turn, or prompts.

    Both get plain text: random subwords are joined to text, then split and numbered again.
    """
    translator, words = Translator(folder.path), task.source_dictionary
    pairs = [(None, None)] if folder.multilingual is None else pairs_of(task)
    rng = torch.Generator().manual_seed(1)
    options = Search(beam=beam, max_len_a=1.0, max_len_b=MORE)
    generator = SequenceGenerator(
        [model], task.target_dictionary, beam_size=beam, max_len_a=1.0, max_len_b=MORE, max_len=folder.max_target
    )
    longest = min(LONGEST, folder.max_source or LONGEST)
    equal, error = 0, 0.0
    for number in range(count):
        pair = pairs[number % len(pairs)]
        length = int(torch.randint(1, longest, (1,), generator=rng))
        given = torch.randint(FIRST, len(words), (length,), generator=rng).tolist()
        symbols = [words[one] for one in given]
        pieces = _readable(translator, translator.joined(symbols), options) or symbols[:1]  # of a text of spaces
        read = words.encode_line(" ".join(pieces), add_if_not_exist=False).long()
        if folder.language is not None:
            expected = _continued(generator, model, read[:-1].tolist(), folder.language.first)
        else:
            with in_languages(task, *pair):
                sample = sample_of(task, read)
                step = getattr(task, "inference_step", None)
                found = generator.generate([model], sample) if step is None else step(generator, [model], sample)
            expected = found[0]
        (hypotheses,) = translator.hypotheses([pieces], options, marks=marks_of(folder, *pair))
        equal += [theirs["tokens"].tolist() for theirs in expected] == [ours.tokens for ours in hypotheses]
        error = max([error, *_differences(expected, hypotheses)])
    return Compared(count, equal, error)


def _readable(translator: Translator, text: str, options: Search) -> list[str]:
    """The subwords of a text, or as many as the model can read: there may be more of them than it was joined from."""
    try:
        return translator.pieces(text, search=options)
    except TooLong as error:
        return error.readable


def _continued(generator: SequenceGenerator, model: Any, prompt: list[int], first: int) -> list[dict[str, Any]]:
    """The hypotheses of fairseq's generator that continue a prompt."""
    tokens = torch.tensor([prompt])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([len(prompt)])}}
    return generator.generate([model], sample, prefix_tokens=tokens, bos_token=first)[0]


def _differences(expected: list[dict[str, Any]], hypotheses: list[Hypothesis]) -> list[float]:
    pairs = zip(expected, hypotheses, strict=True)
    return [abs(float(theirs["score"]) - ours.score) for theirs, ours in pairs]


@torch.no_grad()
def compared_synthesis(model: Any, voice: ExportedVoice, count: int, max_steps: int = 60) -> Compared:
    """Compare speech of `count` random sentences in PyTorch and in the runtime.

    The runtime generates frames; PyTorch gets them as the inputs of all its steps, in one pass. If each generated its
    own frames, they would drift apart for random tokens, since each step inherits the difference of the step before.
    Both pre-nets drop the same units. Speech is equal if it ends at the same step.
    """
    equal, error, vocabulary, manner = 0, 0.0, voice.folder.vocabularies["source"], Manner(max_steps=max_steps)
    for number in range(count):
        rng = np.random.default_rng(number)
        numbers = [*rng.integers(FIRST, len(vocabulary.symbols), rng.integers(1, LONGEST)).tolist(), vocabulary.eos]
        speaker = int(rng.integers(len(voice.speakers or [""])))
        frames, ended = voice.steps(voice.read(numbers, speaker), manner, np.random.default_rng(number))
        drawn, steps = np.random.default_rng(number), len(ended)
        units = torch.from_numpy(np.concatenate([kept(voice.speaking, drawn) for _ in range(steps)], 2))
        before = torch.from_numpy(np.pad(frames[:, :-1], ((0, 0), (1, 0), (0, 0))))
        by = torch.tensor([[speaker]])
        encoded = model.forward_encoder(torch.tensor([numbers]), torch.tensor([len(numbers)]), speaker=by)
        with _fixed_dropout(model.decoder.prenet, units):
            refined, end, extra = model.decoder(before, encoded, target_lengths=torch.tensor([steps]))
        probabilities = end[0, :, 0].sigmoid().numpy()
        equal += bool(((probabilities > manner.threshold) == (ended > manner.threshold)).all())
        pairs = (extra["feature_out"].numpy(), frames), (refined.numpy(), voice.refined(frames)), (probabilities, ended)
        error = max([error, *(float(np.abs(theirs - ours).max()) for theirs, ours in pairs)])
    return Compared(count, equal, error)


def _fixed_dropout(prenet: Any, units: Tensor) -> RemovableHandle:
    """Multiply the pre-net's units by `units` (layers, 1, T, units) in place of dropout, until the hook is removed."""
    drops, projection = prenet
    hook: RemovableHandle = prenet.register_forward_hook(lambda _, x, out: projection(dropped(drops, x[0], units)))
    return hook


def compared_recordings(model: Any, task: Any, folder: Folder, count: int, beam: int = 5) -> Compared:
    """Compare beam search in fairseq and in the runtime for `count` recordings of random frames.

    fairseq's own feature transforms normalise its frames.
    """
    exported, rng = SpeechToText(folder.path), torch.Generator().manual_seed(1)
    cmvn = Cmvn.of(exported.about.mean, exported.about.std)
    config = task.data_cfg.get_feature_transforms("interactive", False)
    transforms = CompositeAudioFeatureTransform.from_config_dict(config) or (lambda frames: frames)
    options, longest = Search(beam=beam, max_len_b=MORE), model.max_decoder_positions()
    generator = SequenceGenerator([model], task.target_dictionary, beam_size=beam, max_len_b=MORE, max_len=longest)
    equal, error = 0, 0.0
    for _ in range(count):
        length = int(torch.randint(*FRAMES, (1,), generator=rng))
        frames = torch.randn(length, exported.about.n_bins, generator=rng).numpy()
        frames = frames if cmvn is None else cmvn.undo(frames)
        given = torch.from_numpy(transforms(frames)).float()[None]
        (expected,) = generator.generate(
            [model], {"net_input": {"src_tokens": given, "src_lengths": torch.tensor([length])}}
        )
        found = exported.hypotheses(frames, options)
        equal += [theirs["tokens"].tolist() for theirs in expected] == [ours.tokens for ours in found]
        error = max([error, *_differences(expected, found)])
    return Compared(count, equal, error)


def compared_speech(system: TranslationSystem, folder: Folder, count: int) -> Compared:
    """Compare PyTorch and the runtime on `count` utterances of random frames: a token after each pre-decision step."""
    exported, rng = ExportedSystem.load(folder.path, system.policy), torch.Generator().manual_seed(1)
    equal, error, never = 0, 0.0, list(system.forbidden)
    for _ in range(count):
        length = int(torch.randint(*FRAMES, (1,), generator=rng))
        frames = torch.randn(length, system.model.encoder.input_dim, generator=rng).numpy()
        theirs, ours = system.begin(ComputeTimes()), exported.begin(ComputeTimes())
        same = True
        for start in range(0, length, system.step_frames):
            for engine in (theirs, ours):
                engine.feed(frames[start : start + system.step_frames])
                if start + system.step_frames >= length:
                    engine.finish()
            if not theirs.ready:
                continue
            expected, scores = theirs.step().log_softmax(-1), torch.from_numpy(ours.scores())
            error = max(error, float((expected - scores).abs().max()))
            expected[never] = scores[never] = -torch.inf
            token = int(expected.argmax())
            same = same and token == int(scores.argmax())
            theirs.commit(token)
            ours.commit(token)
        equal += same
    return Compared(count, equal, error)
