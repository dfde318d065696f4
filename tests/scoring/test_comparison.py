"""Scores of fairseq-generate, and systems side by side."""

from __future__ import annotations

import json
import shutil

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.comparison import collect, table
from leapformer_fairseq.scoring.figure import spread_out
from leapformer_fairseq.scoring.names import plan_title, run_title
from leapformer_fairseq.scoring.outputs import score_generation
from leapformer_fairseq.scoring.pictures.latency import comparison_figure
from leapformer_fairseq.support.errors import LeapformerError
from tests.scoring.pictures.images import overlapping, texts


def generated(folder, *lines):
    path = folder / "generate-test_st.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def references(folder, *lines):
    path = folder / "test.target"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_generation_is_scored_in_the_order_of_the_references(tmp_path):
    path = generated(
        tmp_path,
        "T-1\tx",
        "D-1\t-0.5\tdas ist der zweite Satz",
        "H-0\t-0.1\tignored",
        "D-0\t-0.1\tdas ist der erste Satz",
        "D-0\t-0.9\ta worse hypothesis",
    )
    scores = score_generation([path], references(tmp_path, "das ist der erste Satz", "das ist der zweite Satz"))
    assert scores["scores"]["BLEU"] == pytest.approx(100) and scores["length_ratio"] == 1 and not scores["marks"]
    longer = score_generation([path], references(tmp_path, "das ist der", "das ist der"))
    assert longer["marks"] == ["too long: 2.06 characters for each of the references: repetition, or what was not said"]
    swapped = score_generation([path], references(tmp_path, "das ist der zweite Satz", "das ist der erste Satz"))
    assert swapped["scores"]["BLEU"] < 90


def test_a_dropped_sentence_is_noticed(tmp_path):
    path = generated(tmp_path, "D-0\t-0.1\tein Satz")
    with pytest.raises(
        LeapformerError, match=r"lacks 1 of 2 sentences, first number 1.*--required-batch-size-multiple"
    ):
        score_generation([path], references(tmp_path, "ein Satz", "noch einer"))


def test_shards_are_put_together_and_given_once(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    shards = [generated(tmp_path / "one", "D-1\t-0.1\tnoch einer"), generated(tmp_path / "two", "D-0\t-0.1\tein Satz")]
    of_all = references(tmp_path, "ein Satz", "noch einer")
    assert score_generation(shards, of_all)["scores"]["chrF"] == pytest.approx(100)
    with pytest.raises(LeapformerError, match="has sentence 1 again; give each shard"):
        score_generation([*shards, shards[0]], of_all)


def test_missing_output_is_named(tmp_path):
    with pytest.raises(LeapformerError, match="no generation output"):
        score_generation([tmp_path / "generate-x.txt"], references(tmp_path, "x"))


def scored(folder, bleu, lag=None):
    folder.mkdir(parents=True)
    scores = {"BLEU": bleu, "chrF": bleu} | ({} if lag is None else {"AL": lag, "AL_CA": lag + 100})
    compute = None if lag is None else {"seconds_per_second": 0.25}
    entry = {"scores": scores, "signatures": {"BLEU": "sig"}, "compute": compute, "n_instances": 5}
    (folder / "scores.json").write_text(json.dumps(entry), encoding="utf-8")


@pytest.fixture()
def folder(tmp_path):
    scored(tmp_path / "leap/k9", 60, 2000)
    scored(tmp_path / "leap/k10", 61, 2100)
    scored(tmp_path / "leap/offline", 80)
    scored(tmp_path / "softmax/tst/k1", 30, 500)
    (tmp_path / "leap/options").write_text("--attention leap:encoder-causal --seed 1\n")
    return tmp_path


def test_systems_are_collected_in_order(folder):
    comparison = collect(folder)
    assert list(comparison["systems"]) == ["leap", "softmax/tst"]
    assert [row["k"] for row in comparison["systems"]["leap"]["rows"]] == [9, 10, "offline"]
    assert comparison["systems"]["leap"]["options"] == "--attention leap:encoder-causal --seed 1"
    assert comparison["systems"]["leap"]["title"] == "LeaPformer, causal encoder"
    assert comparison["systems"]["leap"]["rows"][0]["compute"] == 0.25
    lines = table(comparison).markdown().splitlines()
    assert len(lines) == 2 + 4
    assert "0.250" in lines[2] and "2000" in lines[2]


def test_systems_of_one_name_are_told_apart_by_their_folders(folder):
    scored(folder / "again/k9", 60, 2000)
    (folder / "again/options").write_text("--attention leap:encoder-causal --seed 1\n")
    titles = {name: system["title"] for name, system in collect(folder)["systems"].items()}
    assert titles["again"] == "LeaPformer, causal encoder (again)" and titles["softmax/tst"] == "softmax/tst"


def test_a_test_set_has_the_options_of_its_training_too(tmp_path, capsys):
    """Recipes write those of the evaluation beside its scores; the attention is in those of the training."""
    for plan, bleu in (("leap", 60), ("softmax", 61)):
        scored(tmp_path / plan / "teacher-forced", bleu)
        scored(tmp_path / plan / "test/k3", bleu, 2000)
        (tmp_path / plan / "options").write_text(f"--attention {plan} --seed 1\n")
        (tmp_path / plan / "test/options").write_text("--average 5\n")
    systems = collect(tmp_path)["systems"]
    assert systems["leap/test"]["options"] == "--attention leap --seed 1 --average 5"
    titles = {name: system["title"] for name, system in systems.items()}
    assert titles["softmax/test"] == "softmax, encoder sees the whole source, test"
    assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text().startswith("# Simultaneous speech translation: 2 systems\n")
    shutil.rmtree(tmp_path / "softmax")
    assert main(["report", str(tmp_path)]) == 0
    title = "LeaPformer, encoder sees the whole source"
    assert (tmp_path / "report.md").read_text().startswith(f"# Simultaneous speech translation: {title}\n")


@pytest.mark.parametrize(
    ("name", "options", "title"),
    [
        ("x", "--attention gated-leap:encoder-chunk-ms=280 --seed 1", "gated LeaPformer, encoder in chunks"),
        ("x-seed2/test", "--attention relu --seed 2", "ReLU attention, encoder sees the whole source, seed 2, test"),
        ("x", "--attention leap --seed 1 --train-k 3", "LeaPformer, encoder sees the whole source, trained for k = 3"),
        (
            "x", "--attention leap/leap/softmax:luna-length=8",
            "LeaPformer / LeaPformer / softmax, encoder sees the whole source, luna length 8",
        ),
        (
            "leap/tst-HE",
            "--encoder-self-attention leap --decoder-self-attention leap --decoder-cross-attention leap "
            "--encoder-chunk-ms 280 --max-tokens 5",
            "LeaPformer, encoder in chunks, tst-HE",
        ),
        ("old", "", "old"),
    ],
)  # fmt: skip
def test_reports_have_names_that_people_use(name, options, title):
    assert run_title(name, options) == title


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("leap:encoder-chunk-ms=280/softmax/leap", "LeaPformer / softmax / LeaPformer, encoder in chunks of 280 ms"),
        ("leap_encoder-chunk-ms_280-k3", "LeaPformer, encoder in chunks of 280 ms, trained for k = 3"),
        ("softmax+abc-mlp+abc-mlp-seed2", "softmax / ABC (MLP) / ABC (MLP), seed 2"),
        ("softmax/abc-mlp/abc-mlp:abc-slots=32/8/32", "softmax / ABC (MLP) / ABC (MLP), slots 32/8/32"),
        ("leap (torch)", "LeaPformer (torch)"),
        ("checkpoint_best", "checkpoint_best"),
        ("cumulative sums", "cumulative sums"),
    ],
)
def test_figures_have_names_that_people_use(text, title):
    assert plan_title(text) == title


def test_a_curve_needs_three_points(folder):
    """A line through two would say nothing of what lies between."""
    figure = comparison_figure(collect(folder))
    assert figure.save(folder / "curve.svg").startswith("No picture") and not (folder / "curve.svg").exists()
    scored(folder / "leap/k11", 62, 2200)
    figure = comparison_figure(collect(folder))
    assert figure.save(folder / "curve.svg", "BLEU") == "![BLEU](curve.svg)"
    names = ["k = 9", "k = 10", "k = 11", "LeaPformer, causal encoder", "offline, beam 5: 80.0"]
    assert set(names) <= set(texts(folder / "curve.svg"))
    (axes,) = figure.drawing.axes
    assert len(axes.lines) == 2  # the curve, and its offline translation: not softmax's one point
    assert {text.get_text() for text in axes.texts} == set(names)
    assert axes.get_legend() is None and ", ms" in axes.get_xlabel()


def test_no_label_covers_another(folder):
    for i, name in enumerate(("a", "b", "c", "d", "e")):
        for k in (1, 3, 5):
            scored(folder / name / f"k{k}", 60 + k + i / 10, 1000 + 100 * k)
        scored(folder / name / "offline", 70)
        (folder / name / "options").write_text(f"--attention {name} --seed 1\n")
    drawing = comparison_figure(collect(folder)).finish()
    assert len(drawing.axes[0].texts) == 3 + 5 and overlapping(drawing) == []


def test_labels_stay_near_what_they_name():
    assert spread_out([(5, 2), (9, 2)], 0, 10) == [5, 9]
    assert spread_out([(5, 2), (5.5, 2)], 0, 10) == [4.25, 6.25]
    assert spread_out([(0, 2), (10, 2), (9.9, 2)], 0, 10) == [1, 9, 7]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(LeapformerError, match="holds no scores"):
        collect(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"scores": {}}'])
def test_damaged_scores_are_named(folder, content):
    (folder / "leap/k9/scores.json").write_text(content)
    with pytest.raises(LeapformerError, match="k9/scores.json is damaged .*; score this run again"):
        collect(folder)


def test_a_report_has_the_threads_of_the_runs(folder, capsys):
    """Not those of the process that writes it; they are unknown where a run does not say."""
    report = folder / "report.md"
    assert main(["report", str(folder)]) == 0
    assert "an unknown number of threads" in report.read_text() and "|threads:None|" in report.read_text()
    for path in folder.glob("*/**/scores.json"):
        scores = json.loads(path.read_text()) | {"model": {"signature": "leapformer_fairseq:1|threads:3|date:x"}}
        path.write_text(json.dumps(scores))
    assert main(["report", str(folder)]) == 0
    assert "per second of audio, with 3 threads." in report.read_text() and "|threads:3|" in report.read_text()
    path = next(folder.glob("leap/k9/scores.json"))
    scores = json.loads(path.read_text())
    path.write_text(json.dumps(scores | {"compute": {**scores["compute"], "threads": 2}}))  # as SimulEval's agent logs
    assert main(["report", str(folder)]) == 0
    assert "with 2 threads or 3 threads." in report.read_text() and "|threads:None|" in report.read_text()


def test_plain_text_is_scored_as_what_generate_wrote(tmp_path, capsys):
    lines = ["the red dog", "", "a house near the dog"]
    (tmp_path / "references").write_text("the red dog\na cat\nthe house near a dog\n")
    (tmp_path / "plain").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "generate-test.txt").write_text("".join(f"D-{i}\t-1.0\t{line}\n" for i, line in enumerate(lines)))
    references = tmp_path / "references"
    scored = [score_generation([tmp_path / name], references) for name in ("plain", "generate-test.txt")]
    assert scored[0] == scored[1]
    words = [str(tmp_path / "generate-test.txt"), str(tmp_path / "plain"), "--references", str(references)]
    assert main(["compare", *words, "--samples", "100"]) == 0
    assert "p = 1.000" in capsys.readouterr().out
    assert main(["score", str(tmp_path / "plain")]) == 2
    assert "plain is a file; give --references for translations, --text for" in capsys.readouterr().err
    (tmp_path / "plain").write_text("the red dog\n")
    with pytest.raises(
        LeapformerError, match="plain lacks 2 of 3 sentences, first number 1; give a text with a line for"
    ):
        score_generation([tmp_path / "plain"], references)
    with pytest.raises(LeapformerError, match="plain is plain text, without lines D-...; give one file of it"):
        score_generation([tmp_path / "plain", tmp_path / "plain"], references)
