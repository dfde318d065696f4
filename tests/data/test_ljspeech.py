"""Preparing LJSpeech: phonemes with and without alignments, the split, and what is left out."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import ljspeech
from leapformer_fairseq.data.alignments import Interval, write_textgrid
from leapformer_fairseq.data.corpus.espeak import Espeak
from leapformer_fairseq.data.download import unpack
from leapformer_fairseq.data.ljspeech import prepare, same_words
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.support.errors import LeapformerError

from .tts_manifests import check_with_fairseq

RATE = 22_050  # of the release
HERTZ = {"AH0": 700.0, "B": 1500.0}
BOOKS = {"LJ001": 2, "LJ002": 1, "LJ003": 2, "LJ004": 3, "LJ050": 2}
IDS = {"test": ["LJ001-0001", "LJ001-0002", "LJ002-0001"], "dev": ["LJ003-0001", "LJ003-0002"]}
TEXT = "Mr. A. B-b, 'ab'"
WORDS = [(0.0, 0.2, ""), (0.2, 0.5, "mister"), (0.5, 0.6, "a"), (0.6, 0.9, "b"), (0.9, 1.0, "bab"), (1.0, 1.2, "")]
# The tones of the recording: silence, then these, then silence.
PHONES = [(0.0, 0.2, "sil"), (0.2, 0.5, "AH0"), (0.5, 0.6, "B"), (0.6, 0.7, "sp"), (0.7, 1.0, "AH0"), (1.0, 1.2, "")]


def recording() -> np.ndarray:
    """A tone for each phoneme, at the release's rate."""
    time = np.arange(round(PHONES[-1][1] * RATE)) / RATE
    samples = np.zeros(len(time))
    for start, end, phone in PHONES:
        inside = (time >= start) & (time < end)
        samples[inside] = 0.3 * np.sin(2 * np.pi * HERTZ.get(phone, 0.0) * time[inside])
    return samples


def write_grid(path: Path, words=WORDS, phones=PHONES) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tiers = {"words": words, "phones": phones}
    write_textgrid(path, {name: [Interval(*span) for span in spans] for name, spans in tiers.items()})


def ljspeech_tree(folder: Path) -> Path:
    """The layout of the release, with a few clips of some books."""
    (folder / "wavs").mkdir(parents=True)
    ids = [f"{book}-{number:04d}" for book, count in BOOKS.items() for number in range(1, count + 1)]
    lines = [f'{clip}|As "it" is written, 1|{TEXT}\n' for clip in ids]
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    for clip in ids:
        soundfile.write(folder / "wavs" / f"{clip}.wav", recording(), RATE, subtype="PCM_16")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return ljspeech_tree(tmp_path / "LJSpeech-1.1")


@pytest.fixture
def grids(tmp_path: Path, root: Path) -> Path:
    """A TextGrid for each clip, in folders by book as an aligner writes them."""
    for wav in (root / "wavs").iterdir():
        write_grid(tmp_path / "grids" / wav.stem[:5] / f"{wav.stem}.TextGrid")
    return tmp_path / "grids"


def rows(out: Path, split: str) -> list[dict[str, str]]:
    return list(read_manifest(out / f"{split}.tsv"))


def edit_line(root: Path, clip: str, line: str) -> None:
    path = root / "metadata.csv"
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line if old.startswith(clip) else old}\n" for old in lines))


class TestWithAlignments:
    def test_durations_are_the_aligners(self, root, grids, tmp_path):
        summaries = prepare(root, tmp_path / "out", grids)
        assert {split: (found.utterances, found.dropped) for split, found in summaries.items()} == {
            "train": (5, {}), "dev": (2, {}), "test": (3, {}),
        }  # fmt: skip
        for split, ids in IDS.items():
            assert [row["id"] for row in rows(tmp_path / "out", split)] == ids
        for row in rows(tmp_path / "out", "train"):
            assert row["tgt_text"] == "AH0 B _ AH0"
            # 0.2 to 1 s in frames of 12.5 ms centred on 0, 12.5, ... ms after the start
            assert row["duration"] == "24 8 8 25"
            assert (row["n_frames"], row["src_text"], row["speaker"]) == ("65", TEXT, "ljspeech")
            assert soundfile.info(tmp_path / "out" / row["recording"]).samplerate == 16_000

    def test_frames_hold_the_tones_that_their_phonemes_have(self, root, grids, tmp_path):
        prepare(root, tmp_path / "out", grids)
        (row, *_) = rows(tmp_path / "out", "train")
        power = np.exp(np.load(tmp_path / "out" / row["audio"]))
        labels = np.repeat(row["tgt_text"].split(), list(map(int, row["duration"].split())))
        loudest = {phone: set(power[labels == phone].argmax(1)[3:-3].tolist()) for phone in ("AH0", "B")}
        assert len(loudest["B"]) == 1
        assert loudest["B"].isdisjoint(loudest["AH0"])
        assert power[labels == "_"][3:-3].max() < power[labels != "_"].max(1).mean() / 100

    def test_fairseq_reads_it(self, root, grids, tmp_path):
        prepare(root, tmp_path / "out", grids)
        assert [check_with_fairseq(tmp_path / "out", split) for split in ("train", "dev", "test")] == [5, 2, 3]

    @pytest.mark.parametrize(("rate", "hop"), [(22_050, 276), (24_000, 300)])
    def test_another_sample_rate(self, rate, hop, root, grids, tmp_path):
        prepare(root, tmp_path / "out", grids, rate)
        for row in rows(tmp_path / "out", "train"):
            info = soundfile.info(tmp_path / "out" / row["recording"])
            assert (info.samplerate, int(row["n_frames"])) == (rate, info.frames // hop + 1)
            assert abs(info.frames - 0.8 * rate) <= 2
            assert sum(map(int, row["duration"].split())) == int(row["n_frames"])

    def test_several_processes_write_the_same(self, root, grids, tmp_path):
        (grids / "LJ004/LJ004-0001.TextGrid").unlink()
        one, two = (prepare(root, tmp_path / f"out{n}", grids, workers=n) for n in (1, 2))
        assert one == two
        assert rows(tmp_path / "out1", "train") == rows(tmp_path / "out2", "train")


class TestLeftOut:
    def left_out(self, root, grids, tmp_path, reason: str, message: str) -> None:
        """Clip LJ004-0001 is left out for this reason, with this message, and nothing else is."""
        summaries = prepare(root, tmp_path / "out", grids)
        assert summaries["train"].dropped == {reason: 1}
        assert [row["id"] for row in rows(tmp_path / "out", "train")][0] == "LJ004-0002"
        (line,) = (tmp_path / "out" / ljspeech.LEFT_OUT).read_text().splitlines()
        assert message in line
        for split in ("dev", "test"):
            assert not summaries[split].dropped

    def test_no_textgrid(self, root, grids, tmp_path):
        (grids / "LJ004/LJ004-0001.TextGrid").unlink()
        self.left_out(root, grids, tmp_path, "no TextGrid", "LJ004-0001 has no TextGrid")

    def test_damaged(self, root, grids, tmp_path):
        (grids / "LJ004/LJ004-0001.TextGrid").write_text("no grid")
        message = "LJ004-0001.TextGrid is not a whole TextGrid: it begins with 'no grid'"
        self.left_out(root, grids, tmp_path, "damaged TextGrid", message)

    def test_other_words(self, root, grids, tmp_path):
        write_grid(grids / "LJ004/LJ004-0001.TextGrid", words=[(0.0, 1.2, "ba")])
        self.left_out(root, grids, tmp_path, "other words", "LJ004-0001.TextGrid says 'ba' but the text \"Mr. A.")

    def test_beyond_the_audio(self, root, grids, tmp_path):
        late = [(0.0, 0.2, "sil"), (0.2, 1.3, "AH0")]
        write_grid(grids / "LJ004/LJ004-0001.TextGrid", phones=late)
        message = "LJ004-0001.TextGrid goes from 0.2 to 1.3 s, its audio has 1.200 s"
        self.left_out(root, grids, tmp_path, "beyond the audio", message)

    def test_silence_only(self, root, grids, tmp_path):
        write_grid(grids / "LJ004/LJ004-0001.TextGrid", phones=[(0.0, 1.2, "SP")])
        self.left_out(root, grids, tmp_path, "no phonemes", "LJ004-0001.TextGrid has no phonemes but silence")

    def test_more_phonemes_than_frames(self, root, grids, tmp_path):
        many = [(n / 1000, (n + 1) / 1000, "B") for n in range(100)]
        write_grid(grids / "LJ004/LJ004-0001.TextGrid", phones=many)
        self.left_out(root, grids, tmp_path, "too short", "LJ004-0001: 100 phonemes cannot share 9 frames")

    def test_broken_audio(self, root, grids, tmp_path):
        (root / "wavs/LJ004-0001.wav").write_bytes(b"no audio")
        self.left_out(root, grids, tmp_path, "broken", "LJ004-0001.wav cannot be decoded")

    def test_empty_audio(self, root, grids, tmp_path):
        soundfile.write(root / "wavs/LJ004-0001.wav", np.zeros(0), RATE)
        self.left_out(root, grids, tmp_path, "no samples", "LJ004-0001.wav cannot be decoded")

    @pytest.mark.parametrize(
        ("line", "reason"),
        [("", "no clip"), ("LJ004-0001|x", "no clip"), ("../LJ004|x|x", "no clip"), ("LJ004-0001|x| ", "no text")],
    )
    def test_lines_of_the_list(self, line, reason, root, grids, tmp_path):
        edit_line(root, "LJ004-0001", line)
        self.left_out(root, grids, tmp_path, reason, "metadata.csv, line 6: ")

    def test_nothing_left_is_an_error(self, root, grids, tmp_path):
        for path in (grids / "LJ003").iterdir():
            write_grid(path, words=[(0.0, 1.2, "ba")])
        with pytest.raises(LeapformerError, match=r"all of split dev was left out \(2 other words\): .*LJ003-0002"):
            prepare(root, tmp_path / "out", grids)


class TestWithoutAlignments:
    def test_phonemes_are_espeaks(self, root, tmp_path):
        edit_line(root, "LJ004-0001", "LJ004-0001|Dr. 1|Doctor one, two")
        prepare(root, tmp_path / "out")
        row, other, *_ = rows(tmp_path / "out", "train")
        assert "duration" not in row
        assert row["tgt_text"] == "d ɑː k t ɚ w ʌ n _ t uː"
        assert other["tgt_text"] == " ".join(Espeak().phonemes(TEXT, "en-us"))
        assert row["n_frames"] == str(int(1.2 * 16_000) // 200 + 1)  # nothing is cut off
        assert check_with_fairseq(tmp_path / "out", "train", aligned=False) == 5

    def test_text_without_sound_is_left_out(self, root, tmp_path):
        edit_line(root, "LJ004-0001", "LJ004-0001|...|...")
        assert prepare(root, tmp_path / "out")["train"].dropped == {"no text": 1}


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("Printing, in the only sense", ["", "printing", "in", "the", "only", "sense", ""]),
            ("the printer's, “well-known” café", ["the", "printer", "'s", "well", "known", "cafe"]),
            ("Mrs. De Mohrenschildt saw St. Paul's", ["misess", "de", "<unk>", "saw", "saint", "paul's"]),
            ("Mrs. Oates", ["mrs", "oates"]),
        ],
    )
    def test_the_same(self, text, words):
        assert same_words(text, words)

    @pytest.mark.parametrize(
        ("text", "words"),
        [("the press", ["the"]), ("the press", ["the", "press", "is"]), ("the press", ["press", "the"]), ("a", [""]),
         ("the press", ["the", "press", "<unk>"]), ("the press", ["...", "press"])],
    )  # fmt: skip
    def test_others(self, text, words):
        assert not same_words(text, words)


class TestFolder:
    def test_command(self, root, grids, tmp_path, capsys):
        (grids / "LJ004/LJ004-0001.TextGrid").unlink()
        out = str(tmp_path / "out")
        command = ["prepare", "ljspeech", str(tmp_path), "--textgrids", str(grids), "--out", out]
        assert main(command) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines == [
            "train: 4 utterances, 0.00 h; left out: 1 no TextGrid",
            "dev: 2 utterances, 0.00 h; left out: none",
            "test: 3 utterances, 0.00 h; left out: none",
        ]
        (root / "metadata.csv").unlink()  # not needed again
        assert main(command) == 0
        assert capsys.readouterr().out.splitlines() == lines
        assert main([*command, "--sample-rate", "22050"]) == 2
        assert "was prepared with sample_rate 16000, not 22050" in capsys.readouterr().err

    def test_a_moved_folder_gets_its_paths_mended(self, root, grids, tmp_path):
        prepare(root, tmp_path / "out", grids)
        (tmp_path / "out").rename(tmp_path / "moved")
        prepare(root, tmp_path / "moved", grids)
        assert check_with_fairseq(tmp_path / "moved", "test") == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"workers": 0}, "--workers is 0"),
            ({"sample_rate": 8000}, "--sample-rate 8000 has no 8000 Hz"),
            ({"textgrids": "nowhere"}, "nowhere is not a folder"),
            ({"textgrids": "LJSpeech-1.1/wavs"}, "holds no \\*.TextGrid"),
        ],
    )
    def test_impossible_options(self, options, message, root, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(LeapformerError, match=message):
            prepare(root, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("missing", ["metadata.csv", "wavs/LJ003-0002.wav"])
    def test_what_is_missing_is_named(self, missing, root, tmp_path):
        (root / missing).unlink()
        with pytest.raises(LeapformerError, match=Path(missing).name):
            prepare(root, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_the_archive_is_downloaded_and_unpacked(self, root, tmp_path, monkeypatch):
        def fetch(url: str, path: Path) -> None:
            assert url == "https://data.keithito.com/data/speech/LJSpeech-1.1.tar.bz2"
            path.parent.mkdir(parents=True)
            with tarfile.open(path, "w:bz2") as archive:
                archive.add(root, "LJSpeech-1.1")

        monkeypatch.setattr(ljspeech, "fetch", fetch)
        empty = tmp_path / "empty"
        with pytest.raises(LeapformerError, match="no file .*metadata.csv"):
            prepare(empty, tmp_path / "out")
        assert prepare(empty, tmp_path / "out", download=True)["test"].utterances == 3
        assert sorted(path.name for path in empty.iterdir()) == ["LJSpeech-1.1", "LJSpeech-1.1.tar.bz2"]

    def test_a_damaged_archive_leaves_nothing(self, tmp_path):
        archive = tmp_path / "LJSpeech-1.1.tar.bz2"
        archive.write_bytes(b"BZh91AY&SY")
        with pytest.raises(LeapformerError, match="LJSpeech-1.1.tar.bz2 cannot be unpacked"):
            unpack(archive, tmp_path / "LJSpeech-1.1")
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]
