"""`leapformer eval-stream`: perplexity of a language model over a text without end. It is read as a stream, in constant
memory.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import LeapformerError
from ..support.files import write_json
from ..support.options import DEVICE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..scoring.stream import Reader

OPTIONS = f"""
data DATA               folder that fairseq-preprocess wrote
--path FILE!            a trained leapformer_lm*, or its exported folder
--gen-subset NAME = test  the subset to read
--segment N:int         tokens read at once (default: as in training)
--no-carry              begin every segment with an empty state, to compare
--limit N:int           only the first N tokens
{DEVICE}
--json FILE             also write the scores, with a signature, to FILE
"""


def run(
    data: str,
    path: str,
    gen_subset: str,
    segment: int | None,
    no_carry: bool,
    limit: int | None,
    device: str,
    json: str | None,
) -> None:
    """Read the text and print its perplexity. Raises LeapformerError for unsuitable files and models."""
    from ..models.loading import available_device
    from ..scoring.stream import score_stream
    from ..support.signature import environment, signature

    if limit is not None and limit < 1:  # a negative one would cut tokens off the end
        raise LeapformerError(f"--limit {limit}: give at least 1 token")
    where, carry = available_device(device), not no_carry
    reader, dictionary, trained = (_exported if Path(path).is_dir() else _trained)(path, data, where)
    text = _text(data, gen_subset, dictionary)[:limit].to(where)
    segment = trained if segment is None else segment
    score = score_stream(reader, text, dictionary.eos(), segment, carry=carry)
    print(f"{score.tokens:,} tokens in segments of {segment}, state {'' if carry else 'not '}carried on")
    print(f"loss (base 2) {score.loss:.4f}, perplexity {score.perplexity:.2f}, state {score.state_bytes:,} bytes")
    if json:
        options = {"segment": segment, "carry": carry, "subset": gen_subset}
        report = {**asdict(score), "options": options, "environment": environment(), "signature": signature(**options)}
        write_json(json, report, "--json")


def _trained(path: str, data: str, device: torch.device) -> tuple[Reader, Any, int]:
    """The reader of a checkpoint, its dictionary, and the length of its segments in training."""
    from ..models.loading import load_model
    from ..scoring.stream import ModelReader

    model, task = load_model(path, ("leapformer_lm",), "a stream", {"data": data})
    return ModelReader(model.to(device)), task.source_dictionary, task.args.tokens_per_sample


def _exported(path: str, data: str, device: torch.device) -> tuple[Reader, Any, int]:
    """The same for an exported folder."""
    from fairseq.data import Dictionary

    from ..export.as_fairseq_models import ExportedReader
    from ..runtime.folder import Folder

    if device.type != "cpu":
        raise LeapformerError(f"--device {device}: exported models run on the CPU; leave it out")
    words = Path(data, "dict.txt")
    if not words.is_file():
        raise LeapformerError(f"no dictionary {words}; give the folder that fairseq-preprocess wrote")
    dictionary = Dictionary.load(str(words))
    reader = ExportedReader(Folder.read(path), dictionary)
    return reader, dictionary, reader.language.segment


def _text(data: str, subset: str, dictionary: Any) -> Tensor:
    """All tokens of a subset, concatenated with the sentence ends, as for --sample-break-mode none."""
    import torch
    from fairseq.data import data_utils

    path = Path(data, subset)
    dataset = data_utils.load_indexed_dataset(str(path), dictionary, None)
    if dataset is None:
        raise LeapformerError(f"no data set {path}; check DATA and --gen-subset")
    return torch.cat([dataset[i] for i in range(len(dataset))]).long()
