"""Pathfinder: labels by following the lines, discs where they belong, the same pixels for a seed, work that resumes."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.lra import pathfinder
from leapformer_fairseq.data.lra.pathfinder import metadata_of, picture_of
from leapformer_fairseq.data.lra.pathfinder_pictures import MARKER, Canvas, Sizes, bits, dilated, draw
from leapformer_fairseq.support.errors import LeapformerError

EASY = Sizes(contour=6)
PIXELS = ["6422f27f4e08985d", "93798ebebc9f24be"]  # of the first version of the generator


def connected(lines, start, end, sizes) -> bool:
    """Whether a chain of lines leads from a point to another: each begins `step` from the tail of one before it.

    It knows nothing of curves: all lines of a picture are in one heap.
    """
    near = 1e-6
    reached = {i for i, one in enumerate(lines) if math.dist(one.tail, start) < near}
    while True:
        tips = [lines[i].at(sizes.step) for i in reached]
        more = {i for i, one in enumerate(lines) if any(math.dist(one.tail, tip) < near for tip in tips)}
        if more <= reached:
            return any(math.dist(lines[i].at(sizes.length), end) < near for i in reached)
        reached |= more


@pytest.mark.parametrize("contour", [6, 9, 14])
@pytest.mark.parametrize("label", [0, 1])
def test_labels_by_following_the_lines(contour, label):
    sizes = Sizes(contour=contour)
    for seed in range(4):
        picture = draw(Random(seed), sizes, label)
        heap = [*picture.targets[0], *picture.targets[1], *(line for snake in picture.distractors for line in snake)]
        Random(seed).shuffle(heap)
        assert connected(heap, *picture.markers, sizes) == bool(label) == bool(picture.label)
        assert [len(target) for target in picture.targets] == [contour, contour]
        assert len(picture.distractors) <= 20 // (contour // 3)
        assert {len(snake) for snake in picture.distractors} <= {contour // 3}


def test_discs_are_where_the_markers_are():
    for seed in range(5):
        picture = draw(Random(seed), EASY, seed % 2)
        for row, column in picture.markers:
            assert picture.pixels[round(row), round(column)] >= 255 * MARKER * 0.75 - 1
        assert picture.pixels.shape == (32, 32) and picture.pixels.dtype == np.uint8 and picture.pixels.max() == 255


def test_turns_are_less_than_a_right_angle_and_lines_do_not_touch():
    picture = draw(Random(11), EASY, 1)
    canvas = Canvas(EASY)
    for snake in (*picture.targets, *picture.distractors):
        for one, other in zip(snake, snake[1:], strict=False):
            assert math.dist(one.at(EASY.step), other.tail) < 1e-6
            turn = abs((other.angle - one.angle + math.pi) % (2 * math.pi) - math.pi)
            assert turn < math.pi / 2
    heap = [line for snake in (*picture.targets, *picture.distractors) for line in snake]
    taken = 0
    for line in heap:
        row, column, stamp = canvas.stamp(line)
        covered = stamp.covered << row * canvas.width + column
        assert not taken & covered
        taken |= covered


def test_places_are_bits_line_by_line():
    places = np.zeros((3, 5), dtype=bool)
    places[1, 2] = places[0, 0] = True
    assert bits(places) == 1 << 5 + 2 | 1


def test_a_picture_that_was_published_before_comes_out_the_same():
    """Prepared data and results depend on it: the pixels of a seed are for good."""
    pixels = [draw(Random(7), sizes, 1).pixels for sizes in (EASY, Sizes(contour=2, side=12))]
    found = [hashlib.sha256(x.tobytes()).hexdigest()[:16] for x in pixels]
    assert found == PIXELS


def test_brightness_of_targets():
    """Published, they are darker than distractors; equal, a picture has lines of one brightness."""
    published, equal = (draw(Random(2), Sizes(contour=6, contrast=name), 1) for name in ("published", "equal"))
    for picture, expected in ((published, 0.75), (equal, 1.0)):
        row, column = picture.targets[0][2].at(1.0)
        around = picture.pixels[round(row) - 1 : round(row) + 2, round(column) - 1 : round(column) + 2].max()
        assert around == pytest.approx(255 * expected, abs=8)


@pytest.mark.parametrize(("side", "contour"), [(12, 2), (16, 3), (24, 6), (40, 6)])
def test_other_sides(side, contour):
    """Smaller pictures have fewer distractors; the labels are right in any."""
    sizes = Sizes(contour=contour, side=side)
    for seed in range(4):
        picture = draw(Random(seed), sizes, seed % 2)
        heap = [*picture.targets[0], *picture.targets[1], *(line for snake in picture.distractors for line in snake)]
        assert connected(heap, *picture.markers, sizes) == bool(picture.label)
        assert picture.pixels.shape == (side, side)
        assert len(picture.distractors) <= 20 * side**2 // 1024 // max(1, contour // 3)


def test_dilated():
    x = np.zeros((5, 5), dtype=bool)
    x[0, 1] = True
    assert dilated(x, 1).sum() == 6 and dilated(x, 1)[1, 2] and not dilated(x, 1)[2].any()


def test_the_layout_of_the_release(tmp_path):
    summary = pathfinder.build(tmp_path / "a", EASY, 12, seed=3)
    folder = tmp_path / "a" / "curv_baseline"
    lines = [line.split() for line in metadata_of(folder, 0).read_text().splitlines()]
    assert [line[:3] for line in lines] == [["imgs/0", f"sample_{i}.png", str(i)] for i in range(12)]
    assert sum(int(line[3]) for line in lines) == 6  # balanced
    for name in (line[1] for line in lines):
        with Image.open(folder / "imgs" / "0" / name) as image:
            assert image.mode == "L" and image.size == (32, 32)
    assert pathfinder.build(tmp_path / "a", EASY, 12, seed=3) == summary
    assert pathfinder.build(tmp_path / "c", EASY, 12, seed=4)["checksum"] != summary["checksum"]
    with pytest.raises(LeapformerError, match="was prepared with contour 6, not 9"):
        pathfinder.build(tmp_path / "a", Sizes(contour=9), 12, seed=3)


def test_examples_with_joined_ends_are_above(tmp_path):
    pathfinder.build(tmp_path, EASY, 6, seed=3)
    examples = list(pathfinder.read(pathfinder.listed(tmp_path / "curv_baseline")[0]))
    with Image.open(tmp_path / "examples.png") as image:
        sheet = np.asarray(image)
    tile = 32 * 4 + 2 * 3
    assert sheet.shape == (2 * tile, 3 * tile)
    for row, label in enumerate((1, 0)):
        for column, example in enumerate(one for one in examples if one.label == label):
            inside = sheet[row * tile + 3 : (row + 1) * tile - 3 : 4, column * tile + 3 : (column + 1) * tile - 3 : 4]
            assert (inside.reshape(-1) == example.sequences[0]).all()


def test_the_same_pixels_in_any_process_and_after_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(pathfinder, "BATCH", 5)
    whole = pathfinder.build(tmp_path / "whole", EASY, 17)
    real, drawn = pathfinder.draw, []

    def interrupted(*args):
        drawn.append(1)
        if len(drawn) == 8:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(pathfinder, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pathfinder.build(tmp_path / "parts", EASY, 17)
    assert pathfinder.build(tmp_path / "parts", EASY, 17) == whole
    assert len(drawn) == 8 + 12  # the first batch was kept
    monkeypatch.setattr(pathfinder, "draw", real)
    assert pathfinder.build(tmp_path / "workers", EASY, 17, workers=2) == whole
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.*"))
    assert len(files) == 17 + 4 + 1 + 1  # pictures, metadata, examples.png, what was prepared
    for path in files:
        assert (tmp_path / "whole" / path).read_bytes() == (tmp_path / "workers" / path).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--contour 1", "--contour 1: give at least 2"),
        ("--side 8", "--side 8: give at least 12"),
        ("--contour 5 --side 16", "--contour 5: two curves of 20 pixels find no room in --side 16; give a shorter"),
        ("--contrast bright", "--contrast bright: choose from: published, equal"),
        ("--images 1", "--images 1: give at least 2, one of each label"),
        ("--train 5", "--train is for --task st or text or tts or listops; leave it out with --task pathfinder"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys):
    assert main(f"corpus --task pathfinder --out {tmp_path}/out {options}".split()) == 2
    assert message in (err := capsys.readouterr().err) and err.count("leapformer: error") == 1


def test_the_command(tmp_path, capsys):
    command = f"corpus --task pathfinder --out {tmp_path}/out --images 4 --contour 6 --contrast equal".split()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "images: 4" in out and "folder: curv_baseline" in out
    assert picture_of(Path(tmp_path, "out", "curv_baseline"), 0, 3).is_file()
