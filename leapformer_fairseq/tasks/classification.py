"""Classification of sequences of tokens, bytes or pixels, or of pairs of them: `--task leapformer_classification`."""

# No `from __future__ import annotations`: fairseq reads the types of the configuration's fields.
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import collate_tokens
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II

from ..data.arrays import About, Split, read_about
from ..support.errors import LeapformerError

PAD = 0


class ClassificationDataset(FairseqDataset):
    """The examples of a split as batches: sequences (B, T), padded at the end, and classes (B,).

    Sequences are cut to their first `longest` numbers. T is `padded_length`, or if that is 0, the length of the batch's
    longest sequence. With `shuffle`, each epoch has another random order; otherwise short sequences come first.
    """

    def __init__(
        self, split: Split, longest: int, padded_length: int = 0, shuffle: bool = False, seed: int = 1
    ) -> None:
        if 0 < padded_length < longest:
            raise LeapformerError(
                f"--padded-length {padded_length}: give at least --longest {longest}, or leave it out"
            )
        self.split, self.longest, self.padded_length = split, longest, padded_length
        self.shuffle, self.seed, self.epoch = shuffle, seed, 1
        self.sizes = np.minimum(split.lengths(), longest)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> dict[str, Any]:
        example = self.split[i]
        sequences = [torch.from_numpy(x[: self.longest].astype(np.int64)) for x in example.sequences]
        return {"id": i, "sequences": sequences, "label": example.label}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch for the model and the criterion; empty without samples."""
        if not samples:
            return {}
        columns = zip(*(sample["sequences"] for sample in samples), strict=True)
        width = max(1, self.padded_length)  # not 0, even if all sequences are empty
        tokens = [collate_tokens(column, PAD, pad_to_length=width) for column in columns]
        return {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "nsentences": len(samples),
            "ntokens": sum(int(x.ne(PAD).sum()) for x in tokens),
            "net_input": {"tokens": tokens},
            "target": torch.tensor([sample["label"] for sample in samples]),
        }

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        if self.shuffle:
            return np.random.default_rng((self.seed, self.epoch)).permutation(len(self))
        return np.argsort(self.sizes, kind="stable")

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return not self.shuffle  # fairseq would otherwise keep the batches of the first epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@dataclass
class ClassificationConfig(FairseqDataclass):
    data: str = field(default="", metadata={"help": "the folder, as `leapformer prepare lra` makes it"})
    longest: int = field(default=4096, metadata={"help": "numbers of a sequence that are read"})
    padded_length: int = field(
        default=0, metadata={"help": "pad every batch to this length; 0: to its longest sequence"}
    )
    valid_examples: int = field(
        default=0, metadata={"help": "validate on the first examples of a split only; 0: on all"}
    )
    seed: int = II("common.seed")


@register_task("leapformer_classification", dataclass=ClassificationConfig)
class ClassificationTask(FairseqTask):
    """Classification of one or two sequences of tokens, bytes or pixels, read from arrays (`data/arrays.py`).

    Raises LeapformerError if the data folder has no such arrays, and for impossible options.
    """

    cfg: ClassificationConfig

    def __init__(self, cfg: ClassificationConfig, about: About) -> None:
        super().__init__(cfg)
        self.about = about

    @classmethod
    def setup_task(cls, cfg: ClassificationConfig, **kwargs: Any) -> "ClassificationTask":
        if not cfg.data:
            raise LeapformerError("no data: give the folder that `leapformer prepare lra` writes")
        if cfg.longest < 1:
            raise LeapformerError(f"--longest {cfg.longest}: give at least 1")
        if cfg.valid_examples < 0:
            raise LeapformerError(f"--valid-examples {cfg.valid_examples}: give at least 1, or 0 for all")
        return cls(cfg, read_about(cfg.data))

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> None:
        trains = split == "train"  # then all examples, shuffled; otherwise the first ones, in order of length
        examples = Split(self.cfg.data, split, 0 if trains else self.cfg.valid_examples)
        self.datasets[split] = ClassificationDataset(
            examples, self.cfg.longest, self.cfg.padded_length, trains, self.cfg.seed
        )

    def max_positions(self) -> int:
        return self.cfg.longest

    def filter_indices_by_size(
        self, indices: np.ndarray, dataset: Any, max_positions: Any = None, ignore_invalid_inputs: bool = False
    ) -> np.ndarray:
        """All indices. Raises LeapformerError if a sequence is too long for the model; fairseq would skip it."""
        longest, room = int(dataset.sizes.max(initial=0)), max_positions or self.cfg.longest
        if longest > room:
            raise LeapformerError(
                f"a sequence of {longest} numbers, and the model has room for {room}; cut sequences with --longest "
                f"{room}, or build a model with more --max-positions"
            )
        return indices

    @property
    def source_dictionary(self) -> None:
        return None

    @property
    def target_dictionary(self) -> None:
        return None
