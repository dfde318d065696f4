"""Bootstrap: equal systems do not differ, and different ones do, in quality and latency; what cannot be compared."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.formats.runlog import Instance
from leapformer_fairseq.scoring.comparison import collect
from leapformer_fairseq.scoring.pieces import Piece, write_pieces
from leapformer_fairseq.scoring.significance import SEED, compared, interval, mean_of, p_value, resampled
from leapformer_fairseq.scoring.systems import System, by_length, measures, read_systems
from leapformer_fairseq.support.errors import LeapformerError
from tests.scoring.pictures.images import texts

WORDS = ["the", "a", "small", "old", "red", "house", "tree", "dog", "sees", "finds"]


def sentences(seed: int, errors: float = 0.0, count: int = 60) -> list[str]:
    """The same sentences for every seed, with words replaced at random by the seed."""
    text, noise = random.Random(0), random.Random(seed)
    lines = [text.choices(WORDS, k=10) for _ in range(count)]
    return [" ".join(word if noise.random() >= errors else noise.choice(WORDS) for word in line) for line in lines]


def late(seed: int, by: float = 0.0, count: int = 60) -> list[dict[str, float]]:
    """Latencies that differ between sentences, and between systems less; the last sentence has none."""
    of_sentence, noise = random.Random(0), random.Random(seed)
    lags = [{"AL": of_sentence.gauss(2000, 500) + noise.gauss(by, 50)} for _ in range(count)]
    return [*lags[:-1], {}]


def test_equal_systems_do_not_differ_and_different_ones_do():
    """In quality and latency, with the same draws."""
    about = {"a": (1, 0.3, 0), "again": (1, 0.3, 0), "other": (4, 0.3, 0), "far": (3, 0.6, 90)}
    systems = {name: System(sentences(n, share), late(n, by), sentences(0)) for name, (n, share, by) in about.items()}
    scored = {name: measures(system)[0] for name, system in systems.items()}
    found = compared(scored, samples=300)
    assert list(found) == list(systems) and all(list(of) == ["BLEU", "chrF", "AL"] for of in found.values())
    for metric in ("BLEU", "chrF", "AL"):
        assert "p" not in found["a"][metric]
        assert found["again"][metric]["difference"] == found["again"][metric]["difference_interval"] == 0
        assert found["again"][metric]["p"] == 1 and found["other"][metric]["p"] > 0.05
        assert found["far"][metric]["p"] < 0.01
        assert found["other"][metric]["difference_interval"] < 2 * found["other"][metric]["interval"], "paired"
    assert found["a"]["AL"]["interval"] > 3 * found["far"]["AL"]["difference_interval"], "a long sentence is so in all"
    assert compared(scored, samples=300) == found


def test_intervals_and_p_are_those_of_a_plain_loop():
    """Which scores drawn sentences anew, by sacreBLEU and a mean."""
    references, samples = sentences(0, count=20), 120
    systems = [System(sentences(n, 0.2 * n, 20), late(n, 20 * n, 20), references) for n in (1, 2)]
    draws = np.random.default_rng(SEED).choice(20, size=(samples, 20), replace=True)

    def scores(system: System, drawn: list[int]) -> dict[str, float]:
        texts = [system.hypotheses[i] for i in drawn], [[references[i] for i in drawn]]
        lags = [system.latencies[i]["AL"] for i in drawn if "AL" in system.latencies[i]]
        return {"BLEU": BLEU().corpus_score(*texts).score, "chrF": CHRF().corpus_score(*texts).score, "AL": fmean(lags)}

    found = compared({str(n): measures(system)[0] for n, system in enumerate(systems)}, samples)
    whole = [scores(system, list(range(20))) for system in systems]
    each = [[scores(system, list(drawn)) for drawn in draws] for system in systems]
    for metric in ("BLEU", "chrF", "AL"):
        first, second = ([one[metric] for one in of] for of in each)
        ordered, cut = sorted(second), samples // 40
        assert found["1"][metric]["score"] == pytest.approx(whole[1][metric])
        assert found["1"][metric]["interval"] == pytest.approx((ordered[-1 - cut] - ordered[cut]) / 2)
        differences = [b - a for a, b in zip(first, second, strict=True)]
        mean, observed = fmean(differences), whole[1][metric] - whole[0][metric]
        assert found["1"][metric]["difference"] == pytest.approx(observed)
        extreme = sum(abs(difference - mean) >= abs(observed) for difference in differences)
        assert found["1"][metric]["p"] == pytest.approx((extreme + 1) / (samples + 1))


def test_intervals_are_those_of_sacrebleu():
    hypotheses, references = sentences(1, 0.3), sentences(0)
    scored = measures(System(hypotheses, (), references))[0]
    drawn = resampled(scored)
    assert interval(resampled(measures(System(["x"], (), ["x"]))[0])["BLEU"]) is None, "of one sentence there is none"
    for name, metric in {"BLEU": BLEU(), "chrF": CHRF()}.items():
        theirs = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
        assert interval(drawn[name]) == pytest.approx(theirs._ci, rel=1e-5)


def test_of_equal_systems_one_in_twenty_differs():
    """p is that of both directions: with sacreBLEU's, it is one in ten."""
    random_numbers, below = np.random.default_rng(0), 0
    for _ in range(200):
        differences = random_numbers.normal(size=50)
        drawn = differences[random_numbers.integers(0, 50, (200, 50))].mean(1)
        below += (p_value(drawn, float(differences.mean())) or 1) < 0.05
    assert 4 <= below <= 17


def test_scores_that_no_sentence_has():
    nothing = mean_of([None, None])
    assert np.isnan(nothing.value) and interval(resampled({"AL": nothing})["AL"]) is None
    assert p_value(np.array([np.nan]), 1.0) is None
    rare = resampled({"AL": mean_of([1.0, None, None, None])}, 100)["AL"]
    assert np.isnan(rare).any() and interval(rare) == 0
    with pytest.raises(LeapformerError, match=r"measures of \[1, 2\] sentences cannot be resampled together"):
        resampled({"a": mean_of([1.0]), "b": nothing})


def write(folder: Path, lines: list[str]) -> str:
    folder.mkdir(parents=True)
    numbered = list(enumerate(lines))
    random.Random(1).shuffle(numbered)  # fairseq's order is that of its batches
    (folder / "generate-test.txt").write_text("".join(f"D-{i}\t0.1\t{line}\n" for i, line in numbered))
    return str(folder.parent)


def simulated(folder: Path, seed: int, errors: float = 0.3, lag: float = 1000.0, targets: Sequence[str] = ()) -> str:
    """A folder as SimulEval leaves it: words `lag` ms behind the speech, which has 300 ms for each."""
    folder.mkdir(parents=True)
    entries = []
    for index, (text, reference) in enumerate(zip(sentences(seed, errors), targets or sentences(0), strict=True)):
        delays = [lag + 300.0 * rank for rank in range(10)]
        entry = {"index": index, "prediction": text, "reference": reference, "delays": delays, "elapsed": delays}
        entries.append(json.dumps({**entry, "source_length": 3000.0}) + "\n")
    (folder / "instances.log").write_text("".join(reversed(entries)))
    return str(folder)


@pytest.fixture
def references(tmp_path):
    path = tmp_path / "references"
    path.write_text("\n".join(sentences(0)) + "\n")
    return path


def test_the_command(tmp_path, references, capsys):
    runs = [
        write(tmp_path / name / "test", sentences(n, errors))
        for n, (name, errors) in enumerate((("a", 0.3), ("b", 0.6)))
    ]
    saved = tmp_path / "found.json"
    assert main(["compare", *runs, "--references", str(references), "--samples", "200", "--json", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "p = 0.00" in shown and "samples:200" in shown
    assert [row["system"] for row in json.loads(saved.read_text())["rows"]] == ["a", "b"]


def test_simulations_are_compared_and_drawn(tmp_path, references, capsys):
    """Beside text of fairseq-generate, which has no latency; systems in folders of one name are told apart."""
    places = [simulated(tmp_path / f"{name}/k{k}", n, lag=500.0 * k) for n, name in enumerate("ab") for k in (1, 3)]
    whole = write(tmp_path / "whole/test", sentences(1, 0.1))
    saved, figure = tmp_path / "found.json", tmp_path / "figure.svg"
    words = ["compare", *places, whole, "--references", str(references), "--samples", "100", "--unit", "word"]
    assert main([*words, "--json", str(saved), "--figure", str(figure)]) == 0
    rows = json.loads(saved.read_text())["rows"]
    assert [row["system"] for row in rows] == ["a/k1", "a/k3", "b/k1", "b/k3", "whole"]
    assert [row.get("AL", {}).get("p") for row in rows] == [None, 1 / 101, 1, 1 / 101, None]
    assert rows[0]["LAAL"] == {"score": 500.0, "interval": 0.0} and rows[1]["LAAL"]["difference"] == 1000
    assert {"k = 1", "k = 3", "a", "b"} <= set(texts(figure))
    assert "AL ms" in capsys.readouterr().out
    assert main([*words[:4], "--samples", "100"]) == 0, "their references are with them"


def test_pieces_of_talks_are_compared(tmp_path):
    places = []
    for name, lag in (("a", 0.0), ("b", 400.0)):
        of = [Instance(i, "x y", "x z", (lag + 10.0 * i, 900.0), (lag + 10.0 * i, 900.0), 1000.0) for i in range(20)]
        write_pieces(tmp_path / name, [Piece(instance, (0, instance.index), 9000.0, {}) for instance in of])
        places.append(str(tmp_path / name))
    found = compared({name: measures(system)[0] for name, system in read_systems(places, None).items()}, 100)
    assert found["b"]["BLEU"]["p"] == 1 and found["b"]["LongYAAL"]["p"] == 1 / 101
    assert found["b"]["LongYAAL"]["difference"] == pytest.approx(200)
    assert found["b"]["LongYAAL"]["interval"] > 1 and found["b"]["LongYAAL"]["difference_interval"] < 1e-9


def test_a_report_has_intervals_and_p(tmp_path, capsys):
    """Against softmax, at the same k, also of text that was translated offline."""
    for n, (name, errors) in enumerate({"other": 0.6, "softmax": 0.3}.items()):
        for k in (1, 3):
            folder = simulated(tmp_path / f"{name}/test/k{k}", n, errors, 500.0 * k + 100 * n)
            assert main(["score", folder, "--json", f"{folder}/scores.json"]) == 0
        offline = tmp_path / name / "test/offline"
        write(offline, sentences(n, errors))
        words = ["score", str(offline / "generate-test.txt"), "--references", str(tmp_path / "lines")]
        (tmp_path / "lines").write_text("\n".join(sentences(0)) + "\n")
        assert main([*words, "--json", str(offline / "scores.json")]) == 0
        forced = tmp_path / name / "forced/scores.json"  # the system `softmax`, before `softmax/test`
        forced.parent.mkdir()
        forced.write_text('{"scores": {"perplexity": 9.0}, "signatures": {}, "compute": null, "n_instances": 60}')
        (tmp_path / name / "options").write_text(f"--attention {name} --seed 1\n")
        (tmp_path / name / "test/options").write_text("--average 5\n")  # of the evaluation
    elsewhere = simulated(tmp_path / "elsewhere/k1", 1, targets=sentences(5, 0.1))
    assert main(["score", elsewhere, "--json", f"{elsewhere}/scores.json"]) == 0
    assert "±" in capsys.readouterr().out
    found = collect(tmp_path)
    rows = {name: {row["k"]: row for row in system["rows"]} for name, system in found["systems"].items()}
    assert not any("p" in row for row in (*rows["softmax"].values(), *rows["softmax/test"].values()))
    other = rows["other/test"]
    for k in (1, 3, "offline"):
        assert other[k]["baseline"] == "softmax/test"
        assert other[k]["p"]["BLEU"] < 0.01 and 1 < other[k]["intervals"]["BLEU"] < 10
    assert "p" not in rows["elsewhere"][1], "of another test set"
    assert other[1]["p"]["AL"] < 0.01 and "AL" not in other["offline"]["p"]
    assert main(["report", str(tmp_path)]) == 0
    assert "| p (BLEU) | p (AL) |" in capsys.readouterr().out
    page = (tmp_path / "report.md").read_text()
    assert "of a difference to softmax" in page and "half of the 95 % interval" in page


def test_groups_from_short_to_long(tmp_path, references, capsys):
    """System b is wrong in the 15 longest sentences alone."""
    lengths = [1 + 37 * i % 60 for i in range(60)]
    sources, saved = tmp_path / "sources", tmp_path / "found.json"
    sources.write_text("".join("w " * length + "\n" for length in lengths))
    texts = sentences(0), [line if n <= 45 else "nothing" for line, n in zip(sentences(0), lengths, strict=True)]
    runs = [write(tmp_path / name / "test", lines) for name, lines in zip("ab", texts, strict=True)]
    command = ["compare", *runs, "--references", str(references), "--samples", "100", "--by-length", str(sources)]
    assert main([*command, "--json", str(saved)]) == 0
    rows = [row for row in json.loads(saved.read_text())["rows"] if row["system"] == "b"]
    assert [row["words"] for row in rows] == ["", "1-15", "16-30", "31-45", "46-60"]
    assert [row["sentences"] for row in rows] == [60, 15, 15, 15, 15]
    assert [round(row["chrF"]["score"]) for row in rows[1:4]] == [100] * 3 and rows[4]["chrF"]["score"] < 20
    assert [row["BLEU"]["p"] < 0.05 for row in rows] == [True, False, False, False, True]
    assert "| 46-60 |        15 |" in capsys.readouterr().out
    assert main([*command, "--groups", "2"]) == 0
    assert "1-30" in capsys.readouterr().out


def test_groups_that_cannot_be(tmp_path):
    systems = {"a": System(["x", "y"], (), ["x", "y"])}
    assert list(by_length(systems, ["v w", "v w"], 2)) == ["2-2", "2-2 (2)"]
    with pytest.raises(LeapformerError, match="--by-length has 1 lines for 2 sentences"):
        by_length(systems, ["x"], 1)
    for groups in (0, 3):
        with pytest.raises(LeapformerError, match=f"--groups {groups}: give 1 to 2"):
            by_length(systems, ["x", "y"], groups)
    assert main(["compare", "a", "b", "--references", "r", "--groups", "2"]) == 2


def test_what_cannot_be_compared(tmp_path, references):
    first = write(tmp_path / "a" / "test", sentences(1, 0.3))
    short = write(tmp_path / "b" / "test", sentences(1, 0.3, count=59))
    one, other = simulated(tmp_path / "k1", 1), simulated(tmp_path / "k3", 1, targets=sentences(5, 0.1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(LeapformerError, match="lacks 1 of 60 sentences, first number 59"):
        read_systems([first, short], references)
    with pytest.raises(LeapformerError, match=r"empty holds 0 files generate-\*.txt and folders of simulations; name"):
        read_systems([first, str(tmp_path / "empty")], references)
    with pytest.raises(LeapformerError, match="a is given twice; give each system once"):
        read_systems([first, first], references)
    with pytest.raises(LeapformerError, match="--references .*nowhere cannot be read: No such file"):
        read_systems([first], tmp_path / "nowhere")
    with pytest.raises(LeapformerError, match="a has no references with it; give --references"):
        read_systems([first, one], None)
    with pytest.raises(LeapformerError, match="k3 is of another test set, its references differ"):
        read_systems([one, other], None)
    scored = {"a": measures(System(["x"], (), ["x"]))[0]}
    with pytest.raises(LeapformerError, match="--samples 10: give at least 100"):
        compared({"a": scored["a"], "b": scored["a"]}, samples=10)
    with pytest.raises(LeapformerError, match="1 system to compare; give a baseline and at least one other"):
        compared(scored)
