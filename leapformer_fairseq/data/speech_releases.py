"""The released speech translation data sets, by name: how to read the recordings of a split.

mustc: MuST-C English-German (Di Gangi et al., 2019, N19-1202; Cattoni et al., 2021), TED talks cut into segments, or
    another of its languages. ROOT/en-de/data/{train,dev,tst-COMMON,tst-HE}/{wav/*.wav, txt/SPLIT.{yaml,en,de}}. The
    YAML file lists the segments (wav, offset, duration, speaker_id) in the order of the lines of the two texts.

covost2: CoVoST 2 French-English (Wang et al., 2021, arXiv:2007.10310) or another of its pairs, sentences of Common
    Voice, read aloud.
    ROOT/validated.tsv (Common Voice: path, sentence, client_id), ROOT/covost_v2.fr_en.tsv (path, translation, split)
    and ROOT/clips/*.mp3, or the same clips as wav. The tables are joined by path, as in fairseq's prep_covost_data.

mboshi: Mboshi-French (Godard et al., 2018, arXiv:1710.03501), 4.46 h of read and elicited sentences, three speakers.
    ROOT/full_corpus_newsplit/{train,dev}/ID.{wav,mb.cleaned,fr.cleaned}; ROOT may also be full_corpus_newsplit itself.
    The release's dev split is kept, for comparison with published results. It has no test split: ours is cut out of its
    training split.

quechua: Quechua-Spanish of IWSLT 2023, a part of Siminchik (Cardenas et al., 2018), 1.67 h of training, 1.03 h of
    validation. ROOT/que_spa_clean/{train,valid}/{wav/*.wav, txt/SPLIT.{yaml,que,spa}}. The test split is published
    without texts, so results are those of the validation split.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from ..support.errors import LeapformerError
from ..support.lines import read_lines
from . import pairs
from .distinct import groups
from .recordings import Recording, need_file, read_audible, read_segment, read_table
from .speech import SpeechDataset
from .text import tidy, without_notes, without_quotes

MBOSHI = "full_corpus_newsplit"
ALSO_IN = {"train_covost": "train"}  # CoVoST's extension of Common Voice's training set
TEST = 400  # utterances of Mboshi, or a tenth of the released training split if that is less


# ---------------------------------------------------------------------------------------------------- segments of talks
def _read_talks(
    title: str, below: str, languages: Sequence[str], released_as: Mapping[str, str], root: Path, split: str
) -> list[Recording]:
    """All segments of a split, in the order of the release's texts.

    Raises LeapformerError that names the missing folder, file, row or field.
    """
    name = released_as.get(split, split)
    folder = root / below / name
    if not folder.is_dir():
        raise LeapformerError(f"no folder {folder}; the {title} root is the folder that holds {below}/{name}")
    texts = [folder / "txt" / f"{name}.{language}" for language in languages]
    return read_segments(folder / "wav", folder / "txt" / f"{name}.yaml", *texts)


def read_segments(wavs: Path, segments: Path, source: Path, target: Path) -> list[Recording]:
    """The segments of the talks in the folder `wavs`.

    `segments` is a YAML list of {wav, offset, duration}, in seconds, with the optional field speaker_id; `source` and
    `target` have one line for each. Raises LeapformerError that names the missing file, row or field.
    """
    rows, texts = _read_yaml(segments), [_read_lines(path) for path in (source, target)]
    if not len(rows) == len(texts[0]) == len(texts[1]):
        counts = f"{len(rows)} segments, {len(texts[0])} {source.suffix[1:]} and {len(texts[1])} {target.suffix[1:]}"
        raise LeapformerError(f"{target.parent} does not fit together: {counts} lines; download it again")
    seen: Counter[str] = Counter()
    recordings = []
    for number, (row, transcript, translation) in enumerate(zip(rows, *texts, strict=True), 1):
        place = f"{segments.name}, segment {number}"
        wav = wavs / str(_field(row, "wav", place))
        recordings.append(
            Recording(
                id=f"{wav.stem}_{seen[wav.stem]}",
                path=wav,
                speaker=str(row.get("speaker_id", wav.stem)),
                source=transcript,
                target=translation,
                start=_seconds(row, "offset", place),
                duration=_seconds(row, "duration", place),
            )
        )
        seen[wav.stem] += 1
    return recordings


def _read_lines(path: Path) -> list[str]:
    need_file(path)
    return list(read_lines(path))


def _read_yaml(path: Path) -> list[Any]:
    need_file(path)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # fast: the training split has 230,000 segments
    with open(path, encoding="utf-8") as file:
        try:
            segments = yaml.load(file, Loader=loader)
        except yaml.YAMLError as error:
            raise LeapformerError(f"{path} is not YAML ({' '.join(str(error).split())}); download it again") from error
    if not isinstance(segments, list):
        raise LeapformerError(f"{path} holds no list of segments; download it again")
    return segments


def _field(segment: Any, name: str, place: str) -> Any:
    if not isinstance(segment, dict) or name not in segment:
        raise LeapformerError(f"{place} has no {name!r}; download the file again")
    return segment[name]


def _seconds(segment: Any, name: str, place: str) -> float:
    value = _field(segment, name, place)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise LeapformerError(f"{place}: {name} is {value!r}, a number of seconds is needed") from error


# ---------------------------------------------------------------------------------------------------------- CoVoST 2
def read_covost2(pair: tuple[str, str], root: Path, split: str) -> list[Recording]:
    """All clips of a split, in the order of Common Voice's table.

    `pair`: source and target language. Raises LeapformerError that names the missing table, column or folder.
    """
    clips, name = root / "clips", f"covost_v2.{'_'.join(pair)}.tsv"
    if not clips.is_dir():
        raise LeapformerError(f"no folder {clips}; the CoVoST 2 root holds clips, validated.tsv and {name}")
    translations = {
        row["path"]: row["translation"]
        for row in read_table(root / name, ("path", "translation", "split"))
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


# ------------------------------------------------------------------------------------------------------------ Mboshi
def read_mboshi(root: Path, split: str) -> list[Recording]:
    """All utterances of a split, in the order of their file names.

    The texts are the release's cleaned ones, lower-cased and with punctuation split off; escaped apostrophes (&apos;)
    and quotation marks are unescaped. Raises LeapformerError that names the missing folder or file.
    """
    folder = root if root.name == MBOSHI or not (root / MBOSHI).is_dir() else root / MBOSHI
    released = _read_folder(folder, "dev" if split == "dev" else "train")
    if split == "dev":
        return released
    test = _test_ids(tuple(released))
    return [recording for recording in released if (recording.id in test) == (split == "test")]


def _read_folder(folder: Path, name: str) -> list[Recording]:
    if not (folder / name).is_dir():
        raise LeapformerError(f"no folder {folder / name}; the Mboshi root is the folder that holds {MBOSHI}")
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


# ---------------------------------------------------------------------------------------------------------- data sets
# Transcripts of few hours in characters: most subwords occur too rarely (docs/own_speech.md).
_FEW_HOURS: dict[str, Any] = {"vocab_size": 1_000, "transcript_type": "char"}
_SPLITS = ("train", "dev", "test")


def paired(name: str, pair: str) -> SpeechDataset:
    """MuST-C or CoVoST 2 of a pair of languages, such as "en-es", which is part of the name unless it is the default.

    Raises LeapformerError for a pair that it does not have.
    """
    both, named = pairs.of_speech(name, pair), name if pair == pairs.PAIRS[name] else f"{name} {pair}"
    if name == "covost2":
        return SpeechDataset(named, _SPLITS, partial(read_covost2, both), read_audible, without_quotes)
    splits = ("train", "dev", "tst-COMMON", "tst-HE")
    reading = partial(_read_talks, "MuST-C", f"{pair}/data", both, {})
    return SpeechDataset(named, splits, reading, read_segment, without_notes)


MUSTC = paired("mustc", pairs.PAIRS["mustc"])
DATASETS = {
    dataset.name: dataset
    for dataset in (
        MUSTC,
        paired("covost2", pairs.PAIRS["covost2"]),
        SpeechDataset("mboshi", _SPLITS, read_mboshi, read_segment, tidy, **_FEW_HOURS),
        SpeechDataset(
            "quechua",
            ("train", "dev"),
            partial(_read_talks, "Quechua", "que_spa_clean", ("que", "spa"), {"dev": "valid"}),
            read_segment,
            tidy,
            **_FEW_HOURS,
        ),
    )
}
