"""RCP and the tables: what the papers print, by hand-made tables, chance, and what is undefined."""

from __future__ import annotations

import math
import re
from statistics import fmean

import pytest
from scipy.stats import t as student

from leapformer_fairseq.studies.lra import composite, effects, tables
from leapformer_fairseq.studies.lra.grid import FIELDS, collect
from leapformer_fairseq.studies.lra.protocols import load
from leapformer_fairseq.studies.lra.rcp import Measured, score, scores, standard_deviation
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import write_json


def test_the_ten_values_of_the_paper():
    found = composite.published("paper", "leapformer")
    assert len(found.printed) == 10
    for name, printed in found.printed.items():
        assert abs(found.scores[name].rcp - printed) < 0.005, name


def test_the_standard_deviation_of_the_paper_is_that_of_its_eleven_averages():
    rows = composite.published("paper", "leapformer").rows
    assert len(rows) == 11
    assert abs(standard_deviation(rows, "table") - standard_deviation(rows, "paper")) < 1e-6


def test_averages_that_are_printed_wrong():
    control = tables.papers()["leapformer"]["rows"]["cosformer-1.05"]
    assert round(fmean(control["accuracy"]), 2) == 57.25 and control["average"] == 57.65
    luna = tables.papers()["luna"]
    row = luna["rows"]["luna-16"]
    without = tables.average(luna["tasks"], row["accuracy"], ("retrieval",))
    assert round(without, 2) == 55.96 and row["without_retrieval"] == 55.93
    assert re.search(r"57\.25 +\| +57\.65", tables.published_table("leapformer"))
    text = tables.published_table("luna")
    assert re.search(r"\| +55.96 \| +55.93 ", text) and re.search(r"Y_P .*\| +60.28 \| +60.27 ", text)
    assert " 15.82 †" in text and " 17.79 †" in tables.published_table("leapformer"), "at chance"


def test_memory_that_is_only_in_a_figure_gives_the_score_it_is_from():
    found = composite.published("paper", "leapformer")
    printed = tables.papers()["leapformer"]["rows"]
    assert all(abs(found.scores[name].rcpmem - printed[name]["rcpmem"]) < 0.005 for name in found.printed)
    assert "circular" in found.text() and "circular" not in composite.published("paper", "luna").text()


def test_scores_of_rows_whose_speed_is_not_printed():
    """Of tables 8 and 9 of the LeaPformer paper the text gives one score each; the other scores stay as they are."""
    found = composite.published("paper", "leapformer")
    assert not {"s4d", "cosformer-1.05"} & found.scores.keys()
    printed = {"cosFormer, 1.05 × the parameters (table 8)": (57.65, 3.78), "S4D (table 9)": (49.09, 1.66)}
    for title, (average, value) in printed.items():
        assert re.search(rf"\| {re.escape(title)} +\| +{average} +\| +{value} +\|", found.text())
    assert "no throughput is printed" not in composite.published("paper", "luna").text()


def test_rows_take_the_speed_of_those_that_are_trained_alike(tmp_path):
    """`bench lra` has the papers' names, and no rows that differ in pooling alone."""
    labels = {"length": 9, "device": "cpu"}
    times = [{**labels, "mechanism": "softmax", "ms": 8.0}, {**labels, "mechanism": "luna-16", "ms": 2.0}]
    peaks = [{**row, "peak_mib": 3.0} for row in times]
    write_json(tmp_path / "lra.json", {"softmax": times, "memory": peaks}, "--out")
    names = ("softmax", "luna", "luna-packed", "cosformer-body")
    cells = {name: {"listops": tables.Cell((40.0, 41.0), 17.0, 100)} for name in names}
    found = composite.measured(cells, load("reduced"), tmp_path / "lra.json", "paper")
    assert {name: row.speed for name, row in found.rows.items()} == {"softmax": 125, "luna": 500, "luna-packed": 500}
    assert "not measured: cosFormer, 1.05 × without embeddings" in found.source
    assert "of the Text model of protocol leapformer at 9 tokens" in found.source
    # the axis of Luna's figure is measured with Luna's model
    cells = {name: {"listops": tables.Cell((40.0, 41.0), 17.0, 100)} for name in ("softmax", "luna-16-packed")}
    with pytest.raises(LeapformerError, match="has the models of protocol leapformer; .*bench lra --protocol luna"):
        composite.measured(cells, load("luna"), tmp_path / "lra.json", "paper")
    content = {"options": {"protocol": "luna"}, "softmax": times, "memory": peaks}
    write_json(tmp_path / "lra.json", content, "--out")
    found = composite.measured(cells, load("luna"), tmp_path / "lra.json", "paper")
    assert found.rows["luna-16-packed"].speed == 500 and "Text model of protocol luna" in found.source
    with pytest.raises(LeapformerError, match="has the models of protocol luna; .*bench lra --protocol leapformer"):
        composite.measured(cells, load("corrected"), tmp_path / "lra.json", "paper")


def test_luna_without_retrieval():
    found = composite.published("paper", "luna")
    assert found.rows["softmax"] == Measured(54.02, 1.0, 1.0)
    printed = tables.papers()["luna"]["rows"]
    assert all(row.accuracy == printed[name]["without_retrieval"] for name, row in found.rows.items())
    assert found.rows["luna-16"].accuracy == 55.93, "as printed, which its row does not give"
    assert found.rows["luna-16"].speed == 5.8 and found.rows["luna-16"].memory == 0.08
    assert not found.printed and "RCP as printed" not in found.text()


def test_figure_1_of_luna_leaves_out_retrieval_of_our_runs_too(tmp_path):
    times = [{"length": 9, "device": "cpu", "mechanism": name, "ms": 8.0} for name in ("softmax", "luna-16")]
    write_json(tmp_path / "lra.json", {"options": {"protocol": "luna"}, "softmax": times, "memory": []}, "--out")
    accuracies = {"listops": 40.0, "text": 60.0, "retrieval": 80.0}

    def average(tasks, protocol="luna"):
        cells = {task: tables.Cell((accuracies[task],), 17.0, 100) for task in tasks}
        found = composite.measured({"softmax": cells, "luna-16": cells}, load(protocol), tmp_path / "lra.json", "paper")
        return found.rows["luna-16"].accuracy, found.source

    assert average(accuracies) == average(["listops", "text"])
    assert average(accuracies)[0] == 50 and "tasks listops, text;" in average(accuracies)[1]
    assert average(["retrieval"])[0] == 80
    write_json(tmp_path / "lra.json", {"softmax": times, "memory": []}, "--out")
    assert average(accuracies, "corrected")[0] == 60


@pytest.mark.parametrize(("std", "named"), [("paper", "that of its table 1, 1.4826"), ("table", "that of these rows")])
def test_a_table_of_scores_says_whose_they_are(std, named):
    """Luna's paper has no such score, so "paper" alone would be misread there."""
    whose = "RCP and RCPmem are LeaPformer's (Agostinelli et al., 2024), with a standard deviation"
    assert f"{whose}, here {named}; points" in composite.published(std, "luna").text()
    assert "here 2.5; points per doubling" in composite.published("2.5", "luna").text()


BASE = Measured(60.0, 2.0, 8.0)


class TestScore:
    def test_by_hand(self):
        found = score(Measured(59.0, 8.0, 2.0), BASE, 2.0)
        assert found.rcp == 4 / 1.5  # four times as fast, half a standard deviation worse
        assert found.rcpmem == (4 + 4) / 2 / 1.5
        assert found.points_per_doubling == 0.5

    def test_what_is_undefined(self):
        better = score(Measured(62.0, 4.0), BASE, 2.0)
        assert better.rcp is None and better.rcpmem is None and better.points_per_doubling == -2.0
        slower = score(Measured(61.0, 1.0), BASE, 2.0)
        assert slower.rcp == 0.5 / 0.5 and slower.points_per_doubling is None
        assert score(Measured(61.0, 4.0), BASE, 2.0).rcpmem is None

    def test_a_row_more_changes_rcp_and_not_the_points(self):
        rows = {"softmax": BASE, "a": Measured(59.0, 8.0), "b": Measured(58.0, 8.0)}
        more = {**rows, "c": Measured(40.0, 8.0)}
        few, many = (scores(one, "table")["a"] for one in (rows, more))
        assert few.rcp != many.rcp and few.points_per_doubling == many.points_per_doubling

    def test_it_needs_softmax(self):
        with pytest.raises(LeapformerError, match="no row softmax among a: scores are relative to it"):
            scores({"a": BASE})

    @pytest.mark.parametrize("std", ["0", "-1", "nan", "inf", "much"])
    def test_a_bad_standard_deviation(self, std):
        with pytest.raises(LeapformerError, match=f"--std {std}: give paper, table or a number above 0"):
            scores({"softmax": BASE, "a": BASE}, std)


def result(row, task, seed, accuracy, chance=0.5, examples=2000, **more):
    return {
        "protocol": "corrected", "quirks": [], "row": row, "task": task, "seed": seed, "accuracy": accuracy,
        "chance": chance, "examples": examples, **more,
    }  # fmt: skip


class TestTable:
    def test_means_and_chance(self):
        table = tables.cells(
            [result("leap", "pathfinder", seed, accuracy) for seed, accuracy in ((2, 62.0), (1, 60.0), (3, 61.0))]
            + [result("softmax", "pathfinder", 1, 51.0)]
        )
        cell = table["leap"]["pathfinder"]
        assert cell.accuracies == (60.0, 62.0, 61.0) and cell.mean == 61 and cell.value["std"] == 1 and cell.learned
        assert not table["softmax"]["pathfinder"].learned
        text = tables.accuracy_table(table, load("corrected"))
        assert "61.00 ± 1.00" in text and f"51.00 {tables.AT_CHANCE}" in text and "50.00" in text
        assert text.index("Softmax") < text.index("LeaPformer"), "in the order of the protocol"

    def test_chance_is_that_of_the_most_frequent_class(self):
        """17 per cent of ten classes are no evidence in ListOps."""
        assert not tables.Cell((17.5,), 17.0, 2000).learned
        assert tables.Cell((20.0,), 17.0, 2000).learned
        assert not tables.Cell((20.0,), 17.0, 50).learned

    def test_averages_need_all_tasks(self):
        found = tables.cells([result("leap", "listops", 1, 40.0), result("leap", "retrieval", 1, 60.0)])["leap"]
        assert tables.averages(found, ["listops", "retrieval"]) == 50
        assert tables.averages(found, ["listops", "image"]) is None

    def test_the_averages_of_the_papers(self):
        one = [result("softmax", task, 1, 40.0) for task in ("listops", "text", "retrieval", "image", "pathfinder")]
        found = {name: tables.accuracy_table(tables.cells(one), load(name), False) for name in ("luna", "leapformer")}
        assert "without Retrieval" in found["luna"] and "ListOps, Text, Retrieval" in found["luna"]
        assert "average" in found["leapformer"] and "without Retrieval" not in found["leapformer"]
        assert "without Retrieval" in tables.accuracy_table(tables.cells(one), load("corrected"))
        assert "without" not in tables.accuracy_table(tables.cells(one[:2]), load("corrected"))

    def test_mixed_results_are_refused(self):
        mixed = [result("leap", "listops", 1, 40.0), {**result("leap", "listops", 2, 40.0), "quirks": ["dev-is-test"]}]
        with pytest.raises(LeapformerError, match="more than one quirks"):
            tables.cells(mixed)

    @pytest.mark.parametrize("paper", ["leapformer", "luna"])
    def test_the_tables_of_the_papers_stand_beside(self, paper):
        text = tables.accuracy_table(tables.cells([result("softmax", "listops", 1, 40.0)]), load(paper))
        assert "Published" in text and tables.papers()[paper]["source"] in text

    def test_for_a_machine(self):
        (row,) = tables.as_rows(tables.cells([result("leap", "text", 1, 62.0)]))
        assert row["mean"] == 62 and row["std"] is None and row["learned"] is True and not math.isnan(row["chance"])


class TestFolders:
    def folder(self, path, record="--protocol mine --quirks none", seeds=(1,)):
        for seed in seeds:
            place = path / f"listops/softmax-seed{seed}"
            place.mkdir(parents=True)
            write_json(place / "result.json", {name: 1 for name in FIELDS} | {"task": "listops", "seed": seed})
        (path / "options").write_text(record + "\n")
        write_json(path / "protocol.json", load("reduced").content())
        return path

    def test_several(self, tmp_path):
        folders = [self.folder(tmp_path / name, seeds=seeds) for name, seeds in (("a", (1, 2)), ("b", (3,)))]
        results, protocol = collect(folders)
        assert [result["seed"] for result in results] == [1, 2, 3] and protocol.name == "reduced"

    def test_one_training_is_counted_once(self, tmp_path):
        found = self.folder(tmp_path / "a")
        with pytest.raises(LeapformerError, match="2 results of listops/1-seed1; give each folder once"):
            collect([found, found])

    def test_trainings_with_other_options(self, tmp_path):
        folders = [self.folder(tmp_path / "a"), self.folder(tmp_path / "b", "--protocol mine --max-update 3", (2,))]
        with pytest.raises(LeapformerError, match="different options .*--max-update 3.*; give folders of one command"):
            collect(folders)

    @pytest.mark.parametrize("name", ["options", "protocol.json"])
    def test_a_part_of_a_folder(self, tmp_path, name):
        found = self.folder(tmp_path / "a")
        (found / name).unlink()
        with pytest.raises(LeapformerError, match=f"holds no {name}; give the --out of `leapformer lra run`, whole"):
            collect([found])


class TestQuirks:
    BASE = tuple(result("softmax", "listops", seed, value) for seed, value in ((1, 40.0), (2, 42.0), (3, 41.0)))

    def dropped(self, row="softmax", quirks=("brackets-dropped",)):
        found = (result(row, "listops", seed, value) for seed, value in ((1, 30.0), (2, 31.0), (3, 32.0)))
        return [{**one, "quirks": list(quirks)} for one in found]

    def test_by_hand(self):
        (found,) = effects.effects(self.BASE, self.dropped())
        assert found.points == -10 and found.change == "with brackets-dropped"
        # Means 10 apart, both variances 1 of 3 seeds: t = 10 / sqrt(2 / 3), 4 degrees of freedom.
        assert found.p == pytest.approx(2 * student.sf(10 / math.sqrt(2 / 3), 4))
        text = effects.table([found], load("corrected"))
        assert "-10.00" in text and "31.00 ± 1.00" in text and f"31.00 ± 1.00 {tables.AT_CHANCE}" in text
        (entry,) = effects.content([found])
        assert entry["before"] == [40.0, 42.0, 41.0] and entry["points"] == -10

    def test_a_quirk_that_is_taken_away(self):
        (found,) = effects.effects(self.dropped(), self.BASE)
        assert found.change == "without brackets-dropped" and found.points == 10

    def test_one_seed_has_no_p(self):
        (found,) = effects.effects(self.BASE[:1], self.dropped())
        assert found.p is None and "| –" in effects.table([found], load("corrected"))

    def test_what_cannot_be_compared(self):
        with pytest.raises(LeapformerError, match="both folders have the quirks none; give one with others"):
            effects.effects(self.BASE, self.BASE)
        with pytest.raises(LeapformerError, match=r"no row and task that both .*with brackets-dropped.*run the same"):
            effects.effects(self.BASE, self.dropped("leap"))
        other = [{**one, "protocol": "luna"} for one in self.dropped()]
        with pytest.raises(LeapformerError, match="protocols corrected and luna; compare quirks within one"):
            effects.effects(self.BASE, other)
