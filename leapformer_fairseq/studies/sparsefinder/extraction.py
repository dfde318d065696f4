"""Queries, keys and graphs of an entmax teacher, sentence by sentence, in parts on disk.

A folder holds `graphs.json`, a description of teacher and sentences, and `part-0000.pt`, ...: lists of sentences. An
interrupted extraction resumes with the first missing part.

Shapes: L layers, H heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...attention import BLOCKS, CAUSAL, Mask
from ...attention.sparse.entmax import Entmax
from ...attention.sparse.fitted import fingerprint
from ...attention.sparse.pattern import Pattern
from ...models.loading import load_model
from ...modules.attention import MechanismAttention
from ...modules.capture import attentions_by_block, capture
from ...support.errors import LeapformerError
from ...support.files import locked_folder, read_json, write_with
from ...support.progress import Watch

RECORD = "graphs.json"
PART = 16  # sentences per part
MODELS = ("leapformer_lm", "leapformer_mlm", "leapformer_nmt")
PURPOSE = "leapformer sparsefinder"


class Sentence(NamedTuple):
    """Queries and keys of a block's layers for one sentence, and their entmax graphs.

    index: of the sentence in the data set.
    words: the T subwords of the queries.
    q, k:  (L, H, T, D) and (L, H, S, D).
    graph: (L, H, T, S), True where entmax gives a weight above 0.
    """

    index: int  # type: ignore[assignment]  # shadows a method of tuples
    words: list[str]
    q: Tensor
    k: Tensor
    graph: Tensor


@dataclass(frozen=True)
class Request:
    """The sentences: `sentences` of `subset` of `data`, with at least `min_length` tokens each, drawn with `seed`."""

    data: str
    block: str
    subset: str = "train"
    sentences: int = 1000
    min_length: int = 21
    seed: int = 1

    def check(self) -> None:
        """Raise LeapformerError for an unknown block, and for numbers below 1."""
        if self.block not in BLOCKS:
            raise LeapformerError(f"--block {self.block}: choose from: {', '.join(BLOCKS)}")
        for name in ("sentences", "min_length"):
            if getattr(self, name) < 1:
                raise LeapformerError(f"--{name.replace('_', '-')} {getattr(self, name)}: give at least 1")


class Graphs:
    """The result of `extract` in a folder. Raises LeapformerError if it is missing, damaged or unfinished."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        remedy = "make it with `leapformer sparsefinder extract`"
        self.about = read_json(self.folder / RECORD, ("block", "fingerprints", "indexes"), remedy)
        missing = [path for path in self.parts() if not path.is_file()]
        if missing:
            raise LeapformerError(
                f"{folder}: {len(missing)} of {len(self.parts())} parts are missing; repeat the same `leapformer "
                "sparsefinder extract`, which goes on from there"
            )

    def __repr__(self) -> str:
        return f"Graphs({str(self.folder)!r})"

    def parts(self) -> list[Path]:
        return [self.folder / f"part-{i:04}.pt" for i in range(-(-len(self) // PART))]

    def __len__(self) -> int:
        return len(self.about["indexes"])

    @property
    def mask(self) -> Mask:
        """The mask of the attention."""
        return CAUSAL if self.about["causal"] else None

    def sentences(self, start: int = 0, stop: int | None = None) -> Iterator[Sentence]:
        """Yield the sentences from `start` to before `stop`, in order."""
        stop = len(self) if stop is None else stop
        for i, path in enumerate(self.parts()):
            if i * PART >= stop or (i + 1) * PART <= start:
                continue
            for at, sentence in enumerate(_read_part(path), i * PART):
                if start <= at < stop:
                    yield sentence

    def seen(self, sentence: Sentence) -> Tensor:
        """Return (T, S), True where the mask lets a query see a key."""
        queries, keys = sentence.graph.shape[2:]
        mask = self.mask
        return torch.ones(queries, keys, dtype=torch.bool) if mask is None else mask.mask(queries, keys)


def extract(checkpoint: str, request: Request, out: str, watch: Watch) -> Graphs:
    """Write graphs to the folder `out`; `watch` receives the number of sentences that are done, and of all.

    Raises LeapformerError for a teacher without entmax in the block, too few sentences, and a folder of something else.
    """
    request.check()
    model, task = load_model(checkpoint, MODELS, PURPOSE, {"data": request.data})
    layers = teacher_layers(model, request.block, checkpoint)
    about = {
        "teacher": str(Path(checkpoint).resolve()),
        "block": request.block,
        "causal": layers[0].mask == CAUSAL,
        "heads": layers[0].num_heads,
        "head_dim": layers[0].head_dim,
        "alpha": layers[0].mechanism.chosen.entmax_alpha,
        "fingerprints": [fingerprint(layer._projections()) for layer in layers],
        "data": str(Path(request.data).resolve()),
        "subset": request.subset,
        "min_length": request.min_length,
        "seed": request.seed,
        "sentences": request.sentences,
    }
    alphas = [layer.mechanism.alpha for layer in layers if isinstance(layer.mechanism, Entmax)]
    learned = [alpha.flatten().tolist() for alpha in alphas if isinstance(alpha, Tensor)]
    if learned:
        about["alphas"] = learned
    batches = _Batches(task, request)
    if not (Path(out) / RECORD).is_file():  # before the record, which includes the sentences: an error leaves no folder
        about["indexes"] = batches.drawn()
    folder = locked_folder(out, RECORD, about, "set of graphs", grows=True)
    indexes = read_json(folder / RECORD, ("indexes",))["indexes"]
    chosen = {request.block: list(range(len(layers)))}
    for start in range(0, len(indexes), PART):
        path = folder / f"part-{start // PART:04}.pt"
        wanted = indexes[start : start + PART]
        if not path.is_file():
            part = []
            for i, index in enumerate(wanted):
                batch, tokens = batches.of(index)
                part.append(_packed(index, batches.words(tokens), capture(model, batch, chosen)))
                watch(start + i + 1, len(indexes))
            kept = "the parts before it are kept: make room, and repeat the command"
            write_with(path, partial(torch.save, part), kept)
        watch(start + len(wanted), len(indexes))
    return Graphs(folder)


def teacher_layers(model: Any, block: str, checkpoint: str) -> list[MechanismAttention]:
    """Return the attention layers of a block. Raises LeapformerError unless all have full entmax."""
    attentions = attentions_by_block(model)
    if block not in attentions:
        raise LeapformerError(f"--block {block}: {checkpoint} has no such block; choose from: {', '.join(attentions)}")
    for i, layer in enumerate(attentions[block]):
        if not isinstance(layer.mechanism, Entmax) or isinstance(layer.mechanism, Pattern):
            raise LeapformerError(
                f"{checkpoint}: {block} attention, layer {i + 1}, is {layer.mechanism.name}, whose graph "
                f"{'is itself predicted' if isinstance(layer.mechanism, Pattern) else 'has all edges'}; train with "
                f"--{block}-attention entmax (--finetune-from-model begins with this checkpoint)"
            )
    return attentions[block]


def loaded(task: Any, subset: str, data: str) -> Any:
    """Load a subset of the data. Raises LeapformerError if there is none of this name."""
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise LeapformerError(f"--subset {subset}: {data} holds no such part of the data; check both") from error
    return task.dataset(subset)


class _Batches:
    """The sentences of a data set, as batches of one sentence for teacher forcing."""

    def __init__(self, task: Any, request: Request) -> None:
        self.dataset, self.request = loaded(task, request.subset, request.data), request
        side = "source" if request.block.startswith("encoder") else "target"
        self.dictionary = getattr(task, f"{side}_dictionary")
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(1)

    def of(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        """Return the arguments of the model's `forward`, and the unmasked tokens of the block's queries (T,)."""
        sample = self.dataset.collater([self.dataset[index]])
        batch = sample["net_input"]
        translation = "prev_output_tokens" in batch
        if self.request.block.startswith("decoder"):
            return batch, batch["prev_output_tokens" if translation else "src_tokens"][0]
        tokens = batch["src_tokens"]
        if not translation:  # a masked language model: targets are the masked tokens, and padding elsewhere
            tokens = torch.where(sample["target"] == self.dictionary.pad(), tokens, sample["target"])
        return batch, tokens[0]

    def words(self, tokens: Tensor) -> list[str]:
        """Return the subwords of queries' tokens: source subwords in an encoder, else target subwords."""
        return [self.dictionary[int(token)] for token in tokens]

    def drawn(self) -> list[int]:
        """Return the indexes of the first sentences in random order that are long enough."""
        generator = torch.Generator().manual_seed(self.request.seed)
        indexes: list[int] = []
        for index in torch.randperm(len(self.dataset), generator=generator).tolist():
            if len(self.of(index)[1]) >= self.request.min_length:
                indexes.append(index)
            if len(indexes) == self.request.sentences:
                return indexes
        raise LeapformerError(
            f"--sentences {self.request.sentences}: {self.request.subset} has {len(indexes)} of at least "
            f"{self.request.min_length} tokens; give --sentences {len(indexes)}, or another --min-length"
        )


def _packed(index: int, words: list[str], captured: list[Any]) -> dict[str, Any]:
    """Return a sentence as it is stored: 8 pairs of the graph per byte."""
    graph = torch.stack([x.mechanism.graph(x.q, x.k, query=x.query, key=x.key, mask=x.mask)[0] for x in captured])
    return {
        "index": index,
        "words": words,
        "q": torch.stack([x.q[0] for x in captured]).float(),
        "k": torch.stack([x.k[0] for x in captured]).float(),
        "keys": graph.shape[-1],
        "graph": packed_bits(graph),
    }


def packed_bits(x: Tensor) -> Tensor:
    """Pack bools (.., S) into bytes (.., ceil(S / 8)), the first in the lowest bit."""
    spare = -x.shape[-1] % 8
    bits = torch.nn.functional.pad(x, (0, spare)).unflatten(-1, (-1, 8)).to(torch.uint8)
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def unpacked_bits(x: Tensor, count: int) -> Tensor:
    """Return the first `count` bools of the last dimension that `packed_bits` packed."""
    return ((x.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1).bool().flatten(-2)[..., :count]


def _read_part(path: Path) -> list[Sentence]:
    try:
        part = torch.load(path, weights_only=True)
        return [Sentence(x["index"], x["words"], x["q"], x["k"], unpacked_bits(x["graph"], x["keys"])) for x in part]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise LeapformerError(f"{path} is damaged; delete it, and repeat `leapformer sparsefinder extract`") from error
