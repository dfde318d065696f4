"""TextGrids as Praat and aligners write them, and what is said about those that are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from leapformer_fairseq.data.alignments import Interval
from leapformer_fairseq.data.textgrid import PHONES, WORDS, read_textgrid, tier, write_textgrid
from leapformer_fairseq.support.errors import LeapformerError

# As Praat writes it: blanks at the ends of lines, quotes doubled, a tier of points in between.
GRID = '''File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0 
xmax = 1.5 
tiers? <exists> 
size = 3 
item []: 
    item [1]:
        class = "IntervalTier" 
        name = "words" 
        xmin = 0 
        xmax = 1.5 
        intervals: size = 2 
        intervals [1]:
            xmin = 0 
            xmax = 0.75 
            text = "say ""é""" 
        intervals [2]:
            xmin = 0.75 
            xmax = 1.5 
            text = "" 
    item [2]:
        class = "TextTier" 
        name = "clicks" 
        xmin = 0 
        xmax = 1.5 
        points: size = 1 
        points [1]:
            number = 0.3 
            mark = "text = ""no""" 
    item [3]:
        class = "IntervalTier" 
        name = "phones" 
        xmin = 0 
        xmax = 1.5 
        intervals: size = 1 
        intervals [1]:
            xmin = 0 
            xmax = 1.5 
            text = "S
EY" 
'''  # noqa: W291
EXPECTED = {
    "words": [Interval(0.0, 0.75, 'say "é"'), Interval(0.75, 1.5, "")],
    "phones": [Interval(0.0, 1.5, "S\nEY")],
}


def grid(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "LJ001-0001.TextGrid"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(tmp_path, encoding, end):
    assert read_textgrid(grid(tmp_path, GRID.replace("\n", end), encoding)) == EXPECTED


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "a.TextGrid"
    write_textgrid(path, EXPECTED)
    assert read_textgrid(path) == EXPECTED


def edited(old: str, new: str) -> str:
    assert old in GRID
    return GRID.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file ends"),
        (edited("ooTextFile", "ooTextFile short"), "line 1: .* where .*ooTextFile"),
        (edited('"TextGrid"', '"Sound"'), "line 2: .*Sound"),
        (edited("xmin = 0 \nxmax = 1.5 \n", "0\n1.5\n"), "line 4: '0' is not a line of the long format"),
        (edited("xmax = 0.75", "xmax = soon"), "line 17: 'soon' where a number"),
        (edited("xmax = 0.75", "xmax = nan"), "line 17: 'nan' where a number"),
        (edited('text = ""', "text = none"), "line 22: 'none' where a text"),
        (edited('EY" ', "EY "), "line 41: the quotation mark is never closed"),
        (edited("            xmax = 0.75 \n", ""), "line 17: an interval without xmin or xmax"),
        (edited("xmax = 0.75", "xmax = 0.5"), "line 22: an interval from 0.75 to 1.5 s after one up to 0.5 s"),
        (edited("xmin = 0.75", "xmin = 0.25"), "line 22: an interval from 0.25"),
        (edited("xmax = 0.75", "xmax = -0.75"), "line 18: an interval from 0 to -0.75"),
        (edited("intervals: size = 2", "intervals: size = 3"), "line 25: 2 of 3 intervals of a tier, then it ends"),
        (GRID[: GRID.rindex("        intervals [1]:")], "line 38: 0 of 1 intervals of a tier, then it ends"),
        (edited('name = "phones"', 'name = "words"'), "line 34: a second tier 'words'"),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(tmp_path, text, message):
    with pytest.raises(LeapformerError, match=rf"LJ001-0001\.TextGrid, {message}") as raised:
        read_textgrid(grid(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(LeapformerError, match="missing.TextGrid cannot be read"):
        read_textgrid(tmp_path / "missing.TextGrid")
    with pytest.raises(LeapformerError, match="line 18: neither UTF-8 nor UTF-16"):
        read_textgrid(grid(tmp_path, GRID, "latin-1"))


def test_a_speakers_tier_is_found(tmp_path):
    path = Path("a.TextGrid")
    speakers = {"LJ - phones": EXPECTED["phones"], "LJ - words": EXPECTED["words"]}
    assert tier(speakers, PHONES, path) == EXPECTED["phones"]
    for tiers in ({}, {"words": []}, {"A - words": [1], "B - words": [1]}):
        with pytest.raises(LeapformerError, match="a.TextGrid needs one tier 'words'"):
            tier(tiers, WORDS, path)
