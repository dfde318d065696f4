"""The picture of quality against latency: which lines, error bars and bars it has."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import BarContainer, ErrorbarContainer

from leapformer_fairseq.scoring.figure import COLOURS
from leapformer_fairseq.scoring.pictures.latency import PARTS, curve_figure
from leapformer_fairseq.studies.curve import table
from tests.scoring.pictures.images import overlapping, texts


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


def panels(rows: list[dict[str, Any]], *regimes: tuple[float, float]) -> list[Any]:
    figure = curve_figure(rows, *regimes)
    figure.finish()
    return [panel.axes for panel in figure.panels]


@pytest.mark.parametrize(("panel", "shift"), [(0, 0.0), (1, 50.0)])
def test_lines_and_error_bars(panel: int, shift: float) -> None:
    axes = panels(ROWS)[panel]
    lines = {(line.get_label(), tuple(line.get_xdata())): tuple(line.get_ydata()) for line in axes.lines}
    assert lines["LeaPformer, wait-k", (900.0 + shift, 1400.0 + shift)] == (60.0, 70.0)  # by latency
    assert lines["LeaPformer, wait-k", (800.0 + shift,)] == (55.0,)  # another ratio is another line
    assert lines["softmax, wait-k", (950.0 + shift,)] == (61.0,)
    assert lines["LeaPformer, offline", (0, 1)] == (80.0, 80.0)
    (timed,) = (found for found in axes.containers if isinstance(found, ErrorbarContainer))
    assert timed.get_label() == "softmax, wait-k, computation-aware" and timed[0].get_markerfacecolor() == "white"
    names = {"LeaPformer, wait-k", "LeaPformer, hold-n", "LeaPformer, offline", "softmax, wait-k"}
    assert {" ".join(text.get_text().split()) for text in axes.texts} == {"1 r7", "3 r7", "1 r3"} | (
        names - {"LeaPformer, hold-n"}
    )
    ends = timed[2][0].get_segments()[0][:, 0]
    assert ends.tolist() == [990.0 + shift, 1040.0 + shift]


def test_a_latency_below_the_one_without_computation_is_marked() -> None:
    """In the picture and in the table, and only there."""
    below = ROWS[-1] | {"run": "b", "AL_CA": spread(940.0, 10.0, 40.0), "repeats": 2, "without_prenet": None}
    for rows, count in ((ROWS, 0), ([*ROWS[:-1], below], 1)):
        left, right, *_ = panels(rows)
        assert [text.get_text() for text in left.texts].count("* below the latency without computation") == count
        assert not [text for text in right.texts if "below" in text.get_text()]
    shown = {"chrF": 1.0, "AP": 1.0, "DAL": 1.0, "ATD": 1.0}
    text = table([below | shown])
    assert text.count("*") == 1 and "940 (930–980)*" in text


def test_bars_only_where_the_computation_was_measured(tmp_path: Path) -> None:
    more = [row("softmax", "wait-k", k, 950.0 + k, 61.0, compute=ROWS[-1]["compute"]) for k in (2, 4)]
    bars = panels([*ROWS, *more])[2]
    parts = [found for found in bars.containers if isinstance(found, BarContainer)]
    assert [part.get_label() for part in parts] == list(PARTS)
    assert [part[0].get_x() for part in parts] == pytest.approx([0.0, 0.1, 0.2])
    assert [label.get_text() for label in bars.get_yticklabels()] == [f"softmax, wait-k {k} r7" for k in (1, 2, 4)]
    assert len(panels([*ROWS[:-1], *more[:1]])) == 2, "a bar or two show nothing"
    assert curve_figure([]).save(tmp_path / "0.svg").startswith("No picture")
    assert curve_figure(ROWS).save(tmp_path / "1.svg") and "softmax, wait-k" in texts(tmp_path / "1.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["1.svg"]


def test_no_text_covers_another_in_a_crowd() -> None:
    """Two systems with the same curve, at nearly the same latencies, with long names."""
    names = ("leap_encoder-chunk-ms_280", "gated-leap_encoder-chunk-ms_280", "softmax")
    rows = [
        row(name, policy, k, 900.0 + 100 * k + n, 60.0 + k)
        for n, name in enumerate(names)
        for policy in ("wait-k", "local-agreement")
        for k in range(1, 9)
    ]
    assert overlapping(curve_figure(rows).finish()) == []


def test_intervals_are_bars_that_no_text_covers() -> None:
    """Of quality and latency; the seconds of StreamLAAL, too."""
    halves = {"BLEU": 2.0, "AL": 30.0, "LAAL": 40.0}
    rows = [row("leap", "wait-k", k, 400.0 * k, 60.0 + k, intervals=halves) for k in (1, 3, 5)]
    figure = curve_figure(rows)
    figure.finish()
    for panel, half in zip(figure.panels, (30.0, 40.0), strict=True):
        (drawn,) = (found for found in panel.axes.containers if isinstance(found, ErrorbarContainer))
        across, up = ([bar.get_segments() for bar in drawn[2]][i] for i in (0, 1))
        assert [bar[1][0] - bar[0][0] for bar in across] == pytest.approx([2 * half] * 3)
        assert [bar[1][1] - bar[0][1] for bar in up] == pytest.approx([4.0] * 3)
        x, y = panel.axes.transData.transform([bar.mean(0) for bar in up]).T
        boxes = [text.get_window_extent() for text, _ in panel.tags]
        assert not any(box.x0 < at < box.x1 for box, at in zip(boxes, x, strict=True)), "a bar is struck through"
        assert not any(box.y0 < at < box.y1 for box, at in zip(boxes, y, strict=True))


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


def test_talks_have_a_line_for_what_ends_a_segment_and_shaded_regimes() -> None:
    yaal, laal, bars, memory, time = panels(TALKS, (2000.0, 4000.0))
    lines = {line.get_label(): (tuple(line.get_xdata()), tuple(line.get_ydata())) for line in yaal.lines}
    assert lines["pause, wait-k"] == ((1500.0, 3000.0), (30.0, 33.0))
    assert lines["tokens, wait-k"] == ((5000.0,), (20.0,))
    assert {line.get_color() for line in yaal.lines if line.get_label() in lines} == set(COLOURS[:2])
    assert [tuple(laal.lines[0].get_xdata())] == [(1.5, 3.0)] and ", s" in laal.get_xlabel()
    shaded = [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in yaal.patches]
    assert shaded == [(0.0, 2000.0), (2000.0, 4000.0)] and not laal.patches
    assert [label.get_text() for label in bars.get_yticklabels()] == [
        f"{x}, wait-k {k}" for x, k in (("pause", 3), ("pause", 9), ("tokens", 3))
    ]
    assert "of all talks" in bars.get_xlabel()
    assert [tuple(line.get_ydata()) for line in memory.lines] == [(0.0, 1.0, 2.5)] * 2  # unknown for the third
    assert [tuple(line.get_ydata()) for line in time.lines] == [(0.1, 0.2, 0.1)] * 2 + [(0.1,)]
