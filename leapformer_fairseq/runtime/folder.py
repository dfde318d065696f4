"""A folder that `leapformer export` made: graphs, what their states are called, and the vocabularies.

Files are data: nothing in the folder is executed or unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import LeapformerError
from ..files import write_json

FORMAT = 1
MODEL, SOURCE, STEP = "model.json", "source.onnx", "step.onnx"
SUBWORDS = "subwords.model"
LOG_PROBS, NEXT = "log_probs", ".next"  # of outputs
Shapes = dict[str, list[int]]  # of states by name, without the rows


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of one side, in the order of their numbers."""

    symbols: list[str]
    pad: int
    eos: int
    unk: int

    @cached_property
    def _known(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    def numbers(self, pieces: list[str]) -> list[int]:
        """Of pieces, and the end."""
        return [*(self._known.get(piece, self.unk) for piece in pieces), self.eos]

    def words(self, numbers: list[int]) -> list[str]:
        """The pieces of numbers, without the end."""
        return [self.symbols[number] for number in numbers if number != self.eos]


@dataclass(frozen=True)
class Folder:
    """What `model.json` says.

    own, source: shapes of the states of self-attention and cross-attention.
    """

    path: Path
    task: str
    own: Shapes
    source: Shapes
    vocabularies: dict[str, Vocabulary]
    max_target: int
    signature: str

    @classmethod
    def read(cls, path: str | Path) -> Folder:
        """Raises LeapformerError for a folder that was not exported, or by another version, or lacks a file."""
        path = Path(path)
        try:
            about: dict[str, Any] = json.loads((path / MODEL).read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise LeapformerError(f"{path / MODEL} has format {about['format']!r}, not {FORMAT}; export it again")
            vocabularies = {side: Vocabulary(**one) for side, one in about["vocabularies"].items()}
            found = cls(
                path,
                about["task"],
                about["states"]["self"],
                about["states"]["cross"],
                vocabularies,
                int(about["max_target"]),
                about["signature"],
            )
        except FileNotFoundError as error:
            raise LeapformerError(f"{path} has no {MODEL}; give a folder made by `leapformer export`") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LeapformerError(f"{path / MODEL} is damaged ({error}); export the model again") from error
        for name in (SOURCE, STEP):
            if not (path / name).is_file():
                raise LeapformerError(f"{path} has no {name}; export the model again")
        return found

    def write(self) -> None:
        about = {
            "format": FORMAT,
            "task": self.task,
            "states": {"self": self.own, "cross": self.source},
            "vocabularies": {side: asdict(one) for side, one in self.vocabularies.items()},
            "max_target": self.max_target,
            "signature": self.signature,
        }
        write_json(self.path / MODEL, about)
