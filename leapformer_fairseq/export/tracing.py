"""Makes graphs of parts of a model, and rounds their weights to 8 bits."""

from __future__ import annotations

import logging
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..attention.ops import dispatch
from ..runtime.folder import NEXT, Shapes
from ..support.errors import LeapformerError
from ..support.files import replacing
from .layout import simplify

SENTENCES, HYPOTHESES, LONGEST = 2, 3, 7  # sizes of the examples that are traced
SMALL = 1 / 4  # of the usual weight: smaller ones are not rounded, since rounding what they multiply costs more
ANY = torch.export.Dim.DYNAMIC  # a size that must stay variable; export fails if the graph would fix it


def write_with_states(
    part: nn.Module,
    given: Mapping[str, torch.Tensor],
    states: Sequence[tuple[Shapes, int]],
    outputs: Sequence[str],
    path: Path,
    sizes: Mapping[str, dict[int, Any]] | None = None,
) -> None:
    """Write the graph of a part whose last inputs are states, and whose last outputs are the first group of them.

    given:   examples of the other inputs, by name.
    states:  groups of states: their shapes, and the rows of the examples.
    outputs: names of the other outputs.
    sizes:   the variable dimensions of each of the `given` inputs; the rows of states are then variable, too. None:
             only the sizes of states that grow are variable.
    """
    held = [
        [torch.zeros(rows, *(size or LONGEST for size in shape)) for shape in shapes.values()]
        for shapes, rows in states
    ]
    batch = {} if sizes is None else {0: ANY}
    vary = [
        [{**batch, **{axis: ANY for axis, size in enumerate(shape, 1) if not size}} for shape in shapes.values()]
        for shapes, _ in states
    ]
    dynamic = (*({} if sizes is None else sizes[name] for name in given), *vary)
    names, after = [name for shapes, _ in states for name in shapes], [f"{name}{NEXT}" for name in states[0][0]]
    write_graph(part, (*given.values(), *held), dynamic, [*given, *names], [*outputs, *after], path)


def write_graph(
    part: nn.Module, given: tuple[Any, ...], dynamic: Any, inputs: Sequence[str], outputs: Sequence[str], path: Path
) -> None:
    """Trace a part of a model with an example and write its graph."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise LeapformerError(f"{error.name} is not installed; pip install 'leapformer-fairseq[onnx]'") from error
    # No gradient is needed, but with gradients enabled states are not changed in place, which a graph cannot do. The
    # override makes the choice of an implementation independent of the example's length.
    with (
        _quiet(),
        _without_inexact_rules(),
        _one_table(),
        torch.enable_grad(),
        dispatch.override(pairs=0, pairs_per_token=0),
        dispatch.for_onnx(),
    ):
        try:
            traced = torch.export.export(part.eval(), given, dynamic_shapes=dynamic, strict=False)
            program = torch.onnx.export(
                traced, given, dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
            )
        except LeapformerError:
            raise
        except Exception as error:  # torch raises many kinds
            reason = str(error).strip().partition("\n")[0][:200]
            raise LeapformerError(
                f"{path.name}: PyTorch cannot make a graph of this model ({reason}); try other mechanisms"
            ) from error
    assert program is not None
    model = program.model_proto
    simplify(model)
    path.write_bytes(model.SerializeToString())


def quantize_graph(path: Path) -> None:
    """Round the weights and embeddings of one graph to 8 bits (see `quantize`)."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    onnxruntime.set_default_logger_severity(3)  # errors only
    with replacing(path) as partial, _quiet():
        # This stores weights transposed that the graph transposes; otherwise they would not be quantized, or be made
        # float32 again for every token. It does not look at weights in other files.
        onnx.save(onnx.load(path), partial)
        quant_pre_process(partial, partial, skip_onnx_shape=True, skip_symbolic_shape=True)
        # Signed weights, for processors that multiply them with unsigned inputs at once. Others add pairs of products
        # in 16 bits, which can overflow, so there the runtime makes them unsigned (`runtime.engine.open_graph`).
        model, kinds = onnx.load(partial), ["MatMul", "Gemm", "Gather"]
        sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
        products = [
            sizes[node.input[1]] for node in model.graph.node if node.op_type in kinds[:2] and node.input[1] in sizes
        ]
        least = SMALL * statistics.median(products or [0])
        for number, node in enumerate(model.graph.node):
            node.name = f"node{number}"
        small = [node for node in model.graph.node if sizes.get([*node.input, "", ""][1], least) < least]
        left = [name for node in small for name in (node.name, f"{node.name}_MatMul")]  # as which a Gemm is rewritten
        onnx.save(model, partial)
        quantize_dynamic(
            partial,
            partial,
            kinds,
            nodes_to_exclude=left,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # of the results of onnxruntime's own operators
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )


@contextmanager
def _without_inexact_rules() -> Iterator[None]:
    """Turn off onnxscript's rules that remove sums with 0 and products with 1, up to 1e-8.

    Constants that prevent 0 / 0 are smaller than that, and without them padding becomes NaN.
    """
    from onnxscript import rewriter
    from onnxscript.rewriter.rules.common import _no_op

    rules, inexact = rewriter._DEFAULT_REWRITE_RULES, {id(rule) for rule in _no_op.rules}
    rewriter._DEFAULT_REWRITE_RULES = tuple(rule for rule in rules if id(rule) not in inexact)
    try:
        yield
    finally:
        rewriter._DEFAULT_REWRITE_RULES = rules


@cache
def _tables() -> tuple[Any, Any]:
    """torch's class of tables from its operators to those of ONNX, and a function that makes each of them once."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    return ONNXRegistry, staticmethod(cache(ONNXRegistry.from_torchlib))


@contextmanager
def _one_table() -> Iterator[None]:
    """Let all graphs of a process have one table of operators, which nothing changes.

    torch makes it for each graph from the sources of 500 functions, in a fifth of the time that a small graph takes.
    """
    kind, once = _tables()
    before = vars(kind)["from_torchlib"]
    kind.from_torchlib = once
    try:
        yield
    finally:
        kind.from_torchlib = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages and warnings of torch and onnxscript."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
