"""Mboshi-French (Godard et al., 2018, arXiv:1710.03501): 4.46 h of read and elicited sentences, three speakers.

Reads ROOT/full_corpus_newsplit/{train,dev}/ID.{wav,mb.cleaned,fr.cleaned}; ROOT may also be full_corpus_newsplit
itself. The release's dev split is kept, for comparison with published results. The release has no test split: ours is
cut out of its training split.
"""

from __future__ import annotations

import html
from collections import Counter
from functools import cache
from pathlib import Path

from ..support.errors import LeapformerError
from ..support.lines import read_lines
from .distinct import groups
from .recordings import Recording, need_file, read_segment
from .speech import SpeechDataset
from .text import tidy

NAME = "mboshi"
FOLDER = "full_corpus_newsplit"
SPLITS = ("train", "dev", "test")
TEST = 400  # utterances, or a tenth of the released training split if that is less


def read_split(root: Path, split: str) -> list[Recording]:
    """All utterances of a split, in the order of their file names.

    The texts are the release's cleaned ones, lower-cased and with punctuation split off; escaped apostrophes (&apos;)
    and quotation marks are unescaped. Raises LeapformerError that names the missing folder or file.
    """
    folder = root if root.name == FOLDER or not (root / FOLDER).is_dir() else root / FOLDER
    released = _read_folder(folder, "dev" if split == "dev" else "train")
    if split == "dev":
        return released
    test = _test_ids(tuple(released))
    return [recording for recording in released if (recording.id in test) == (split == "test")]


def _read_folder(folder: Path, name: str) -> list[Recording]:
    if not (folder / name).is_dir():
        raise LeapformerError(f"no folder {folder / name}; the Mboshi root is the folder that holds {FOLDER}")
    return [
        Recording(
            id=wav.stem,
            path=wav,
            speaker=wav.stem.partition("_")[0],  # abiayi_2015-09-08-11-18-39_..., kouarata_..., martial_...
            source=_text(wav.with_suffix(".mb.cleaned")),
            target=_text(wav.with_suffix(".fr.cleaned")),
        )
        for wav in sorted((folder / name).glob("*.wav"))
    ]


def _text(path: Path) -> str:
    need_file(path)
    return html.unescape(tidy(" ".join(read_lines(path))))


@cache  # train and test ask for the same split
def _test_ids(utterances: tuple[Recording, ...]) -> frozenset[str]:
    """The ids of the test utterances to cut out of the released training split.

    Each speaker's share of them is that of all utterances. Only whole groups of utterances with the same Mboshi or
    French text are taken, in the order of a hash of the texts, so that no sentence is in both splits.
    """
    speakers = Counter(recording.speaker for recording in utterances)
    open_places = _shares(speakers, min(TEST, len(utterances) // 10))
    test: set[str] = set()
    for group in groups([(recording.source, recording.target) for recording in utterances]):
        speakers_of_group = Counter(utterances[i].speaker for i in group)
        if speakers_of_group <= open_places:
            open_places -= speakers_of_group
            test.update(utterances[i].id for i in group)
    return frozenset(test)


def _shares(counts: Counter[str], total: int) -> Counter[str]:
    """Divide `total` in proportion to the counts, by the largest remainder method."""
    exact = {name: total * count / counts.total() for name, count in counts.items()}
    shares = Counter({name: int(share) for name, share in exact.items()})
    remainders = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    shares.update(remainders[: total - shares.total()])
    return shares


# Transcripts in characters: in a few hours of speech, most subwords occur too rarely (docs/own_speech.md).
DATASET = SpeechDataset(NAME, SPLITS, read_split, read_segment, tidy, vocab_size=1_000, transcript_type="char")
