"""ListOps: values by a stack machine, lengths and shares as specified, the same bytes for a seed, splits apart."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import Counter
from itertools import islice
from random import Random

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.lra import listops
from leapformer_fairseq.data.lra.listops import Trees, distinct, grow
from leapformer_fairseq.support.errors import LeapformerError

SMALL = Trees(min_length=5, max_length=40, max_depth=4, max_arguments=4)


def evaluate(source: str) -> tuple[int, int, int]:
    """Value, length without parentheses, and depth, by a stack that knows nothing of trees."""
    stack: list[object] = []
    length = depth = deepest = 0
    for token in source.split():
        if token in "()":
            continue
        length += 1
        if token == "]":
            arguments = []
            while isinstance(stack[-1], int):
                arguments.append(stack.pop())
            value = {
                "[MIN": min,
                "[MAX": max,
                "[MED": lambda x: int(statistics.median(x)),
                "[SM": lambda x: sum(x) % 10,
            }[stack.pop()](arguments)
            stack.append(value)
            depth -= 1
        elif token.startswith("["):
            stack.append(token)
            depth += 1
            deepest = max(deepest, depth)
        else:
            stack.append(int(token))
            deepest = max(deepest, depth + 1)
    (value,) = stack
    return value, length, deepest


def test_values_lengths_and_depths():
    for trees, count in ((SMALL, 500), (Trees(), 50)):
        for tree in islice(distinct(Random(3), trees), count):
            value, length, depth = evaluate(tree.source)
            assert (value, length) == (tree.target, tree.length)
            assert trees.min_length < length < trees.max_length and depth <= trees.max_depth


def test_the_writing_of_the_release():
    """Every node is binary: an operation takes its arguments one by one, then its end."""
    sources = {tree.source for tree in islice(distinct(Random(1), Trees(2, 7, 2, 2)), 300)}
    assert "( ( ( [MAX 4 ) 3 ) ] )" in sources
    for source in sources:
        assert source.count("(") == source.count(")") == source.count("]") * 3


def test_shares_of_the_published_generator():
    """8.1 % of all trees are kept; labels 0 and 9 are the most frequent ones (specification, a simulation of 3,000)."""
    tried = [0]
    trees = list(islice(distinct(Random(7), Trees(), tried), 1500))
    labels = Counter(tree.target for tree in trees)
    assert 0.072 < len(trees) / tried[0] < 0.090
    assert 980 < statistics.mean(tree.length for tree in trees) < 1110
    assert {label for label, _ in labels.most_common(2)} == {0, 9}
    assert all(0.14 < labels[label] / len(trees) < 0.20 for label in (0, 9))


def test_a_tree_stops_growing_at_the_longest():
    """And gives the same trees as one that grows on: what was drawn later belongs to no other tree."""
    trees = [grow(Random(seed), Trees(1, 60, 10, 10)) for seed in range(300)]
    whole = [grow(Random(seed), Trees(1, 10**9, 10, 10)) for seed in range(300)]
    kept = [tree for tree in whole if tree is not None and tree.length < 60]
    assert [tree for tree in trees if tree is not None] == kept and len(kept) < len(whole)


def test_files(tmp_path):
    sizes = {"train": 40, "dev": 10, "test": 10}
    summary = listops.build(tmp_path / "a", sizes, 5, SMALL)
    lines = {split: (tmp_path / "a" / name).read_text().splitlines() for split, name in listops.FILES.items()}
    assert {split: len(found) - 1 for split, found in lines.items()} == sizes == summary["splits"]
    rows = [line.split("\t") for found in lines.values() for line in found[1:]]
    assert all(found[0] == "Source\tTarget" for found in lines.values())
    assert len({source for source, _ in rows}) == 60  # no tree twice, in no two splits
    assert all(evaluate(source)[0] == int(target) for source, target in rows)
    assert listops.build(tmp_path / "a", sizes, 5, SMALL) == summary
    assert listops.build(tmp_path / "b", sizes, 5, SMALL) == summary
    assert listops.build(tmp_path / "c", sizes, 6, SMALL)["checksum"] != summary["checksum"]
    with pytest.raises(LeapformerError, match="was prepared with seed 5, not 6"):
        listops.build(tmp_path / "a", sizes, 6, SMALL)


def test_the_same_bytes_in_any_process(tmp_path):
    command = f"corpus --task listops --out {tmp_path}/one --train 20 --dev 5 --test 5 --min-length 5 --max-length 40"
    assert main(command.split()) == 0
    other = command.replace("/one", "/other").split()
    code = "import sys; from leapformer_fairseq.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {"PYTHONHASHSEED": "99"}
    subprocess.run([sys.executable, "-c", code, *other], check=True, env=environment, capture_output=True)
    for name in listops.FILES.values():
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-length 501", "--max-length 501: lengths lie between 500 and this, exclusive; give at least 502"),
        ("--max-depth 1", "--max-depth 1: give at least 2"),
        ("--train 0", "--train 0: give at least 1"),
        ("--images 5", "--images is for --task pathfinder; leave it out with --task listops"),
        ("--overwrite", "--overwrite is for --task st or tts; leave it out with --task listops"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys):
    assert main(f"corpus --task listops --out {tmp_path}/out {options}".split()) == 2
    assert message in (err := capsys.readouterr().err) and err.count("leapformer: error") == 1


def test_more_trees_than_there_are(monkeypatch):
    monkeypatch.setattr(listops, "TRIES", 2000)
    with pytest.raises(LeapformerError, match="of the last 2,000 trees none is new"):
        list(distinct(Random(1), Trees(0, 5, 2, 2)))
