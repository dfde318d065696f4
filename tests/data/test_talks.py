"""Talks joined of sentences, and published ones: nothing is lost, and the same comes every time."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data import joined, talks
from leapformer_fairseq.data.joined import Joining
from leapformer_fairseq.data.manifests import write_manifest
from leapformer_fairseq.data.recordings import Recording
from leapformer_fairseq.runtime.audio import SAMPLE_RATE
from leapformer_fairseq.scoring.pieces import Segment, by_recording, read_segments
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.lines import read_lines
from tests.data.trees import RATE, mustc_tree, noises

N_SENTENCES = 6
PAUSES, NONE, OVERLAPS = (0.2, 0.9), (0.0, 0.0), (-0.3, -0.1)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The lists of a corpus, and recordings with silence at their edges."""
    root, rows = tmp_path / "corpus", []
    (root / "wav").mkdir(parents=True)
    for n, spoken in enumerate(noises(N_SENTENCES, seconds=0.8)):
        edges = [np.zeros(length, np.float32) for length in (3000, 5000 + 100 * n)]
        samples = np.concatenate([edges[0], spoken.samples, edges[1]])
        soundfile.write(root / f"wav/{n}.wav", samples, RATE, subtype="PCM_16")
        rows.append([str(n), "", "0", spoken.source, ""])
    (root / "test.source").write_text("".join(f"{root}/wav/{n}.wav\n" for n in range(N_SENTENCES)))
    (root / "test.target").write_text("".join(f"Ziel {n}\n" for n in range(N_SENTENCES)))
    write_manifest(root / "test_asr.tsv", rows)
    return root


def prepared(root: Path, out: Path, *options: object) -> Path:
    assert main(["prepare", "talks", str(root), "--out", str(out), *map(str, options)]) == 0
    return out


def integers(path: Path) -> np.ndarray:
    return soundfile.read(path, dtype="int16")[0].astype(int)


def spoken_integers(root: Path) -> dict[str, np.ndarray]:
    """What a sentence adds to a talk, by its translation."""
    found = {}
    for one in joined.read_sentences(root, "test"):
        samples = integers(one.path)
        first, last = joined.spoken_part(samples / 2**15)
        found[one.target] = samples[first:last]
    return found


def segments_of(folder: Path) -> list[tuple[np.ndarray, list[Segment]]]:
    """(the samples of a talk, its segments), as `leapformer score` reads them."""
    parts = read_segments(folder / "segments.yaml", folder / "references.txt")
    recordings = {path.name: path for path in talks.read_recordings(folder)}
    found = [(integers(recordings[name]), own) for name, own in by_recording(parts)]
    assert len(found) == len(recordings)
    return found


def sample(milliseconds: float) -> int:
    assert milliseconds * SAMPLE_RATE / 1000 == pytest.approx(round(milliseconds * SAMPLE_RATE / 1000), abs=1e-6)
    return round(milliseconds * SAMPLE_RATE / 1000)


@pytest.mark.parametrize("gap", [PAUSES, NONE, OVERLAPS])
def test_a_talk_is_the_sum_of_its_segments_and_nothing_else(corpus, tmp_path, gap) -> None:
    out = prepared(corpus, tmp_path / "out", "--talks", 2, "--minutes", 0.2, "--gap-s", *gap)
    spoken, counts = spoken_integers(corpus), Counter[str]()
    for samples, own in segments_of(out):
        expected = np.zeros(len(samples), int)
        for one in own:
            assert sample(one.duration) == len(spoken[one.reference])
            expected[sample(one.offset) : sample(one.end)] += spoken[one.reference]
            counts[one.reference] += 1
        np.testing.assert_array_equal(samples, expected.clip(-(2**15), 2**15 - 1))
        assert sample(own[-1].end) == len(samples) >= 0.2 * 60 * SAMPLE_RATE
        between = [(after.offset - before.end) / 1000 for before, after in itertools.pairwise(own)]
        assert all(gap[0] - 1e-4 <= pause <= gap[1] + 1e-4 for pause in between)
        assert gap[0] == gap[1] or len(set(between)) > 1
        if gap == NONE:
            assert sum(sample(one.duration) for one in own) == len(samples) - sample(own[0].offset)
    assert max(counts.values()) - min(counts.values()) <= 1 and len(counts) == N_SENTENCES
    said = (out / "transcripts.txt").read_text().split("\n")[:-1]
    assert [f"Ziel {text.split()[-1]}" for text in said] == list(read_lines(out / "references.txt"))


def test_overlaps_end_at_half_of_the_shorter_sentence(corpus, tmp_path) -> None:
    out = prepared(corpus, tmp_path / "out", "--talks", 1, "--minutes", 0.2, "--gap-s", -9, -9)
    ((_, own),) = segments_of(out)
    for before, after in itertools.pairwise(own):
        shorter = min(sample(before.duration), sample(after.duration))
        assert sample(before.end) - sample(after.offset) == shorter // 2
    for first, third in zip(own, own[2:], strict=False):
        assert third.offset >= first.end  # never three at once


def test_the_test_of_sums_sees_a_sentence_that_is_lost(corpus, tmp_path, monkeypatch) -> None:
    """Inverted control: one sentence of a talk is not heard."""
    mixed = joined.mixed
    monkeypatch.setattr(joined, "mixed", lambda placed, noise=None: mixed([*placed[:1], *placed[2:]], noise))
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        test_a_talk_is_the_sum_of_its_segments_and_nothing_else(corpus, tmp_path, OVERLAPS)


@pytest.mark.parametrize("snr_db", [20.0, 0.0])
def test_noise_is_in_all_of_the_talk_at_the_asked_ratio(corpus, tmp_path, snr_db) -> None:
    options = ("--talks", 1, "--minutes", 0.2, "--gap-s", *PAUSES)
    clean = prepared(corpus, tmp_path / "clean", *options)
    noisy = prepared(corpus, tmp_path / "noisy", *options, "--snr-db", snr_db)
    ((speech, own),), ((sound, same),) = segments_of(clean), segments_of(noisy)
    assert own == same
    noise = sound - speech
    said = np.concatenate([speech[sample(one.offset) : sample(one.end)] for one in own])
    assert 10 * np.log10(np.mean(said**2) / np.mean(noise**2)) == pytest.approx(snr_db, abs=0.2)
    for start in range(0, len(noise) - SAMPLE_RATE, SAMPLE_RATE):
        assert np.std(noise[start : start + SAMPLE_RATE]) > 0.5 * np.std(noise)


def test_noise_goes_on_across_blocks_and_periods(monkeypatch) -> None:
    sentence = Recording("", Path(), "", "", "")
    placed = [joined.Placed(sentence, 0, 70, start) for start in (5, 60, 260)]
    monkeypatch.setattr(joined.Placed, "samples", lambda self: np.full(70, 1.0 + self.start))
    noise = np.random.default_rng(0).normal(size=50)
    expected = np.resize(noise, 330)
    for one in placed:
        expected[one.start : one.end] += 1.0 + one.start
    np.testing.assert_array_equal(np.concatenate(list(joined.mixed(placed, noise))), expected)


def test_the_same_command_makes_the_same_bytes(corpus, tmp_path) -> None:
    options = ("--talks", 2, "--minutes", 0.05, "--snr-db", 10)
    first, again = (prepared(corpus, tmp_path / name, *options) for name in ("a", "b"))
    other = prepared(corpus, tmp_path / "c", *options, "--seed", 2)
    files = [path.relative_to(first) for path in sorted(first.rglob("*")) if path.is_file()]
    assert len(files) == 2 + 6
    assert all((first / name).read_bytes() == (again / name).read_bytes() for name in files)
    assert (first / "wav/talk1.wav").read_bytes() != (other / "wav/talk1.wav").read_bytes()
    first.rename(tmp_path / "moved")
    assert [path.is_file() for path in talks.read_recordings(tmp_path / "moved")] == [True, True]


def test_a_long_talk_takes_no_more_memory_than_a_short_one(corpus, tmp_path) -> None:
    sentences, peaks = joined.read_sentences(corpus, "test"), []
    for minutes in (0.3, 3.0):
        folder = tmp_path / str(minutes)
        folder.mkdir()
        tracemalloc.start()
        joined.join(sentences, Joining(1, minutes, OVERLAPS), folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    samples = 8 * 60 * SAMPLE_RATE * 3
    assert peaks[1] - peaks[0] < 0.01 * samples  # the list of its segments


def test_what_is_finished_is_not_done_again_and_an_interrupted_one_is(corpus, tmp_path, monkeypatch, capsys) -> None:
    out, options, mixed = tmp_path / "out", ("--talks", 2, "--minutes", 0.05), joined.mixed

    def interrupted(placed, noise):
        yield from itertools.islice(mixed(placed, noise), 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(joined, "mixed", interrupted)
        assert main(["prepare", "talks", str(corpus), "--out", str(out), *map(str, options)]) == 130
    assert not list(out.glob("**/*.wav"))
    capsys.readouterr()
    prepared(corpus, out, *options)
    printed = capsys.readouterr().out
    assert "2 talks, " in printed and "4 different sentences; samples clipped: 0" in printed
    monkeypatch.setattr(joined, "join", lambda *_: pytest.fail("joined again"))
    prepared(corpus, out, *options)
    assert capsys.readouterr().out == printed
    assert main(["prepare", "talks", str(corpus), "--out", str(out), "--talks", "3", "--minutes", "0.05"]) == 2
    assert "holds a set of talks with another talks (2, not 3)" in capsys.readouterr().err


def test_only_silence_is_cut_off() -> None:
    noise = 0.1 * np.random.default_rng(1).normal(size=9600)
    quiet = np.concatenate([np.zeros(3200), noise, np.zeros(4800)])
    first, last = joined.spoken_part(quiet)
    assert 3200 - 640 <= first <= 3200 and 12_800 <= last <= 12_800 + 640
    assert joined.spoken_part(np.zeros(500)) == (0, 500) and joined.spoken_part(noise[:100]) == (0, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--talks", "0"], "--talks 0"),
        (["--minutes", "0"], "--minutes 0"),
        (["--minutes", "nan"], "--minutes nan"),
        (["--gap-s", "2", "1"], "--gap-s 2 1 is not a range"),
        (["--gap-s", "nan", "1"], "--gap-s nan 1 is not a range"),
        (["--snr-db", "inf"], "--snr-db inf"),
        (["--seed", "-1"], "--seed -1"),
        (["--split", "dev"], "dev.source"),
    ],
)
def test_bad_options_are_one_line(corpus, tmp_path, capsys, options, message) -> None:
    assert main(["prepare", "talks", str(corpus), "--out", str(tmp_path / "out"), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not (tmp_path / "out").exists()


def test_lists_that_do_not_fit_are_refused(corpus, tmp_path) -> None:
    (corpus / "test.target").write_text("Ziel 0\n")
    with pytest.raises(LeapformerError, match="6 recordings, 1 references, 6 transcripts"):
        joined.read_sentences(corpus, "test")


# ------------------------------------------------------------------------------------------------------ published talks


def test_mustc(tmp_path, capsys) -> None:
    """Segments out of order are put in order, with their texts."""
    said = noises(5, 3)
    root = mustc_tree(tmp_path / "mustc", {"tst-COMMON": said})
    texts = root / "en-de/data/tst-COMMON/txt"
    rows = yaml.safe_load((texts / "tst-COMMON.yaml").read_text())
    order = [1, 0, 2, 4, 3]
    (texts / "tst-COMMON.yaml").write_text(yaml.safe_dump([rows[i] for i in order]))
    for language, field in (("en", "source"), ("de", "target")):
        lines = "".join(f"{getattr(said[i], field)}\u00a0 \n" for i in order)
        (texts / f"tst-COMMON.{language}").write_text(lines)
    out = tmp_path / "out"
    assert main(["prepare", "mustc-talks", str(root), "--out", str(out)]) == 0
    assert "2 talks, 5 segments" in capsys.readouterr().out
    parts = read_segments(out / "segments.yaml", out / "references.txt")
    assert [(one.recording, one.reference) for one in parts] == [
        (f"ted_tst-COMMON_{3 * (n // 3)}.wav", spoken.target) for n, spoken in enumerate(said)
    ]
    assert list(read_lines(out / "transcripts.txt")) == [spoken.source for spoken in said]
    recordings = {path.name: path for path in talks.read_recordings(out)}
    for one, spoken in zip(parts, said, strict=True):
        cut = integers(recordings[one.recording])[round(one.offset * 16) : round(one.end * 16)]
        np.testing.assert_allclose(cut / 2**15, spoken.samples, atol=2 / 2**15)
    soundfile.write(root / "en-de/data/tst-COMMON/wav/ted_tst-COMMON_0.wav", np.zeros(100), RATE)
    assert main(["prepare", "mustc-talks", str(root), "--out", str(tmp_path / "other")]) == 2
    assert "ted_tst-COMMON_0.wav ends at 0.01 s, before segment ted_tst-COMMON_0_" in capsys.readouterr().err


def acl_tree(root: Path) -> Path:
    """ROOT/2/acl_6060/dev as it is published, and IWSLT's times beside it."""
    folder, entries = root / "2/acl_6060/dev", []
    (folder / "full_wavs").mkdir(parents=True)
    (folder / "text/txt").mkdir(parents=True)
    for number in (268, 367):
        name = f"2022.acl-long.{number}.wav"
        soundfile.write(folder / "full_wavs" / name, noises(1, number, 3.0)[0].samples, RATE)
        entries += [{"wav": name, "offset": offset, "duration": 0.9} for offset in (0.1, 1.05)]
    for language in ("en", "de"):
        lines = "".join(f"{language} {n}\n" for n in range(4))
        (folder / f"text/txt/ACL.6060.dev.en-xx.{language}.txt").write_text(lines)
    (root / "segments.yaml").write_text(yaml.safe_dump(entries))
    return root


@pytest.mark.parametrize("inner", [".", "2", "2/acl_6060"])
def test_acl6060(tmp_path, inner) -> None:
    root, out = acl_tree(tmp_path / "acl"), tmp_path / "out"
    options = ["--segments", str(root / "segments.yaml"), "--target", "de", "--out", str(out)]
    assert main(["prepare", "acl6060", str(root / inner), *options]) == 0
    parts = read_segments(out / "segments.yaml", out / "references.txt")
    assert [(one.recording, one.offset, one.reference) for one in parts] == [
        (f"2022.acl-long.{number}.wav", 1000 * offset, f"de {n}")
        for n, (number, offset) in enumerate(itertools.product((268, 367), (0.1, 1.05)))
    ]
    assert list(read_lines(out / "transcripts.txt")) == [f"en {n}" for n in range(4)]


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("2/acl_6060/dev/full_wavs", "no folder"),
        ("2/acl_6060/dev/full_wavs/2022.acl-long.367.wav", "1 audio files of split dev are missing"),
        ("2/acl_6060/dev/text/txt/ACL.6060.dev.en-xx.de.txt", "en-xx.de.txt"),
        ("segments.yaml", "segments.yaml"),
    ],
)
def test_what_is_missing_is_named(tmp_path, capsys, missing, named) -> None:
    root = acl_tree(tmp_path / "acl")
    (root / missing).rename(tmp_path / "elsewhere")
    options = ["--segments", str(root / "segments.yaml"), "--out", str(tmp_path / "out")]
    assert main(["prepare", "acl6060", str(root), *options]) == 2
    assert named in capsys.readouterr().err


def test_a_folder_that_holds_no_talks_is_named(tmp_path) -> None:
    with pytest.raises(LeapformerError, match=r"has no recordings.txt; make such a folder with"):
        talks.read_recordings(tmp_path)
    for name in ("segments.yaml", "references.txt", "recordings.txt"):
        (tmp_path / name).touch()
    with pytest.raises(LeapformerError, match="lists no recording"):
        talks.read_recordings(tmp_path)
    (tmp_path / "recordings.txt").write_text("a.wav\n")
    with pytest.raises(LeapformerError, match="which does not exist"):
        talks.read_recordings(tmp_path)
    (tmp_path / "b").mkdir()
    for name in ("a.wav", "b/a.wav"):
        (tmp_path / name).touch()
    (tmp_path / "recordings.txt").write_text("a.wav\nb/a.wav\n")
    with pytest.raises(LeapformerError, match="two recordings a; rename one"):
        talks.read_recordings(tmp_path)
