"""`leapformer export`: a trained model as ONNX graphs that run without PyTorch and fairseq."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from ..errors import LeapformerError
from ..loading import load_model
from ..runtime.folder import SUBWORDS
from ..signature import signature

HELP = "a trained translation model as ONNX graphs with explicit states, to run without PyTorch and fairseq"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint, where its data is, where to write, and whether to check."""
    add = parser.add_argument
    add("--path", required=True, metavar="CHECKPOINT", help="a trained leapformer_nmt model")
    add("--out", required=True, type=Path, metavar="DIR", help="the graphs, vocabularies and model.json")
    add("--data", metavar="DIR", help="its dictionaries (default: as in the training)")
    add("--sentencepiece-model", type=Path, metavar="FILE", help="copied into DIR, so that it translates plain text")
    add(
        "--check", type=int, default=0, metavar="N",
        help="compare with the checkpoint on N random sources: log-probabilities, and all hypotheses of beam 5",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Export, compare if asked to, and print what was found. Raises LeapformerError for what cannot be exported."""
    from ..export.check import compared
    from ..export.write import export_translation

    subwords: Path | None = args.sentencepiece_model
    if subwords is not None and not subwords.is_file():
        raise LeapformerError(f"--sentencepiece-model {subwords}: no such file")
    overrides = {} if args.data is None else {"data": args.data}
    model, task = load_model(args.path, ("leapformer_nmt",), "export", overrides)
    folder = export_translation(model, task, args.out, signature())
    if subwords is not None:
        shutil.copyfile(subwords, args.out / SUBWORDS)
    size = sum(path.stat().st_size for path in args.out.iterdir() if path.is_file())
    print(f"{args.out}: {size / 2**20:.1f} MiB, {len(folder.own)} states; `python -m leapformer_fairseq.runtime`")
    if args.check:
        found = compared(model, task, folder, args.check)
        print(f"{found.equal} of {found.sources} sources have equal hypotheses; largest error {found.error:.1e}")
        return 0 if found.equal == found.sources else 1
    return 0
