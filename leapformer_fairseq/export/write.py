"""Writes a trained model as a folder of graphs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..modules import attentions
from ..runtime import espeak
from ..runtime.cmvn import Cmvn
from ..runtime.folder import (
    ATTENTION,
    BEFORE,
    CODES,
    COUNT,
    CROSS,
    CTRANSLATE2,
    ENDED,
    FRAMES,
    GPT2,
    GRAPHS,
    HEARD,
    KEPT,
    LANGUAGE,
    LISTEN,
    LOG_PROBS,
    NEXT,
    ONNX,
    ORDER,
    PATHS,
    POSITIONS,
    PROMPT,
    RECORDINGS,
    REFINE,
    ROWS,
    SELF,
    SOURCE,
    SPEAKERS,
    SPEECH,
    START,
    STEP,
    SUBWORDS,
    SYNTHESIS,
    TOKENS,
    TRANSLATION,
    USED,
    WIDTH,
    WRITE,
    Folder,
    Language,
    Shapes,
    Speaking,
    Speech,
    Vocabulary,
)
from ..simul.system import TranslationSystem
from ..support.errors import LeapformerError
from ..support.lines import write_lines
from . import ctranslate2
from .graphs import DecoderStep, SharingStep, Source
from .language import Prompt
from .plain import check_task, multilingual_of
from .recordings import Recording, recordings_of, subwords_in
from .states import Keys, keys_of, shapes_of, shared_of, starts_of
from .streaming import Listening, Writing
from .subwords import PLAIN, Subwords, check_subwords, codes_of
from .synthesis import Phonemes, Refined, SpeechStep
from .tracing import ANY, HYPOTHESES, LONGEST, SENTENCES, quantize_graph, write_graph, write_with_states
from .weights import share

IN_CONFIG = "{} in the config yaml,".format  # what messages call its options
Pair = tuple[str | None, str | None]  # languages of sources and targets


def export_text(
    model: Any,
    task: Any,
    out: Path,
    signature: str,
    origin: dict[str, Any],
    subwords: Subwords = PLAIN,
    languages: Pair = (None, None),
    alignments: int | None = None,
    engine: str = ONNX,
    eight_bits: bool = False,
) -> Folder:
    """Write the folder of a text translation or language model, all its files; `origin` as in `Folder`.

    subwords:   how plain text is split.
    languages:  of a translation model of several, those of a text of which nothing is said.
    alignments: the decoder layer whose attention weights steps return, from 1, or from the last one backwards, from -1.
    engine:     what will run it.
    eight_bits: round the weights of CTranslate2 to 8 bits (for graphs, see `quantize`).
    Raises LeapformerError for mechanisms and tasks that cannot be exported, for a model that CTranslate2 does not have,
    for subwords of another vocabulary, or if a library is missing.
    """
    reads_source = hasattr(model, "encoder")
    if reads_source:
        folder = _translation(model, task, out, signature, origin, languages)
        check_subwords(subwords, task.source_dictionary.symbols)
    else:
        folder = _language(model, task, out, signature, origin)
        check_subwords(subwords, task.target_dictionary.symbols)
    if engine == CTRANSLATE2:
        return _with_subwords(_for_ctranslate2(folder, _frozen(model, out), eight_bits), subwords).write()
    keys = _keys(model, alignments)
    model = _frozen(model, out)
    if reads_source:
        write_source(Source(model, keys), out)
    else:
        write_prompt(model.decoder, out)
    shared = shared_of(model.decoder)
    folder = replace(folder, states=write_step(model.decoder, out, keys, shared), shared=shared)
    return _complete(_aligning(folder, keys), model, subwords)


def _translation(model: Any, task: Any, out: Path, signature: str, origin: dict[str, Any], languages: Pair) -> Folder:
    """What a folder of text translation says, whatever runs it, but for states."""
    multilingual = multilingual_of(task, *languages)
    words = {"source": vocabulary(task.source_dictionary), "target": vocabulary(task.target_dictionary)}
    folder = Folder(out, TRANSLATION, {}, words, model.max_decoder_positions(), signature, origin)
    return replace(folder, max_source=_longest_source(model), multilingual=multilingual)


def _longest_source(model: Any) -> int | None:
    """Most tokens of a source, by learned positions and the mechanisms that read it; None: any number."""
    encoder, decoder = model.encoder, model.decoder
    reading = [*attentions(encoder), *(block for block in attentions(decoder) if not block.self_attention)]
    limits = [block.mechanism.limit for block in reading]
    limits += [encoder.max_positions()] if isinstance(encoder.embed_positions, nn.Embedding) else []
    return min((limit for limit in limits if limit is not None), default=None)


def _for_ctranslate2(about: Folder, model: Any, eight_bits: bool) -> Folder:
    """Write CTranslate2's files; the folder with what they can read."""
    if about.multilingual is not None:
        raise LeapformerError("--engine ctranslate2 translates between two languages; export with --engine onnx")
    ctranslate2.write(model, about.path, eight_bits)
    longest = ctranslate2.positions(model.decoder)
    read = ctranslate2.positions(model.encoder) if hasattr(model, "encoder") else longest
    source, target = min(about.max_source or read, read), min(about.max_target, longest)
    return replace(about, engine=CTRANSLATE2, max_source=source, max_target=target)


def _language(model: Any, task: Any, out: Path, signature: str, origin: dict[str, Any]) -> Folder:
    """What a folder of a language model says, whatever runs it, but for states."""
    words, limit = task.target_dictionary, model.decoder.mechanism_limit()
    first = words.bos() if getattr(task.args, "add_bos_token", False) else words.eos()
    check_task(task, first)
    language = Language(first, None if limit == sys.maxsize else limit, task.args.tokens_per_sample)
    longest, target = model.max_decoder_positions(), {"target": vocabulary(words)}
    return Folder(out, LANGUAGE, {}, target, longest, signature, origin, language=language)


def export_synthesis(model: Any, task: Any, out: Path, signature: str, origin: dict[str, Any]) -> Folder:
    """Write the folder of a text to speech model, graphs and all other files; `origin` as in `Folder`.

    Raises LeapformerError for mechanisms that cannot be exported, or if a library is missing.
    """
    model = _frozen(model, out)
    states, speaking = write_synthesis(model, out)
    if (statistics := task.data_cfg.global_cmvn_stats_npz) is not None:
        cmvn = Cmvn.load(statistics)
        speaking = replace(speaking, mean=cmvn.mean.tolist(), std=cmvn.std.tolist())
    data = {name: value for name, value in task.data_cfg.config.items() if name in ("features", espeak.CONFIG)}
    words, longest = {"source": vocabulary(task.src_dict)}, model.max_decoder_positions()
    speaking = replace(speaking, data=data, speakers=task.speaker_to_id)
    folder = Folder(out, SYNTHESIS, states, words, longest, signature, origin, speaking=speaking)
    return _complete(folder, model)


def write_synthesis(model: Any, out: Path) -> tuple[dict[str, Shapes], Speaking]:
    """Write the graphs of a text to speech model to an existing folder.

    Returns the shapes of its states, and the sizes for which the graphs are made.
    """
    decoder, drops = model.decoder, model.decoder.prenet[0]
    source, step, units = Phonemes(model), SpeechStep(decoder), decoder.prenet[1].in_features
    write_source(source, out)
    frames, positions = torch.zeros(SENTENCES, 1, decoder.out_dim), torch.ones(SENTENCES, 1).long()
    kept, states = torch.ones(len(drops.layers), SENTENCES, 1, units), step.layers.shapes
    write_with_states(
        step,
        {FRAMES: frames, POSITIONS: positions, KEPT: kept},
        [(states[SELF], SENTENCES), (states[CROSS], SENTENCES)],
        [f"{FRAMES}{NEXT}", ENDED],
        out / STEP,
        {FRAMES: {0: ANY}, POSITIONS: {0: ANY}, KEPT: {1: ANY}},
    )
    utterance = torch.zeros(1, LONGEST, decoder.out_dim)
    write_graph(Refined(decoder), (utterance,), ({1: ANY},), [FRAMES], [f"{FRAMES}{NEXT}"], out / REFINE)
    return states, Speaking(decoder.n_frames_per_step, decoder.out_dim, len(drops.layers), units, drops.dropout, {})


def export_speech(
    system: TranslationSystem, out: Path, signature: str, origin: dict[str, Any], alignments: int | None = None
) -> Folder:
    """Write the folder of a model for simultaneous translation, graphs and all other files; `origin` as in `Folder`.

    `alignments`: as for `export_text`.
    Raises LeapformerError for mechanisms and encoders that cannot be exported, or if a library is missing.
    """
    keys = _keys(system.model, alignments)
    model = _frozen(system.model, out)
    if model.decoder.context.facts.knows_lengths:
        raise LeapformerError(
            "--length-predictor: a model that is told the target's length cannot be exported for speech, which has not "
            "ended yet; train without"
        )
    states, about = write_speech(model, system.state_frames, system.step_frames, out, keys)
    cmvn = system.cmvn
    if cmvn is not None:
        about = replace(about, mean=cmvn.mean.tolist(), std=cmvn.std.tolist())
    about = replace(about, lagging=getattr(model, "lagging", None), forbidden=list(system.forbidden))
    words = {"target": vocabulary(model.decoder.dictionary)}
    folder = Folder(out, SPEECH, states, words, model.max_decoder_positions(), signature, origin, about)
    return _complete(_aligning(folder, keys), model, Subwords(system.detokenizer.model_file))


def write_speech(
    model: Any, frames: int, step_frames: int, out: Path, keys: Keys | None = None
) -> tuple[dict[str, Shapes], Speech]:
    """Write the graphs of a model for simultaneous translation to an existing folder.

    `frames` per encoder state, `step_frames` per pre-decision step; `keys` as for `write_step`. Returns the shapes of
    its states, and the sizes for which the graphs are made.
    """
    listening, writing = Listening(model.encoder), Writing(model.decoder, keys)
    encoder, n_bins = model.encoder, model.encoder.input_dim
    heard, read = shapes_of(listening.blocks), writing.shapes
    before, count, start = (torch.tensor([number]) for number in (frames, 1, 2))
    chunk = torch.zeros(1, frames * (1 + encoder.chunks.tokens), n_bins)
    given = {FRAMES: chunk, BEFORE: before, COUNT: count, START: start}
    write_with_states(listening, given, [(heard, 1)], [ROWS], out / LISTEN)
    rows = torch.zeros(step_frames // frames, 1, encoder.out.out_features)
    write_with_states(writing, {ROWS: rows, COUNT: count, START: start}, [(read, 1)], [], out / WRITE)
    states = {HEARD: heard, **write_step(model.decoder, out, keys)}
    return states, Speech(frames, encoder.chunks.size, encoder.chunks.ahead, step_frames, n_bins)


def export_recordings(model: Any, task: Any, out: Path, signature: str, origin: dict[str, Any]) -> Folder:
    """Write the folder of a model that reads whole recordings, graphs and all other files; `origin` as in `Folder`.

    Raises LeapformerError for mechanisms and tasks that cannot be exported, or if a library is missing.
    """
    recordings, subwords = recordings_of(task), subwords_in(task)
    check_subwords(subwords, task.target_dictionary.symbols, IN_CONFIG)
    model = _frozen(model, out)
    source, ratio = Recording(model), model.encoder.pooling_ratio()
    example = torch.zeros(1, LONGEST * ratio, recordings.n_bins)
    write_graph(source, (example,), ({1: ANY},), [FRAMES], list(source.shapes), out / SOURCE)
    shared, words = shared_of(model.decoder), {"target": vocabulary(task.target_dictionary)}
    states = write_step(model.decoder, out, shared=shared)
    frames, rows = task.max_positions()[0], _longest_source(model)
    longest = frames if rows is None else min(frames, rows * ratio)
    folder = Folder(out, RECORDINGS, states, words, model.max_decoder_positions(), signature, origin)
    folder = replace(folder, recordings=recordings, max_source=longest, shared=shared)
    return _complete(folder, model, subwords)


def quantize(folder: Folder) -> Folder:
    """Round a folder's weights and embeddings to 8 bits; activations that they multiply are rounded at each call.

    Everything else, such as states, stays in float32. Returns the folder with its new hashes.
    """
    for name in GRAPHS[folder.task]:
        quantize_graph(folder.path / name)
    share(folder)
    return folder.write()


def _complete(folder: Folder, model: Any, subwords: Subwords = PLAIN) -> Folder:
    """Write everything but the graphs, which must be there."""
    share(folder)
    return replace(_with_subwords(folder, subwords), starts=starts_of(model.decoder)).write()


def _with_subwords(folder: Folder, subwords: Subwords) -> Folder:
    """The folder with the files of subwords; those of an earlier export are removed."""
    for name in (SUBWORDS, CODES, *GPT2):
        (folder.path / name).unlink(missing_ok=True)
    if subwords.sentencepiece is not None:
        shutil.copyfile(subwords.sentencepiece, folder.path / SUBWORDS)
    if subwords.codes is not None:
        write_lines(folder.path / CODES, codes_of(subwords.codes))
    if subwords.gpt2 is not None:
        for file, name in zip(subwords.gpt2, GPT2, strict=True):
            shutil.copyfile(file, folder.path / name)
    return replace(folder, moses=None if subwords.moses is None else [*subwords.moses])


def _frozen(model: Any, out: Path) -> Any:
    """Create the folder, and return the model in float32, in evaluation mode and without gradients."""
    out.mkdir(parents=True, exist_ok=True)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.float(), model.eval()  # not chained: after fairseq's make_generation_fast_, `eval` returns None
    return model


def _keys(model: Any, alignments: int | None) -> Keys | None:
    return None if alignments is None else keys_of(model.decoder, alignments)


def _aligning(folder: Folder, keys: Keys | None) -> Folder:
    """The folder of graphs that were made with these keys."""
    return folder if keys is None else replace(folder, alignments=keys.block.layer + 1)


def write_step(decoder: Any, out: Path, keys: Keys | None = None, shared: Sequence[str] = ()) -> dict[str, Shapes]:
    """Write the graph of a decoding step to an existing folder; returns the shapes of its states.

    `keys`: of the layer whose attention weights it returns, too; None: of none. `shared`: the names of the states that
    stay in memory which steps share.
    """
    step = DecoderStep(decoder, keys)
    tokens = torch.full((SENTENCES, HYPOTHESES), decoder.padding_idx + 1)
    order, states = torch.arange(tokens.numel()).view_as(tokens), step.layers.shapes
    given = {TOKENS: tokens, POSITIONS: torch.ones_like(tokens), ORDER: order}
    sizes: dict[str, dict[int, Any]] = dict.fromkeys(given, {0: ANY, 1: ANY})
    if shared:
        used, width = torch.ones(2, 1, dtype=torch.int32)
        given |= {USED: used, WIDTH: width, PATHS: torch.zeros(*tokens.shape, LONGEST, dtype=torch.int32)}
        sizes |= {USED: {}, WIDTH: {}, PATHS: {0: ANY, 1: ANY, 2: ANY}}
    held = [(states[SELF], tokens.numel()), (states[CROSS], SENTENCES)]
    outputs = [LOG_PROBS] if keys is None else [LOG_PROBS, ATTENTION]
    part = SharingStep(step, shared) if shared else step
    write_with_states(part, given, held, outputs, out / STEP, sizes)
    return states


def write_prompt(decoder: Any, out: Path) -> None:
    """Write the graph of a language model that reads a whole prompt to an existing folder."""
    prompt = Prompt(decoder)
    tokens = torch.full((SENTENCES, LONGEST), decoder.padding_idx + 1)
    given = {TOKENS: tokens, POSITIONS: torch.arange(1, LONGEST + 1).repeat(SENTENCES, 1)}
    sizes = {**dict.fromkeys(given, {0: ANY, 1: ANY}), BEFORE: {}}
    given[BEFORE] = torch.ones(1).long()
    write_with_states(prompt, given, [(shapes_of(prompt.blocks), SENTENCES)], [LOG_PROBS], out / PROMPT, sizes)


def write_source(source: Source, out: Path) -> None:
    """Write the graph of an encoder, with the states of cross-attention, to an existing folder."""
    given = {TOKENS: torch.full((SENTENCES, LONGEST), source.encoder.padding_idx + 1)}
    if getattr(source.encoder, "embed_speaker", None) is not None:
        given[SPEAKERS] = torch.zeros(SENTENCES).long()
    sizes = tuple(dict.fromkeys(range(example.dim()), ANY) for example in given.values())
    write_graph(source, tuple(given.values()), sizes, list(given), list(source.shapes), out / SOURCE)


def vocabulary(dictionary: Any) -> Vocabulary:
    return Vocabulary(list(dictionary.symbols), dictionary.pad(), dictionary.eos(), dictionary.unk())
