"""How much faster two processes train than one, on the cores of one machine.

Method: a language model of 2 layers, 256 wide, feed-forward 1,024, 8 heads, without dropout, a vocabulary of 4,000,
random text in samples of 512 tokens, 2,048 tokens per batch and process; trained by `leapformer train` on CPUs in
float32, each process with one thread, for 12 updates. Speed is the median of the words per second in the log. "two
processes" exchange their gradients with gloo after every batch (`--distributed-world-size 2`); "two copies" are two
independent training runs in parallel, which shows what the machine allows. The three take turns for three rounds; the
median is reported. ratio = words per second of both processes / twice those of one process.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ...support.errors import LeapformerError
from .. import trainings
from ..engine import Cell, Command, Engine, State, Study
from . import measure
from .tables import Shown
from .train import disagreement

ONE, TWO, COPIES = "one process", "two processes", "two copies"
MECHANISMS_MEASURED = ("softmax", "leap")
TITLE = "Training: two processes"
TABLES = (Shown("Two processes: share of twice the speed of one", "scaling", "ratio", "tokens_per_second", ONE),)
AIM = 0.85
WORDS, TOKENS, UPDATES, ROUNDS = 4_000, 2_048, 12, 3


def sizes(quick: bool) -> list[str]:
    """Options for the model's size."""
    layers, width, inner, tokens = (1, 32, 64, 64) if quick else (2, 256, 1024, 512)
    return [
        "--arch", "leapformer_lm", "--decoder-layers", str(layers), "--decoder-embed-dim", str(width),
        "--decoder-ffn-embed-dim", str(inner), "--decoder-attention-heads", "8", "--dropout", "0",
        "--share-decoder-input-output-embed", "--tokens-per-sample", str(tokens), "--sample-break-mode", "none",
    ]  # fmt: skip


def cases(names: list[str], places: list[measure.Place], quick: bool) -> Iterator[measure.Case]:
    """Rows of `scaling`. Raises LeapformerError for any place other than CPUs in float32."""
    for place in places:
        if not place.has_aims:
            raise LeapformerError(f"--device {place}: this compares processes on CPUs; give --device cpu")
        for name in names:
            yield measure.case(f"{place}: {name}", "scaling", scaling, name, place, quick)


def scaling(name: str, place: measure.Place, quick: bool) -> list[dict[str, Any]]:
    """Words per second of words process, two processes, and two copies."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_text(root, tokens=TOKENS * (4 if quick else 64))
        samples: dict[str, list[float]] = {ONE: [], TWO: [], COPIES: []}
        for turn in range(1 if quick else ROUNDS):
            for system, of_system in samples.items():
                of_system.append(speed(name, system, root, f"{turn}", quick))
        speeds = {system: statistics.median(of_system) for system, of_system in samples.items()}
    return [
        {
            "device": str(place),
            "case": name,
            "mechanism": system,
            "tokens_per_second": words_per_second,
            "ratio": words_per_second / speeds[ONE] / (1 if system == ONE else 2),
            "samples": [round(words) for words in samples[system]],
            "aim": AIM if system == TWO and not quick else None,
        }
        for system, words_per_second in speeds.items()
    ]


def write_text(root: Path, tokens: int) -> None:
    """Write random words as fairseq's training data."""
    draw = random.Random(1)
    lines = (" ".join(str(draw.randrange(WORDS)) for _ in range(63)) for _ in range(tokens // 64))
    (root / "text").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["preprocess", "--only-source", "--trainpref", str(root / "text"), "--destdir", str(root / "data")]
    Engine(_Trainings(root, {"preprocess": [*words, "--workers", "1"]})).run()


def speed(name: str, system: str, root: Path, turn: str, quick: bool) -> float:
    """Total words per second of all processes of a system."""
    options = [
        str(root / "data"), "--task", "language_modeling", *sizes(quick), "--decoder-self-attention", name,
        "--optimizer", "adam", "--lr", "1e-4", "--max-tokens", str(TOKENS),
        "--max-update", str(UPDATES), "--log-interval", "2", "--log-format", "json", "--no-save", "--cpu",
        "--num-workers", "0", "--disable-validation", "--save-dir", str(root / "model"),  # not ./checkpoints
    ]  # fmt: skip
    if system == TWO:
        options += ["--distributed-world-size", "2"]
    names = [f"{system} {turn} {copy}" for copy in range(2 if system == COPIES else 1)]
    Engine(_Trainings(root, dict.fromkeys(names, ["train", *options])), jobs=len(names)).run()
    speeds = [trainings.speed(root / name / "log", "wps") for name in names]
    return sum(words for words in speeds if words is not None)


class _Trainings(Study):
    """Commands of `leapformer` by name, whose logs are NAME/log in `out`."""

    commands: ClassVar[str] = ""

    def __init__(self, out: Path, commands: Mapping[str, Sequence[str]]) -> None:
        self.out, self.by_name = out, commands

    def cells(self, state: State) -> list[Cell]:
        """A process with one thread for each."""
        return [Cell(name, (Command(tuple(words), threads=1),), vital=True) for name, words in self.by_name.items()]


__all__ = ["MECHANISMS_MEASURED", "TABLES", "TITLE", "cases", "disagreement"]
