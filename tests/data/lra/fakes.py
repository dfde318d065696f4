"""Tiny files in exactly the layouts that the five tasks of Long Range Arena are published in."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random

import numpy as np

from leapformer_fairseq.data.lra import listops, pathfinder
from leapformer_fairseq.data.lra.listops import Trees
from leapformer_fairseq.data.lra.pathfinder_pictures import Sizes


def fake_listops(root: Path, sizes=(40, 10, 10)) -> Path:
    folder = root / "lra_release" / "listops-1000"
    listops.build(folder, dict(zip(listops.FILES, sizes, strict=True)), 5, Trees(5, 60, 4, 5))
    return root


def fake_text(root: Path, count=20) -> Path:
    for split in ("train", "test"):
        for side, word in (("neg", "dull"), ("pos", "grand")):
            folder = root / "aclImdb" / split / side
            folder.mkdir(parents=True)
            for i in range(count):
                # nothing but the side word differs, and a letter of two bytes
                (folder / f"{i}_{7 if side == 'pos' else 2}.txt").write_text(f"{split} {i} é a {word} film" + " so" * i)
    return root


def fake_retrieval(root: Path, sizes=(12, 6, 6)) -> Path:
    folder = root / "lra_release" / "tsv_data"
    folder.mkdir(parents=True)
    for name, size in zip(("train", "eval", "test"), sizes, strict=True):
        lines = [f'{i % 2}.0\t{i}\t{i + 1}\tpaper {i} says "this\tpaper {i + i % 2} too {name}' for i in range(size)]
        (folder / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines) + "\n")
    return root


def fake_pathfinder(root: Path, images=20) -> Path:
    folder = root / "lra_release" / "pathfinder32"
    pathfinder.build(folder, Sizes(contour=6), images)
    return root


def fake_image(root: Path, pickles: bool, per_batch=4, seed=1) -> Path:
    random = np.random.default_rng(seed)
    folder = root / ("cifar-10-batches-py" if pickles else "cifar-10-batches-bin")
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        pixels = random.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        labels = Random(name).choices(range(10), k=per_batch)
        if pickles:
            content = {b"data": pixels, b"labels": labels, b"batch_label": name.encode()}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        else:
            records = np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], 1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
    return root


FAKES = {
    "listops": fake_listops,
    "text": fake_text,
    "retrieval": fake_retrieval,
    "pathfinder": fake_pathfinder,
    "image": lambda root: fake_image(root, pickles=True),
}
