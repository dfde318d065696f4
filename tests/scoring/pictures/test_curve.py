"""The picture of quality against latency: which lines, error bars and bars it has."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import BarContainer, ErrorbarContainer

from leapformer_fairseq.scoring.pictures.latency import PARTS, curve_figure, draw_curve
from leapformer_fairseq.studies.curve.curve_report import table
from tests.scoring.pictures.images import pixels


def row(name: str, policy: str, number: int | None, latency: float | None, score: float, **more: Any) -> dict[str, Any]:
    fixed = {"run": f"{name}-{policy}-{number}", "checkpoint": name, "policy": policy, "BLEU": score}
    latencies = {"AL": latency, "LAAL": latency and latency + 50, "AL_CA": None, "LAAL_CA": None, "compute": None}
    about = {"numbers": {} if number is None else {"n": number}, "pre_decision_ratio": 7, "segment_ms": 40}
    return fixed | about | latencies | more


def spread(value: float, less: float, more: float) -> dict[str, float]:
    return {"mean": value, "min": value - less, "max": value + more}


ROWS = [
    row("leap", "wait-k", 3, 1400.0, 70.0),
    row("leap", "wait-k", 1, 900.0, 60.0),
    row("leap", "wait-k", 1, 800.0, 55.0, pre_decision_ratio=3),
    row("leap", "hold-n", 2, None, 0.0),
    row("leap", "offline", None, 4000.0, 80.0),
    row(
        "softmax", "wait-k", 1, 950.0, 61.0,
        AL_CA=spread(1000.0, 10.0, 40.0), LAAL_CA=spread(1050.0, 10.0, 40.0),
        compute={**{part: spread(0.1, 0.0, 0.0) for part in PARTS}, "total": spread(0.3, 0.05, 0.1)},
    ),
]  # fmt: skip


def panels(figure: Any) -> list[Any]:
    return [axes for part in figure.subfigs for axes in part.axes]


@pytest.mark.parametrize(("panel", "shift"), [(0, 0.0), (1, 50.0)])
def test_lines_and_error_bars(panel: int, shift: float) -> None:
    axes = panels(curve_figure(ROWS))[panel]
    lines = {(line.get_label(), tuple(line.get_xdata())): tuple(line.get_ydata()) for line in axes.lines}
    assert lines["leap, wait-k", (900.0 + shift, 1400.0 + shift)] == (60.0, 70.0)  # by latency
    assert lines["leap, wait-k", (800.0 + shift,)] == (55.0,)  # another ratio is another line
    assert lines["softmax, wait-k", (950.0 + shift,)] == (61.0,)
    assert lines["leap, offline", (0, 1)] == (80.0, 80.0)
    (timed,) = (found for found in axes.containers if isinstance(found, ErrorbarContainer))
    assert timed.get_label() == "softmax, wait-k, computation-aware" and timed[0].get_linestyle() == "--"
    assert {text.get_text() for text in axes.texts} == {"1 r7", "3 r7", "1 r3"}
    ends = timed[2][0].get_segments()[0][:, 0]
    assert ends.tolist() == [990.0 + shift, 1040.0 + shift]


def test_a_latency_below_the_one_without_computation_is_marked() -> None:
    """In the picture and in the table, and only there."""
    below = ROWS[-1] | {"run": "b", "AL_CA": spread(940.0, 10.0, 40.0), "repeats": 2, "without_prenet": None}
    for rows, count in ((ROWS, 0), ([*ROWS[:-1], below], 1)):
        left, right, *_ = panels(curve_figure(rows))
        assert [text.get_text() for text in left.texts].count("* below the latency without computation") == count
        assert not [text for text in right.texts if "below" in text.get_text()]
    shown = {"chrF": 1.0, "AP": 1.0, "DAL": 1.0, "ATD": 1.0}
    text = table([below | shown])
    assert text.count("*") == 1 and "940 (930–980)*" in text


def test_bars_only_where_the_computation_was_measured(tmp_path: Path) -> None:
    bars = panels(curve_figure(ROWS))[2]
    parts = [found for found in bars.containers if isinstance(found, BarContainer)]
    assert [part.get_label() for part in parts] == list(PARTS)
    assert [part[0].get_x() for part in parts] == pytest.approx([0.0, 0.1, 0.2])
    assert [label.get_text() for label in bars.get_yticklabels()] == ["softmax-wait-k-1"]
    assert len(panels(curve_figure(ROWS[:-1]))) == 2
    for number, rows in enumerate((ROWS, [])):
        draw_curve(rows, tmp_path / f"{number}.png")
    pixels(tmp_path / "0.png")
    assert {path.name for path in tmp_path.iterdir()} == {"0.png", "1.png"}


def talk_row(segment: str, k: int, latency: float, score: float, **more: Any) -> dict[str, Any]:
    course = {"minutes": [1.0, 2.0, 3.0], "memory_mib": [300.0, 301.0, 302.5], "compute": [0.1, 0.2, 0.1]}
    latencies = {"LongYAAL": latency, "StreamLAAL": latency / 1000, "LongYAAL_CA": None, "StreamLAAL_CA": None}
    compute = {**{part: spread(0.1, 0.0, 0.0) for part in PARTS}, "total": spread(0.3, 0.0, 0.0)}
    about = {"segment": segment, "compute": compute, "course": course}
    return row("leap", "wait-k", k, None, score) | latencies | about | {"run": f"{segment}-{k}"} | more


TALKS = [
    talk_row("pause", 3, 1500.0, 30.0),
    talk_row("pause", 9, 3000.0, 33.0, LongYAAL_CA=spread(3100.0, 0.0, 0.0)),
    talk_row("tokens", 3, 5000.0, 20.0, course={"minutes": [1.0], "memory_mib": [None], "compute": [0.1]}),
]


def test_talks_have_a_line_for_what_ends_a_segment_and_shaded_regimes(tmp_path: Path) -> None:
    yaal, laal, bars, memory, time = panels(curve_figure(TALKS, (2000.0, 4000.0)))
    lines = {line.get_label(): (tuple(line.get_xdata()), tuple(line.get_ydata())) for line in yaal.lines}
    assert lines["leap, pause, wait-k"] == ((1500.0, 3000.0), (30.0, 33.0))
    assert lines["leap, tokens, wait-k"] == ((5000.0,), (20.0,))
    assert {line.get_color() for line in yaal.lines if line.get_label() in lines} == {"C0", "C1"}
    assert [tuple(laal.lines[0].get_xdata())] == [(1.5, 3.0)] and "(s)" in laal.get_xlabel()
    shaded = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in yaal.patches]
    assert shaded == [(0.0, 2000.0), (2000.0, 4000.0)] and not laal.patches
    assert [label.get_text() for label in bars.get_yticklabels()] == ["pause-3", "pause-9", "tokens-3"]
    assert "of all talks" in bars.get_xlabel()
    assert [tuple(line.get_ydata()) for line in memory.lines] == [(0.0, 1.0, 2.5)] * 2  # unknown for the third
    assert [tuple(line.get_ydata()) for line in time.lines] == [(0.1, 0.2, 0.1)] * 2 + [(0.1,)]
    draw_curve(TALKS, tmp_path / "talks.png", (2000.0, 4000.0))
    pixels(tmp_path / "talks.png")
