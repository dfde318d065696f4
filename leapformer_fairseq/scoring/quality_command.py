"""Quality measured by a program in another environment, such as COMET, whose requirements conflict with ours.

The program reads a line of JSON for each segment, {"src": ..., "mt": ..., "ref": ...}, from standard input, also for
segments without output. It answers {"score": 0.83} for each, in order, and finally {"system": 0.81, "name":
"XCOMET-XL", "version": "2.2.6"}.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence

from ..runtime.formats import jsonl
from ..support.errors import LeapformerError
from .quality import QualityScore
from .segmentation import read_sentences

_HINT = 'it answers {"score": N} for each segment, then {"system": N, "name": "...", "version": "..."}'


def score_by_command(
    command: str, predictions: Sequence[str], references: Sequence[str], transcripts: str | None = None
) -> QualityScore:
    """Score segments with a command line; `transcripts` names a file with their source text, one per line.

    Raises LeapformerError if the command cannot be run, fails, or does not answer as described above.
    """
    sources = _sources(transcripts, len(predictions))
    entries = [
        {"src": source, "mt": prediction, "ref": reference}
        for source, prediction, reference in zip(sources, predictions, references, strict=True)
    ]
    lines = _answers(command, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
    where = [f"--quality-command, line {number} of its output" for number in range(1, len(lines) + 1)]
    answers = [jsonl.parse(line, place) for line, place in zip(lines, where, strict=True)]
    if len(answers) != len(entries) + 1:
        raise LeapformerError(f"--quality-command wrote {len(answers)} lines for {len(entries)} segments; {_HINT}")
    *segments, (last, place) = zip(answers, where, strict=True)
    scores = [jsonl.field(answer, "score", jsonl.number, line, _HINT) for answer, line in segments]
    name, version = (jsonl.field(last, key, jsonl.text, place, _HINT) for key in ("name", "version"))
    system = jsonl.field(last, "system", jsonl.number, place, _HINT)
    return QualityScore(name, system, f"{name}|version:{version}", tuple(scores))


def _answers(command: str, text: str) -> list[str]:
    try:
        process = subprocess.run(shlex.split(command), input=text, capture_output=True, encoding="utf-8", check=True)
    except (OSError, ValueError, IndexError) as error:
        raise LeapformerError(f"--quality-command {command!r} cannot be run ({error}); check the command") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise LeapformerError(
            f"--quality-command ended with status {error.returncode}: {last}; run it by hand to see why"
        ) from error
    return [line for line in process.stdout.splitlines() if line.strip()]


def _sources(transcripts: str | None, n_segments: int) -> list[str]:
    if transcripts is None:
        return [""] * n_segments
    lines = read_sentences(transcripts, "--transcripts")
    if len(lines) != n_segments:
        raise LeapformerError(
            f"--transcripts {transcripts} has {len(lines)} lines for {n_segments} segments; give one line for each"
        )
    return lines
