"""`leapformer demo`: translate a bundled sentence with a bundled model, at once and without PyTorch."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...support.errors import LeapformerError
from ...support.files import read_json
from ...support.options import parse
from ..audio import FRAME_MS, SAMPLE_RATE, UNIT_MS, read_speech
from ..simul.live import load_sessions
from ..simul.session import Event
from . import stream

FOLDER = Path(__file__).parents[1] / "demo"
MODEL, EXAMPLE = FOLDER / "model", FOLDER / "example.json"
NEEDED = ("audio", "source", "reference", "lagging")  # of example.json
LIMITS = ("--max-len-a", "0.1", "--max-len-b", "10")  # those of the quickstart
NEXT = """
What next
  leapformer demo FILE.wav    translate a recording of your own: 16 kHz, mono, words of the quickstart's corpus
  leapformer demo --page      speak, on a page in the browser
  bash scripts/quickstart.sh  train this model yourself"""


OPTIONS = """
audio [FILE]            a 16 kHz mono recording to translate instead of the example; the model knows only the few
                        hundred English words of the quickstart's synthetic corpus
--[no-]live             as the words are spoken, or as fast as possible (default: live on a terminal)
--waitk-lagging K:int   steps that are heard before the first token (default: 3)
--page                  open a page in the browser instead: microphone or file in, text out
--port N:int = 8000     of the page; 0: any that is free
"""


def run(args: Namespace) -> int:
    """Translate and say what to do next, or serve the page until Ctrl-C.

    Raises LeapformerError for an unsuitable recording, and where the model is missing.
    """
    if not EXAMPLE.is_file():
        raise LeapformerError(f"{FOLDER} has no model; `bash scripts/demo_model.sh results/quickstart` makes one")
    example = read_json(EXAMPLE, NEEDED, "install the package again")
    lagging = example["lagging"] if args.waitk_lagging is None else args.waitk_lagging
    words = ["--checkpoint", str(MODEL), "--waitk-lagging", str(lagging), *LIMITS]
    if args.page:
        if args.audio:
            raise LeapformerError(f"--page: choose {args.audio} on the page, and leave it out here")
        return _show_page(
            [*words, "--port", str(args.port), "--title", "the quickstart's model", "--open", "--no-talks"], example
        )
    _translate(words, None if args.audio is None else Path(args.audio), example, args.live)
    print(NEXT)
    return 0


def _show_page(words: list[str], example: dict[str, Any]) -> int:
    """`leapformer serve` with the bundled model: onnxruntime translates in this process."""
    from . import serve  # which the demo in the terminal need not wait for

    print(f"no microphone? choose this file on the page: {os.path.relpath(FOLDER / example['audio'])}", flush=True)
    return serve.run(parse(serve, words))


def _translate(words: list[str], recording: Path | None, example: dict[str, Any], live: bool | None) -> None:
    """Print what is said, each word with the second of the recording at which it was written, and the reference."""
    path = recording or FOLDER / example["audio"]
    samples = read_speech(path)
    seconds = len(samples) / SAMPLE_RATE
    system, _, create = load_sessions(parse(stream, [str(path), *words]))
    session, lagging, step = create(False), words[3], system.step_frames * FRAME_MS
    size = sum(file.stat().st_size for file in MODEL.iterdir()) / 1e6
    print(f"English, {seconds:.1f} s:  {recording or example['source']}")
    print(f"German, written {lagging} steps of {step / 1000:g} s behind (wait-{lagging}) by a model of {size:.1f} MB:")
    for block in _blocks(samples, sys.stdout.isatty() if live is None else live):
        _show(session.push(block))
    _show(session.finish())
    if recording is None:
        print(f"Reference:  {example['reference']}")
    print(f"{session.times.total_s:.2f} s of computation for {seconds:.1f} s of speech")


def _blocks(samples: np.ndarray, live: bool) -> Iterator[np.ndarray]:
    """The recording in pieces of 40 ms; live, each when its last sample would have been spoken."""
    size, began = UNIT_MS * SAMPLE_RATE // 1000, time.monotonic()
    for stop in range(size, len(samples) + size, size):
        if live:
            time.sleep(max(0.0, began + stop / SAMPLE_RATE - time.monotonic()))
        yield samples[stop - size : stop]


def _show(events: Iterator[Event]) -> None:
    for event in events:
        if event.text:
            print(f"  {event.audio_s:5.2f} s  {event.text}", flush=True)
