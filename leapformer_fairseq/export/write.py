"""Writes a trained model as a folder of graphs."""

from __future__ import annotations

import logging
import math
import shutil
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..attention.ops import dispatch
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
from ..support.files import replacing
from ..support.lines import write_lines
from . import ctranslate2
from .graphs import DecoderStep, SharingStep, Source
from .language import Prompt
from .layout import simplify
from .plain import check_task, multilingual_of
from .recordings import Recording, recordings_of, subwords_in
from .states import Keys, keys_of, shapes_of, shared_of, starts_of
from .streaming import Listening, Writing
from .subwords import PLAIN, Subwords, check_subwords, codes_of
from .synthesis import Phonemes, Refined, SpeechStep
from .weights import share

Pair = tuple[str | None, str | None]  # languages of sources and targets
SENTENCES, HYPOTHESES, LONGEST = 2, 3, 7  # sizes of the examples that are traced
SMALL = 1 / 4  # of the usual weight: smaller ones are not rounded, since rounding what they multiply costs more
ANY = torch.export.Dim.DYNAMIC  # a size that must stay variable; export fails if the graph would fix it


def export_translation(
    model: Any,
    task: Any,
    out: Path,
    signature: str,
    origin: dict[str, Any],
    subwords: Subwords = PLAIN,
    languages: Pair = (None, None),
    alignments: int | None = None,
) -> Folder:
    """Write the folder of a text translation model, graphs and all other files; `origin` as in `Folder`.

    `subwords`: how plain text is split. `languages`: of a model of several, those of a text of which nothing is said.
    `alignments`: the decoder layer whose attention weights steps return, from 1, or from the last one backwards, from
    -1.
    Raises LeapformerError for mechanisms and tasks that cannot be exported, for subwords of another vocabulary, or if a
    library is missing.
    """
    folder = _translation(model, task, out, signature, origin, subwords, languages)
    keys = _keys(model, alignments)
    model = _frozen(model, out)
    write_source(Source(model, keys), out)
    shared = shared_of(model.decoder)
    folder = replace(folder, states=write_step(model.decoder, out, keys, shared), shared=shared)
    return _complete(_aligning(folder, keys), model, subwords)


def _translation(
    model: Any,
    task: Any,
    out: Path,
    signature: str,
    origin: dict[str, Any],
    subwords: Subwords,
    languages: Pair,
) -> Folder:
    """What a folder of text translation says, whatever runs it, but for states."""
    multilingual = multilingual_of(task, *languages)
    check_subwords(subwords, task.source_dictionary.symbols)
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


def export_to_ctranslate2(
    model: Any,
    task: Any,
    out: Path,
    signature: str,
    origin: dict[str, Any],
    subwords: Subwords = PLAIN,
    languages: Pair = (None, None),
    eight_bits: bool = False,
) -> Folder:
    """Write the folder of a translation or language model for CTranslate2; `eight_bits`: round its weights to 8 bits.

    Raises LeapformerError for a model that it does not have, and if it is not installed.
    """
    if hasattr(model, "encoder"):
        about = _translation(model, task, out, signature, origin, subwords, languages)
    else:
        about = _language(model, task, out, signature, origin, subwords)
    if about.multilingual is not None:
        raise LeapformerError("--engine ctranslate2 translates between two languages; export with --engine onnx")
    model = _frozen(model, out)
    ctranslate2.write(model, out, eight_bits)
    longest = ctranslate2.positions(model.decoder)
    read = ctranslate2.positions(model.encoder) if hasattr(model, "encoder") else longest
    source, target = min(about.max_source or read, read), min(about.max_target, longest)
    folder = replace(about, engine=CTRANSLATE2, max_source=source, max_target=target)
    return _with_subwords(folder, subwords).write()


def export_language_model(
    model: Any, task: Any, out: Path, signature: str, origin: dict[str, Any], subwords: Subwords = PLAIN
) -> Folder:
    """Write the folder of a language model, graphs and all other files; `origin` as in `Folder`.

    `subwords`: how plain text is split.
    Raises LeapformerError as `export_translation` does.
    """
    folder = _language(model, task, out, signature, origin, subwords)
    decoder = _frozen(model, out).decoder
    shared = shared_of(decoder)
    folder = replace(folder, states=write_step(decoder, out, shared=shared), shared=shared)
    write_prompt(decoder, out)
    return _complete(folder, model, subwords)


def _language(model: Any, task: Any, out: Path, signature: str, origin: dict[str, Any], subwords: Subwords) -> Folder:
    """What a folder of a language model says, whatever runs it, but for states."""
    words, limit = task.target_dictionary, model.decoder.mechanism_limit()
    first = words.bos() if getattr(task.args, "add_bos_token", False) else words.eos()
    check_task(task, first)
    check_subwords(subwords, words.symbols)
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
    write(Refined(decoder), (utterance,), ({1: ANY},), [FRAMES], [f"{FRAMES}{NEXT}"], out / REFINE)
    return states, Speaking(decoder.n_frames_per_step, decoder.out_dim, len(drops.layers), units, drops.dropout, {})


def export_speech(
    system: TranslationSystem, out: Path, signature: str, origin: dict[str, Any], alignments: int | None = None
) -> Folder:
    """Write the folder of a model for simultaneous translation, graphs and all other files; `origin` as in `Folder`.

    `alignments`: as for `export_translation`.
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
    model = _frozen(model, out)
    source, ratio = Recording(model), model.encoder.pooling_ratio()
    example = torch.zeros(1, LONGEST * ratio, recordings.n_bins)
    write(source, (example,), ({1: ANY},), [FRAMES], list(source.shapes), out / SOURCE)
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


def quantize_graph(path: Path) -> None:
    """Round the weights and embeddings of one graph to 8 bits (see `quantize`)."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    onnxruntime.set_default_logger_severity(3)  # errors only
    with replacing(path) as partial, _quiet():
        # This stores weights transposed that the graph transposes; otherwise they would not be quantized, or be made
        # float32 again for every token. It does not look at weights in other files.
        onnx.save(onnx.load(path), partial)
        quant_pre_process(partial, partial, skip_onnx_shape=True, skip_symbolic_shape=True)
        # Signed weights, for processors that multiply them with unsigned inputs at once. Others add pairs of products
        # in 16 bits, which can overflow, so there the runtime makes them unsigned (`runtime.engine.open_graph`).
        model, kinds = onnx.load(partial), ["MatMul", "Gemm", "Gather"]
        sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
        products = [
            sizes[node.input[1]] for node in model.graph.node if node.op_type in kinds[:2] and node.input[1] in sizes
        ]
        least = SMALL * statistics.median(products or [0])
        for number, node in enumerate(model.graph.node):
            node.name = f"node{number}"
        small = [node for node in model.graph.node if sizes.get([*node.input, "", ""][1], least) < least]
        left = [name for node in small for name in (node.name, f"{node.name}_MatMul")]  # as which a Gemm is rewritten
        onnx.save(model, partial)
        quantize_dynamic(
            partial,
            partial,
            kinds,
            nodes_to_exclude=left,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # of the results of onnxruntime's own operators
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


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
    write(source, tuple(given.values()), sizes, list(given), list(source.shapes), out / SOURCE)


def write_with_states(
    part: nn.Module,
    given: Mapping[str, torch.Tensor],
    states: Sequence[tuple[Shapes, int]],
    outputs: Sequence[str],
    path: Path,
    sizes: Mapping[str, dict[int, Any]] | None = None,
) -> None:
    """Write the graph of a part whose last inputs are states, and whose last outputs are the first group of them.

    given:   examples of the other inputs, by name.
    states:  groups of states: their shapes, and the rows of the examples.
    outputs: names of the other outputs.
    sizes:   the variable dimensions of each of the `given` inputs; the rows of states are then variable, too. None:
             only the sizes of states that grow are variable.
    """
    held = [
        [torch.zeros(rows, *(size or LONGEST for size in shape)) for shape in shapes.values()]
        for shapes, rows in states
    ]
    batch = {} if sizes is None else {0: ANY}
    vary = [
        [{**batch, **{axis: ANY for axis, size in enumerate(shape, 1) if not size}} for shape in shapes.values()]
        for shapes, _ in states
    ]
    dynamic = (*({} if sizes is None else sizes[name] for name in given), *vary)
    names, after = [name for shapes, _ in states for name in shapes], [f"{name}{NEXT}" for name in states[0][0]]
    write(part, (*given.values(), *held), dynamic, [*given, *names], [*outputs, *after], path)


def write(
    part: nn.Module, given: tuple[Any, ...], dynamic: Any, inputs: Sequence[str], outputs: Sequence[str], path: Path
) -> None:
    """Trace a part of a model with an example and write its graph."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise LeapformerError(f"{error.name} is not installed; pip install 'leapformer-fairseq[onnx]'") from error
    # No gradient is needed, but with gradients enabled states are not changed in place, which a graph cannot do. The
    # override makes the choice of an implementation independent of the example's length.
    with (
        _quiet(),
        _without_inexact_rules(),
        _one_table(),
        torch.enable_grad(),
        dispatch.override(pairs=0, pairs_per_token=0),
    ):
        try:
            traced = torch.export.export(part.eval(), given, dynamic_shapes=dynamic, strict=False)
            program = torch.onnx.export(
                traced, given, dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
            )
        except LeapformerError:
            raise
        except Exception as error:  # torch raises many kinds
            reason = str(error).strip().partition("\n")[0][:200]
            raise LeapformerError(
                f"{path.name}: PyTorch cannot make a graph of this model ({reason}); try other mechanisms"
            ) from error
    assert program is not None
    model = program.model_proto
    simplify(model)
    path.write_bytes(model.SerializeToString())


def vocabulary(dictionary: Any) -> Vocabulary:
    return Vocabulary(list(dictionary.symbols), dictionary.pad(), dictionary.eos(), dictionary.unk())


@contextmanager
def _without_inexact_rules() -> Iterator[None]:
    """Turn off onnxscript's rules that remove sums with 0 and products with 1, up to 1e-8.

    Constants that prevent 0 / 0 are smaller than that, and without them padding becomes NaN.
    """
    from onnxscript import rewriter
    from onnxscript.rewriter.rules.common import _no_op

    rules, inexact = rewriter._DEFAULT_REWRITE_RULES, {id(rule) for rule in _no_op.rules}
    rewriter._DEFAULT_REWRITE_RULES = tuple(rule for rule in rules if id(rule) not in inexact)
    try:
        yield
    finally:
        rewriter._DEFAULT_REWRITE_RULES = rules


@cache
def _tables() -> tuple[Any, Any]:
    """torch's class of tables from its operators to those of ONNX, and a function that makes each of them once."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry, staticmethod(cache(ONNXRegistry.from_torchlib))


@contextmanager
def _one_table() -> Iterator[None]:
    """Let all graphs of a process have one table of operators, which nothing changes.

    torch makes it for each graph from the sources of 500 functions, in a fifth of the time that a small graph takes.
    """
    kind, once = _tables()
    before = vars(kind)["from_torchlib"]
    kind.from_torchlib = once
    try:
        yield
    finally:
        kind.from_torchlib = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages and warnings of torch and onnxscript."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
