"""`leapformer eval-stream`: perplexity of a language model on one long text, with its state carried across segments."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..support.errors import LeapformerError
from ..support.files import write_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..scoring.stream import Reader

HELP = "perplexity of a language model over one long text, read as a stream in constant memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("data", metavar="DATA", help="folder that fairseq-preprocess wrote")
    parser.add_argument(
        "--path", metavar="FILE", required=True, help="a trained leapformer_lm*, or its exported folder"
    )
    parser.add_argument("--gen-subset", metavar="NAME", default="test", help="the subset to read (default: test)")
    parser.add_argument("--segment", type=int, metavar="N", help="tokens read at once (default: as in training)")
    parser.add_argument("--no-carry", action="store_true", help="begin every segment with an empty state, to compare")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tokens")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--json", metavar="FILE", help="also write the scores, with a signature, to FILE")


def run(args: argparse.Namespace) -> int:
    """Read the text and print its perplexity. Raises LeapformerError for unsuitable files and models."""
    from ..models.loading import available_device
    from ..scoring.stream import score_stream
    from ..support.signature import environment, signature

    if args.limit is not None and args.limit < 1:  # a negative one would cut tokens off the end
        raise LeapformerError(f"--limit {args.limit}: give at least 1 token")
    device = available_device(args.device)
    reader, dictionary, trained = (_exported if Path(args.path).is_dir() else _trained)(args, device)
    text = _text(args.data, args.gen_subset, dictionary)[: args.limit].to(device)
    segment = trained if args.segment is None else args.segment
    score = score_stream(reader, text, dictionary.eos(), segment, carry=not args.no_carry)
    print(f"{score.tokens:,} tokens in segments of {segment}, state {'' if not args.no_carry else 'not '}carried on")
    print(f"loss (base 2) {score.loss:.4f}, perplexity {score.perplexity:.2f}, state {score.state_bytes:,} bytes")
    if args.json:
        options = {"segment": segment, "carry": not args.no_carry, "subset": args.gen_subset}
        report = {**asdict(score), "options": options, "environment": environment(), "signature": signature(**options)}
        write_json(args.json, report, "--json")
    return 0


def _trained(args: argparse.Namespace, device: torch.device) -> tuple[Reader, Any, int]:
    """The reader of a checkpoint, its dictionary, and the length of its segments in training."""
    from ..models.loading import load_model
    from ..scoring.stream import ModelReader

    model, task = load_model(args.path, ("leapformer_lm",), "a stream", {"data": args.data})
    return ModelReader(model.to(device)), task.source_dictionary, task.args.tokens_per_sample


def _exported(args: argparse.Namespace, device: torch.device) -> tuple[Reader, Any, int]:
    """The same for an exported folder."""
    from fairseq.data import Dictionary

    from ..export.as_fairseq_models import ExportedReader
    from ..runtime.folder import Folder

    if device.type != "cpu":
        raise LeapformerError(f"--device {args.device}: exported models run on the CPU; leave it out")
    words = Path(args.data, "dict.txt")
    if not words.is_file():
        raise LeapformerError(f"no dictionary {words}; give the folder that fairseq-preprocess wrote")
    dictionary = Dictionary.load(str(words))
    reader = ExportedReader(Folder.read(args.path), dictionary)
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
