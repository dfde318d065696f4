"""TextGrids as Praat and aligners write them, and what is said about those that are broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leapformer_fairseq.data.alignments import PHONES, WORDS, Interval, read_textgrid, tier, write_textgrid
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
BACK = """\
            xmin = 0.75
            xmax = 0.2
            text = ""
        intervals [3]:
            xmin = 0.2
"""  # in place of the start of the second interval: one that ends before it begins
EXPECTED = {
    "words": [Interval(0.0, 0.75, 'say "é"'), Interval(0.75, 1.5, "")],
    "phones": [Interval(0.0, 1.5, "S\nEY")],
}


def short(text: str) -> str:
    """The short format of a TextGrid: its values without their names, and without headings."""
    head, lines = text.splitlines()[:3], text.splitlines()[3:]
    headings = re.compile(r"\s*(item|intervals|points) \[")
    values = [line.partition(" = ")[2] or line.removeprefix("tiers? ") for line in lines if not headings.match(line)]
    return "\n".join([*head, *values, ""])


def grid(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "LJ001-0001.TextGrid"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("form", [str, short])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_formats_encodings_and_line_ends(tmp_path, form, encoding, end):
    assert read_textgrid(grid(tmp_path, form(GRID).replace("\n", end), encoding)) == EXPECTED


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
        ("", "begins with ''"),
        (edited("ooTextFile", "ooTextFile short"), "could not convert"),
        (edited('"TextGrid"', '"Sound"'), "begins with .*Sound"),
        (edited("xmin = 0 \nxmax = 1.5 \n", "0\n1.5\n"), "list index"),
        (edited("xmax = 0.75", "xmax = soon"), "field in Textgrid missing"),
        (edited("xmax = 0.75", "xmax = nan"), "field in Textgrid missing"),
        (edited('text = ""', "text = none"), "field in Textgrid missing"),
        (edited('EY" ', "EY "), "field in Textgrid missing"),
        (edited("            xmax = 0.75 \n", ""), "field in Textgrid missing"),
        (edited("xmax = 0.75", "xmax = 0.5"), "'words' has an interval from 0.75 to 1.5 s after 0.5 s"),
        (edited("xmin = 0.75", "xmin = 0.25"), "'words' has an interval from 0.25 to 1.5 s after 0.75 s"),
        (edited("            xmin = 0.75 \n", BACK), "'words' has an interval from 0.75 to 0.2 s after 0.75 s"),
        (edited("xmax = 0.75", "xmax = -0.75"), "field in Textgrid missing"),
        (GRID.replace("xmin = 0 ", "xmin = -0.5 "), "'xmin = -0.5' is before the recording"),
        (edited("        intervals [1]:", "        interval"), "'words' has an interval from 0.75 to 1.5 s after 0 s"),
        (edited("    item [2]:", "    ite"), "'words' has the text"),
        (edited('1.5 \n            text = ""', '1 \n            text = ""'), "'words' has intervals up to 1 of 1.5 s"),
        (GRID[: GRID.rindex("        intervals [1]:")], "'phones' has intervals up to 0 of 1.5 s"),
        (short(GRID)[: short(GRID).rindex('"S')], "'phones' has intervals up to 0 of 1.5 s"),
        (edited('name = "phones"', 'name = "words"'), "a second tier 'words'"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_by_name(tmp_path, text, message):
    with pytest.raises(LeapformerError, match=rf"LJ001-0001\.TextGrid is not a whole TextGrid: .*{message}") as raised:
        read_textgrid(grid(tmp_path, text))
    assert "\n" not in str(raised.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(LeapformerError, match="missing.TextGrid cannot be read"):
        read_textgrid(tmp_path / "missing.TextGrid")
    with pytest.raises(LeapformerError, match="it is neither UTF-8 nor UTF-16"):
        read_textgrid(grid(tmp_path, GRID, "latin-1"))


def test_a_speakers_tier_is_found(tmp_path):
    path = Path("a.TextGrid")
    speakers = {"LJ - phones": EXPECTED["phones"], "LJ - words": EXPECTED["words"]}
    assert tier(speakers, PHONES, path) == EXPECTED["phones"]
    for tiers in ({}, {"words": []}, {"A - words": [1], "B - words": [1]}):
        with pytest.raises(LeapformerError, match="a.TextGrid needs one tier 'words'"):
            tier(tiers, WORDS, path)
