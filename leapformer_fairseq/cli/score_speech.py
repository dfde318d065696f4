"""`leapformer score-speech`: score synthesised speech. Mel cepstral and spectral distortion, duration, and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ..scoring.pictures.heatmaps import draw_spectrograms
from ..scoring.speech import (
    Kind,
    Report,
    Run,
    Spectra,
    check_same,
    read_run,
    score_baselines,
    score_speech,
    speech_table,
)
from ..scoring.table import bullets, page, signed
from ..support.errors import LeapformerError
from ..support.files import make_folder, write_json, write_text
from ..support.options import choice
from ..support.signature import signature
from . import calls

TITLE = "Synthesised speech: distortion and duration"
LEGEND = (
    "MCD and MSD are mel cepstral and mel spectral distortion by dynamic time warping, summed over all sentences and "
    "divided by the frames of the references, or (aligned) by the frames of the alignment; smaller is better. Inserted "
    "and deleted: steps of MCD's alignment that stay at a frame of one side, as shares of the reference. To reference: "
    "frames as a multiple of the reference's. Duration error, predicted error: of what was said and of the length that "
    "was predicted, the mean over sentences, without sign. Stopped: share of sentences whose end the model predicted.",
    "A resynthesised reference is the recording after Griffin-Lim from its own log-mels.",
)
BASELINES_LEGEND = (
    "Floor: Griffin-Lim of the recordings' own log-mels against the recordings. Mean spectrogram: the mean frame of "
    "all recordings, as long as each of them.",
)


OPTIONS = f"""
runs RUN...             a folder of `leapformer tts`; gets speech.json
--reference {choice(get_args(Kind))} = {get_args(Kind)[0]}  compare with recordings that went through Griffin-Lim, too,
                        or as they are
--baselines             add rows for the vocoder alone and for the mean spectrogram
--pictures N:int = 0    draw spectrograms of the first N sentences
--out DIR               folder for table.md, table.json and the pictures (default: where the runs lie, or the only RUN)
"""


@calls.owning
def run(runs: Sequence[str], reference: Kind, baselines: bool, pictures: int, out: str | None) -> None:
    """Print and write the table. Raises LeapformerError for a run that cannot be scored; earlier scores are kept."""
    if pictures < 0:
        raise LeapformerError(f"--pictures {pictures}: give a number of sentences")
    folders = [Path(folder) for folder in runs]
    folder_of_table = make_folder(out) if out else _shared_folder(folders)
    speeches: dict[str, Run] = {}
    reports: dict[str, Report] = {}
    try:
        for name, folder in zip(_names(folders), folders, strict=True):
            speech = read_run(folder)
            if not speeches:
                first, spectra = speech, Spectra(speech.mels)
            check_same(first, speech)
            report = score_speech(speech, spectra, reference) | {"signature": signature(reference=reference)}
            write_json(folder / "speech.json", report, "the result")
            speeches[name], reports[name] = speech, report
        if baselines:
            reports |= score_baselines(first, spectra, reference)
    finally:  # also after an error or an interrupt: scoring a run takes minutes
        if reports:
            _write(folder_of_table, reports)
            print(speech_table(reports))
    for path in _draw(speeches, spectra, pictures, folder_of_table):
        print(path)


def _shared_folder(folders: Sequence[Path]) -> Path:
    """The folder for the table if there is no --out. Raises LeapformerError if the runs are in different folders."""
    if len(folders) == 1:
        return folders[0]
    parents = {folder.resolve().parent for folder in folders}
    if len(parents) > 1:
        raise LeapformerError("the runs lie in different folders; give the folder for the table as --out")
    return parents.pop()


def _names(folders: Sequence[Path]) -> list[str]:
    """The names of the runs' folders, or their paths if two names are equal."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _write(out: Path, reports: Mapping[str, Report]) -> None:
    table_signature = signature()
    has_baselines = any("model" not in report for report in reports.values())
    notes = [*LEGEND, *(BASELINES_LEGEND if has_baselines else ())]
    rows = [
        {"name": name} | {key: value for key, value in report.items() if key != "instances"}
        for name, report in reports.items()
    ]
    content = {"title": TITLE, "notes": notes, "rows": rows, "signature": table_signature}
    write_json(out / "table.json", content, "--out")
    write_text(out / "table.md", _markdown(reports, notes, table_signature), "--out")


def _markdown(reports: Mapping[str, Report], notes: Sequence[str], table_signature: str) -> str:
    models: dict[str, dict[str, Any]] = {name: report["model"] for name, report in reports.items() if "model" in report}
    signatures = signed({name: model["signature"] for name, model in models.items() if "signature" in model})
    lines = bullets([*signatures, f"this table: `{table_signature}`"])
    return page(f"# {TITLE}", speech_table(reports).markdown(), *notes, "Signatures:", lines)


def _draw(runs: Mapping[str, Run], spectra: Spectra, count: int, out: Path) -> list[Path]:
    """Draw the first `count` sentences, the reference's recording above every run; return the files."""
    first, *_ = runs.values()
    paths = []
    for rank, sentence in enumerate(first.sentences[:count]):
        panels = {"reference": spectra.log_mels(sentence.reference)}
        panels |= {name: spectra.log_mels(run.sentences[rank].audio) for name, run in runs.items()}
        paths.append(out / f"spectrogram_{rank + 1}.svg")
        draw_spectrograms(panels, first.mels, f"{sentence.id}: {sentence.text}", paths[-1])
    return paths
