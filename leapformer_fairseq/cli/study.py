"""`leapformer study`: attentions, seeds and options of any training, out of a file of ten lines."""

from __future__ import annotations

import runpy
from argparse import Namespace
from pathlib import Path

from ..studies.engine import Study
from ..support.errors import LeapformerError
from . import calls

OPTIONS = f"""
file [FILE]:path        my_study.yaml, or .py with study(out)
--out DIR:path          data, runs and results; the same command resumes
--jobs N:int = 1        cells at once, each with one thread
{calls.study_options("cells")}
--example               print a study that runs in three minutes
"""
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


def run(args: Namespace) -> int:
    """Run the study and compare its runs. Raises LeapformerError for a file or option that cannot be used."""
    if args.example:
        print(EXAMPLE, end="")
        return 0
    if not args.file or not args.out:
        raise LeapformerError("give a FILE and --out; `leapformer study --example` prints a file")
    study = _read(args.file, args.out)
    state, status = calls.run_study(study, args, "study", "cell")
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
