"""Turns a user's sentences into batches of one sentence for a checkpoint, with tokens as labels."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...models.loading import load_model
from ...runtime.audio import FRAME_MS, read_speech
from ...support.errors import LeapformerError
from ...support.lines import lines_or_text, read_table
from .heatmaps import Axis

MODELS = (
    *("leapformer_lm", "leapformer_mlm", "leapformer_nmt", "leapformer_s2t", "leapformer_simulst"),
    *("leapformer_s2t_transformer", "leapformer_classifier"),
)
MANIFEST, MARK = ".tsv", "mark"


@dataclass(frozen=True)
class Request:
    """The user's input.

    input, target: files or text.
    subwords:      a sentencepiece model for text.
    lines:         maximum number of sentences.
    max_length:    maximum length of a sentence, in tokens, or in encoder states for audio.
    """

    input: str
    target: str | None = None
    subwords: str | None = None
    lines: int = 20
    max_length: int = 1024


@dataclass
class Example:
    """The arguments of a model's `forward` for one sentence, its axes, and notes for the user."""

    batch: Mapping[str, Tensor | list[Tensor]]
    read: Axis | None = None  # decoder positions, labelled with the tokens that they read
    written: Axis | None = None  # decoder positions, labelled with the tokens that they write
    source: Axis | None = None
    notes: list[str] = field(default_factory=list)

    def axes(self, block: str) -> tuple[Axis, Axis]:
        """The query and key axes of a block that the model has; cross-attention shows the tokens to be written."""
        axes = {
            "encoder-self": (self.source, self.source),
            "decoder-self": (self.read, self.read),
            "decoder-cross": (self.written, self.source),
        }[block]
        return cast(tuple[Axis, Axis], axes)


def load(checkpoint: str, data: str | None = None) -> tuple[Any, Any]:
    """Load one of our checkpoints and return (model, task); `data` replaces the saved data folder.

    Raises LeapformerError for missing or unreadable files, another architecture, and dictionaries of other data.
    """
    return load_model(checkpoint, MODELS, "leapformer maps", {} if data is None else {"data": data})


def examples(model: Any, task: Any, request: Request) -> Iterator[Example]:
    """Iterate over the sentences of a request.

    Language models, including masked ones, read one text per line, classifiers a split of their data, translation
    models pairs of source and target, speech models an audio file or the rows of a manifest. Without a target, the
    model's own translation by greedy search is used. Raises LeapformerError for input that is missing, empty or not in
    the model's vocabulary.
    """
    # A sentence has at least a token and its end.
    for option, value, least in (("--lines", request.lines, 1), ("--max-length", request.max_length, 2)):
        if value < least:
            raise LeapformerError(f"{option} {value}: give at least {least}")
    if hasattr(task, "about"):  # classification
        yield from _numbers(model, task, request)
    elif not hasattr(model, "encoder"):
        yield from _texts(model, task, request)
    elif not hasattr(model, "decoder"):
        yield from _bidirectional_texts(model, task, request)
    elif hasattr(task, "data_cfg"):  # speech
        yield from _speech(model, task, request)
    else:
        yield from _translations(model, task, request)


# ------------------------------------------------------------------------------------------------ language models
def _texts(model: Any, task: Any, request: Request) -> Iterator[Example]:
    _refuse_target(request)
    dictionary, subwords = task.source_dictionary, _subwords(request.subwords)
    first = dictionary.bos() if getattr(task.args, "add_bos_token", False) else dictionary.eos()
    limit = min(request.max_length, model.max_positions())
    for (line,) in _sentences(request):
        notes: list[str] = []
        tokens = _cut([first, *_encoded(line, dictionary, subwords, notes)], limit, "text", notes)
        batch = {"src_tokens": torch.tensor([tokens]), "src_lengths": torch.tensor([len(tokens)])}
        yield Example(batch, Axis("token", _words(dictionary, tokens)), notes=notes)


def _bidirectional_texts(model: Any, task: Any, request: Request) -> Iterator[Example]:
    """Texts between the symbols for start and end, as in training."""
    _refuse_target(request)
    dictionary, subwords = task.source_dictionary, _subwords(request.subwords)
    limit = min(request.max_length, model.max_positions())
    for (line,) in _sentences(request):
        notes: list[str] = []
        tokens = [dictionary.bos(), *_encoded(line, dictionary, subwords, notes)]
        tokens = [*_cut(tokens, limit - 1, "text", notes), dictionary.eos()]
        axis = Axis("token", _words(dictionary, tokens))
        yield Example({"src_tokens": torch.tensor([tokens])}, source=axis, notes=notes)


def _refuse_target(request: Request) -> None:
    if request.target is not None:
        raise LeapformerError("--target is for translation models; leave it out")


# ----------------------------------------------------------------------------------------------------- classifiers
def _numbers(model: Any, task: Any, request: Request) -> Iterator[Example]:
    """Sequences of a split; their labels include the mark before them if the model reads one."""
    _refuse_target(request)
    mark = [MARK] if model.args.pooling == "cls" else []
    limit = min(request.max_length, model.max_positions()) - len(mark)
    if model.inputs > 1:
        raise LeapformerError(f"a classifier of {model.inputs} sequences cannot be drawn; give one of one sequence")
    task.load_dataset(request.input)
    dataset = task.dataset(request.input)
    for i in range(min(request.lines, len(dataset))):
        notes: list[str] = []
        numbers = _cut(dataset[i]["sequences"][0].tolist(), limit, "sequence", notes)
        axis = Axis("number", [*mark, *map(str, numbers)])
        yield Example({"tokens": [torch.tensor([numbers])]}, source=axis, notes=notes)


# -------------------------------------------------------------------------------------------------- translation
def _translations(model: Any, task: Any, request: Request) -> Iterator[Example]:
    dictionary, subwords = task.source_dictionary, _subwords(request.subwords)
    limit = min(request.max_length, model.encoder.max_positions())
    for line, *target in _sentences(request):
        notes: list[str] = []
        # A sentence that is cut keeps its end symbol.
        tokens = [*_cut(_encoded(line, dictionary, subwords, notes), limit - 1, "source", notes), dictionary.eos()]
        source = {"src_tokens": torch.tensor([tokens]), "src_lengths": torch.tensor([len(tokens)])}
        axis = Axis("source", _words(dictionary, tokens))
        reference = _encoded(target[0], task.target_dictionary, subwords, notes) if target else None
        yield _with_target(model, task, request, source, axis, reference, notes)


def _with_target(
    model: Any,
    task: Any,
    request: Request,
    source: dict[str, Tensor],
    axis: Axis,
    target: list[int] | None,
    notes: list[str],
) -> Example:
    """An example for an encoder and decoder; `target` has no end symbol; None: the model's own translation."""
    dictionary = task.target_dictionary
    limit = min(request.max_length, model.decoder.max_positions())
    if target is None:
        written = _greedy(model, task, source, limit)
        notes.append(f"the model's own translation: {dictionary.string(written)}")
    else:
        written = [*_cut(target, limit - 1, "target", notes), dictionary.eos()]
    read = [dictionary.eos(), *written[:-1]]  # fairseq's decoders start with the end symbol
    batch = {**source, "prev_output_tokens": torch.tensor([read])}
    words = _words(dictionary, written)
    return Example(batch, Axis("target read", _words(dictionary, read)), Axis("target written", words), axis, notes)


@torch.no_grad()
def _greedy(model: Any, task: Any, source: dict[str, Tensor], limit: int) -> list[int]:
    """Greedy search: token indices up to the end of the sentence, at most `limit` of them."""
    # fairseq's limit does not count the end symbol.
    generator = task.build_generator([model], Namespace(beam=1, max_len_a=0, max_len_b=limit - 1))
    best = task.inference_step(generator, [model], {"net_input": source})[0][0]
    return best["tokens"].tolist()


# --------------------------------------------------------------------------------------------------------- speech
def _speech(model: Any, task: Any, request: Request) -> Iterator[Example]:
    rows = _recordings(request, task.data_cfg.audio_root)
    # With the features and transforms of evaluation.
    features = task.build_dataset_for_inference([audio for audio, _ in rows], [1] * len(rows))
    pooling = model.encoder.pooling_ratio()
    axis = Axis(f"encoder state ({pooling * FRAME_MS} ms)")
    tokenizers = [part for part in (task.build_tokenizer(None), task.build_bpe(None)) if part is not None]
    for i, (audio, target) in enumerate(rows):
        notes: list[str] = []
        try:
            frames = features[i].source
        except ValueError as error:
            raise LeapformerError(
                f"{audio} cannot be read ({error}); check --input, and audio_root in the config of the data"
            ) from error
        longest = request.max_length * pooling
        if len(frames) > longest:
            notes.append(f"audio cut from {len(frames):,} to {longest:,} frames of {FRAME_MS} ms")
            frames = frames[:longest]
        source = {"src_tokens": frames.unsqueeze(0), "src_lengths": torch.tensor([len(frames)])}
        reference = None if target is None else _encoded(target, task.target_dictionary, _chain(tokenizers), notes)
        yield _with_target(model, task, request, source, axis, reference, notes)


def _recordings(request: Request, audio_root: str) -> list[tuple[str, str | None]]:
    """Paths of audio or features in fairseq's notation, and their targets: one file, or the rows of a manifest."""
    path = Path(request.input)
    if path.suffix != MANIFEST:
        read_speech(path)  # its error is clearer than that of the data set
        return [(str(path), request.target)]
    if request.target is not None:
        raise LeapformerError("--target is for a single audio file, a manifest has its own; leave it out")
    try:
        rows = read_table(path, dict.fromkeys(("audio", "tgt_text"), "give a manifest"))
        recordings: list[tuple[str, str | None]] = [
            (str(Path(audio_root, row["audio"])), row["tgt_text"]) for _, row in islice(rows, request.lines)
        ]
    except LeapformerError as error:
        raise LeapformerError(f"{path} cannot be read as a manifest ({error}); check --input") from error
    if not recordings:
        raise LeapformerError(f"{path} holds no rows; choose another manifest")
    return recordings


def _chain(tokenizers: list[Any]) -> Callable[[str], list[str]]:
    def cut(line: str) -> list[str]:
        for tokenizer in tokenizers:
            line = tokenizer.encode(line)
        return line.split()

    return cut


# ----------------------------------------------------------------------------------------------------------- text
def _sentences(request: Request) -> Iterator[tuple[str, ...]]:
    """(source,) or (source, target) of the first lines; pairs with an empty side are skipped."""
    sides = [lines_or_text(side) for side in (request.input, request.target) if side is not None]
    if len({len(side) for side in sides}) > 1:
        raise LeapformerError(
            f"--input has {len(sides[0])} lines, --target {len(sides[1])}; give the target of every source line"
        )
    pairs = [pair for pair in zip(*sides, strict=True) if all(line.strip() for line in pair)]
    if not pairs:
        raise LeapformerError(f"--input {request.input!r}: no text in it; give a sentence or a file with one per line")
    return islice(pairs, request.lines)


def _subwords(model: str | None) -> Callable[[str], list[str]]:
    """The function that splits a line into tokens: at spaces, or with a sentencepiece model."""
    if model is None:
        return str.split
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=model)
    except (OSError, RuntimeError) as error:
        raise LeapformerError(f"--subwords {model} is not a sentencepiece model; check the path") from error
    return lambda line: processor.encode(line, out_type=str)


def _encoded(line: str, dictionary: Any, cut: Callable[[str], list[str]], notes: list[str]) -> list[int]:
    tokens = [dictionary.index(piece) for piece in cut(line)]
    unknown = tokens.count(dictionary.unk())
    if unknown == len(tokens):
        raise LeapformerError(
            f"{line[:60]!r} is neither a file nor text with a token of the model's dictionary; "
            "cut the text as in training, or give the sentencepiece model of training as --subwords"
        )
    if unknown:
        notes.append(f"{unknown} of {len(tokens)} tokens are not in the model's dictionary")
    return tokens


def _cut(tokens: list[int], limit: int, what: str, notes: list[str]) -> list[int]:
    if len(tokens) > limit:
        notes.append(f"{what} cut from {len(tokens):,} to {limit:,} tokens")
    return tokens[:limit]


def _words(dictionary: Any, tokens: list[int]) -> list[str]:
    return [dictionary[token] for token in tokens]
