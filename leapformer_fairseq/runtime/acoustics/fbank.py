"""Log-mel filterbank frames as Kaldi computes them, as an ONNX graph that Python and the browser both run.

`graph` builds it for any sample rate and number of bins; `fbank.onnx` beside this file is the one for 16 kHz and 80
bins, so that the usual case needs onnxruntime alone. The graph is the only place where the formula stands.

Inside, everything up to the power spectrum is float64: float32, which Kaldi uses, loses bins that are 70 dB below the
loudest.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...support.errors import LeapformerError
from ..engine import open_graph

BUNDLED = Path(__file__).with_name("fbank.onnx")
BUNDLED_SIZE = 16_000, 80  # Hz and bins
SAMPLES, FRAMES = "samples", "frames"  # the input (N,) in [-1, 1] and the output (frames, bins), both float32
WINDOW_MS, HOP_MS = 25, 10
PREEMPHASIS = 0.97
LOWEST_HZ = 20.0
SCALE = 2.0**15  # Kaldi's features are those of 16-bit integers
FLOOR = np.finfo(np.float32).eps  # of an energy
OPSET, IR_VERSION = 17, 8


def lengths(sample_rate: int) -> tuple[int, int]:
    """Samples of a window, and from the start of a window to the next."""
    return int(sample_rate * 0.001 * WINDOW_MS), int(sample_rate * 0.001 * HOP_MS)


@lru_cache
def session(sample_rate: int, bins: int) -> Any:
    """The graph in onnxruntime, loaded once per process; any number of threads may run it.

    Raises LeapformerError for another size than the bundled one if onnx is not installed.
    """
    if (sample_rate, bins) == BUNDLED_SIZE:
        return open_graph(BUNDLED)
    try:
        model = graph(sample_rate, bins)
    except ImportError as error:
        raise LeapformerError(
            f"{bins} filterbank bins at {sample_rate} Hz need a graph of their own; pip install onnx, or take "
            f"{BUNDLED_SIZE[1]} bins at {BUNDLED_SIZE[0]} Hz"
        ) from error
    return open_graph(model)


def mel_weights(sample_rate: int, n_fft: int, bins: int) -> np.ndarray:
    """Kaldi's triangles, (n_fft // 2, bins): straight in mel, equally far apart from 20 Hz to half the sample rate."""
    first, last = _mel(np.array([LOWEST_HZ, sample_rate / 2]))
    width = (last - first) / (bins + 1)
    place = (_mel(np.arange(n_fft // 2) * sample_rate / n_fft)[:, None] - first) / width - np.arange(bins)
    return np.minimum(place, 2 - place).clip(min=0)  # 0 at the left corner, 1 at the top, 0 at the right


def _mel(hertz: np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(hertz / 700)


def graph(sample_rate: int = BUNDLED_SIZE[0], bins: int = BUNDLED_SIZE[1]) -> bytes:
    """The ONNX model: `samples` (N,) of whole windows to `frames` (1 + (N - window) // hop, bins).

    A window is centred before its Fourier transform, which changes no power. Of its even part u and odd part v (half a
    window each), frequency k then has the power (u cos)^2 + (v sin)^2. With alternating signs, frequency n_fft / 2 - k
    uses the same cosines and sines: the matrices are a quarter as large as those of a plain transform.
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    window, hop = lengths(sample_rate)
    n_fft = 1 << (window - 1).bit_length()
    half, quarter, odd = (window + 1) // 2, n_fft // 4, window % 2
    nodes: list[Any] = []
    constants: dict[str, np.ndarray] = {}

    def constant(name: str, value: Any, kind: Any = np.int64) -> str:
        constants[name] = np.asarray(value, kind)
        return name

    def op(kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [out or f"{kind}_{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def cut(x: str, start: int, stop: int, step: int = 1, axis: int = 1) -> str:
        """x[start:stop:step] along an axis."""
        bounds = {"start": start, "stop": stop, "axis": axis, "step": step}
        return op("Slice", x, *(constant(f"{name}_{value}", [value]) for name, value in bounds.items()))

    # Rows of one hop each, of which a window has some in a row.
    hops = -(-window // hop)
    padded = op("Concat", SAMPLES, constant("silence", np.zeros(hops * hop - window), np.float32), axis=0)
    blocks = op("Reshape", padded, constant("hop", [-1, hop]))
    ends = [i + 1 - hops or np.iinfo(np.int64).max for i in range(hops)]
    windows = cut(op("Concat", *(cut(blocks, i, ends[i], axis=0) for i in range(hops)), axis=1), 0, window)
    x = op("Cast", windows, to=TensorProto.DOUBLE)
    x = op("Sub", x, op("ReduceMean", x, axes=[1], keepdims=1))
    before = op("Concat", cut(x, 0, 1), cut(x, 0, -1), axis=1)  # before the first sample stands the first
    x = op("Sub", x, op("Mul", before, constant("preemphasis", PREEMPHASIS, np.float64)))
    povey = SCALE * np.hanning(window) ** 0.85
    if odd:
        povey[half - 1] /= 2  # the sample in the middle is in both halves
    x = op("Mul", x, constant("povey", povey, np.float64))

    later, earlier = cut(x, window - half, window), cut(x, half - 1, -window - 1, -1)
    u, v = op("Add", later, earlier), op("Sub", later, earlier)
    signs = constant("signs", (-1.0) ** np.arange(half), np.float64)
    turned_u, turned_v = op("Mul", u, signs), op("Mul", v, signs)
    # The matrices are read from a table of 2 n_fft angles when the graph is loaded: the file stays small.
    twice_the_time = constant("twice_the_time", 2 * np.arange(half)[:, None] + (1 - odd))
    angles = op("Mul", twice_the_time, constant("frequencies", np.arange(1, quarter + 1)))
    angles = op("Mod", angles, constant("turn", 2 * n_fft))
    turn = np.pi / n_fft * np.arange(2 * n_fft)
    cosines = op("Gather", constant("cosines", np.cos(turn), np.float64), angles)
    sines = op("Gather", constant("sines", np.sin(turn), np.float64), angles)
    rows = constant("rows", [-1, half])
    of_cosines = op("Reshape", op("Concat", u, turned_u if odd else turned_v, axis=1), rows)
    of_sines = op("Reshape", op("Concat", v, turned_v if odd else turned_u, axis=1), rows)
    real = op("MatMul", of_cosines, cosines)
    imaginary = op("MatMul", of_sines, sines)
    power = op("Add", op("Mul", real, real), op("Mul", imaginary, imaginary))
    power = op("Cast", op("Reshape", power, constant("powers", [-1, 2 * quarter])), to=TensorProto.FLOAT)
    weights = mel_weights(sample_rate, n_fft, bins)
    weights = np.concatenate([weights[1 : quarter + 1], weights[: quarter - 1 : -1]])
    weights[-1] = 0  # the frequency in the middle is in both halves
    energy = op("MatMul", power, constant("mel", weights, np.float32))
    op("Log", op("Max", energy, constant("floor", FLOOR, np.float32)), out=FRAMES)

    model = helper.make_model(
        helper.make_graph(
            nodes,
            "fbank",
            [helper.make_tensor_value_info(SAMPLES, TensorProto.FLOAT, ["N"])],
            [helper.make_tensor_value_info(FRAMES, TensorProto.FLOAT, [FRAMES, bins])],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())
