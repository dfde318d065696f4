"""The ends of sentences in continuous speech, found by a small network that hears each unit of 40 ms once.

The network's formula stands in one ONNX graph, `sentences.onnx` beside this file, which Python and the browser both
run; a trained network is what the graph is given as inputs.

Speakers do not pause after each sentence. As in SHAS (Tsiamas et al., 2022, arXiv:2202.04774), a network is trained on
known segments to find the ends; this one is causal, and looks at filterbank frames: a linear layer, a gated recurrent
unit (Cho et al., 2014, arXiv:1406.1078, as in PyTorch), the probability that a sentence ended a moment ago, and when
exactly: models of single sentences may be sensitive to 40 ms more or less.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..support.errors import LeapformerError
from ..support.files import replacing
from .acoustics.fbank import IR_VERSION, OPSET, WINDOW_MS
from .audio import FRAME_MS, SAMPLE_RATE, UNIT_MS, OnlineFbank
from .engine import open_graph

BUNDLED = Path(__file__).with_name("sentences.onnx")
STEP, STATE = "frames", "state"  # further inputs of the graph: (4, F) and (D,)
CHANCE, AFTER, NEXT = "chance", "after", "state.next"  # outputs: (1,), (1,) and (D,)
FORMAT = 1
FRAMES = UNIT_MS // FRAME_MS  # per step, which is a unit
HOP = SAMPLE_RATE * FRAME_MS // 1000
NEAR = 2 * FRAMES  # frames: the largest offset of an end from the step that reports it
BETWEEN = (WINDOW_MS - FRAME_MS) * SAMPLE_RATE // 2000  # from a frame's first sample to the middle of its overlap


@dataclass(frozen=True, eq=False)
class SentenceModel:
    """A trained network of D units for frames of F bins, float32.

    mean, std:   of frames, (F,).
    enter_*:     the linear layer before the unit, (D, 4 F) and (D,).
    input_*:     of the unit, for what enters, (3 D, D) and (3 D,): reset, update, new; state_*: for its state.
    leave_*:     from the state to the logit and to the end, in frames after `ahead` steps before, (2, D) and (2,).
    ahead:       steps after the end of a sentence that the network hears before it reports the end.
    threshold:   the probability above which a sentence has ended.
    about:       its training data and settings, and its scores.
    """

    mean: np.ndarray
    std: np.ndarray
    enter_weight: np.ndarray
    enter_bias: np.ndarray
    input_weight: np.ndarray
    input_bias: np.ndarray
    state_weight: np.ndarray
    state_bias: np.ndarray
    leave_weight: np.ndarray
    leave_bias: np.ndarray
    ahead: int
    threshold: float
    about: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> SentenceModel:
        """Read a file written by `leapformer sentence-ends`. Raises LeapformerError for any other."""
        remedy = "train it with `leapformer sentence-ends`"
        if not Path(path).is_file():
            raise LeapformerError(f"--sentence-ends {path}: no such file; {remedy}")
        try:
            with np.load(path) as file:
                about: dict[str, Any] = json.loads(str(file["about"]))
                arrays = {name: file[name] for name in ARRAYS}
            if about.pop("format") != FORMAT:
                raise ValueError("of another version")
            model = cls(**arrays, ahead=int(about["ahead"]), threshold=float(about["threshold"]), about=about)
        except (KeyError, ValueError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise LeapformerError(f"--sentence-ends {path} cannot be read ({error}); {remedy}") from error
        if wrong := model._wrong():
            raise LeapformerError(f"--sentence-ends {path}: {wrong}; {remedy}")
        return model

    def save(self, path: str | Path) -> None:
        about = {**self.about, "format": FORMAT, "ahead": self.ahead, "threshold": self.threshold}
        with replacing(Path(path)) as partial, partial.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **{name: getattr(self, name) for name in ARRAYS})

    @property
    def delay(self) -> int:
        """Units that are heard after the end of a sentence before it is known.

        A step's frames reach into the unit after it, and an end may be reported a step late.
        """
        return self.ahead + 2

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays, for this number of units and bins."""
        units, bins = len(self.enter_bias), len(self.mean)
        return {
            "mean": (bins,),
            "std": (bins,),
            "enter_weight": (units, FRAMES * bins),
            "enter_bias": (units,),
            "input_weight": (3 * units, units),
            "input_bias": (3 * units,),
            "state_weight": (3 * units, units),
            "state_bias": (3 * units,),
            "leave_weight": (2, units),
            "leave_bias": (2,),
        }

    def _wrong(self) -> str:
        """Why the network cannot be used; empty if it can."""
        for name in ARRAYS:
            array = getattr(self, name)
            if array.ndim == 0 or not np.issubdtype(array.dtype, np.floating) or not np.isfinite(array).all():
                return f"{name} is no array of numbers"
        for name, shape in self.shapes.items():
            if getattr(self, name).shape != shape:
                return f"{name} has shape {getattr(self, name).shape}, not {shape}"
        return "" if self.ahead >= 0 and 0 < self.threshold < 1 else "ahead or threshold is out of range"


ARRAYS = tuple(field.name for field in fields(SentenceModel) if field.name not in ("ahead", "threshold", "about"))


class SentenceEnds:
    """The network while it hears one recording: `push` a unit of audio at a time."""

    def __init__(self, model: SentenceModel) -> None:
        self.model = model
        self._fbank = OnlineFbank(SAMPLE_RATE, len(model.mean))
        self._frames = np.zeros((0, len(model.mean)), np.float32)
        self._weights = {name: np.asarray(getattr(model, name), np.float32) for name in ARRAYS}
        self._state = np.zeros(len(model.enter_bias), np.float32)
        self._steps = 0

    def push(self, unit: np.ndarray) -> int | None:
        """Add a unit, and return the sample of the recording at which a sentence ended, if that is known now."""
        self._frames = np.concatenate([self._frames, self._fbank.push(unit)])
        end = None
        while len(self._frames) >= FRAMES:
            chance, after = self.step(self._frames[:FRAMES])
            if chance > self.model.threshold:
                after = min(max(after, -NEAR), NEAR)  # whatever the network predicts
                frame = (self._steps - self.model.ahead) * FRAMES + after
                end = round(frame * HOP) + BETWEEN
            self._frames, self._steps = self._frames[FRAMES:], self._steps + 1
        return end

    def step(self, frames: np.ndarray) -> tuple[float, float]:
        """Add the frames (4, F) of a step; return the probability that a sentence ended around `model.ahead` steps
        before, and how many frames after that time.
        """
        given = {**self._weights, STEP: frames, STATE: self._state}
        chance, after, self._state = _network().run([CHANCE, AFTER, NEXT], given)
        return float(chance[0]), float(after[0])


@lru_cache
def _network() -> Any:
    """The graph in onnxruntime, loaded once per process; any number of threads may run it."""
    return open_graph(BUNDLED)


def graph() -> bytes:
    """The ONNX model of a step: `ARRAYS`, `STEP` and `STATE` to `CHANCE`, `AFTER` and `NEXT`, for any D and F."""
    from onnx import TensorProto, checker, helper, numpy_helper

    nodes: list[Any] = []

    def op(kind: str, *inputs: str, out: tuple[str, ...] = (), **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), list(out) or [f"{kind}_{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def linear(layer: str, x: str) -> str:
        return op("Add", op("MatMul", f"{layer}_weight", x), f"{layer}_bias")

    def values(shapes: dict[str, list[Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    frames = op("Reshape", op("Div", op("Sub", STEP, "mean"), "std"), "flat")
    op("Split", linear("input", op("Relu", linear("enter", frames))), out=("new_reset", "new_update", "new"), axis=0)
    op("Split", linear("state", STATE), out=("old_reset", "old_update", "old"), axis=0)
    reset, update = (op("Sigmoid", op("Add", f"new_{gate}", f"old_{gate}")) for gate in ("reset", "update"))
    candidate = op("Tanh", op("Add", "new", op("Mul", reset, "old")))
    op("Add", candidate, op("Mul", update, op("Sub", STATE, candidate)), out=(NEXT,))
    op("Split", linear("leave", NEXT), out=("logit", AFTER), axis=0)
    op("Sigmoid", "logit", out=(CHANCE,))
    shapes: dict[str, list[Any]] = {
        "mean": ["F"], "std": ["F"], "enter_weight": ["D", "4F"], "enter_bias": ["D"], "input_weight": ["3D", "D"],
        "input_bias": ["3D"], "state_weight": ["3D", "D"], "state_bias": ["3D"], "leave_weight": [2, "D"],
        "leave_bias": [2], STEP: [FRAMES, "F"], STATE: ["D"],
    }  # fmt: skip
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "sentences",
            values(shapes),
            values({CHANCE: [1], AFTER: [1], NEXT: ["D"]}),
            [numpy_helper.from_array(np.array([-1], np.int64), "flat")],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
