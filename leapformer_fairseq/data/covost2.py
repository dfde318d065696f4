"""CoVoST 2 French-English (Wang et al., 2021, arXiv:2007.10310): sentences of Common Voice, read aloud and translated.

Reads ROOT/validated.tsv (Common Voice: path, sentence, client_id), ROOT/covost_v2.fr_en.tsv (path, translation, split)
and ROOT/clips/*.mp3, or the same clips as wav. The two tables are joined by path, as in fairseq's prep_covost_data.
"""

from __future__ import annotations

from pathlib import Path

from ..support.errors import LeapformerError
from .recordings import Recording, read_audible, read_table
from .speech import SpeechDataset
from .text import without_quotes

PAIR = "fr_en"
SPLITS = ("train", "dev", "test")
ALSO_IN = {"train_covost": "train"}  # CoVoST's extension of Common Voice's training set


def read_split(root: Path, split: str) -> list[Recording]:
    """All clips of a split, in the order of Common Voice's table.

    Raises LeapformerError that names the missing table, column or folder.
    """
    clips = root / "clips"
    if not clips.is_dir():
        tables = f"validated.tsv and covost_v2.{PAIR}.tsv"
        raise LeapformerError(f"no folder {clips}; the CoVoST 2 root holds clips, {tables}")
    translations = {
        row["path"]: row["translation"]
        for row in read_table(root / f"covost_v2.{PAIR}.tsv", ("path", "translation", "split"))
        if ALSO_IN.get(row["split"], row["split"]) == split
    }
    return [
        Recording(
            id=Path(row["path"]).stem,
            path=_clip(clips, row["path"]),
            speaker=row["client_id"],
            source=row["sentence"],
            target=translations[row["path"]],
        )
        for row in read_table(root / "validated.tsv", ("path", "sentence", "client_id"))
        if row["path"] in translations
    ]


def _clip(clips: Path, name: str) -> Path:
    """The clip's path as in the table, or that of the wav file if only that exists."""
    wav = (clips / name).with_suffix(".wav")
    return wav if not (clips / name).is_file() and wav.is_file() else clips / name


DATASET = SpeechDataset("covost2", SPLITS, read_split, read_audible, without_quotes)
