"""The graphs of an exported folder, run by onnxruntime.

States stay in onnxruntime's memory: what a step returns is the input of the next, without a copy.

Shapes: B sentences, R hypotheses of each, T tokens, S source tokens, V words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..support.errors import LeapformerError
from .folder import (
    ATTENTION,
    BEFORE,
    CROSS,
    FRAMES,
    GRAPHS,
    LOG_PROBS,
    NEXT,
    ONNX,
    ORDER,
    POSITIONS,
    PROMPT,
    SOURCE,
    SPEAKERS,
    STEP,
    TOKENS,
    WEIGHTS,
    Folder,
)
from .past import Past

PAST = "past"  # in `Values`
Values = dict[str, Any]  # `OrtValue`s by name, and, of steps that share memory, a `Past`
OLDEST = (1, 26)  # of onnxruntime with all operators that exported graphs may have
AT_ONCE = 256  # tokens of a text per run; softmax compares all pairs of them


def open_graph(graph: Path | bytes, threads: int = 1) -> Any:
    """A session of onnxruntime for a file or a serialised model; with one thread it survives a fork.

    Raises onnxruntime's own exceptions for a file that holds no graph.
    """
    import onnxruntime  # which takes longer than all else here

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    # Signed weights of 8 bits become unsigned where sums of their products could overflow (x86 before VNNI).
    options.add_session_config_entry("session.x64quantprecision", "1")
    source = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _remedy() -> str:
    """What to do about a graph that onnxruntime cannot read."""
    from onnxruntime import __version__ as version

    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST:
        return "export it again"
    return f"update onnxruntime {version} to {'.'.join(map(str, OLDEST))} or later"


class Graphs:
    """The graphs of a folder. They can be shared by any number of users and threads."""

    def __init__(self, folder: Folder, threads: int = 1, names: Sequence[str] | None = None) -> None:
        """Load the graphs with these `names`, or all. Raises LeapformerError for unreadable files, or for none."""
        if folder.engine != ONNX:
            raise LeapformerError(f"{folder.path} is for {folder.engine}; export it with --engine {ONNX} for this")
        self.folder = folder
        try:
            folder.file(WEIGHTS)  # which the graphs open
            self._sessions = {
                name: open_graph(folder.file(name), threads)
                for name in (GRAPHS[folder.task] if names is None else names)
            }
        except (LeapformerError, ImportError):
            raise
        except Exception as error:  # onnxruntime's have no common class
            reason = " ".join(str(error).split())[:200]
            raise LeapformerError(f"a graph in {folder.path} cannot be read ({reason}); {_remedy()}") from error

    def run(
        self,
        graph: str,
        given: Mapping[str, Any],
        outputs: Sequence[str],
        into: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[Any]:
        """Run a graph on arrays and `OrtValue`s, and return the named outputs as `OrtValue`s.

        `into`: the `OrtValue`s by name to which further outputs are written; they are returned behind the others.
        Raises LeapformerError if the graph does not have these inputs and outputs.
        """
        binding = self._sessions[graph].io_binding()
        try:
            for name, value in given.items():
                if isinstance(value, np.ndarray):
                    binding.bind_cpu_input(name, np.ascontiguousarray(value))
                else:
                    binding.bind_ortvalue_input(name, value)
            for name in outputs:
                binding.bind_output(name)
            for name, value in into.items():
                binding.bind_ortvalue_output(name, value)
            self._sessions[graph].run_with_iobinding(binding)
        except Exception as error:  # as above: the graph is not one of what model.json says
            reason = " ".join(str(error).split())[:200]
            raise LeapformerError(f"{self.folder.path / graph} cannot be run ({reason}); export it again") from error
        return list(binding.get_outputs())

    def advance(
        self,
        graph: str,
        given: Mapping[str, Any],
        states: Values,
        *outputs: str,
        into: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[list[Any], Values]:
        """Run a graph that updates states, and return the named outputs and the new states.

        `into`: states by name that are updated in place.
        """
        wanted = [*outputs, *(f"{name}{NEXT}" for name in states)]
        values = self.run(graph, {**given, **states}, wanted, {f"{name}{NEXT}": value for name, value in into.items()})
        return values[: len(outputs)], dict(zip(states, values[len(outputs) : len(wanted)], strict=True))

    def value(self, array: np.ndarray) -> Any:
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

    def begin(self, side: str, rows: int) -> Values:
        """The initial states of a kind of attention (`SELF`, `CROSS`, `HEARD`) for `rows` hypotheses."""
        shapes = self.folder.states[side]
        starts = {name: np.array(self.folder.starts.get(name, 0), np.float32) for name in shapes}
        return {name: self.value(np.broadcast_to(starts[name], (rows, *shape))) for name, shape in shapes.items()}

    def step(
        self, tokens: np.ndarray, position: int, order: np.ndarray, states: Values, source: Values
    ) -> tuple[np.ndarray, Values]:
        """Log-probabilities (B, R, V) after tokens (B, R) at `position`, from 1, and the states of self-attention.

        `order` (B, R) holds the entry of the self-attention states that each hypothesis continues. These must not be
        used again: memory that steps share is changed in place.
        """
        (log_probs,), states = self._step(tokens, position, order, states, source, LOG_PROBS)
        return log_probs, states

    def attending_step(
        self, tokens: np.ndarray, position: int, order: np.ndarray, states: Values, source: Values
    ) -> tuple[np.ndarray, np.ndarray, Values]:
        """`step`, which also returns the attention weights (B, R, S) of `folder.align_layer`, second."""
        (log_probs, weights), states = self._step(tokens, position, order, states, source, LOG_PROBS, ATTENTION)
        return log_probs, weights, states

    def _step(
        self, tokens: np.ndarray, position: int, order: np.ndarray, states: Values, source: Values, *outputs: str
    ) -> tuple[list[np.ndarray], Values]:
        rows = {TOKENS: tokens, POSITIONS: np.full(tokens.shape, position), ORDER: order}
        given = {**{name: value.astype(np.int64) for name, value in rows.items()}, **source}
        if not self.folder.shared:
            values, states = self.advance(STEP, given, states, *outputs)
            return [value.numpy() for value in values], states
        past = states.get(PAST) or Past.of({name: states[name].numpy() for name in self.folder.shared})
        past = past.next(given[ORDER], self.folder.max_target)
        moving = {name: value for name, value in states.items() if name not in (PAST, *self.folder.shared)}
        values, states = self.advance(STEP, {**given, **past.inputs()}, moving, *outputs, into=past.values())
        return [value.numpy() for value in values], {**states, PAST: past}

    def text(self, tokens: np.ndarray, states: Values, before: int = 0) -> tuple[np.ndarray, Values]:
        """Log-probabilities (B, T, V) of the token after each of the tokens (B, T), and the states after the last.

        `before` is the number of tokens that the states have read already. Positions of embeddings start from 1 all the
        same; those of attention continue.
        """
        parts = []
        for start in range(0, tokens.shape[1], AT_ONCE):
            piece = tokens[:, start : start + AT_ONCE].astype(np.int64)
            positions = np.broadcast_to(np.arange(start + 1, start + 1 + piece.shape[1]), piece.shape)
            given = {TOKENS: piece, POSITIONS: positions, BEFORE: np.array([before])}
            (log_probs,), states = self.advance(PROMPT, given, states, LOG_PROBS)
            parts.append(log_probs.numpy())
        return np.concatenate(parts, 1), states

    def read(self, tokens: np.ndarray, speakers: np.ndarray | None = None) -> Values:
        """The states of cross-attention over source tokens (B, S), spoken by `speakers` (B,) if there are several."""
        given = {TOKENS: tokens.astype(np.int64)}
        if speakers is not None:
            given[SPEAKERS] = speakers.astype(np.int64)
        return self._source(given)

    def hear(self, frames: np.ndarray) -> Values:
        """The states of cross-attention over the frames (T, n_bins) of a whole recording."""
        return self._source({FRAMES: frames[None].astype(np.float32)})

    def _source(self, given: Mapping[str, np.ndarray]) -> Values:
        names = list(self.folder.states[CROSS])
        return dict(zip(names, self.run(SOURCE, given, names), strict=True))
