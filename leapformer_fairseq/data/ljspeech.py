"""LJSpeech (Ito and Johnson, 2017): 13,100 clips of one reader, prepared for fairseq's text_to_speech task.

Reads ROOT/metadata.csv (lines ID|text|normalised text) and ROOT/wavs/ID.wav, or both in ROOT/LJSpeech-1.1. Phonemes
come from the Montreal Forced Aligner, with durations, in which case silence at both ends is cut off, or from espeak-ng,
without durations.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from tqdm import tqdm

from ..runtime.acoustics.mel import MelConfig, log_mel
from ..runtime.audio import SAMPLE_RATE
from ..runtime.spoken import PAUSE
from ..support.errors import LeapformerError
from ..support.lines import read_lines, write_lines
from . import prepared, tts
from .alignments import PHONES, WORDS, Interval, moved, read_textgrid, tier
from .corpus.espeak import Espeak
from .download import fetch, unpack
from .manifests import CMVN, BinStatistics
from .recordings import Recording, Unusable, need_file, need_recordings, read_mono, resample
from .speech import SplitSummary, mapper, need_workers
from .text import tidy

NAME, SPEAKER, VOICE = "ljspeech", "ljspeech", "en-us"
RELEASE = "LJSpeech-1.1"
URL = f"https://data.keithito.com/data/speech/{RELEASE}.tar.bz2"
SPLITS = ("train", "dev", "test")
# By book, as in FastSpeech and fairseq's example: 12,229, 348 and 523 clips.
SPLIT_OF_BOOK = {"LJ001": "test", "LJ002": "test", "LJ003": "dev"}
LEFT_OUT = "left_out.txt"
TOO_LONG_S = 0.02  # an alignment may end this much after its audio, because of rounding
SILENCES = ("", "sil", "sp", "<eps>")
UNKNOWN = ("<unk>", "spn", "{lg}")  # an aligner's labels for a word that its dictionary lacks
# The release's text has these abbreviations; some published alignments have the words that are spoken.
ABBREVIATED = {
    "mister": "mr", "misess": "mrs", "missis": "mrs", "doctor": "dr", "number": "no", "saint": "st", "company": "co",
    "junior": "jr", "major": "maj", "general": "gen", "doctors": "drs", "reverend": "rev", "lieutenant": "lt",
    "honorable": "hon", "sergeant": "sgt", "captain": "capt", "esquire": "esq", "limited": "ltd", "colonel": "col",
    "fort": "ft",
}  # fmt: skip


def prepare(
    root: str | Path,
    out: str | Path,
    textgrids: str | Path | None = None,
    sample_rate: int = SAMPLE_RATE,
    workers: int = 1,
    download: bool = False,
) -> dict[str, SplitSummary]:
    """Prepare the release in `root` for training and evaluation in `out`; finished work is not repeated.

    Writes OUT/{train,dev,test}.tsv, vocab.txt, config.yaml and gcmvn.npz, log-mels below mel/, recordings at
    `sample_rate` Hz below wav/, and left_out.txt with the reason for each clip that was left out. `textgrids` is a
    folder with ID.TextGrid files at any depth. Raises LeapformerError for impossible options, missing files, an `out`
    that contains other data, and a split without usable clips.
    """
    need_workers(workers)
    config = tts.mel_config(sample_rate)
    root, out = Path(root).absolute(), Path(out).absolute()
    folder = None if textgrids is None else Path(textgrids).absolute()
    options = {"dataset": NAME, "sample_rate": sample_rate, "textgrids": folder and str(folder)}
    state = prepared.begin(out, options) if (out / prepared.STATE).is_file() else None
    if state is None:
        work = _Work(out, config, None if folder is None else _find_textgrids(folder))
        clips = _read_release(_find_release(root, download))
        prepared.begin(out, options)
        with mapper(workers, "give fewer, and the same command starts again") as run:
            state = {split: asdict(summary) for split, summary in _prepare_splits(work, clips, run).items()}
        prepared.finish(out, options, state)
    espeak = None if textgrids else {"voice": VOICE, "silence": False}
    tts.write_tts_config(out / tts.CONFIG, config, espeak)
    return {split: SplitSummary(**summary) for split, summary in state.items()}


# --------------------------------------------------------------------------------------------------------- the release
def split_of(clip_id: str) -> str:
    """The split of a clip, which depends on its book."""
    return SPLIT_OF_BOOK.get(clip_id.partition("-")[0], "train")


def _find_release(root: Path, download: bool) -> Path:
    """The folder with metadata.csv, downloaded and unpacked if `download`."""
    unpacked = root / RELEASE
    if (root / "metadata.csv").is_file():
        return root
    if not unpacked.is_dir() and download:
        archive = root / URL.rpartition("/")[2]
        if not archive.is_file():
            fetch(URL, archive)
        unpack(archive, unpacked)
    need_file(unpacked / "metadata.csv" if unpacked.is_dir() else root / "metadata.csv")
    return unpacked


def _find_textgrids(folder: Path) -> dict[str, Path]:
    """The TextGrids below a folder, by clip id."""
    if not folder.is_dir():
        raise LeapformerError(f"--textgrids {folder} is not a folder; check the path")
    textgrids = {path.stem: path for path in sorted(folder.rglob("*.TextGrid"))}
    if not textgrids:
        raise LeapformerError(f"--textgrids {folder} holds no *.TextGrid; unpack them there")
    return textgrids


def _read_release(folder: Path) -> dict[str, list[Recording | Unusable]]:
    """The clips of each split, in the order of metadata.csv. Raises LeapformerError if a recording is missing."""
    path = folder / "metadata.csv"
    clips: dict[str, list[Recording | Unusable]] = {split: [] for split in SPLITS}
    for number, line in enumerate(read_lines(path), 1):
        clips[split_of(line)].append(_read_line(line, f"{path}, line {number}", folder))
    for split, members in clips.items():
        need_recordings([clip for clip in members if isinstance(clip, Recording)], split)
    return clips


def _read_line(line: str, place: str, folder: Path) -> Recording | Unusable:
    fields = line.strip("\r").split("|")
    if len(fields) != 3 or not re.fullmatch(r"[\w-]+", fields[0]):
        return Unusable("no clip", f"{place}: {line[:40]!r} is not ID|text|text in words; correct the line")
    clip_id, text = fields[0], tidy(fields[2])
    if not text:
        return Unusable("no text", f"{place}: {clip_id} has no text; correct the line")
    return Recording(clip_id, folder / "wavs" / f"{clip_id}.wav", SPEAKER, source=text, target="")


# ------------------------------------------------------------------------------------------------------------ splits
def _prepare_splits(work: _Work, clips: Mapping[str, list[Recording | Unusable]], run: Any) -> dict[str, SplitSummary]:
    """Write everything except the configuration."""
    if work.textgrids is None:
        clips = {split: list(_with_phonemes(members)) for split, members in clips.items()}
    summaries, messages = {}, []
    for split, members in clips.items():
        statistics, rows = BinStatistics(work.config.n_mels), []
        dropped: Counter[str] = Counter()
        progress = tqdm(run(work, members), total=len(members), desc=f"{NAME} {split}", unit="utt", mininterval=1.0)
        for result in progress:
            if isinstance(result, Unusable):
                dropped[result.reason] += 1
                messages.append(str(result))
            else:
                rows.append(result[0])
                statistics.add(result[1])
        seconds = sum(row.frames for row in rows) * work.config.hop_length / work.config.sample_rate
        summaries[split] = SplitSummary(len(rows), round(seconds, 2), dict(dropped))
        write_lines(work.out / LEFT_OUT, messages)  # after each split, so that the error below leaves the reasons
        if not rows:
            raise LeapformerError(f"all of split {split} was left out ({summaries[split].reasons()}): {messages[-1]}")
        tts.write_tts_manifest(work.out / f"{split}.tsv", rows)
        if split == SPLITS[0]:
            statistics.save(work.out / CMVN)
            tts.write_vocabulary(work.out / tts.VOCABULARY, rows)
    return summaries


def _with_phonemes(clips: Iterable[Recording | Unusable]) -> Iterator[Recording | Unusable]:
    """The clips with espeak-ng's phonemes as `target`."""
    espeak = Espeak()
    for clip in clips:
        if isinstance(clip, Recording):
            clip = replace(clip, target=" ".join(espeak.phonemes(clip.source, VOICE)))
            if not clip.target:
                clip = Unusable("no text", f"{clip.id} has nothing to say in {clip.source!r}; correct its text")
        yield clip


@dataclass(frozen=True)
class _Work:
    """The work on one clip, in a form that can be sent to another process; `textgrids` are by clip id."""

    out: Path
    config: MelConfig
    textgrids: Mapping[str, Path] | None

    def __call__(self, clip: Recording | Unusable) -> tuple[tts.Row, np.ndarray] | Unusable:
        """Write recording and log-mels; return the manifest's row and the log-mels, or why the clip is left out."""
        if isinstance(clip, Unusable):
            return clip
        try:
            return self._prepare(clip)
        except Unusable as reason:
            return reason

    def _prepare(self, clip: Recording) -> tuple[tts.Row, np.ndarray]:
        try:
            samples, rate = read_mono(clip)
        except Unusable as error:
            raise Unusable(error.reason, f"{clip.path} cannot be decoded; download it again") from error
        intervals = None
        if self.textgrids is not None:
            intervals = _aligned(clip, self.textgrids.get(clip.id), len(samples) / rate)
            start = intervals[0].start
            samples = samples[round(start * rate) : round(intervals[-1].end * rate)]
            intervals = moved(intervals, -start)
        if not len(samples):
            raise Unusable("too short", f"{clip.path} holds no speech; download it again")
        samples = np.clip(resample(samples, rate, self.config.sample_rate), -1.0, 1.0)  # resampling may overshoot
        mel = log_mel(samples, self.config)
        phonemes, durations = clip.target.split(), None
        if intervals is not None:
            try:
                phonemes, durations = tts.phonemes_with_durations(intervals, len(mel), self.config)
            except LeapformerError as error:
                raise Unusable("too short", f"{clip.id}: {error}") from error
        place = f"{split_of(clip.id)}/{clip.id}"
        row = tts.Row(
            clip.id, f"mel/{place}.npy", len(mel), phonemes, clip.speaker, durations, clip.source, f"wav/{place}.wav"
        )
        for name in (row.mel, row.recording):
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(self.out / row.mel, mel)
        soundfile.write(str(self.out / row.recording), samples, self.config.sample_rate, subtype="PCM_16")
        return row, mel


# -------------------------------------------------------------------------------------------------------- alignments
def _aligned(clip: Recording, path: Path | None, seconds: float) -> list[Interval]:
    """The phonemes of a clip, without silence at both ends. Raises Unusable if the TextGrid does not fit the clip."""
    if path is None:
        raise Unusable("no TextGrid", f"{clip.id} has no TextGrid; align it")
    try:
        tiers = read_textgrid(path)
        words, phones = (tier(tiers, name, path) for name in (WORDS, PHONES))
    except LeapformerError as error:
        raise Unusable("damaged TextGrid", str(error)) from error
    if not same_words(clip.source, [word.text for word in words]):
        aligned = " ".join(word.text for word in words if word.text)
        raise Unusable("other words", f"{path} says {aligned[:60]!r} but the text {clip.source[:60]!r}; align it again")
    phones = [phone._replace(text=PAUSE if phone.text.lower() in SILENCES else phone.text) for phone in phones]
    spoken = [place for place, phone in enumerate(phones) if phone.text != PAUSE]
    if not spoken:
        raise Unusable("no phonemes", f"{path} has no phonemes but silence; align it again")
    phones = phones[spoken[0] : spoken[-1] + 1]
    if phones[0].start < 0 or phones[-1].end > seconds + TOO_LONG_S:
        times = f"{phones[0].start:g} to {phones[-1].end:g} s, its audio has {seconds:.3f} s"
        raise Unusable("beyond the audio", f"{path} goes from {times}; align it again")
    return phones


def same_words(text: str, words: Iterable[str]) -> bool:
    """Whether aligned words are those of the text: the same letters, ignoring punctuation, case and accents.

    An unknown word matches any letters. An abbreviation equals the word it stands for.
    """
    pattern = "".join(".+" if word in UNKNOWN else _letters(word) for word in words)
    return re.fullmatch(pattern, "".join(map(_letters, text.split()))) is not None


def _letters(word: str) -> str:
    """The letters and digits of a word, lower-cased and without accents, so that none is special in a pattern."""
    plain = unicodedata.normalize("NFKD", word.casefold())
    letters = "".join(letter for letter in plain if letter.isalnum())
    return ABBREVIATED.get(letters, letters)
