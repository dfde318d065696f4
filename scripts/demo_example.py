"""The example of `leapformer demo`: demo_example.py FOLDER CORPUS OUT [UTTERANCE], called by demo_model.sh.

OUT/model is the exported model. Writes example.flac, example.json and README.md beside it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import soundfile

from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.runtime.audio import SAMPLE_RATE, read_speech
from leapformer_fairseq.runtime.simul.exported import ExportedSystem
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.session import Session
from leapformer_fairseq.runtime.simul.stream import DecodingOptions
from leapformer_fairseq.support.files import read_json, write_json, write_text

LAGGING, SECONDS = 3, (2.5, 3.5)
FIRST_S = 1.2  # seconds of audio until the first word: live, it is there within two seconds of the command


def main(folder: Path, corpus: Path, out: Path, wanted: str) -> None:
    system = ExportedSystem.load(out / "model", PolicyOptions(k=LAGGING))
    rows = {row["id"]: row for row in read_manifest(corpus / "test_st.tsv")}
    if wanted and wanted not in rows:
        sys.exit(f"demo_example.py: {corpus}/test_st.tsv has no {wanted}; its first is {next(iter(rows))}")
    how, chosen = "as the command says", wanted
    if not chosen:
        how = "the first that the model translates as in the reference, with its first word early"
        chosen = next((row["id"] for row in rows.values() if is_right(system, corpus, row)), "")
    if not chosen:
        how = "the first; none is translated as in the reference"
        chosen = next(row["id"] for row in rows.values() if fits(recording(corpus, row)))
    print(f"the example is {chosen}: of utterances of {SECONDS[0]} to {SECONDS[1]} s {how}")
    row = rows[chosen]
    samples = read_speech(recording(corpus, row))
    soundfile.write(out / "example.flac", samples, SAMPLE_RATE, subtype="PCM_16")
    about = {"audio": "example.flac", "utterance": chosen, "speaker": row["speaker"], "source": row["src_text"]}
    write_json(out / "example.json", {**about, "reference": row["tgt_text"], "lagging": LAGGING})
    write_text(out / "README.md", "\n".join(readme(folder, out, wanted, f"`{chosen}`, {how}")) + "\n")


def recording(corpus: Path, row: dict[str, str]) -> Path:
    split, _, number = row["id"].rpartition("_")
    return corpus / "wav" / split / f"{number}.wav"


def fits(path: Path) -> bool:
    return SECONDS[0] <= soundfile.info(path).duration <= SECONDS[1]


def is_right(system: ExportedSystem, corpus: Path, row: dict[str, str]) -> bool:
    """Whether the recording has the right length and is translated as in the reference, with an early first word."""
    path = recording(corpus, row)
    if not fits(path):
        return False
    session = Session(system, DecodingOptions(0.1, 10))
    events = [event for event in (*session.push(read_speech(path)), *session.finish()) if event.text]
    return " ".join(event.text for event in events) == row["tgt_text"] and events[0].audio_s <= FIRST_S


def readme(folder: Path, out: Path, wanted: str, example: str) -> Iterator[str]:
    """What this folder is, and the commands that made it."""
    model = read_json(out / "model" / "model.json")
    size = sum(path.stat().st_size for path in (out / "model").iterdir()) / 1e6
    commands = (folder / "commands.sh").read_text(encoding="utf-8")
    # Recipes note absolute paths, which would say where the model was made.
    made = re.search(r"leapformer corpus --out (\S+)/corpus", commands)
    commands = commands.replace(made[1] if made else str(folder), "results/quickstart")
    yield from ("# The model of `leapformer demo`", "", "```", "bash scripts/quickstart.sh")
    yield from (f"bash scripts/demo_model.sh results/quickstart {wanted}".rstrip(), "```", "")
    yield f"An 8-bit export ({size:.1f} MB) of the quickstart's LeaPformer, and an utterance of its synthetic test set,"
    yield "spoken by espeak-ng. Scores over the test set are in the quickstart's report. The example is, of the"
    yield f"utterances of {SECONDS[0]} to {SECONDS[1]} s, {example}."
    yield from ("", f"* Export: `{model['signature']}`", f"* Checkpoint: `{json.dumps(model['checkpoint'])}`", "")
    yield from ("The commands of the quickstart that matter here:", "", "```")
    yield from (line for line in commands.splitlines() if line.startswith(("leapformer corpus", "leapformer train")))
    yield "```"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), sys.argv[4] if len(sys.argv) > 4 else "")
