"""The page about scores: its example is what the code and its formulas give, its keys are those of files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.runtime.formats.runlog import Instance
from leapformer_fairseq.scoring.latency import latency_scores, long_form_scores

PAGE = (PLUGIN_DIR.parent / "docs/scoring.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    rows = PAGE.partition(f"{heading}\n\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.removeprefix("|").removesuffix("|").split("|")] for row in rows]


NAMES, _, *EXAMPLES = table("A worked example, which a test recomputes: six utterances, with all scores of each.")
MISLEADING = PAGE.partition("**Where they mislead.**")[2].partition("\n## ")[0]


def lagging(times: list[float], source: float, units: int, last: int) -> float:
    return sum(times[i] - i * source / units for i in range(last)) / last


def by_formula(times: list[float], source: float, reference: int) -> dict[str, float]:
    """The scores as the page's table of formulas has them."""
    n = len(times)
    heard = [i + 1 for i, time in enumerate(times) if time >= source]  # from 1
    tau, before = (heard[0], heard[0] - 1) if heard else (n, n)
    spaced = [times[0]]
    for time in times[1:]:
        spaced.append(max(time, spaced[-1] + source / n))
    scores = {
        "AL": times[0] if times[0] > source else lagging(times, source, reference, tau),
        "LAAL": times[0] if times[0] > source else lagging(times, source, max(reference, n), tau),
        "DAL": lagging(spaced, source, n, n),
        "AP": sum(times) / (source * reference),
    }
    return scores | ({"YAAL": lagging(times, source, max(reference, n), before)} if before else {})


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row[0].replace(" ", "-"))
def test_the_example_is_what_the_code_and_the_formulas_give(row: list[str]) -> None:
    given = dict(zip(NAMES, row, strict=True))
    source, reference = float(given["S"]), int(given["R"])
    heard, elapsed = ([float(time) for time in given[name].split()] for name in "DE")
    texts = (" ".join("x" * count) for count in (len(heard), reference))
    found = latency_scores(Instance(0, *texts, tuple(heard), tuple(elapsed), source))
    formulas = by_formula(heard, source, reference)
    formulas |= {f"{name}_CA": score for name, score in by_formula(elapsed, source, reference).items()}
    assert {name for name in found if "ATD" not in name} == formulas.keys()
    assert found == pytest.approx({**formulas, "ATD": found["ATD"], "ATD_CA": found["ATD_CA"]})
    for name in NAMES[5:]:
        shown = f"{found[name]:.2f}" if name.startswith("AP") else f"{found[name]:.1f}" if name in found else ""
        assert given[name] in (shown, shown.removesuffix(".0")), name


LONG = (
    PAGE.partition("LongAL and LongLAAL count it as the first one after S.")[2]
    .partition("\n\n")[2]
    .partition("\n\n")[0]
)


@pytest.mark.parametrize("line", LONG.splitlines()[2:])
def test_the_example_of_a_segment_is_what_the_code_gives(line: str) -> None:
    names, cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in (LONG.splitlines()[0], line))
    source, reference, heard, end, *shown = cells
    times = [float(time) for time in heard.split()]
    found = long_form_scores(times, float(source), " ".join("x" * int(reference)), float(end))
    for name, value in zip(names[4:], shown, strict=True):
        assert float(value) == pytest.approx(found[name], abs=0.05 if name != "LongAP" else 0.005), name


def test_every_example_shows_something() -> None:
    assert len(EXAMPLES) == 6
    assert {row[0] for row in EXAMPLES} - {"in order"} == set(re.findall(r"\(\*([^*]+)\*\)", MISLEADING))


def keys(heading: str) -> set[str]:
    return {key for first, *_ in table(heading)[2:] for key in re.findall(r"`(\w+)`", first)}


def test_the_keys_of_files_are_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        entry = {"prediction": "x y", "reference": "x z", "delays": [1.0, 2.0], "elapsed": [1.0, 2.0]}
        (tmp_path / name / "k3").mkdir(parents=True)
        lines = [json.dumps({"index": i, **entry, "source_length": 9.0}) + "\n" for i in range(3)]
        (tmp_path / name / "k3/instances.log").write_text("".join(lines))
        assert main(["score", f"{tmp_path}/{name}/k3", "--json", f"{tmp_path}/{name}/k3/scores.json"]) == 0
    scored = json.loads((tmp_path / "a/k3/scores.json").read_text())
    assert keys("### `score --json`, and `scores.json` of `simulate`") == {*scored, "model"}
    assert main(["report", str(tmp_path)]) == 0
    assert keys("### `scores.json` of `report`") == json.loads((tmp_path / "scores.json").read_text()).keys()
    systems = [str(tmp_path / name / "k3") for name in "ab"]
    assert main(["compare", *systems, "--samples", "100", "--json", str(tmp_path / "c.json")]) == 0
    compared = json.loads((tmp_path / "c.json").read_text())
    assert keys("### `compare --json`") == compared.keys()
    named = set(re.findall(r"`(\w+)`", next(cells[1] for cells in table("### `compare --json`") if "rows" in cells[0])))
    assert {"system", *compared["rows"][1]["BLEU"]} <= named
