"""`leapformer study`: an experiment of one's own, described by a short file."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

from ..studies.engine import Study
from ..support.errors import LeapformerError
from . import calls

HELP = "an experiment of your own out of a short file: attentions, seeds and options of a training, with scores"
EXAMPLE = """\
# Three plans learn to translate synthetic sentences, with two seeds: do their translations differ?
title: Synthetic text, English-German
prepare:
  - corpus --task text --out {out}/corpus --train 4000
  - prepare text {out}/corpus --out {out}/text --pair en-de --vocab-size 500
  - preprocess -s en -t de --trainpref {out}/text/train --validpref {out}/text/valid --testpref {out}/text/test
    --destdir {out}/data --joined-dictionary --srcdict {out}/text/spm.txt
train: >
  {out}/data --task translation --arch leapformer_nmt_tiny --dropout 0.1 --max-tokens 1024 --max-update 200
  --criterion label_smoothed_cross_entropy --label-smoothing 0.1
  --optimizer adam --lr 5e-3 --lr-scheduler inverse_sqrt --warmup-updates 50
attention: [softmax, softmax/leap/softmax, softmax/gated-leap/softmax]
seeds: [1, 2]
scores:
  test:
    - generate {out}/data --path {checkpoint} --gen-subset test --results-path {folder} --beam 1 --max-tokens 4000
      --bpe sentencepiece --sentencepiece-model {out}/text/spm.model
    - score {folder}/generate-test.txt --references {out}/text/raw/test.de
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command."""
    parser.add_argument("file", metavar="FILE", type=Path, nargs="?", help="my_study.yaml, or .py with study(out)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="data, runs and results; the same command resumes")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at once, each with one thread")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, do nothing")
    parser.add_argument("--example", action="store_true", help="print a study that runs in three minutes")


def run(args: argparse.Namespace) -> int:
    """Run the study and compare its runs. Raises LeapformerError for a file or option that cannot be used."""
    if args.example:
        print(EXAMPLE, end="")
        return 0
    if not args.file or not args.out:
        raise LeapformerError("give a FILE and --out; `leapformer study --example` prints a file")
    study = _read(args.file, args.out)
    state, status = calls.run_study(study, "study", "cell", args.jobs, args.dry_run)
    if any(args.out.glob("*/*/scores.json")) and not args.dry_run:
        order = getattr(study, "order", [])
        title = getattr(study, "title", "") or args.file.stem
        calls.call(["table", str(args.out), "--title", title, *(["--rows", *order] if order else [])])
    return status


def _read(path: Path, out: Path) -> Study:
    if path.suffix != ".py":
        from ..studies.sweep import read_study
        from .fairseq_commands import COMMANDS as FAIRSEQ
        from .main import COMMANDS

        return read_study(path, out, {*COMMANDS, *FAIRSEQ})
    if not path.is_file():
        raise LeapformerError(f"no {path}; check the path")
    make = runpy.run_path(str(path)).get("study")
    if not callable(make):
        raise LeapformerError(f"{path} defines no function study(out: Path); see docs/recipes.md")
    study = make(out)
    if not isinstance(study, Study):
        raise LeapformerError(f"study() of {path} returned {study!r}, not a Study of leapformer_fairseq.studies.engine")
    return study
