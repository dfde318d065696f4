"""Text to train small models on: short sentences in "en", and the same backwards as their translation into "de"."""

from __future__ import annotations

import random
from pathlib import Path

from leapformer_fairseq.cli.main import main

WORDS = ("the", "a", "small", "old", "red", "house", "tree", "dog", "sees", "finds", "and", "or", "near", "under")
# No workers: those of a training that fails keep the process of a test waiting, five seconds each.
TRAINING = (
    "--optimizer adam --lr 2e-3 --max-update 30 --num-workers 0 --seed 1 --cpu --log-format simple --max-tokens 800 "
    "--required-batch-size-multiple 1"
)


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of three to nine words."""
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(3, 9))) for _ in range(count)]


def reversed_text(root: Path, **counts: int) -> Path:
    """`root` with so many sentences of each split, and what fairseq makes of them: "mt" to translate, "lm" to model."""
    root.mkdir(exist_ok=True)
    for seed, (split, count) in enumerate(counts.items(), 1):
        lines = sentences(count, seed)
        (root / f"{split}.en").write_text("\n".join(lines) + "\n")
        (root / f"{split}.de").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
    pairs = [f"--{split}pref={root / split}" for split in counts]
    alone = [f"--{split}pref={root / split}.en" for split in counts]
    for words in (
        ["-s", "en", "-t", "de", *pairs, "--joined-dictionary", "--destdir", str(root / "mt")],
        ["--only-source", *alone, "--destdir", str(root / "lm")],
    ):
        assert main(["preprocess", *words, "--workers", "1"]) == 0
    return root
