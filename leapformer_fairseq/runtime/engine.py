"""The graphs of a folder in onnxruntime. States stay in the runtime: what a step returns goes into the next one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import LeapformerError
from .folder import LOG_PROBS, NEXT, SOURCE, STEP, Folder

Values = dict[str, Any]  # onnxruntime's, by name


class Engine:
    """Reads sources and steps through targets."""

    def __init__(self, folder: Folder, threads: int = 1) -> None:
        """Raises LeapformerError without onnxruntime, and for graphs that it cannot read."""
        try:
            import onnxruntime
        except ImportError as error:
            raise LeapformerError("onnxruntime is not installed; pip install onnxruntime") from error
        self._runtime, self.folder = onnxruntime, folder
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        try:
            self._source, self._step = (
                onnxruntime.InferenceSession(str(folder.path / name), options, providers=["CPUExecutionProvider"])
                for name in (SOURCE, STEP)
            )
        except Exception as error:  # onnxruntime's have no common class
            reason = " ".join(str(error).split())[:200]
            raise LeapformerError(f"a graph in {folder.path} cannot be read ({reason}); export it again") from error

    def read(self, tokens: np.ndarray) -> Values:
        """What cross-attention needs of sources (B, S)."""
        found = self._source.run(list(self.folder.source), {"tokens": tokens.astype(np.int64)})
        return {name: self._value(value) for name, value in zip(self.folder.source, found, strict=True)}

    def repeated(self, source: Values, count: int) -> Values:
        """The same for `count` hypotheses of each sentence, side by side."""
        return {name: self._value(np.repeat(value.numpy(), count, 0)) for name, value in source.items()}

    def begin(self, rows: int) -> Values:
        """The states of self-attention before the first token."""
        return {name: self._value(np.zeros((rows, *shape), np.float32)) for name, shape in self.folder.own.items()}

    def step(
        self, tokens: np.ndarray, position: int, order: np.ndarray, own: Values, source: Values
    ) -> tuple[np.ndarray, Values]:
        """Log-probabilities (B, V) after tokens (B,) at `position`, from 1, and the states; `order` as in the graph."""
        binding = self._step.io_binding()
        rows = {"tokens": tokens, "positions": np.full(len(tokens), position), "order": order}
        for name, value in rows.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value, np.int64))
        for name, value in {**own, **source}.items():
            binding.bind_ortvalue_input(name, value)
        names = [LOG_PROBS, *(f"{name}{NEXT}" for name in own)]
        for name in names:
            binding.bind_output(name)
        self._step.run_with_iobinding(binding)
        log_probs, *states = binding.get_outputs()
        return log_probs.numpy(), dict(zip(own, states, strict=True))

    def _value(self, array: np.ndarray) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
