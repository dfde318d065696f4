"""Translations of whole talks: the field's own values, plain loops, what must not change a score, and the command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leapformer_fairseq.cli import score as score_command
from leapformer_fairseq.runtime.formats.delays import queued, repaired
from leapformer_fairseq.runtime.formats.runlog import Instance
from leapformer_fairseq.runtime.formats.talks import LOGGED, Talk, read_talks, write_talks
from leapformer_fairseq.scoring.latency import long_form_scores, regime
from leapformer_fairseq.scoring.pieces import Segment, cut, read_pieces, read_segments
from leapformer_fairseq.scoring.quality import bleu, chrf
from leapformer_fairseq.scoring.significance import intervals
from leapformer_fairseq.scoring.talk_report import TalkOptions, score_pieces, score_resegmented, score_talks
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import call, parse

SEGMENTS = "- {wav: a.wav, offset: 1.0, duration: 2.0}\n- {wav: a.wav, offset: 4.0, duration: 2.5}\n" \
    "- {wav: a.wav, offset: 7.0, duration: 1.0}\n"  # fmt: skip
REFERENCES = "der Hund bellt laut.\ndie Katze schläft nicht gern\nGute Nacht!\n"
TALK = {
    "source": "/data/a.flac",
    "prediction": "der Hunde bellt die Katze schläft gern gute Nacht! danke",
    "delays": [2000, 2500, 3000, 5000, 5500, 6000, 6500, 7500, 8500, 9000],
    "elapsed": [2100, 2650, 3200, 5100, 5700, 6150, 6700, 7700, 8700, 9300],
}
CHARACTERS = {"source": ["b.wav"], "prediction": "今天好。我走", "delays": [1000, 1000, 2000, 2500, 3000, 4000]}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Log, segments and references of the words of the specification."""
    return write(tmp_path, [TALK], SEGMENTS, REFERENCES)


def write(folder: Path, talks: list[dict[str, Any]], segments: str, references: str) -> list[str]:
    texts = {
        "talk.jsonl": "".join(json.dumps(one) + "\n" for one in talks),
        "seg.yaml": segments,
        "ref.txt": references,
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in texts]


def scored(files: list[str], **options: Any) -> dict[str, Any]:
    return score_talks(files[:1], *files[1:], TalkOptions(**options))


# -- the field's own values (OmniSTEval 0.1.10, simulstream 1.0.0) -----------------------------------------------------


@pytest.mark.parametrize(
    ("times", "reference", "length", "end", "expected"),
    [
        ((1000, 2000, 2000, 4000, 4000), 4, 4000, 9000, (1000, 750, 1050, 0.8125, 1320)),
        ((1100, 2200, 2300, 4400, 4500), 4, 4000, 9000, (1300, 1000, 1300, 0.90625, 1580)),
        ((3000, 3000), 3, 3000, 5000, (2500, 3000, 3000, 0.6667, 3000)),
        ((-500, 1000, 5200), 3, 3000, 5000, (-250, 900, 900, 0.6333, 900)),
        ((5000, 6000), 3, 3000, 5000, (None, 5000, 5000, 1.2222, 5000)),
        ((), 3, 3000, 5000, (None,) * 5),
    ],
)
def test_latency_of_a_segment(times, reference, length, end, expected):
    found = long_form_scores(times, length, " ".join("w" * reference), end)
    names = ("LongYAAL", "LongAL", "LongLAAL", "LongAP", "LongDAL")
    assert found == {name: pytest.approx(x, abs=1e-4) for name, x in zip(names, expected, strict=True) if x is not None}


@pytest.mark.parametrize("lang", [None, "de"])
def test_a_talk(files, lang, tmp_path):
    if lang:
        pytest.importorskip("sacremoses")
    report = scored(files, lang=lang, resegmented=str(tmp_path / "pieces.jsonl"))
    expected = {
        "BLEU": 28.4913, "chrF": 64.9386, "LongYAAL": 833.3333, "LongAL": 916.6667, "LongLAAL": 944.4444,
        "LongAP": 1.0408, "LongDAL": 1000, "LongYAAL_CA": 1004.1667, "LongAL_CA": 1087.5, "LongLAAL_CA": 1115.2778,
        "LongAP_CA": 1.1936, "LongDAL_CA": 1144.4444,
    }  # fmt: skip
    assert {name: report["scores"][name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert report["StreamLAAL_s"]["source heard"] == pytest.approx(0.944444, abs=1e-6)
    assert report["StreamLAAL_s"]["CA"] == pytest.approx(1.115278, abs=1e-6)
    assert [one["LongYAAL"] for one in report["instances"]] == pytest.approx([1000, 1000, 500])
    assert (report["regime"], report["n_recordings"], report["n_empty"]) == ("low", 1, 0)
    counts = [len(one.instance.delays) for one in read_pieces(tmp_path / "pieces.jsonl")]
    assert counts == [3, 4, 3]
    assert report["signature"].endswith(f"|level:word|segmenter:soft|lang:{lang}") and report["marks"] == []


def test_a_talk_of_characters(tmp_path):
    pytest.importorskip("sacrebleu")
    segments = "- {wav: b.wav, offset: 0.5, duration: 1.5}\n- {wav: b.wav, offset: 2.5, duration: 1.0}\n"
    report = scored(write(tmp_path, [CHARACTERS], segments, "今天很好。\n我们走吧\n"), unit="char", tokenize="zh")
    expected = {"BLEU": 25.5015, "LongYAAL": 587.5, "LongLAAL": 704.1667, "LongAP": 0.55, "LongDAL": 703.125}
    assert {name: report["scores"][name] for name in expected} == pytest.approx(expected, abs=1e-4)
    assert not any("CA" in name for name in report["scores"]) and report["compute"] is None


def test_simulevals_times_are_repaired():
    assert repaired([1200, 1200, 2700, 4300], [1000, 1000, 2000, 3000]) == (1200, 1200, 2500, 3600)
    assert repaired([], []) == ()


def test_chunks_wait_for_each_other():
    """Seconds heard 1, 2, 3, 6 with 1.5 s of work each: the third chunk waits 2 s, before the last all is done."""
    assert queued([1, 2, 3, 6], [1.5, 1.5, 1.5, 0.5]) == [2.5, 4, 5.5, 6.5]
    assert queued([1, 2], [0.5, 0.5]) == [1.5, 2.5], "without a queue it is what simulstream counts"


@pytest.mark.parametrize(
    ("lag", "name"),
    [(0, "low"), (2000, "low"), (2000.1, "high"), (4000, "high"), (4000.1, None), (-1, None), (None, None)],
)
def test_regimes(lag, name):
    assert regime(lag) == name


def test_intervals_are_sacrebleus():
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    predictions = ["der Hund bellt laut im Park", "die Katze schläft nicht", "gute Nacht ihr Lieben", "ein Haus am See"]
    references = [
        "der Hund bellt laut im Garten",
        "die Katze schläft gern",
        "gute Nacht ihr Leute",
        "ein Haus an der See",
    ]
    for ours, theirs in ((bleu, BLEU()), (chrf, CHRF())):
        expected = theirs.corpus_score(predictions, [references], n_bootstrap=200)._ci
        assert intervals({"": ours(predictions, references).measure}, 200)[""] == pytest.approx(expected, rel=1e-5)
    assert intervals({"": chrf(["", "a b"], ["x", "a b"]).measure}, 100)[""] == pytest.approx(50), (
        "where sacreBLEU's fails"
    )


@pytest.mark.parametrize("unit", ["word", "char"])
def test_equals_omnisteval(files, unit, monkeypatch):
    """Only where the package is installed."""
    omnisteval = pytest.importorskip("omnisteval.io")
    from omnisteval.resegment import resegment
    from omnisteval.scoring import evaluate_instances

    if unit == "char":
        entry = {**TALK, "delays": list(range(0, 100 * len(TALK["prediction"]), 100))}
        files = write(Path(files[0]).parent, [{**entry, "elapsed": entry["delays"]}], SEGMENTS, REFERENCES)
    reference, hypothesis, segments, texts = omnisteval.load_resegmentation_inputs(
        files[1], None, files[2], files[0], char_level=unit == "char"
    )
    instances, _ = resegment(reference, hypothesis, segments, texts, char_level=unit == "char")
    theirs, _, _ = evaluate_instances(instances)
    ours = scored(files, unit=unit)["scores"]
    if unit == "word":  # in characters it takes the spaces out of the references
        assert ours["BLEU"] == pytest.approx(theirs["bleu"])
    for name in ("yaal", "al", "laal", "ap", "dal"):
        assert ours[f"Long{name.upper()}"] == pytest.approx(theirs[f"long_{name}"], abs=1e-6)


# -- plain loops and properties ----------------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["der", "die", "Hund", "Hunde", "bellt", "laut.", ",", "nein"]), max_size=8)


@st.composite
def talks(draw: st.DrawFn, recordings: int = 2) -> tuple[list[Talk], list[Segment]]:
    """Recordings with segments that follow each other, and what was written of them."""
    made, segments = [], []
    for number in range(draw(st.integers(1, recordings))):
        offset = draw(st.integers(0, 3000))
        for _ in range(draw(st.integers(1, 4))):
            duration = draw(st.integers(1, 40)) * 100
            segments.append(Segment(f"{number}.wav", offset, duration, " ".join(draw(WORDS))))
            offset += duration
        units = draw(WORDS)
        steps = draw(st.lists(st.integers(0, 20), min_size=len(units), max_size=len(units)))
        delays = tuple(float(100 * sum(steps[: i + 1])) for i in range(len(units)))
        made.append(Talk(f"{number}.wav", tuple(units), delays, {LOGGED: tuple(x + 50 for x in delays)}))
    return made, segments


@settings(max_examples=40, deadline=None)
@given(talks())
def test_every_unit_is_in_one_piece_in_order(made):
    written, segments = made
    pieces = cut(written, segments)
    assert [piece.instance.reference for piece in pieces] == [one.reference for one in segments]
    for number, talk in enumerate(written):
        own = [(piece, part) for piece, part in zip(pieces, segments, strict=True) if piece.place[0] == number]
        assert [word for piece, _ in own for word in piece.instance.prediction.split()] == list(talk.units)
        for way, logged in ((None, talk.delays), (LOGGED, talk.aware[LOGGED])):
            found = [(piece.instance.delays if way is None else piece.aware[way], part) for piece, part in own]
            assert [moment + part.offset for times, part in found for moment in times] == pytest.approx(logged)


@settings(max_examples=20, deadline=None)
@given(talks(), st.integers(0, 100_000))
def test_moving_a_talk_in_time_changes_no_score(made, shift):
    def later(times: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(moment + shift for moment in times)

    written, segments = made
    moved = [Talk(one.recording, one.units, later(one.delays), {LOGGED: later(one.aware[LOGGED])}) for one in written]
    shifted = [Segment(one.recording, one.offset + shift, one.duration, one.reference) for one in segments]
    found = [_latencies(cut(*both)) for both in ((written, segments), (moved, shifted))]
    assert found[0] == pytest.approx(found[1])


@settings(max_examples=20, deadline=None)
@given(talks(1))
def test_later_words_have_more_latency(made):
    """An inverted control of the property before: with the words alone moved, LongAP grows."""
    written, segments = made
    moved = [Talk(one.recording, one.units, tuple(x + 100 for x in one.delays)) for one in written]
    before, after = _latencies(cut(written, segments)), _latencies(cut(moved, segments))
    assert ("LongAP" in before) == bool(written[0].units) and (not before or after["LongAP"] > before["LongAP"])


def _latencies(pieces) -> dict[str, float]:
    found = [
        long_form_scores(one.instance.delays, one.instance.source_length, one.instance.reference, one.end)
        for one in pieces
    ]
    names = {name for scores in found for name in scores}
    return {name: fmean(scores[name] for scores in found if name in scores) for name in names}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-20, 80), min_size=1, max_size=9),
    st.integers(1, 60),
    st.integers(0, 40),
    st.integers(1, 9),
)
def test_long_yaal_is_its_definition(steps, length, more, reference):
    """Mean of D[i] - (i - 1) / g over the units before the first at the end of the recording, g = max(n, R) / S."""
    times, source, end = [50.0 * step for step in sorted(steps)], 50.0 * length, 50.0 * (length + more)
    total, count = 0.0, 0
    for i in range(1, len(times) + 1):
        if times[i - 1] >= end:
            break
        g = max(len(times), reference) / source
        total += times[i - 1] - (i - 1) / g
        count += 1
    found = long_form_scores(times, source, " ".join("w" * reference), end)
    assert found.get("LongYAAL") == (pytest.approx(total / count) if count else None)


def test_an_empty_word_of_a_reference_counts():
    """SimulEval and OmniSTEval split at every space, so the pace of the second is 4 words."""
    one, two = (long_form_scores((1000, 2000, 3000), 3000, text, 9000)["LongAL"] for text in ("a b c", "a  b c"))
    assert (one, two) == pytest.approx((1000, 1250))


def test_end_is_that_of_the_last_segment():
    segments = [Segment("a", 0, 1000, "ja"), Segment("a", 1000, 3000, "nein"), Segment("a", 1500, 500, "doch")]
    (first, second, third) = cut([Talk("a", ("ja",), (500.0,))], segments)
    assert (first.end, second.end, third.end) == (4000, 3000, 2500)


# -- formats and reports -----------------------------------------------------------------------------------------------


def test_resegmented_scores_are_the_same(files, tmp_path):
    """OmniSTEval itself forgets the end of the recording there, so its LongYAAL is another."""
    pieces = tmp_path / "pieces.jsonl"
    before, after = scored(files, resegmented=str(pieces)), score_resegmented([str(pieces)])
    assert {name: value for name, value in before["scores"].items() if "repaired" not in name} == after["scores"]
    assert after["segmenter"] is None and after["n_instances"] == 3


def test_logs_and_segments_are_written_as_they_are_read(files, tmp_path):
    (talk,) = read_talks(Path(files[0]), "word")
    write_talks(tmp_path / "again.jsonl", [talk], "word")
    assert read_talks(tmp_path / "again.jsonl", "word")[0].aware == talk.aware
    segments = read_segments(*files[1:])
    entries = [{"wav": one.recording, "offset": one.offset / 1000, "duration": one.duration / 1000} for one in segments]
    (tmp_path / "again.json").write_text(json.dumps(entries, indent=1))
    assert read_segments(tmp_path / "again.json", files[2]) == segments


def test_a_space_between_characters_may_have_a_delay(tmp_path):
    (tmp_path / "log").write_text(json.dumps({**CHARACTERS, "prediction": "a b", "delays": [1, 2, 3]}) + "\n")
    assert read_talks(tmp_path / "log", "char")[0].units == ("a", " ", "b")
    (tmp_path / "log").write_text(json.dumps({**CHARACTERS, "prediction": "a b", "delays": [1, 3]}) + "\n")
    assert read_talks(tmp_path / "log", "char")[0].units == ("a", "b")


def test_the_folder_of_a_simulation_of_talks_is_read(files, tmp_path):
    """Where SimulEval's utterances are whole talks."""
    folder = tmp_path / "out"
    folder.mkdir()
    entry = {**TALK, "index": 0, "reference": "x", "source_length": 9500, "source": ["a.wav"]}
    (folder / "instances.log").write_text(json.dumps(entry) + "\n")
    assert scored([str(folder), *files[1:]])["scores"] == scored(files)["scores"]


def test_piled_up_computation_is_marked(tmp_path):
    elapsed = [delay + 2500 for delay in TALK["delays"]]
    report = scored(write(tmp_path, [{**TALK, "elapsed": elapsed}], SEGMENTS, REFERENCES))
    assert any(line.startswith("computation adds 2667 ms: a log of SimulEval") for line in report["marks"])
    assert report["scores"]["LongYAAL_CA_repaired"] < report["scores"]["LongYAAL_CA"] == pytest.approx(3500)


def test_marks_of_pieces():
    """A word early and the rest at the end; all words before they are said; nothing at all."""

    def report(*delays: float) -> list[str]:
        one = Instance(0, " ".join("w" * len(delays)), " ".join("w" * 10), delays, delays, 10_000.0)
        (piece,) = cut([Talk("a", tuple("w" * len(delays)), delays)], [Segment("a", 0, 10_000, one.reference)])
        return score_pieces([piece], TalkOptions())["marks"]

    assert [line.split(":")[0] for line in report(1000, *[10_000] * 9)] == ["degenerate policy"]
    assert report(*range(1000, 10_001, 1000)) == []
    assert any(line.startswith("negative LongYAAL: hypotheses run ahead") for line in report(*range(0, 501, 50)))
    assert [line.split(":")[0] for line in report()] == ["too short"]


# -- the command -------------------------------------------------------------------------------------------------------


def run_command(*options: str) -> int:
    return call(parse(score_command, [*options]))


def test_command_prints_a_table_and_writes_json(files, tmp_path, capsys):
    log, segments, references = files
    places = [str(tmp_path / name) for name in ("scores.json", "pieces.jsonl")]
    options = ["--segments", segments, "--references", references, "--json", places[0], "--resegmented", places[1]]
    assert run_command(log, *options) == 0
    printed = capsys.readouterr().out
    for line in (
        "3 segments of 1 recordings, segmenter soft; 0 without output",
        "| LongYAAL | ms | 833.333 | 1004.167 |",
        "| StreamLAAL | s | 0.944 | 1.115 |",
        "latency regime: low (LongYAAL to 2 s)",
        "BLEU          28.491 +- ",
    ):
        assert line in printed or line in re.sub(" +", " ", printed)
    saved = json.loads(Path(places[0]).read_text())
    assert saved["scores"]["LongYAAL"] == pytest.approx(833.3333, abs=1e-4) and saved["intervals"]["BLEU"] > 0
    assert run_command(places[1]) == 0
    assert "| LongYAAL | ms | 833.333 | 1004.167 |" in re.sub(" +", " ", capsys.readouterr().out)


def test_level_and_unit_are_one_option(files):
    with pytest.raises(LeapformerError, match="10 delays for 47 units of kind 'char'; give the log's own --level"):
        run_command(files[0], "--segments", files[1], "--references", files[2], "--level", "char")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["LOG"], "LOG is a log of talks; give --segments and --references"),
        (["LOG", "--segments", "SEG"], "needs --references"),
        (["LOG", "--segments", "SEG", "--text", "x"], "leave --text and --examples out"),
        (["SEG", "--segments", "SEG", "--references", "REF"], "SEG: no such log; --segments is for"),
        (["LOG", "LOG", "--segments", "SEG", "--references", "REF"], "a.wav was read at LOG:1 already"),
        (["nowhere", "--lang", "de"], "--lang is for translations of talks; give --segments, too"),
        (["nowhere", "--quality-command", "x"], "--quality-command is for translations of talks"),
        (["LOG", "--segments", "SEG", "--references", "REF", "--tokenize", "nope"], "no tokenizer 'nope'"),
    ],
)
def test_options_that_do_not_go_together(files, options, message):
    names = dict(zip(("LOG", "SEG", "REF"), files, strict=True))
    for name, path in names.items():
        message = message.replace(name, path)
    with pytest.raises(LeapformerError) as error:
        run_command(*(names.get(option, option) for option in options))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_mwer_segmenter(files):
    """Least edit distance; without the package its remedy in one line."""
    try:
        import mweralign  # noqa: F401
    except ImportError:
        with pytest.raises(LeapformerError, match="mweralign is not installed; pip install"):
            scored(files, segmenter="mwer")
        return
    assert scored(files, segmenter="mwer")["StreamLAAL_s"]["source heard"] == pytest.approx(0.944444, abs=1e-6)


# -- quality by a program ----------------------------------------------------------------------------------------------

SCORER = """
import json, sys
lines = [json.loads(line) for line in sys.stdin]
for line in lines: print(json.dumps({"score": len(line["mt"]) / len(line["ref"]) + len(line["src"])}))
"""
SYSTEM = 'print(json.dumps({"system": 0.5, "name": "FAKE", "version": "1"}))\n'


def command(folder: Path, program: str) -> str:
    (folder / "scorer.py").write_text(program)
    return f"{sys.executable} {folder / 'scorer.py'}"


def test_quality_by_a_command(files, tmp_path):
    (tmp_path / "src.txt").write_text("a\nbb\nccc\n")
    options = {"quality_command": command(tmp_path, SCORER + SYSTEM), "transcripts": str(tmp_path / "src.txt")}
    report = scored(files, **options)
    assert report["scores"]["FAKE"] == 0.5 and report["signatures"]["FAKE"] == "FAKE|version:1"
    assert [one["FAKE"] for one in report["instances"]] == pytest.approx([1 + 15 / 20, 2 + 22 / 28, 3 + 17 / 11])


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (SCORER, "wrote 3 lines for 3 segments"),
        (SCORER + 'print("x")', "line 4 of its output is not JSON"),
        (SCORER.replace("/ len", "* float('nan') * len") + SYSTEM, "has no usable 'score'"),
        (SYSTEM.replace("print", "import json; print"), "wrote 1 lines for 3 segments"),
        (SCORER + SYSTEM.replace("system", "total"), "no usable 'system'"),
        ("raise SystemExit('no model there')", "ended with status 1: no model there"),
    ],
)
def test_a_command_that_does_not_serve(files, tmp_path, program, message):
    with pytest.raises(LeapformerError) as error:
        scored(files, quality_command=command(tmp_path, program))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_command_that_is_not_there(files, tmp_path):
    with pytest.raises(LeapformerError, match="'/nowhere/comet' cannot be run"):
        scored(files, quality_command="/nowhere/comet")
    (tmp_path / "src.txt").write_text("a\n")
    with pytest.raises(LeapformerError, match="has 1 lines for 3 segments"):
        scored(files, quality_command="cat", transcripts=str(tmp_path / "src.txt"))
