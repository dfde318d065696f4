"""A folder that `leapformer export` made: graphs, what their states are called, and the vocabularies.

Files are data: nothing in the folder is executed or unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import LeapformerError
from ..files import write_json

FORMAT = 4
MODEL, WEIGHTS, SUBWORDS = "model.json", "weights.safetensors", "subwords.model"
SOURCE, LISTEN, WRITE, STEP = "source.onnx", "listen.onnx", "write.onnx", "step.onnx"
PROMPT, REFINE = "prompt.onnx", "refine.onnx"
TRANSLATION, SPEECH, LANGUAGE, SYNTHESIS = "translation", "speech", "language_modeling", "text_to_speech"
GRAPHS = {
    TRANSLATION: (SOURCE, STEP),
    SPEECH: (LISTEN, WRITE, STEP),
    LANGUAGE: (PROMPT, STEP),
    SYNTHESIS: (SOURCE, STEP, REFINE),
}
# Of inputs:
TOKENS, POSITIONS, ORDER, SPEAKERS = "tokens", "positions", "order", "speakers"
FRAMES, ROWS, BEFORE, COUNT, START, KEPT = "frames", "rows", "before", "count", "start", "kept"
LOG_PROBS, ENDED, NEXT = "log_probs", "ended", ".next"  # of outputs
SELF, CROSS, HEARD = "self", "cross", "heard"  # decoder self-attention, cross-attention, that of an encoder
LENGTH = "cross.length"  # among the states of cross-attention: the predicted length of the target, in steps
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

    def number(self, piece: str) -> int:
        return self._known.get(piece, self.unk)

    def numbers(self, pieces: list[str]) -> list[int]:
        """Of pieces, and the end."""
        return [*map(self.number, pieces), self.eos]

    def words(self, numbers: list[int]) -> list[str]:
        """The pieces of numbers, without the end."""
        return [self.symbols[number] for number in numbers if number != self.eos]


@dataclass(frozen=True)
class Speech:
    """What simultaneous translation needs to know of a model.

    state_frames: fbank frames (10 ms) of a row, that is of an encoder state.
    chunk_states: rows that become final together, once `ahead_states` more were heard.
    step_frames:  frames of a pre-decision step, of whose rows cross-attention reads up to so many at a time.
    n_bins:       numbers of a frame.
    lagging:      k of wait-k; None: it was not trained with one.
    forbidden:    ids that are never written.
    mean, std:    of frames, (n_bins,); None: they are not normalised.
    """

    state_frames: int
    chunk_states: int
    ahead_states: int
    step_frames: int
    n_bins: int
    lagging: int | None = None
    forbidden: list[int] = field(default_factory=list)
    mean: list[float] | None = None
    std: list[float] | None = None


@dataclass(frozen=True)
class Speaking:
    """What text to speech needs to know of a model.

    per_step:  log-mel frames of a decoder step.
    values:    numbers of a step, that is of all its frames.
    layers:    of the pre-net, `units` each, which are dropped at random with probability `dropout`.
    data:      the configuration of its data: `features`, and perhaps what espeak-ng is told.
    mean, std: of frames; None: they are not normalised.
    speakers:  their numbers by name; None: there is one.
    """

    per_step: int
    values: int
    layers: int
    units: int
    dropout: float
    data: dict[str, Any]
    mean: list[float] | None = None
    std: list[float] | None = None
    speakers: dict[str, int] | None = None


@dataclass(frozen=True)
class Language:
    """What continuing a text needs to know of a model.

    first:   number of the symbol before the first token.
    longest: tokens that attention can count; None: any number.
    segment: tokens of a block of text in training.
    """

    first: int
    longest: int | None
    segment: int


# What only some models have, by its name in `Folder` and in the file.
PARTS: dict[str, Any] = {"speech": Speech, "speaking": Speaking, "language": Language}


@dataclass(frozen=True)
class Folder:
    """What `model.json` says.

    states: shapes by name, of each kind of attention.
    starts: those states, without the rows, that are not zeros before anything was read.
    origin: the checkpoint, as `checkpoints.describe_checkpoint` tells of it.
    """

    path: Path
    task: str
    states: dict[str, Shapes]
    vocabularies: dict[str, Vocabulary]
    max_target: int
    signature: str
    origin: dict[str, Any]
    speech: Speech | None = None
    speaking: Speaking | None = None
    language: Language | None = None
    starts: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Folder:
        """Raises LeapformerError for a folder that was not exported, or by another version, or lacks a file."""
        path = Path(path)
        try:
            about: dict[str, Any] = json.loads((path / MODEL).read_text(encoding="utf-8"))
            if about["format"] != FORMAT:
                raise LeapformerError(f"{path / MODEL} has format {about['format']!r}, not {FORMAT}; export it again")
            vocabularies = {side: Vocabulary(**one) for side, one in about["vocabularies"].items()}
            task, states = about["task"], {side: dict(shapes) for side, shapes in about["states"].items()}
            graphs, parts = GRAPHS[task], {name: kind(**about[name]) for name, kind in PARTS.items() if name in about}
            found = cls(
                path,
                task,
                states,
                vocabularies,
                int(about["max_target"]),
                about["signature"],
                dict(about["checkpoint"]),
                starts=dict(about["starts"]),
                **parts,
            )
        except FileNotFoundError as error:
            raise LeapformerError(f"{path} has no {MODEL}; give a folder made by `leapformer export`") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LeapformerError(f"{path / MODEL} is damaged ({error}); export the model again") from error
        for name in (*graphs, WEIGHTS):
            if not (path / name).is_file():
                raise LeapformerError(f"{path} has no {name}; export the model again")
        return found

    def write(self) -> None:
        about = {
            "format": FORMAT,
            "task": self.task,
            "states": self.states,
            "starts": self.starts,
            "vocabularies": {side: asdict(one) for side, one in self.vocabularies.items()},
            "max_target": self.max_target,
            "signature": self.signature,
            "checkpoint": self.origin,
            **{name: asdict(getattr(self, name)) for name in PARTS if getattr(self, name) is not None},
        }
        write_json(self.path / MODEL, about)
