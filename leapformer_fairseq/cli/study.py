"""`leapformer study`: attentions, seeds and options of any training, out of a file of ten lines."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from ..studies.engine import Study
from ..support.errors import LeapformerError, first_line, frames, suggestion
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

        return read_study(path, out, _check_command)
    if not path.is_file():
        raise LeapformerError(f"no {path}; check the path")
    try:
        make = getattr(_imported(path), "study", None)
        study = make(out) if callable(make) else None
    except LeapformerError:
        raise
    except Exception as error:
        lines = [f.f_lineno for f in frames(error) if f.f_code.co_filename == str(path.absolute())]
        place = f", line {lines[0]}" if lines else ""
        raise LeapformerError(f"{path}{place}: {first_line(error)}") from error
    if not isinstance(study, Study):
        raise LeapformerError(f"{path} has no function study(out) that returns a Study; see docs/recipes.md")
    return study


def _imported(path: Path) -> ModuleType:
    """The module of a file, under its own name, by which processes of --jobs find its functions, too."""
    sys.path.insert(0, str(path.absolute().parent))
    module = importlib.import_module(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise LeapformerError(f"{path} has the name of another module, {module.__file__}; call it otherwise")
    return module


def _check_command(words: Sequence[str]) -> None:
    """Raise LeapformerError for an unknown command, and for wrong options of one of ours."""
    from . import fairseq_commands, main

    if words[0] in fairseq_commands.COMMANDS:
        return
    if words[0] not in main.COMMANDS:
        near = suggestion(words[0], [*main.COMMANDS, *fairseq_commands.COMMANDS])
        raise LeapformerError(f"{words[0]!r} is no command of leapformer; {near}`leapformer --help` shows all")
    main.build_parser(words[0], words).parse_args(words)
