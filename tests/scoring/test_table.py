"""Tables say what their records say: values, ranges, marks and differences."""

from __future__ import annotations

import csv
import io

import pytest

from leapformer_fairseq.scoring.table import Column, Table, differences, significant, spread, written

RECORDS = [
    {"name": "soft|max", "scores": {"BLEU": {"mean": 30.0, "min": 29.0, "max": 31.0}}, "seeds": [1, 2], "p": None},
    {"name": "leap", "scores": {"BLEU": {"mean": 28.0, "min": 28.0, "max": 28.0}}, "seeds": [1], "p": 0.04},
]
COLUMNS = [
    Column("name", ""),
    Column("scores.BLEU", "BLEU", ".1f"),
    Column("seeds"),
    Column("p", form=".2f", missing="–"),
]


def test_markdown_is_aligned_by_kind_and_escaped():
    assert Table(RECORDS, COLUMNS, ["A note."]).markdown().splitlines() == [
        "|           |             BLEU | seeds |    p |",
        "| --------- | ---------------: | ----: | ---: |",
        "| soft\\|max | 30.0 (29.0–31.0) |   1 2 |    – |",
        "| leap      |             28.0 |     1 | 0.04 |",
        "",
        "A note.",
    ]


def test_csv_is_not_escaped():
    lines = list(csv.reader(io.StringIO(Table(RECORDS, COLUMNS).csv())))
    assert lines[1] == ["soft|max", "30.0 (29.0–31.0)", "1 2", "–"]


def test_optional_columns_are_shown_if_a_record_has_a_value():
    table = Table([{"a": 1, "b": None}, {"a": 2, "b": ""}], [Column("a"), Column("b", optional=True), Column("c")])
    assert [column.head for column in table.shown] == ["a", "c"]
    assert Table.of([{"a": 1}, {"b": 2.0}], ".1f", "-").csv() == "a,b\n1.0,-\n-,2.0\n"


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        ({"score": 36.1, "interval": 1.25, "p": 0.0301}, ".2f", "36.10 ± 1.25 (p = 0.030)"),
        ({"score": 36.1, "interval": 1.25, "p": None}, ".1f", "36.1 ± 1.2"),
        ({"mean": 17.79, "std": None, "mark": " †"}, ".2f", "17.79 †"),
        ({"mean": 1.04, "min": 1.0, "max": 1.04}, ".1f", "1.0"),
        (1234567, ",", "1,234,567"),
        ([1, None, 3], "", "1 3"),
        (0.012345, significant, "0.012"),
        (1234.5, significant, "1,234"),
    ],
)
def test_measurements(value, form, text):
    assert written(value, form) == text


def test_differences_are_from_the_baseline_of_the_same_group():
    rows = [("a", "softmax", 1.0), ("a", "leap", 3.0), ("b", "leap", 5.0), ("b", "softmax", 4.0)]
    records = [{"set": of, "name": name, "x": spread([x])} for of, name, x in rows]
    found = differences(records, lambda r: r["x"], lambda r: r["name"] == "softmax", lambda r: r["set"])
    assert found == [None, 2.0, 1.0, None]
    assert differences(records[1:3], lambda r: r["x"], lambda r: False) == [None, None]
