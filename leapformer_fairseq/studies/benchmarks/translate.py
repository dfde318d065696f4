"""From a file of text to a file of text with trained models: fairseq, ours, exported folders and CTranslate2.

Method: every system translates the same lines as a user would, by a command in a process of its own: `leapformer
interactive` with a checkpoint, `python -m leapformer_fairseq.runtime` with a folder of `leapformer export`, whatever
its engine. All split text with the same sentencepiece model. Commands take turns; the median of 3 is reported.
Sentences a second leave out the time to start, which is wall time to the end of the first line. With one thread they
are of CPU time, with more of wall time. Peak memory is that of the process, size on disk that of the folder, of a
checkpoint that of its weights.

"fairseq" is its stock model with the weights of the first checkpoint, which has softmax in all blocks; "in PyTorch" is
our model of a checkpoint in the same generator; other names are those of folders. Ratio = sentences a second over those
of fairseq; equal: lines whose text is fairseq's. What 8 bits gain depends on the processor's instructions: the
signature says whether it has VNNI.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ... import register
from ...compat.trust import options_of
from ...models.averaging import load_checkpoint
from ...models.stock import adopt
from ...modules.swap import BLOCKS
from ...modules.vocabulary import FINGERPRINT
from ...scoring.quality import bleu
from ...support.errors import LeapformerError
from ...support.lines import decoded, read_lines, write_lines
from ...support.memory import MIB
from .. import trainings
from . import measure
from .tables import Shown

FAIRSEQ, ROUNDS = "fairseq", 3
TITLE = "Trained models: from text to text"
TABLES = (
    Shown("Sentences a second: times as fast as fairseq", "translate", "ratio", "a_second", FAIRSEQ),
    Shown("Sentences a second", "translate", "a_second", "a_second", FAIRSEQ),
    Shown("Seconds to the first line", "start", "seconds", "seconds", FAIRSEQ),
)
BATCHES = {"one line at a time": 1, "batches of 2,000 subwords": 2000}
# Starts a command, and writes its status, wall and CPU seconds, and peak memory in KiB; a process of its own, since
# memory would else include that of the process that started it.
WATCH = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
status = subprocess.run(sys.argv[2:]).returncode
wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump([status, wall, used.ru_utime + used.ru_stime, used.ru_maxrss], file)
"""


class System(NamedTuple):
    """The words of a command that reads standard input, those for lines one by one and in batches of N, and its MiB."""

    words: list[str]
    alone: list[str]
    batched: list[str]
    mib: float


class Run(NamedTuple):
    """What a command took, and the lines that it wrote."""

    wall: float
    cpu: float
    peak_mib: float
    lines: list[str]


class Comparison:
    """Commands of all systems over the same lines.

    asked: the options of `leapformer bench translate`.
    out:   an existing folder for intermediate files.
    """

    def __init__(self, asked: Namespace, out: Path) -> None:
        self.asked, self.out = asked, out

    def cases(self) -> Iterator[measure.Case]:
        """Rows of `start` and `translate`."""
        yield measure.Case("start", lambda: {"start": self.started()})
        for about, batch in BATCHES.items():
            yield measure.case(about, "translate", self.translated, about, batch)

    def started(self) -> list[dict[str, Any]]:
        """A row for each system: seconds to the end of the first line, and its size on disk."""
        return [
            {
                "device": "cpu",
                "case": "first line",
                "mechanism": name,
                "seconds": run.wall,
                "mib": self.systems[name].mib,
            }
            for name, run in self.starts.items()
        ]

    def translated(self, about: str, batch: int) -> list[dict[str, Any]]:
        """A row for each system: sentences a second, peak memory, BLEU, and lines that are as fairseq's."""
        sources, references = (self._first(path) for path in (self.asked.text, self.asked.references))
        runs, clock = self._runs(sources, batch), "cpu" if self.asked.threads == 1 else "wall"
        taken = {name: getattr(run, clock) - getattr(self.starts[name], clock) for name, run in runs.items()}
        seconds = {name: max(each, 1e-3) for name, each in taken.items()}  # of so few lines, starting takes any time
        return [
            {
                "device": "cpu",
                "case": about,
                "mechanism": name,
                "a_second": len(sources) / seconds[name],
                "ratio": seconds[FAIRSEQ] / seconds[name],
                "peak_mib": run.peak_mib,
                "bleu": bleu(run.lines, references).value,
                "equal": sum(map(str.__eq__, run.lines, runs[FAIRSEQ].lines)),
                "lines": len(sources),
            }
            for name, run in runs.items()
        ]

    @cached_property
    def starts(self) -> dict[str, Run]:
        return self._runs(self._first(self.asked.text)[:1], 1)

    @cached_property
    def systems(self) -> dict[str, System]:
        """All systems by name, fairseq first."""
        first, *others = self.asked.path
        plan, state = (str(first), {}) if first.is_dir() else _plan_of(first)
        if plan != "softmax":
            raise LeapformerError(f"--path {first}: give a checkpoint with softmax in all blocks first")
        systems = {FAIRSEQ: self._in_pytorch(_stock(state, self.out / "fairseq.pt"), state)}
        for path in (first, *others):
            plan, state = (path.name, {}) if path.is_dir() else _plan_of(path)
            name = f"{plan} in PyTorch" if state else plan
            if name in systems:
                raise LeapformerError(f"--path {path}: there is {name} already; leave it out, or rename the folder")
            systems[name] = self._in_pytorch(path, state) if state else self._exported(path)
        return systems

    def _in_pytorch(self, path: Path, state: dict[str, Any]) -> System:
        task, asked = options_of(state["cfg"]["task"]), self.asked
        words: list[object] = [*trainings.PROGRAM, "interactive", asked.data, "--path", path, "--task", "translation"]
        sides = {"--source-lang": task.get("source_lang"), "--target-lang": task.get("target_lang")}
        words += [word for name, language in sides.items() if language for word in (name, language)]
        words += ["--bpe", "sentencepiece", "--sentencepiece-model", asked.sentencepiece_model]
        words += ["--beam", asked.beam, "--buffer-size", max(2, asked.lines)]
        sizes = {weight.data_ptr(): weight.nbytes for weight in state["model"].values()}  # shared ones once
        return System([*map(str, words)], ["--batch-size", "1"], ["--max-tokens"], sum(sizes.values()) / MIB)

    def _exported(self, path: Path) -> System:
        words = [sys.executable, "-m", "leapformer_fairseq.runtime", path, "--beam", self.asked.beam]
        words += ["--threads", self.asked.threads]
        mib = sum(file.stat().st_size for file in path.iterdir()) / MIB
        return System([*map(str, words)], ["--batch-tokens", "1"], ["--batch-tokens"], mib)

    def _runs(self, lines: list[str], batch: int) -> dict[str, Run]:
        """The median of each system; they take turns."""
        runs: dict[str, list[Run]] = {name: [] for name in self.systems}
        for _ in range(ROUNDS):
            for name, system in self.systems.items():
                more = system.alone if batch == 1 else [*system.batched, str(batch)]
                run = _spent([*system.words, *more], lines, self.out, self.asked.threads)
                if "interactive" in system.words:
                    run = run._replace(lines=_written_by_fairseq(run.lines))
                if len(run.lines) != len(lines):
                    raise LeapformerError(
                        f"{name} wrote {len(run.lines)} lines for {len(lines)}; is one of them empty?"
                    )
                runs[name].append(run)
        return {name: _median(some) for name, some in runs.items()}

    def _first(self, path: Path) -> list[str]:
        return [line for line, _ in zip(read_lines(path), range(self.asked.lines), strict=False)]


def _spent(words: list[str], lines: list[str], out: Path, threads: int) -> Run:
    """Run a command with these lines as its input. Raises LeapformerError if it fails."""
    write_lines(out / "input.txt", lines)
    count = str(threads)
    environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
    used = out / "used.json"
    with (out / "input.txt").open("rb") as given:
        command = [sys.executable, "-c", WATCH, str(used), *words]
        done = subprocess.run(command, stdin=given, capture_output=True, env=environment, check=False)
    status, wall, cpu, peak = json.loads(used.read_text()) if done.returncode == 0 else [done.returncode, 0.0, 0.0, 0.0]
    if status:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LeapformerError(f"{' '.join(words)} failed: {said}")
    return Run(wall, cpu, peak / 1024, [*decoded(io.BytesIO(done.stdout), words[0])])


def _median(runs: list[Run]) -> Run:
    wall, cpu, peak = (statistics.median(values) for values in zip(*(run[:3] for run in runs), strict=True))
    return Run(wall, cpu, peak, runs[0].lines)


def _written_by_fairseq(lines: list[str]) -> list[str]:
    """The translations in what `interactive` prints, in the order of the sources."""
    found = (line[2:].split("\t") for line in lines if line.startswith("D-"))
    return [text for _, text in sorted((int(number), text) for number, _, text in found)]


def _plan_of(path: Path) -> tuple[str, dict[str, Any]]:
    """The plan of a checkpoint, encoder self / decoder self / decoder cross, or its only mechanism, and its content."""
    register()
    state = load_checkpoint(path)
    adopt(state)
    options = options_of(state["cfg"]["model"])
    plan = [str(options.get(block.argument)) for block in BLOCKS]
    return (plan[0] if len(set(plan)) == 1 else "/".join(plan)), state


def _stock(state: dict[str, Any], path: Path) -> Path:
    """Write the checkpoint of a model of ours with softmax as one of fairseq's."""
    kind = type(state["cfg"]["model"])
    model = kind(**{**options_of(state["cfg"]["model"]), "arch": "transformer", "_name": "transformer"})
    weights = {name: weight for name, weight in state["model"].items() if not name.endswith(f".{FINGERPRINT}")}
    config = {**state["cfg"], "model": model}
    torch.save({**state, "cfg": config, "model": weights, "last_optimizer_state": None}, path)
    return path
