"""From files in the published layouts to arrays: what is read, what each quirk changes, bad files, resuming."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.arrays import Split
from leapformer_fairseq.data.lra import prepare, readers

from .fakes import FAKES, fake_image, fake_listops, fake_pathfinder, fake_retrieval, fake_text


@pytest.fixture(scope="module", params=FAKES)
def prepared(request, tmp_path_factory) -> tuple[str, Path, Path]:
    """Task, root and arrays."""
    folder = tmp_path_factory.mktemp(request.param)
    root = FAKES[request.param](folder / "root")
    assert main(f"prepare lra {request.param} {root} --out {folder}/out".split()) == 0
    return request.param, root, folder / "out"


def splits(out: Path) -> dict[str, list]:
    return {split: list(Split(out, split)) for split in prepare.SPLITS}


def test_every_task(prepared, capsys):
    task, root, out = prepared
    about = prepare.TASKS[task].about(())
    found = splits(out)
    for examples in found.values():
        assert examples and all(len(one.sequences) == about.inputs for one in examples)
        for one in examples:
            assert all(x.min() > 0 and x.max() < about.vocabulary - 1 for x in one.sequences)  # no padding, no mark
            assert 0 <= one.label < about.classes
    keys = [{tuple(map(bytes, one.sequences)) for one in examples} for examples in found.values()]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main(f"prepare lra {task} {root} --out {out}".split()) == 0  # found there
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert f"train: {len(found['train'])} examples" in capsys.readouterr().out


def test_trees(tmp_path):
    root = fake_listops(tmp_path / "root")
    first = (root / "lra_release/listops-1000/basic_train.tsv").read_text().splitlines()[1]
    source, target = first.split("\t")
    names = ["", *map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]"]
    prepare.prepare("listops", root, tmp_path / "whole")
    prepare.prepare("listops", root, tmp_path / "dropped", ["brackets-dropped"])
    whole, dropped = (Split(tmp_path / name, "train")[0] for name in ("whole", "dropped"))
    assert [names[i] for i in whole.sequences[0]] == [token for token in source.split() if token not in "()"]
    assert [names[i] for i in dropped.sequences[0]] == [token for token in source.split() if token not in "()]"]
    assert whole.label == dropped.label == int(target)


def test_reviews(tmp_path):
    """The development set comes from the training set, or is the test set."""
    root = fake_text(tmp_path / "root")
    prepare.prepare("text", root, tmp_path / "own")
    prepare.prepare("text", root, tmp_path / "quirk", ["dev-is-test"])
    own, quirk = splits(tmp_path / "own"), splits(tmp_path / "quirk")
    assert [len(own[split]) for split in prepare.SPLITS] == [36, 4, 40]
    assert [len(quirk[split]) for split in prepare.SPLITS] == [40, 40, 40]

    def text(one):
        return bytes((one.sequences[0] - 1).astype(np.uint8)).decode()

    assert {text(one).split()[0] for one in own["valid"]} == {"train"}
    assert (
        [text(one) for one in quirk["valid"]]
        == [text(one) for one in quirk["test"]]
        == [text(one) for one in own["test"]]
    )
    assert all(("grand" in text(one)) == bool(one.label) and " é a" in text(one) for one in own["train"])


def test_long_texts_are_cut(tmp_path):
    root = fake_text(tmp_path / "root", count=5)
    long = root / "aclImdb" / "test" / "pos" / "0_7.txt"
    long.write_text("é" * 3000)
    prepare.prepare("text", root, tmp_path / "out")
    assert Split(tmp_path / "out", "test").lengths().max() == 4000


def test_pairs(tmp_path):
    root = fake_retrieval(tmp_path / "root")
    prepare.prepare("retrieval", root, tmp_path / "out")
    one = Split(tmp_path / "out", "train")[3]
    texts = [bytes((x - 1).astype(np.uint8)).decode() for x in one.sequences]
    assert texts == ['paper 3 says "this', "paper 4 too train"] and one.label == 1


def test_pictures_of_pathfinder(tmp_path):
    """An empty picture, as there is one in the release, is left out and counted; black is 1, or padding."""
    root = fake_pathfinder(tmp_path / "root")
    picture = root / "lra_release/pathfinder32/curv_baseline/imgs/0/sample_7.png"
    picture.write_bytes(b"")
    assert prepare.prepare("pathfinder", root, tmp_path / "out")["left_out"] == {"empty pictures": 1}
    prepare.prepare("pathfinder", root, tmp_path / "quirk", ["black-is-padding"])
    own, quirk = splits(tmp_path / "out"), splits(tmp_path / "quirk")
    assert [len(own[split]) for split in prepare.SPLITS] == [15, 2, 2]
    for one, other in zip(own["train"], quirk["train"], strict=True):
        assert np.array_equal(one.sequences[0], other.sequences[0] + 1) and one.label == other.label
        assert one.sequences[0].min() == 1 and one.sequences[0].max() == 256 and len(one.sequences[0]) == 1024


def test_pictures_of_cifar(tmp_path):
    """Both releases give the same; the last tenth of the training set is for development."""
    outs = []
    for pickles in (True, False):
        root = fake_image(tmp_path / f"root{pickles}", pickles)
        prepare.prepare("image", root, tmp_path / f"out{pickles}")
        outs.append(splits(tmp_path / f"out{pickles}"))
    for split, size in (("train", 18), ("valid", 2), ("test", 4)):
        assert len(outs[0][split]) == size
        for one, other in zip(outs[0][split], outs[1][split], strict=True):
            assert np.array_equal(one.sequences[0], other.sequences[0]) and one.label == other.label


def test_grey_as_tensorflow_does_it():
    """floor(255.5 / 255 (0.2989 R + 0.5870 G + 0.1140 B)): white stays white, a weight alone is rounded down."""
    colours = np.zeros((3, 4), dtype=np.uint8)
    colours[:, 0] = 255
    colours[0, 1] = colours[1, 2] = colours[2, 3] = 255
    assert readers.grey(colours).tolist() == [255, 76, 149, 29]


def test_a_pickle_that_runs_something_is_refused(tmp_path, capsys):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    root = fake_image(tmp_path / "root", pickles=True)
    (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps({b"data": Evil()}))
    assert main(f"prepare lra image {root} --out {tmp_path}/out".split()) == 2
    assert "which no array needs" in capsys.readouterr().err and not (tmp_path / "ran").exists()


def test_an_interrupted_preparation_keeps_finished_splits(tmp_path, monkeypatch):
    root = fake_listops(tmp_path / "root")
    real = prepare.write_split

    def interrupted(folder, split, *args):
        if split == "test":
            raise KeyboardInterrupt
        return real(folder, split, *args)

    monkeypatch.setattr(prepare, "write_split", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare("listops", root, tmp_path / "out")
    written = []
    monkeypatch.setattr(prepare, "write_split", lambda *args: written.append(args[1]) or real(*args))
    summary = prepare.prepare("listops", root, tmp_path / "out")
    assert written == ["test"]
    assert summary == prepare.prepare("listops", root, tmp_path / "other")


def damage(path: str, content: bytes | None):
    def change(root: Path) -> None:
        file = next(root.rglob(path))
        file.unlink() if content is None else file.write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("listops", damage("basic_val.tsv", None), "basic_val.tsv is missing; check the path"),
        ("listops", damage("basic_val.tsv", b"Source\tTarget\n( [MAX 1\t3\n( [HM 1 ) ] )\t2\n"), "line 3: '[HM' is no"),
        ("listops", damage("basic_val.tsv", b"Source\tTarget\n( [MAX 1"), "line 2: '' is not a token or value"),
        ("text", lambda root: shutil.rmtree(root / "aclImdb/test/pos"), "aclImdb/test/pos holds no .txt files"),
        ("retrieval", damage("*eval.tsv", b"1.0\t1\t2\tone text\n"), "line 1: 4 fields that begin with '1.0'"),
        ("pathfinder", damage("sample_3.png", None), "sample_3.png, of"),
        ("pathfinder", damage("sample_3.png", b"\x89PNG\r\n\x1a\n but cut"), "sample_3.png is damaged"),
        ("pathfinder", damage("0.npy", b"imgs/0 sample_0.png 0\n"), "line 1: 'imgs/0 sample_0.png 0' has no label"),
        ("image", damage("data_batch_3", b"no pickle"), "data_batch_3 is not a batch of CIFAR-10"),
        ("image", damage("data_batch_1", None), "holds neither cifar-10-batches-bin/data_batch_1.bin nor"),
        ("image", damage("test_batch", None), "cifar-10-batches-py/test_batch; check the path"),
    ],
)
def test_missing_and_damaged_files_are_one_line(task, change, message, tmp_path, capsys):
    root = FAKES[task](tmp_path / "root")
    change(root)
    assert main(f"prepare lra {task} {root} --out {tmp_path}/out".split()) == 2
    assert message in (err := capsys.readouterr().err) and err.count("leapformer: error") == 1


def test_records_that_are_cut(tmp_path, capsys):
    root = fake_image(tmp_path / "root", pickles=False)
    path = root / "cifar-10-batches-bin" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(f"prepare lra image {root} --out {tmp_path}/out".split()) == 2
    assert "12291 bytes are no records of 3073" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("paths", "", "unknown task 'paths' of Long Range Arena; choose from: listops, text"),
        ("text", "--quirks brackets-dropped", "--quirks brackets-dropped: the data of text has dev-is-test"),
        ("retrieval", "--quirks x", "--quirks x: the data of retrieval has none"),
        ("text", "", "is not a folder; check the path"),
    ],
)
def test_bad_requests_are_one_line(task, options, message, tmp_path, capsys):
    assert main(f"prepare lra {task} {tmp_path}/nowhere --out {tmp_path}/out {options}".split()) == 2
    assert message in (err := capsys.readouterr().err) and err.count("leapformer: error") == 1
