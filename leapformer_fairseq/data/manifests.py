"""The input of fairseq's speech_to_text task: feature archives, manifests, subword models, statistics, configurations.

The formats are those of fairseq's `examples/speech_to_text`. fairseq's own helpers are not used: they hold whole data
sets in memory or write a file per utterance, list them in file system order, and need torchaudio.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

from ..support.errors import LeapformerError
from ..support.files import replacing, write_text
from ..support.lines import read_table, write_lines

BINS = 80
CMVN = "gcmvn.npz"
COLUMNS = ("id", "audio", "n_frames", "tgt_text", "speaker")  # src_text may follow
# fairseq's dictionaries fix these ids; with the same ones, sentencepiece's numbering needs no mapping.
SPECIAL_PIECES: dict[str, Any] = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
ZIP_HEADER = 30  # bytes of a zip's local file header before the name
# Without quoting: a quotation mark in a text is a character like any other, for fairseq's reader too.
_MANIFEST_FORMAT: dict[str, Any] = {
    "delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None, "lineterminator": "\n",
}  # fmt: skip


@dataclass(frozen=True)
class Features:
    """The location of `frames` filterbank frames: `length` bytes from `offset` in the file `archive`."""

    archive: str
    frames: int
    offset: int
    length: int

    @property
    def address(self) -> str:
        """The value of a manifest's `audio` column, relative to the configuration's `audio_root`."""
        return f"{self.archive}:{self.offset}:{self.length}"


class FeatureArchive:
    """An uncompressed zip of .npy files; fairseq reads an entry by its byte offset, without the zip directory."""

    def __init__(self, path: Path, name: str) -> None:
        """Create the archive at `path`, to be called `name` in manifests."""
        self._name = name
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> FeatureArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def add(self, utterance_id: str, features: np.ndarray) -> Features:
        """Store the features (frames, bins) of an utterance and return their location."""
        buffer = io.BytesIO()
        np.save(buffer, features)
        entry = zipfile.ZipInfo(f"{utterance_id}.npy")  # with a fixed date, so that archives are reproducible
        self._zip.writestr(entry, buffer.getvalue())
        # The data follows the local header at once: ZIP_STORED does not compress, and ZipInfo has no extra field.
        offset = entry.header_offset + ZIP_HEADER + len(entry.filename.encode())
        return Features(self._name, len(features), offset, buffer.getbuffer().nbytes)


class BinStatistics:
    """Mean and standard deviation of each filterbank bin over all added frames, accumulated in float64."""

    def __init__(self, bins: int = BINS) -> None:
        self._frames = 0
        self._total, self._squares = np.zeros(bins), np.zeros(bins)

    def add(self, features: np.ndarray) -> None:
        """Add all frames of an utterance, (frames, bins)."""
        self._frames += len(features)
        self._total += features.sum(axis=0, dtype=np.float64)
        self._squares += np.square(features, dtype=np.float64).sum(axis=0)

    def save(self, path: Path) -> None:
        """Write fairseq's `global_cmvn` file. Raises LeapformerError if no frames were added."""
        if not self._frames:
            raise LeapformerError(f"no training audio for the statistics in {path.name}; check the training split")
        mean = self._total / self._frames
        # The floor keeps a bin that never changes from being divided by 0.
        deviation = np.sqrt(np.maximum(self._squares / self._frames - mean**2, 1e-8))
        with replacing(path) as partial, open(partial, "wb") as file:
            np.savez(file, mean=mean.astype(np.float32), std=deviation.astype(np.float32))


def write_manifest(path: Path, rows: Iterable[Sequence[str]], columns: Sequence[str] = COLUMNS) -> None:
    """Write a fairseq manifest; the fields of `rows` are in the order of `columns` and hold no tab or line break."""
    with replacing(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, **_MANIFEST_FORMAT)
        writer.writerow(columns)
        writer.writerows(rows)


def read_manifest(path: Path, *needed: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a manifest that has the `needed` columns. Raises LeapformerError as `read_table` does."""
    columns = dict.fromkeys(needed, "give a manifest that `leapformer prepare` or `leapformer corpus` wrote")
    yield from (row for _, row in read_table(path, columns))


def train_subwords(
    prefix: Path, texts: Iterable[str], vocab_size: int, model_type: str = "unigram", coverage: float = 1.0
) -> None:
    """Train a sentencepiece model of at most `vocab_size` pieces, PREFIX.model, and write its dictionary, PREFIX.txt.

    `model_type` is unigram, bpe or char. `coverage` is the share of the text's characters that must be covered; the
    rarest letters beyond it become unknown. Raises LeapformerError if there is no text, or if the letters do not fit in
    the vocabulary.
    """
    model = io.BytesIO()
    # hard_vocab_limit=False: a text with too few different subwords gets a smaller vocabulary instead of an error.
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, model_type=model_type, vocab_size=vocab_size,
            character_coverage=coverage, hard_vocab_limit=False, num_threads=1, minloglevel=2, **SPECIAL_PIECES,
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise LeapformerError(
            f"cannot train a subword model of {vocab_size} pieces ({reason}); give another --vocab-size"
        ) from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(len(SPECIAL_PIECES), processor.get_piece_size())]
    # Without the special pieces, which fairseq adds to every dictionary itself; its format demands a count per entry.
    write_lines(prefix.with_name(f"{prefix.name}.txt"), (f"{piece} 1" for piece in pieces))
    with replacing(prefix.with_name(f"{prefix.name}.model")) as partial:
        partial.write_bytes(model.getvalue())


def write_config(path: Path, subwords: str, specaugment: Mapping[str, float] | None = None) -> None:
    """Write fairseq's data configuration for the data beside it, with subword model `subwords`.model and global CMVN.

    `specaugment` sets the augmentation of training data. Paths are relative, so that the folder can be moved; our patch
    (`compat/data.py`) resolves them beside the configuration, fairseq alone in the working directory.
    """
    config: dict[str, Any] = {
        "audio_root": ".",
        "vocab_filename": f"{subwords}.txt",
        "bpe_tokenizer": {"bpe": "sentencepiece", "sentencepiece_model": f"{subwords}.model"},
        "input_channels": 1,
        "input_feat_per_channel": BINS,
        "global_cmvn": {"stats_npz_path": CMVN},
        "feature_transforms": {"*": ["global_cmvn"]},  # of all splits; "_train" replaces it for training
    }
    if specaugment:
        config["specaugment"] = dict(specaugment)
        config["feature_transforms"]["_train"] = ["global_cmvn", "specaugment"]
    write_yaml(path, config)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a data configuration. Raises LeapformerError if the file is missing or holds no mapping."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:120]
        raise LeapformerError(f"{path} cannot be read ({reason}); give the folder of a prepared data set") from error
    if not isinstance(config, dict):
        raise LeapformerError(f"{path} holds no configuration; prepare the data again")
    return config


def write_yaml(path: Path, config: Mapping[str, Any]) -> None:
    """Write a data configuration, in the order of `config`."""
    # Infinite width: a path with spaces must not be folded into several lines.
    write_text(path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=float("inf")))
