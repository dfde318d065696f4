"""Mboshi-French (Godard et al., 2018, arXiv:1710.03501): 4.46 h of read and elicited sentences, three speakers.

ROOT/full_corpus_newsplit/{train,dev}/ID.{wav,mb.cleaned,fr.cleaned}; ROOT may also be the folder full_corpus_newsplit.
The release's dev split is kept for comparison with published results. It has no test split: one is cut out of train.
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
TEST = 400  # utterances, or a tenth of the published training split if that is less


def read_split(root: Path, split: str) -> list[Recording]:
    """All utterances of a split, in the order of their names.

    The texts are the release's cleaned ones: lower case, punctuation apart from words. Escaped apostrophes (&apos;) and
    quotation marks become what they stand for. Raises LeapformerError with the name of the missing folder or file.
    """
    folder = root if root.name == FOLDER or not (root / FOLDER).is_dir() else root / FOLDER
    published = _read_folder(folder, "dev" if split == "dev" else "train")
    if split == "dev":
        return published
    test = _test_ids(tuple(published))
    return [one for one in published if (one.id in test) == (split == "test")]


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


@cache
def _test_ids(utterances: tuple[Recording, ...]) -> frozenset[str]:
    """The utterances that are cut out of the training split.

    Each speaker has the same share of them as of all utterances. They are whole groups of utterances that say the same
    in Mboshi or in French, in the order of a hash of the texts, so no sentence of the test split is left in train.
    """
    speakers = Counter(one.speaker for one in utterances)
    wanted = _shares(speakers, min(TEST, len(utterances) // 10))
    found: set[str] = set()
    for group in groups([(one.source, one.target) for one in utterances]):
        said = Counter(utterances[i].speaker for i in group)
        if said <= wanted:
            wanted -= said
            found.update(utterances[i].id for i in group)
    return frozenset(found)


def _shares(counts: Counter[str], total: int) -> Counter[str]:
    """Divide `total` in proportion to the counts; what rounding leaves goes to the largest remainders."""
    exact = {name: total * count / counts.total() for name, count in counts.items()}
    shares = Counter({name: int(share) for name, share in exact.items()})
    remainders = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    shares.update(remainders[: total - shares.total()])
    return shares


DATASET = SpeechDataset(NAME, SPLITS, read_split, read_segment, tidy, vocab_size=1_000, transcript_type="char")
