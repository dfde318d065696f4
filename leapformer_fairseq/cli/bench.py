"""`leapformer bench`: speed, memory and FLOPs of attention, decoding, training and models."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..support.errors import LeapformerError
from ..support.options import Step, at_least, choice, flag
from . import calls

if TYPE_CHECKING:
    from ..studies.benchmarks.measure import Case, Place

BENCHMARKS = {
    "attention": "every form of every attention mechanism against torch's scaled dot-product attention",
    "decode": "a decoding step of whole decoders against fairseq's, and of one block against a preallocated cache",
    "targets": "whole targets with fairseq's decoders, ours, exported ones and CTranslate2's",
    "translate": "trained models from text to text: fairseq's, ours, exported and CTranslate2's",
    "bounded": "training with bounded memories against softmax and against cumulative sums",
    "sparse": "entmax over chosen blocks against entmax and softmax over all pairs",
    "streaming": "computation of a translation while speech arrives, encoded once or again at every arrival",
    "train": "a training step of a 16-layer language model against fairseq's",
    "scaling": "training with two processes on this machine's CPU against one",
    "lra": "training the models of Long Range Arena: speed and memory by length, and with the tasks' own batches",
    "papers": "the figures of speed of ABC (encoding, decoding) and of Modular Linearized Attention (decoder steps)",
    "model": "encoder, decoder and FLOPs of text to speech by attention plan against fairseq's model",
}
DTYPES = ("float32", "bfloat16", "float16")


STEP = "WHAT"


def _options(name: str) -> str:
    whose = "whose models: LeaPformer's, with the rows of both papers, or Luna's"
    return f"""
--out DIR = bench       for {name}.json and .md
--quick                 small sizes only, in about a minute
--mechanisms NAME...    default: all that the report needs; for `model` also plans such as softmax/softmax/leap
--device DEVICE...      default: cpu, and cuda if there is a GPU
--dtype {choice(DTYPES)}...  default: float32, on a GPU bfloat16, too
--seed SEED:int = 1     of the random inputs
{f"--protocol (leapformer|luna) = leapformer  {whose}" if name == "lra" else ""}
{"--threads N:int = 1     of the processor" if name in ("attention", "targets") else ""}
{calls.study_options("cases")}
"""


TRANSLATE = f"""
--out DIR = bench       for translate.json and .md
--path PATH...:path!    trained translation models of the same data, checkpoints or exported folders; first of all a
                        checkpoint with softmax in all blocks
--data DIR:path!        their dictionaries
--sentencepiece-model FILE:path!  that of their text
--text FILE:path!       to translate, a sentence a line
--references FILE:path!  its translations
--lines N:int = 200     so many of them
--beam N:int = 5        hypotheses
--threads N:int = 1     of the processor
{calls.study_options("cases")}
"""


@calls.owning
def translate(args: Namespace) -> int:
    """Measure trained models, and write the results after each case. Raises LeapformerError for unreadable files."""
    from ..studies.benchmarks import translate as benchmark

    at_least(1, lines=args.lines, beam=args.beam, threads=args.threads)
    for name in ("sentencepiece_model", "text", "references"):
        if not getattr(args, name).is_file():
            raise LeapformerError(f"{flag(name)} {getattr(args, name)}: no such file")
    options = {"threads": args.threads, "lines": args.lines, "beam": args.beam}
    with TemporaryDirectory() as path:
        return _measured(args, benchmark, list(benchmark.Comparison(args, Path(path)).cases()), options)


@calls.owning
def run(args: Namespace) -> int:
    """Measure, and write the results after each case.

    The status is 1 if some mechanisms disagree with the reference and were not measured, 2 if all do. Raises
    LeapformerError for unknown names and devices.
    """
    benchmark = importlib.import_module(f"..studies.benchmarks.{args.step}", __package__)
    chosen = {"protocol": args.protocol} if "protocol" in args else {}
    names, places = check_names(args.mechanisms, benchmark, **chosen), find_places(args.device, args.dtype)
    # The speed of something that computes wrong results is worthless: first compare with the reference.
    wrong = {name: error for name in names if (error := benchmark.disagreement(name, **chosen))}
    for name, error in wrong.items():
        print(f"leapformer: error: {name} is not measured: {error}", file=sys.stderr)
    names = [name for name in names if name not in wrong]
    status = 0
    if names:
        more = {"threads": args.threads} if "threads" in args else {}
        at_least(1, **more)
        cases = list(benchmark.cases(names, places, args.quick, **chosen, **more))
        about = {"seed": args.seed, "quick": args.quick, "devices": "+".join(map(str, places))}
        options = {**about, **chosen, **more}
        status = _measured(args, benchmark, cases, options)
    return status or (0 if not wrong else 1 if names else 2)


def _measured(args: Namespace, benchmark: ModuleType, cases: list[Case], options: dict[str, Any]) -> int:
    """Run the cases of a benchmark, and print its tables."""
    from ..studies.benchmarks import tables
    from ..studies.benchmarks.study import Benchmark

    study = Benchmark(args.step, benchmark, cases, options, Path(args.out))
    state, status = calls.run_study(study, args, "bench", "case", kept="what was measured is written")
    if state.results:
        results = study.results(state)
        for title, table in tables.summary(results, benchmark.TABLES):
            print(f"{title}\n{table}\n")
        print("\n".join(f"aim missed: {line}" for line in tables.missed(results)) or "No aim measured here is missed.")
    return status


def check_names(names: list[str] | None, benchmark: ModuleType, **chosen: str) -> list[str]:
    """The names to measure, by default all of the benchmark: mechanisms, or names that its `plan_of` accepts.

    `chosen` is the option of the benchmark that its names depend on. Raises LeapformerError for an unknown name.
    """
    from ..attention import find

    check = getattr(benchmark, "plan_of", find)
    for name in names or ():
        check(name, **chosen)
    if names is not None:
        return names
    return list(benchmark.measured(**chosen) if chosen else benchmark.MECHANISMS_MEASURED)


def check_devices(names: list[str] | None) -> list[str]:
    """The devices to measure on, by default the CPU and, if there is one, the GPU.

    Raises LeapformerError for a device that is not available.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if names is None:
        return ["cpu", "cuda"] if has_gpu else ["cpu"]
    for name in names:
        if name != "cpu" and not (name.startswith("cuda") and has_gpu):
            raise LeapformerError(f"--device {name} is not available; choose from: {', '.join(check_devices(None))}")
    return names


def find_places(devices: list[str] | None, dtypes: list[str] | None) -> list[Place]:
    """Every combination of device and precision; the default is float32, and on a GPU also bfloat16."""
    from ..studies.benchmarks.measure import Place

    def precisions(device: str) -> Sequence[str]:
        return dtypes or (DTYPES[:1] if device == "cpu" else DTYPES[:2])

    return [Place.parse(f"{device} {dtype}") for device in check_devices(devices) for dtype in precisions(device)]


STEPS = {
    name: Step(text, TRANSLATE, translate) if name == "translate" else Step(text, _options(name), run)
    for name, text in BENCHMARKS.items()
}
