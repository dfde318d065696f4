"""Latency against values by hand and SimulEval's own scorers, constructed correctly; quality; the logs; the table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from leapformer_fairseq.cli import score as score_command
from leapformer_fairseq.runtime.formats.runlog import Instance, read_compute, read_instances, read_threads
from leapformer_fairseq.scoring import latency
from leapformer_fairseq.scoring.latency import latency_scores, simultaneity, yet_another_average_lagging
from leapformer_fairseq.scoring.marks import below_twins, length_ratio, marks
from leapformer_fairseq.scoring.quality import bleu, chrf, quality, rare_recall
from leapformer_fairseq.scoring.report import score_run
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.options import call, parse
from tests.covering import covering

# Four words, 1200 ms of source, three words in the reference.
DELAYS, ELAPSED, SOURCE, REFERENCE = (300.0, 600.0, 1200.0, 1200.0), (350.0, 700.0, 1400.0, 1400.0), 1200.0, 3


def entry(index: int = 0, **changes: Any) -> dict[str, Any]:
    values = {
        "index": index, "prediction": "eins zwei drei vier", "reference": "eins zwei drei", "delays": list(DELAYS),
        "elapsed": list(ELAPSED), "source_length": SOURCE, "prediction_length": 4, "source": ["a.wav"],
    }  # fmt: skip
    return {**values, **changes}


def write_run(folder: Path, *entries: dict[str, Any]) -> Path:
    (folder / "instances.log").write_text("".join(json.dumps(one) + "\n" for one in entries))
    return folder


# -- formulas by hand --------------------------------------------------------------------------------------------------


def test_average_lagging_by_hand() -> None:
    # pace 1200 / 3 = 400; tau = 3: (300 - 0) + (600 - 400) + (1200 - 800)
    assert latency.average_lagging(DELAYS, SOURCE, REFERENCE) == pytest.approx((300 + 200 + 400) / 3)


def test_length_adaptive_average_lagging_by_hand() -> None:
    # four words written, so the pace is 1200 / 4 = 300: (300 - 0) + (600 - 300) + (1200 - 600)
    assert latency.length_adaptive_average_lagging(DELAYS, SOURCE, REFERENCE) == pytest.approx((300 + 300 + 600) / 3)


def test_average_proportion_by_hand() -> None:
    assert latency.average_proportion(DELAYS, SOURCE, REFERENCE) == pytest.approx(3300 / 3600)


def test_differentiable_average_lagging_by_hand() -> None:
    # pace 300; spaced 300, 600, 1200, 1500; minus 0, 300, 600, 900
    assert latency.differentiable_average_lagging(DELAYS, SOURCE) == pytest.approx((300 + 300 + 600 + 600) / 4)


def test_average_token_delay_by_hand() -> None:
    # source tokens end at 300, 600, 900, 1200; words answer tokens 1, 2, 3, 4 and end when written
    assert latency.average_token_delay(DELAYS) == pytest.approx((0 + 0 + 300 + 0) / 4)


def test_average_token_delay_with_computation_by_hand() -> None:
    # computation 50, 50 more, 100 more, 0: words end at 350, 650, 1300, 1300
    assert latency.average_token_delay(DELAYS, ELAPSED) == pytest.approx((50 + 50 + 400 + 100) / 4)


def test_average_token_delay_of_an_early_writer() -> None:
    # Both words of the first write are ahead: 300 ms hold one source token, so the third word answers token 2, not 3.
    assert latency.average_token_delay((300.0, 300.0, 900.0)) == pytest.approx((0 + 0 + 300) / 3)


def test_offline_translation_lags_by_the_source() -> None:
    assert latency.average_lagging((SOURCE,) * 4, SOURCE, 3) == SOURCE
    assert latency.average_proportion((SOURCE,) * 3, SOURCE, 3) == 1.0


def test_the_ideal_translator_has_the_lag_of_its_first_word() -> None:
    assert latency.average_lagging((300.0, 600.0, 900.0, 1200.0), SOURCE, 4) == pytest.approx(300)


# -- against SimulEval -------------------------------------------------------------------------------------------------


def random_entry(seed: int, unit: str) -> dict[str, Any]:
    """A log entry with delays that never fall, repeats, and an odd source length."""
    draw = random.Random(seed)
    n_units, source = draw.randint(1, 25), draw.choice([40.0, 777.5, 2345.6875, 9000.0])
    delays = sorted(min(source, 40.0 * draw.randint(1, 240)) for _ in range(n_units))
    cost, elapsed = 0.0, []
    for rank, delay in enumerate(delays):
        cost += draw.random() * 90 * (rank == 0 or delay != delays[rank - 1])
        elapsed.append(delay + cost)
    words = [draw.choice("abcdefg") for _ in range(n_units)]
    reference = [draw.choice("abcdefg") for _ in range(draw.randint(1, 25))]
    joint = " " if unit == "word" else ""
    texts = {"prediction": joint.join(words), "reference": joint.join(reference), "prediction_length": n_units}
    return entry(seed, delays=delays, elapsed=elapsed, source_length=source, **texts)


@covering(unit=["word", "char"], name=["AL", "LAAL", "AP", "DAL", "ATD"], aware=[False, True])
def test_equals_simuleval(tmp_path: Path, unit: str, name: str, aware: bool) -> None:
    scorers = pytest.importorskip("simuleval.evaluator.scorers.latency_scorer")
    from simuleval.evaluator.instance import LogInstance

    entries = [random_entry(seed, unit) for seed in range(60)]
    scorer = scorers.LATENCY_SCORERS_DICT[name](computation_aware=aware)
    key = name + "_CA" * aware
    ours = read_instances(write_run(tmp_path, *entries), unit)
    for one, logged in zip(ours, entries, strict=True):
        theirs = scorer({0: LogInstance(json.dumps(logged), unit)})
        assert latency_scores(one, unit)[key] == pytest.approx(theirs, rel=1e-9, abs=1e-6)
    together = {rank: LogInstance(json.dumps(logged), unit) for rank, logged in enumerate(entries)}
    assert score_run(tmp_path, unit=unit)["scores"][key] == pytest.approx(scorer(together), rel=1e-9)


def test_computation_changes_only_the_computation_aware_scores(tmp_path: Path) -> None:
    slow = entry(elapsed=[value + 500 for value in ELAPSED])
    fast, slow = (score_run(write_run(tmp_path, one))["scores"] for one in (entry(), slow))
    for name in ("AL", "LAAL", "AP", "DAL", "ATD"):
        assert slow[name] == fast[name] < fast[name + "_CA"] < slow[name + "_CA"]


# -- quality -----------------------------------------------------------------------------------------------------------


def test_quality_carries_signatures() -> None:
    texts = ["der hund läuft im park .", "eins zwei drei vier fünf"]
    for score in (bleu(texts, texts), chrf(texts, texts)):
        assert score.value == pytest.approx(100)
        assert "version:" in score.signature
        assert score.per_sentence == pytest.approx((100, 100))
    assert "tok:13a" in bleu(texts, texts).signature


def test_chinese_needs_its_tokenizer() -> None:
    predictions, references = ["今天天气很好我们去公园"], ["今天天气很好我们去学校"]
    assert bleu(predictions, references, "zh").value > 50 > bleu(predictions, references, "13a").value


def test_tokenizer_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from leapformer_fairseq.scoring import quality

    with pytest.raises(LeapformerError, match="no tokenizer 'nope'.*13a"):
        bleu(["a"], ["a"], "nope")

    def not_installed(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("install\nmecab")

    not_installed.TOKENIZERS = quality.BLEU.TOKENIZERS
    monkeypatch.setattr(quality, "BLEU", not_installed)
    with pytest.raises(LeapformerError, match="'ja-mecab' cannot be used: install mecab"):
        bleu(["a"], ["a"], "ja-mecab")


@pytest.mark.parametrize(("predictions", "references"), [([], []), (["a"], ["a", "b"])])
def test_sentences_must_pair_up(predictions: list[str], references: list[str]) -> None:
    with pytest.raises(LeapformerError, match="one for each"):
        chrf(predictions, references)


def test_only_rare_words_that_were_said_count(tmp_path: Path) -> None:
    """The 100 frequent words of the text are w0 to w99; X and x are one word."""
    training = [f"w{i} w{i}" for i in range(100)] + ["zug ."]
    references, predictions = ["W3 zug X x !", "w1 w2", "haus"], ["w3 , x x x w7", "nichts", "Haus"]
    found = rare_recall(predictions, references, training)
    assert found.per_sentence == pytest.approx((50, 100, 100)) and found.value == pytest.approx(60)
    assert found.signature == "frequent:100|case:lc|tok:13a|words:5"
    assert rare_recall(references, references, []).value == 100
    (tmp_path / "text").write_text("\n".join(training))
    assert [score.name for score in quality(predictions, references)] == ["BLEU", "chrF"]
    assert quality(predictions, references, "char", tmp_path / "text")[2].signature.count("char") == 1
    without = quality(["x"], ["w1"], training=tmp_path / "text")
    assert [score.name for score in without] == ["BLEU", "chrF"], "of no rare words, none are lost"
    with pytest.raises(LeapformerError, match="--training-text"):
        quality(predictions, references, training=tmp_path / "nothing")


def test_rare_words_are_of_translations(tmp_path: Path) -> None:
    write_run(tmp_path, entry(prediction="eins zwei x y"))
    (tmp_path / "text").write_text("eins\n")
    given = ["--training-text", str(tmp_path / "text")]
    assert run_command(str(tmp_path), *given, "--json", str(tmp_path / "s.json")) == 0
    assert json.loads((tmp_path / "s.json").read_text())["scores"]["rare_recall"] == pytest.approx(50)
    with pytest.raises(LeapformerError, match="--training-text is for translations"):
        run_command("eval.log", "--text", "text", *given)


# -- logs --------------------------------------------------------------------------------------------------------------


def test_utterance_without_output_has_no_latency_and_is_counted(tmp_path: Path) -> None:
    empty = entry(1, prediction="", delays=[], elapsed=[])
    report = score_run(write_run(tmp_path, entry(), empty))
    assert (report["n_instances"], report["n_empty"]) == (2, 1)
    assert report["scores"]["AL"] == pytest.approx(300)
    assert "AL" not in report["instances"][1]


def test_run_that_wrote_nothing(tmp_path: Path) -> None:
    report = score_run(write_run(tmp_path, entry(prediction="", delays=[], elapsed=[])))
    assert report["scores"] == {"BLEU": 0.0, "chrF": 0.0}


def test_empty_reference_counts_as_one_unit(tmp_path: Path) -> None:
    (instance,) = read_instances(write_run(tmp_path, entry(reference="")))
    assert latency_scores(instance)["AP"] == pytest.approx(3300 / 1200)


def test_spaces_of_a_reference_are_not_characters() -> None:
    spaced, plain = (Instance(0, "ab", text, (40.0, 80.0), (40.0, 80.0), 80.0) for text in ("a b", "ab"))
    assert latency_scores(spaced, "char") == latency_scores(plain, "char")


def test_wrong_unit_is_found(tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="4 delays for 16 units of kind 'char'"):
        read_instances(write_run(tmp_path, entry()), "char")
    with pytest.raises(LeapformerError, match="'spm'"):
        read_instances(tmp_path, "spm")


BROKEN = {
    "no usable 'delays'": {"index": 0, "prediction": "", "reference": "", "elapsed": [], "source_length": 1},
    "no usable 'elapsed'": entry(elapsed=None),
    "2 elapsed times": entry(elapsed=[1.0, 2.0]),
}


@pytest.mark.parametrize("message", BROKEN)
def test_damaged_lines_are_named(tmp_path: Path, message: str) -> None:
    with pytest.raises(LeapformerError, match=message) as error:
        read_instances(write_run(tmp_path, entry(), BROKEN[message]))
    assert "instances.log:2" in str(error.value)


def test_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(LeapformerError, match="no instances.log"):
        read_instances(tmp_path)
    contents = {"\n": "no utterance", '{"index": 0, "pre': "is not JSON", "[1]\n": "not a JSON object"}
    for content, message in contents.items():
        (tmp_path / "instances.log").write_text(content)
        with pytest.raises(LeapformerError, match=message):
            read_instances(tmp_path)


def test_compute_is_summed_over_utterances(tmp_path: Path) -> None:
    assert read_compute(tmp_path) is None
    line = {"features_s": 0.1, "encoder_s": 0.2, "decoder_s": 0.3, "audio_s": 2.0, "tokens": 4}
    (tmp_path / "compute.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps({**line, 'audio_s': 4.0})}\n")
    assert read_compute(tmp_path).seconds_per_second == pytest.approx(1.2 / 6)
    assert read_compute(tmp_path).without_prenet is None, "older runs did not measure it"
    (tmp_path / "compute.jsonl").write_text(json.dumps({**line, "prenet_s": 0.1}))
    assert read_compute(tmp_path).without_prenet == pytest.approx(0.5 / 2)
    (tmp_path / "compute.jsonl").write_text("")
    assert read_compute(tmp_path).seconds_per_second is None


@pytest.mark.parametrize("part", ["features_s", "encoder_s", "decoder_s"])
def test_tokens_that_took_no_time_were_not_timed(tmp_path: Path, part: str) -> None:
    line = {"features_s": 0.1, "encoder_s": 0.2, "decoder_s": 0.3, "audio_s": 2.0, "tokens": 4}
    (tmp_path / "compute.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps({**line, part: 0.0})}\n")
    with pytest.raises(LeapformerError, match=rf"compute.jsonl:2 has 4 tokens and {part} 0, so .* was not timed"):
        read_compute(tmp_path)
    (tmp_path / "compute.jsonl").write_text(json.dumps({**line, part: 0.0, "tokens": 0}))  # too short for a frame
    assert read_compute(tmp_path).audio_s == 2.0


def test_the_threads_are_those_of_the_run(tmp_path: Path) -> None:
    line = {"features_s": 0.1, "encoder_s": 0.2, "decoder_s": 0.3, "audio_s": 2.0, "tokens": 4}
    assert read_threads(tmp_path) is None
    (tmp_path / "simulate.json").write_text(json.dumps({"options": {"num_threads": 5}}))
    assert read_threads(tmp_path) == 5, "of a run that was not timed"
    for counts, expected in (((3, 3), 3), ((3, None), 5), ((3, 4), 5)):
        lines = [json.dumps(line | ({} if count is None else {"threads": count})) for count in counts]
        (tmp_path / "compute.jsonl").write_text("\n".join(lines))
        assert read_threads(tmp_path) == expected, "as logged, where all lines say the same"


def test_a_latency_below_its_twin_is_marked(tmp_path: Path) -> None:
    """Computation moves the second word behind the end of the source, where YAAL does not count it."""
    times = {"delays": [100.0, 1000.0, 1200.0, 1200.0], "elapsed": [110.0, 1210.0, 1400.0, 1400.0]}
    report = score_run(write_run(tmp_path, entry(**times)))
    assert report["scores"]["YAAL_CA"] < report["scores"]["YAAL"]
    (told,) = [line for line in report["marks"] if "_CA" in line]
    assert told.startswith("YAAL_CA 110.00 is below YAAL 400.00: with computation, fewer units")
    assert not below_twins({"AL": 1.0, "AL_CA": 1.0, "BLEU": 3.0, "AP_CA": 1.0})
    assert len(below_twins({"LongYAAL": 2.0, "LongYAAL_CA_queued": 1.0, "LongYAAL_CA": 1.5})) == 2


# -- the command -------------------------------------------------------------------------------------------------------


def run_command(*options: str) -> int:
    return call(parse(score_command, [*options]))


def test_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, entry())
    line = {"features_s": 0.1, "encoder_s": 0.2, "decoder_s": 0.3, "audio_s": 1.2}
    (tmp_path / "compute.jsonl").write_text(json.dumps(line))
    assert run_command(str(tmp_path), "--json", str(tmp_path / "scores.json")) == 0
    table = capsys.readouterr().out
    assert "AL           300.000 ms" in table
    assert "compute        0.500 s per second of audio" in table
    assert "BLEU: nrefs:1" in table
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert saved["scores"]["AL"] == saved["instances"][0]["AL"] == pytest.approx(300)


EARLY = {"delays": [100.0, 200.0, 200.0, 300.0], "elapsed": [100.0, 200.0, 200.0, 300.0]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        (EARLY, ["negative AL: hypotheses run ahead"]),
        ({"prediction": "eins zwei dreidreidrei vier"}, ["too long: 2.00 characters"]),
        ({"prediction": "e zw d v"}, ["too short: 0.42 characters"]),
        ({"prediction": "eins zwei dreidreidrei vier", **EARLY}, ["negative AL", "too long"]),
    ],
)
def test_command_marks_what_goes_wrong(tmp_path: Path, capsys: Any, changes: dict[str, Any], told: list[str]) -> None:
    """The reference has 12 characters; at least the last word comes after the source, so YAAL says something."""
    normal = {"prediction": "eins zwei drei v"}
    write_run(tmp_path, entry(**{**normal, **changes}))
    run_command(str(tmp_path), "--json", str(tmp_path / "scores.json"))
    printed = capsys.readouterr().out.splitlines()
    saved = json.loads((tmp_path / "scores.json").read_text())
    marked = [line for line in saved["marks"] if "degenerate" not in line]
    assert len(marked) == len(told) and all(line.startswith(begin) for line, begin in zip(marked, told, strict=True))
    assert all(line in printed for line in saved["marks"]) and (saved["scores"]["AL"] < 0) == ("delays" in changes)
    characters = len("".join(changes.get("prediction", normal["prediction"]).split()))
    assert saved["length_ratio"] == pytest.approx(characters / 12)


def test_a_length_ratio_has_limits() -> None:
    assert length_ratio(["a b", "cd"], ["abc", "d e"]) == 0.8 and length_ratio(["a"], ["", " "]) is None
    assert not marks(None) and not marks(1.2) and not marks(0.8) and marks(1.21) and marks(0.79)
    assert not marks(1.0, 0.0) and len(marks(2.0, -1.0, {"SWF": 10, "EFSW": 90, "DSPTV": 80})) == 3


def test_command_reports_a_wrong_folder_as_one_line(tmp_path: Path) -> None:
    with pytest.raises(LeapformerError) as error:
        run_command(str(tmp_path / "nowhere"))
    assert "\n" not in str(error.value)
    with pytest.raises(LeapformerError, match="cannot be written"):
        run_command(str(write_run(tmp_path, entry())), "--json", str(tmp_path / "nowhere" / "scores.json"))


def instance(reference_units: int, length: float, *delays: float) -> Instance:
    text = " ".join(["w"] * reference_units)
    return Instance(0, " ".join(["w"] * len(delays)), text, delays, delays, length)


class TestYaal:
    """Values of the field's own tool."""

    @pytest.mark.parametrize(
        ("delays", "reference", "length", "end", "yaal", "long_yaal"),
        [
            ((1000, 2000, 2000, 4000, 4000), 4, 4000, 9000, 866.6667, 1000),
            ((1100, 2200, 2300, 4400, 4500), 4, 4000, 9000, 1066.6667, 1300),
            ((3000, 3000), 3, 3000, 5000, None, 2500),
            ((-500, 1000, 5200), 3, 3000, 5000, -250, -250),
            ((), 3, 3000, 5000, None, None),
            ((5000,), 3, 3000, 5000, None, None),
        ],
    )
    def test_fixtures(self, delays, reference, length, end, yaal, long_yaal):
        found = yet_another_average_lagging(delays, length, reference)
        found_long = yet_another_average_lagging(delays, length, reference, end)
        assert found == (None if yaal is None else pytest.approx(yaal, abs=1e-4))
        assert found_long == (None if long_yaal is None else pytest.approx(long_yaal, abs=1e-4))

    @pytest.mark.parametrize(
        ("instances", "swf", "efsw"),
        [
            ([instance(4, 4000, 1000, 2000, 2000, 4000, 4000), instance(3, 3000, 3000, 3000)], 42.8571, 78.3333),
            ([instance(10, 10000, 1000, *[10000] * 9)], 10, 90),
            ([instance(10, 10000, *range(1000, 10001, 1000))], 90, 90),
        ],
    )
    def test_a_degenerate_policy_shows(self, instances, swf, efsw):
        found = simultaneity(instances)
        assert found == pytest.approx({"SWF": swf, "EFSW": efsw, "DSPTV": efsw - swf}, abs=1e-4)

    def test_without_output_there_is_nothing_to_say(self):
        assert simultaneity([instance(3, 1000)]) is None
        assert simultaneity([instance(3, 1000, 2000)]) is None
