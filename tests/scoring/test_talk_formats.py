"""Logs of talks: simulstream's with deletions, and whatever can be wrong with a log, its segments or references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.runtime.formats.streamlog import Chunk, StreamLogWriter, read_stream_log, talk_of
from leapformer_fairseq.runtime.formats.talks import read_talks, write_talks
from leapformer_fairseq.scoring.pieces import find_recording, read_segments
from leapformer_fairseq.scoring.talk_report import kind_of, score_resegmented, score_talks
from leapformer_fairseq.support.errors import LeapformerError

STREAM = {"id": 0, "metadata": {"wav_name": "/data/a.wav"}}
ENTRY = {"wav": "a.wav", "offset": 0.0, "duration": 9.0}
TALK = {"source": "a.wav", "prediction": "ja nein", "delays": [1000, 2000], "elapsed": [1100, 2100]}


def chunk(heard: float, cost: float, new: str = "", gone: str = "", **more: Any) -> dict[str, Any]:
    times = {"total_audio_processed": heard, "computation_time": cost}
    return {"id": 0, **times, "generated_tokens": new.split(), "deleted_tokens": gone.split(), **more}


LINES = [
    {"model_loading_time": 6.84},
    STREAM,
    chunk(2.0, 0.25, "▁Gu te"),
    chunk(4.0, 0.5, "n ▁Abend"),
    chunk(6.0, 1.5, "▁Tag ▁Welt", "▁Abend"),
    chunk(7.0, 0.75, "▁!"),
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


# -- simulstream's log -------------------------------------------------------------------------------------------------


def test_the_specifications_log(tmp_path):
    (talk,) = read_stream_log(write(tmp_path / "log", LINES), "word")
    assert talk.units == ("Guten", "Tag", "Welt", "!")
    assert talk.delays == (4000, 6000, 6000, 7000)
    assert talk.aware["CA"] == (4500, 7500, 7500, 7750)
    assert talk.aware["CA_queued"] == (4500, 7500, 7500, 8250), "the last chunk waits half a second"
    (tmp_path / "seg.yaml").write_text(json.dumps([ENTRY]))
    (tmp_path / "ref").write_text("Guten Tag Welt !\n")
    report = score_talks([str(tmp_path / "log")], str(tmp_path / "seg.yaml"), str(tmp_path / "ref"))
    assert report["erasure"] == 0.25 and report["compute"]["seconds_per_second"] == pytest.approx(3 / 7, abs=1e-6)
    assert report["compute"]["chunk_s_95"] == 1.5


def test_a_jsonl_of_a_log_has_its_queued_times(tmp_path):
    (talk,) = read_stream_log(write(tmp_path / "log", LINES), "word")
    write_talks(tmp_path / "talk", [talk], "word")
    (again,) = read_talks(tmp_path / "talk", "word")
    assert (again.units, again.delays, again.source_length) == (talk.units, talk.delays, 7000)
    assert again.aware["CA"] == talk.aware["CA_queued"] != talk.aware["CA"]


@pytest.mark.parametrize(
    ("lines", "units", "delays"),
    [
        ([chunk(1, 0, "▁Gu te"), chunk(2, 0, "", "te")], ["Gu"], [2000]),
        ([chunk(1, 0, "▁Gu te ▁x"), chunk(2, 0, "▁y", "▁x")], ["Gute", "y"], [1000, 2000]),
        ([chunk(1, 0, "▁Gu te ▁x"), chunk(2, 0, "te ▁z", "te ▁x")], ["Gute", "z"], [2000, 2000]),
        ([chunk(1, 0, "▁a"), chunk(2, 0, "▁a", "▁a")], ["a"], [2000]),
        ([chunk(1, 0, "▁a ▁"), chunk(2, 0, "b")], ["a", "b"], [1000, 2000]),
        ([chunk(1, 0, "▁a▁b c"), chunk(2, 0, "", "c")], ["a", "b"], [1000, 2000]),
    ],
)
def test_a_word_has_the_time_of_its_last_change(tmp_path, lines, units, delays):
    (talk,) = read_stream_log(write(tmp_path / "log", [STREAM, *lines]), "word")
    assert (list(talk.units), list(talk.delays)) == (units, delays)


def test_characters_and_their_spaces(tmp_path):
    """A space is there when something follows it."""
    (talk,) = read_stream_log(write(tmp_path / "log", [STREAM, chunk(1, 0, "▁ 今 天 ▁"), chunk(2, 0, "好 ▁")]), "char")
    assert (talk.units, talk.delays) == (("今", "天", " ", "好"), (1000, 1000, 2000, 2000))


def test_tokens_without_marks_are_words(tmp_path):
    log = write(tmp_path / "log", [STREAM, chunk(1, 0, "Guten Abend"), chunk(2, 0, "Tag", "Abend")])
    (talk,) = read_stream_log(log, "word")
    assert (talk.units, talk.delays, talk.effort.erased) == (("Guten", "Tag"), (1000, 2000), 1)


PIECES = ["▁a", "b", "▁c", "▁", "d", "▁e▁f"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.sampled_from(PIECES), max_size=4)), max_size=8))
def test_reading_is_its_definition(steps):
    """Chunk by chunk, all text again: of the words that are no longer the same, the last change counts."""
    chunks, tokens, words, times = [], [], [], []
    for i, (back, new) in enumerate(steps, 1):
        gone = tokens[max(0, len(tokens) - back) :]
        kept_tokens = tokens[: len(tokens) - len(gone)]
        tokens = kept_tokens + new
        for state in (kept_tokens, tokens):
            now = "".join(state).replace("▁", " ").split()
            kept = [times[k] if k < len(words) and words[k] == word else i for k, word in enumerate(now)]
            words, times = now, kept
        chunks.append(Chunk(float(i), 0.0, tuple(new), tuple(gone)))
    talk = talk_of("a", chunks, "word")
    assert (list(talk.units), [x / 1000 for x in talk.delays]) == (words, times)


def test_reading_takes_linear_time(monkeypatch):
    """Ten times the chunks, ten times the calls: no text is put together again for each chunk."""
    from leapformer_fairseq.runtime.formats import streamlog

    calls, split = [], streamlog._split
    monkeypatch.setattr(streamlog, "_split", lambda tokens, unit: calls.append(len(tokens)) or split(tokens, unit))
    for n in (20, 200):
        calls.clear()
        talk_of("a", [Chunk(float(i), 0.0, ("▁a", "▁b"), ("▁b",) if i else ()) for i in range(n)], "word")
        assert sum(calls) == 2 * n


def test_streams_of_a_server_may_be_mixed(tmp_path):
    other = {"id": 7, "metadata": {"wav_name": "b.wav"}}
    lines = [STREAM, chunk(1, 0, "▁a"), other, chunk(5, 0, "▁x", id=7), chunk(2, 0, "▁b"), chunk(6, 0, "▁y", id=7)]
    first, second = read_stream_log(write(tmp_path / "log", lines), "word")
    assert (first.units, second.units, second.delays) == (("a", "b"), ("x", "y"), (5000, 6000))


def test_a_writer_writes_what_is_read(tmp_path):
    writer = StreamLogWriter(tmp_path / "log")
    writer.loaded(6.84)
    assert writer.begin("/data/a.wav") == 0
    for line in LINES[2:]:
        writer.add(0, Chunk(*(tuple(x) if isinstance(x, list) else x for x in list(line.values())[1:])))
    writer.close()
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == LINES
    with pytest.raises(LeapformerError, match="exists, and two runs in a log are read as one; delete it"):
        StreamLogWriter(tmp_path / "log")


# -- what is refused ---------------------------------------------------------------------------------------------------

NAN = float("nan")
MALFORMED = {
    "second run": ([*LINES, *LINES], ":8: /data/a.wav begins again, a second run was appended"),
    "second run without names": ([*LINES, *LINES[2:]], ":7: 2 s of audio after 7 s, a second run was appended"),
    "no name": ([LINES[0], *LINES[2:]], ":2: stream 0 has no recording, as those of a browser"),
    "other version": ([STREAM, {"id": 0, "audio": 1.0}], ":2 has no usable 'total_audio_processed' (it is missing)"),
    "neither": ([*LINES, {"time": 1}], ":7 is of no stream, or of another version"),
    "deletion": ([STREAM, chunk(1, 0, "▁a"), chunk(2, 0, "", "▁b")], ":3 deletes ' b', but ' a' is what was written"),
    "all deleted": ([STREAM, chunk(1, 0), chunk(2, 0, "▁a", "▁b")], ":3 deletes ' b', but '' is what was written last"),
    "nan": ([STREAM, chunk(NAN, 0)], ":2 has no usable 'total_audio_processed' (nan is no number)"),
    "negative": ([STREAM, chunk(1, -0.5)], ":2 has no usable 'computation_time' (-0.5 is negative)"),
    "tokens": ([STREAM, chunk(1, 0, generated_tokens="ab")], ":2 has no usable 'generated_tokens' ('ab' is no list)"),
    "half a line": ([*LINES, '{"id": 0, "tot'], ":7 is not JSON"),
    "only a head": (LINES[:1], "holds no recording; was the run interrupted?"),
    "unknown": ([{**STREAM, "metadata": {"wav_name": "c.wav"}}, LINES[2]], ":2: --segments has no recording"),
    "talk nan": ([{**TALK, "delays": [NAN, 1]}], ":1 has no usable 'delays' (nan is no number)"),
    "talk negative": ([{**TALK, "delays": [-1, 1]}], ":1 has no usable 'delays' (-1 is negative)"),
    "talk elapsed": ([{**TALK, "elapsed": [1.0]}], ":1 has 1 elapsed times for 2 delays"),
    "talk count": ([{**TALK, "delays": [1.0]}], ":1 has 1 delays for 2 units of kind 'word'; give"),
    "talk without a source": ([{**TALK, "source": []}], ":1 has no usable 'source' ([] is no text)"),
    "talk text": ([{**TALK, "prediction": None}], ":1 has no usable 'prediction' (None is no text)"),
    "talk twice": ([TALK, {**TALK, "source": "/x/a.flac"}], ":2: a.wav was read at"),
    "talk unknown": ([{**TALK, "source": "c.wav"}], ":1: --segments has no recording, or several, called c.wav"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_logs(tmp_path, name):
    lines, message = MALFORMED[name]
    (tmp_path / "seg.yaml").write_text(json.dumps([ENTRY]))
    (tmp_path / "ref").write_text("ja\n")
    log = write(tmp_path / "log", lines)
    with pytest.raises(LeapformerError) as error:
        score_talks([str(log)], str(tmp_path / "seg.yaml"), str(tmp_path / "ref"))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert "log" in str(error.value), "the file is named"


def test_a_recording_without_a_talk(tmp_path):
    (tmp_path / "seg.yaml").write_text(json.dumps([ENTRY, {**ENTRY, "wav": "b.wav"}]))
    (tmp_path / "ref").write_text("ja\nnein\n")
    with pytest.raises(LeapformerError, match="no log has b.wav, a recording of --segments .1 of 2 are missing"):
        score_talks([str(write(tmp_path / "log", [TALK]))], str(tmp_path / "seg.yaml"), str(tmp_path / "ref"))


SEGMENTATIONS = {
    "fewer references": ([ENTRY, {**ENTRY, "offset": 9}], "has 1 lines for the 2 segments"),
    "order": ([{**ENTRY, "offset": 9}, ENTRY], ":2: the segment at 0 s comes after that at 9 s"),
    "apart": ([ENTRY, {**ENTRY, "wav": "b"}, ENTRY], ":3: a.wav appears again after b"),
    "negative": ([{**ENTRY, "duration": -1}], ":1 has no usable 'duration' (-1 is negative)"),
    "negative offset": ([{**ENTRY, "offset": -1}], ":1 has no usable 'offset' (-1 is negative)"),
    "zero": ([{**ENTRY, "duration": 0}], ":1: a segment of a.wav has no duration"),
    "nan": ([{**ENTRY, "offset": "nan"}], ":1 has no usable 'offset' (nan is no number)"),
    "missing": ([{"wav": "a", "offset": 0}], ":1 has no usable 'duration' (it is missing)"),
    "name": ([{**ENTRY, "wav": 3}], ":1 has no usable 'wav' (3 is no text)"),
    "no mapping": ([3], ":1 is 3; a segment is {wav: NAME"),
}


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize("name", SEGMENTATIONS)
def test_malformed_segmentations(tmp_path, name, suffix):
    entries, message = SEGMENTATIONS[name]
    path = tmp_path / f"seg.{suffix}"
    lines = "".join(f"- {json.dumps(entry)}\n" for entry in entries)
    path.write_text(lines if suffix == "yaml" else json.dumps(entries))
    (tmp_path / "ref").write_text("ja\n" * (len(entries) - (name == "fewer references")))
    with pytest.raises(LeapformerError) as error:
        read_segments(path, tmp_path / "ref")
    if suffix == "json":
        message = message.replace(":", ", entry ", 1) if message[0] == ":" else message
    assert message in str(error.value) and "\n" not in str(error.value) and path.name in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "is not a segmentation"),
        ("", "is not a list"),
        ("wav: a", "is not a list"),
        ("[]", "holds no segment"),
    ],
)
def test_files_that_are_no_segmentation(tmp_path, content, message):
    (tmp_path / "seg.yaml").write_text(content)
    (tmp_path / "ref").write_text("ja\n")
    with pytest.raises(LeapformerError, match=message) as error:
        read_segments(tmp_path / "seg.yaml", tmp_path / "ref")
    assert "\n" not in str(error.value)
    with pytest.raises(LeapformerError, match="--segments .* cannot be read"):
        read_segments(tmp_path / "nowhere", tmp_path / "ref")
    with pytest.raises(LeapformerError, match="--references .* cannot be read"):
        read_segments(tmp_path / "seg.yaml", tmp_path / "nowhere")
    (tmp_path / "ref").write_bytes(b"\xff\n")
    with pytest.raises(LeapformerError, match="--references .* is not UTF-8"):
        read_segments(tmp_path / "seg.yaml", tmp_path / "ref")


PIECE = {
    "index": 0, "docid": 0, "segid": 0, "prediction": "ja nein", "reference": "ja", "source_length": 2000.0,
    "emission_cu": [-5.0, 900.0], "emission_ca": [0.0, 950.0], "time_to_recording_end": 5000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"emission_cu": [1.0]}, ":1 has 1 times for 2 units of kind 'word'; give the file's own --level"),
        ({"emission_ca": [NAN, 1.0]}, "no usable 'emission_ca' (nan is no number)"),
        ({"source_length": 0}, "has a 'source_length' of 0"),
        ({"time_to_recording_end": None}, "no usable 'time_to_recording_end'"),
        ({"docid": "x"}, "no usable 'docid'"),
    ],
)
def test_malformed_pieces(tmp_path, changes, message):
    assert score_resegmented([str(write(tmp_path / "log", [PIECE]))])["scores"]["LongYAAL"] == pytest.approx(-52.5)
    with pytest.raises(LeapformerError) as error:
        score_resegmented([str(write(tmp_path / "log", [{**PIECE, **changes}]))])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_kind_of_a_log_is_in_its_first_line(tmp_path):
    kinds = {"talks": TALK, "stream": LINES[0], "pieces": PIECE}
    for kind, line in kinds.items():
        assert kind_of(write(tmp_path / "log", ["", line])) == kind
    assert kind_of(write(tmp_path / "log", [STREAM])) == kind_of(write(tmp_path / "log", [LINES[2]])) == "stream"
    empty = {name: value for name, value in PIECE.items() if not name.startswith(("emission", "time"))}
    assert kind_of(write(tmp_path / "log", [empty])) == "pieces", "the first may be without output"
    for other in ({"loss": 1}, "D-0\t-0.1\tja", ""):
        assert kind_of(write(tmp_path / "log", [other])) is None
    assert kind_of(tmp_path) is None and kind_of(tmp_path / "nowhere") is None


def test_recordings_by_name():
    names = ["x/a.wav", "y/a.wav", "b.wav"]
    assert find_recording("x/a.wav", names) == "x/a.wav" and find_recording("/z/b.flac", names) == "b.wav"
    assert find_recording("a.wav", names) is None and find_recording("c", names) is None
