"""RACE and CommonsenseQA as released, tiny."""

from __future__ import annotations

import json
from pathlib import Path

ANSWERS = "ABCD"


def race_tree(root: Path) -> Path:
    """Two passages of each level and split, with two questions each, one of them with a blank."""
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            folder = root / split / level
            folder.mkdir(parents=True)
            for n in range(2):
                passage = {
                    "id": f"{level}{n}.txt",
                    "article": f"a man in a {level} house\nsaid that the dog number {n} is old",
                    "questions": ["the dog is _ .", "who said it ?"],
                    "options": [["old", "new", "red", "a house"], ["a man", "the dog", "a cat", "nobody"]],
                    "answers": [ANSWERS[n], ANSWERS[3 - n]],
                }
                (folder / f"{n}.txt").write_text(json.dumps(passage), encoding="utf-8")
    return root


def csqa_tree(root: Path) -> Path:
    """Six questions to train with and three to validate."""
    root.mkdir(parents=True)
    for split, count in (("train", 6), ("dev", 3)):
        lines = []
        for n in range(count):
            choices = [{"label": label, "text": f"place {label.lower()} {n}"} for label in "ABCDE"]
            question = {"question_concept": "man", "choices": choices, "stem": f"where is man {n} ?"}
            lines.append(json.dumps({"answerKey": "ABCDE"[n % 5], "id": str(n), "question": question}))
        (root / f"{split}_rand_split.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root
