"""The text-to-speech corpus: whether its times are true, what fairseq reads of it, that it repeats."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from leapformer_fairseq.cli import corpus as command
from leapformer_fairseq.data.alignments import PAUSE, Interval
from leapformer_fairseq.data.corpus import espeak, folder, tts
from leapformer_fairseq.data.corpus.build import build as build_st
from leapformer_fairseq.data.corpus.folder import Corpus
from leapformer_fairseq.data.corpus.plan import SPLITS, of_split, plan_readings
from leapformer_fairseq.data.corpus.synthesize import EDGE_S
from leapformer_fairseq.data.manifests import read_manifest
from leapformer_fairseq.runtime.audio import SAMPLE_RATE, read_speech
from leapformer_fairseq.runtime.espeak import STRESS
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import parse

from .test_corpus import contents
from .tts_manifests import check_with_fairseq

SIZES = {"train": 6, "dev": 2, "test": 2}
HISSES = ("s", "z", "ʃ", "tʃ")
VOWELS = ("ə", "ɪ", "æ", "ɛ", "iː", "i", "ʌ", "uː", "oʊ", "aɪ", "eɪ", "ɑː", "ɔː", "ɔ", "ʊ", "ɜː", "ɚ")
TEXT = "she buys six fresh fish in the city"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return tts.build(tmp_path_factory.mktemp("corpus") / "tiny", SIZES)


@pytest.fixture(scope="module")
def speaker() -> espeak.Espeak:
    return espeak.Espeak()


@pytest.fixture(scope="module")
def speech(speaker: espeak.Espeak) -> espeak.Speech:
    return speaker.say_with_phonemes(TEXT, "en-us", 160, 50)


# ---- espeak-ng's phonemes ------------------------------------------------------------------------------------------


def test_phonemes_follow_each_other_from_start_to_end(speech):
    first, last = speech.phonemes[0], speech.phonemes[-1]
    assert (first.start, last.end) == (0.0, pytest.approx(len(speech.samples) / SAMPLE_RATE, abs=1e-4))
    assert all(before.end == after.start for before, after in pairwise(speech.phonemes))
    assert all(phoneme.start < phoneme.end for phoneme in speech.phonemes)
    said = [phoneme.text for phoneme in speech.phonemes if phoneme.text != PAUSE]
    assert " ".join(said) == "ʃ iː b aɪ z s ɪ k s f ɹ ɛ ʃ f ɪ ʃ ɪ n ð ə s ɪ ɾ i"


def brightness(samples: np.ndarray, start: float, end: float) -> float:
    """Power above 4 kHz by that below 3 kHz, in the middle of a phoneme."""
    length = end - start
    inner = samples[round((start + length / 4) * SAMPLE_RATE) : round((end - length / 4) * SAMPLE_RATE)]
    power = np.abs(np.fft.rfft(inner * np.hanning(len(inner)))) ** 2
    hertz = np.fft.rfftfreq(len(inner), 1 / SAMPLE_RATE)
    return power[hertz > 4000].sum() / power[hertz < 3000].sum()


def contrast(speech: espeak.Speech, late_s: float = 0.0) -> float:
    """How much brighter the darkest hiss is than the brightest vowel, if all times were so much later."""
    found = {kind: [brightness(speech.samples, p.start + late_s, p.end + late_s)
                    for p in speech.phonemes[:-3] if p.text in kind] for kind in (HISSES, VOWELS)}  # fmt: skip
    return min(found[HISSES]) / max(found[VOWELS])


def test_hisses_are_bright_where_they_are_said_to_be(speech):
    assert contrast(speech) > 10
    assert contrast(speech, late_s=0.08) < 0.1  # times that are wrong would be noticed


def test_the_closure_of_a_stop_is_part_of_it(speech):
    (stop,) = (phoneme for phoneme in speech.phonemes if phoneme.text == "k")
    begin = round(stop.start * SAMPLE_RATE)
    closure = np.abs(speech.samples[begin + 40 : begin + 400])
    assert closure.max() < 1e-3 < np.abs(speech.samples[begin - 400 : begin]).max()


def test_silence_is_a_pause(speaker):
    speech = speaker.say_with_phonemes("he is sad, because i wait", "en-us", 160, 50)
    pauses = [phoneme for phoneme in speech.phonemes[1:-1] if phoneme.text == PAUSE]
    assert len(pauses) == 1
    silent = speech.samples[round(pauses[0].start * SAMPLE_RATE) + 80 : round(pauses[0].end * SAMPLE_RATE) - 80]
    assert len(silent) > 0.1 * SAMPLE_RATE
    assert np.abs(silent).max() < 1e-3


def test_a_phoneme_without_a_time_of_its_own_has_half_of_the_vowels():
    marks = [(0, "w"), (100, "ɪ"), (300, "l"), (301, "k"), (400, "")]
    onsets = espeak._onsets(np.ones(400, dtype=np.int16), marks, mark=1)
    spans = [Interval(a / 1000, b / 1000, symbol) for (a, symbol), (b, _) in pairwise([*onsets, (400, "")])]
    shared = espeak._with_shared_time(spans)
    assert [(round(1000 * p.start), p.text) for p in shared] == [(0, "w"), (100, "ɪ"), (200, "l"), (301, "k")]


def test_what_has_no_name_is_a_pause_or_belongs_to_the_phoneme_before():
    samples = np.ones(100, dtype=np.int16)
    samples[40:60] = 0
    samples[80:90] = 0
    marks = [(0, "i"), (20, ""), (40, ""), (60, "ə"), (90, "t"), (100, "")]
    assert espeak._onsets(samples, marks, mark=1) == [(0, "i"), (40, PAUSE), (60, "ə"), (80, "t")]


def test_events_leave_the_samples_as_they_are():
    """The recordings of the speech translation corpus are those that were made without events."""
    code = (
        "import hashlib, sys; from leapformer_fairseq.data.corpus import espeak\n"
        "from leapformer_fairseq import runtime\n"
        "engine = runtime.espeak\n"
        "if sys.argv[1] == 'without': engine.INITIALIZE_PHONEME_EVENTS = engine.INITIALIZE_PHONEME_IPA = 0\n"
        "speaker, digest = espeak.Espeak(), hashlib.sha256()\n"
        "for text, voice in zip(['she sees a fish', 'we can cook if i call', 'at three o clock'],"
        " ['en-us', 'en-us+m3', 'en-us+f4']):\n"
        "    digest.update(speaker.say(text, voice, 170, 47).tobytes())\n"
        "print(digest.hexdigest(), len(speaker._marks) > 0)"
    )
    said = {
        mode: subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True).stdout
        for mode in ("with", "without")
    }
    assert said["with"].split()[0] == said["without"].split()[0]
    assert [said[mode].split()[1] for mode in ("with", "without")] == ["True", "False"]


def test_text_becomes_the_phonemes_that_are_said(speaker, speech):
    said = [phoneme.text for phoneme in speech.phonemes if phoneme.text != PAUSE]
    assert speaker.phonemes(TEXT, "en-us") == said
    assert " ".join(speaker.phonemes("Yes, the cameras at three o'clock!", "en-us")) == (
        "j ɛ s _ ð ə k æ m ɹ ə z æ t θ ɹ iː ə k l ɑː k"
    )
    assert speaker.phonemes("...", "en-us") == []
    with pytest.raises(LeapformerError, match="no voice 'en-nowhere'"):
        speaker.phonemes("hello", "en-nowhere")


def test_speech_has_all_phonemes_after_many_texts(speaker):
    said = speaker.say_with_phonemes("peter waits", "en-us", 160, 50).phonemes
    for _ in range(40):
        speaker.phonemes("peter waits", "en-us")
    again = speaker.say_with_phonemes("peter waits", "en-us", 160, 50).phonemes
    assert [phoneme.text for phoneme in again] == [phoneme.text for phoneme in said]


def test_lost_phonemes_are_noticed(speaker, monkeypatch):
    synthesize = speaker._synthesize

    def losing(*arguments: object) -> np.ndarray:
        samples = synthesize(*arguments)
        del speaker._marks[0]
        return samples

    monkeypatch.setattr(speaker, "_synthesize", losing)
    with pytest.raises(LeapformerError, match="did not report the first phoneme of 'peter waits'"):
        speaker.say_with_phonemes("peter waits", "en-us", 160, 50)


# ---- the plan ------------------------------------------------------------------------------------------------------


def test_sentences_are_short_and_different():
    readings = plan_readings(tts.SIZES, 1)
    assert {split: len(of_split(readings, split)) for split in SPLITS} == dict(tts.SIZES)
    assert len({reading.english for reading in readings}) == len(readings)
    assert {len(reading.english.split()) for reading in readings} <= set(range(2, 8))


def test_impossible_sizes_are_refused():
    with pytest.raises(LeapformerError, match="100000 train utterances are not possible; give 1 to 30000"):
        plan_readings({**SIZES, "train": 100_000}, 1)


# ---- on disk -------------------------------------------------------------------------------------------------------


def test_fairseq_reads_it(tiny, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for split, size in SIZES.items():
        assert check_with_fairseq(tiny.folder, split) == size


def test_manifests_agree_with_the_files(tiny):
    for split in SPLITS:
        for row in read_manifest(tiny.folder / f"{split}.tsv"):
            samples, mel = read_speech(tiny.folder / row["recording"]), np.load(tiny.folder / row["audio"])
            assert mel.dtype == np.float32
            assert mel.shape == (int(row["n_frames"]), 80) == (len(samples) // 200 + 1, 80)
            phonemes, durations = row["tgt_text"].split(), list(map(int, row["duration"].split()))
            assert len(phonemes) == len(durations)
            assert sum(durations) == len(mel)
            assert phonemes[0] == phonemes[-1] == PAUSE
            assert durations[0] == round(EDGE_S / 0.0125)
            assert len(row["src_text"].split()) in range(2, 8)


def test_frames_are_labelled_truly(tiny):
    """Hisses have their energy in the high bins, pauses have none, over all frames of the corpus."""
    high, loud, label = [], [], []
    for row in read_manifest(tiny.folder / "train.tsv"):
        power = np.exp(2 * np.load(tiny.folder / row["audio"]))
        high += list(power[:, 60:].sum(1) / power[:, :60].sum(1))
        loud += list(10 * np.log10(power.sum(1)))
        label += list(np.repeat(row["tgt_text"].split(), list(map(int, row["duration"].split()))))
    hiss, vowel, pause = (np.isin(label, kind) for kind in (HISSES[:3], VOWELS, [PAUSE]))
    high, loud = np.array(high), np.array(loud)
    assert np.median(high[hiss]) > 100 * np.median(high[vowel])
    assert np.median(high[np.roll(hiss, 8)]) < np.median(high[hiss]) / 10  # labels 0.1 s late would be noticed
    assert np.median(loud[vowel]) - np.median(loud[pause]) > 40


def test_the_dictionary_counts_the_training_phonemes(tiny):
    lines = [line.split() for line in (tiny.folder / "vocab.txt").read_text(encoding="utf-8").splitlines()]
    said = [phoneme for row in read_manifest(tiny.folder / "train.tsv") for phoneme in row["tgt_text"].split()]
    assert {symbol: int(count) for symbol, count in lines} == {symbol: said.count(symbol) for symbol in said}
    assert not any(mark in symbol for symbol, _ in lines for mark in STRESS)


# ---- repeating, reusing, refusing ----------------------------------------------------------------------------------


def test_two_builds_give_the_same_bytes(tiny, tmp_path):
    again = tts.build(tmp_path / "again", SIZES)
    assert again.checksum == tiny.checksum
    first, second = contents(tiny.folder), contents(again.folder)
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == {folder.INFO}  # says where it is


def test_a_finished_corpus_is_reused_and_moved(tmp_path, monkeypatch, tiny):
    monkeypatch.setattr(folder, "_make", lambda *_: pytest.fail("built again"))
    assert tts.build(tiny.folder, SIZES) == tiny
    moved = tmp_path / "with blank"
    tiny.folder.rename(moved)
    try:
        assert tts.build(moved, SIZES).folder == moved
        assert check_with_fairseq(moved, "dev") == SIZES["dev"]
    finally:
        moved.rename(tiny.folder)
        tts.build(tiny.folder, SIZES)


def test_the_two_corpora_do_not_replace_each_other(tiny, tmp_path):
    with pytest.raises(LeapformerError, match=r"another corpus \(task tts there, st asked for\).*--overwrite"):
        build_st(tiny.folder, SIZES)
    with pytest.raises(LeapformerError, match=r"\(train 6 there, 7 asked for\)"):
        tts.build(tiny.folder, {**SIZES, "train": 7})


def test_an_interrupted_build_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tts, "synthesize", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tts.build(tmp_path / "corpus", SIZES)
    assert not (tmp_path / "corpus").exists()


# ---- the command ---------------------------------------------------------------------------------------------------


def run(out: Path, *options: str) -> int:
    return command.run(parse(command, ["--out", str(out), *options]))


def test_the_command_prints_the_sizes(tiny, capsys):
    assert run(tiny.folder, "--task", "tts", "--train", "6", "--dev", "2", "--test", "2") == 0
    printed = capsys.readouterr().out
    assert tiny.checksum in printed
    assert [line.split()[:2] for line in printed.splitlines()[1:4]] == [["train", "6"], ["dev", "2"], ["test", "2"]]


@pytest.mark.parametrize("option", ["--vocab-size 100", "--snr-db 20 30"])
def test_options_of_the_other_corpus_are_refused(option, tmp_path):
    with pytest.raises(LeapformerError, match=f"{option.split()[0]} is for --task st; leave it out with --task tts"):
        run(tmp_path / "corpus", "--task", "tts", *option.split())
    assert not list(tmp_path.iterdir())
