"""Fewer changes of layout in a graph: what a few tokens cost is mostly the number of its operators."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

# Functions of single numbers, given constants for their other inputs: they can as well come before a change of layout.
ELEMENTWISE = {"Add", "Clip", "Cos", "Div", "Erf", "Exp", "Mul", "Neg", "Relu", "Sigmoid", "Softplus", "Sub", "Tanh"}


def simplify(model: Any) -> None:
    """Rewrite the main graph of an ONNX model in place, with the same results.

    Functions of single numbers move before changes of layout, where onnxruntime fuses them with products, and of
    several changes of shape in a row only the last is left.
    """
    while _simpler(model.graph):
        pass
    _drop_unused(model.graph)


def _simpler(graph: Any) -> bool:
    """Apply the rules wherever they fit, once. Whether something has changed."""
    from onnx import helper, numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    changed = False
    for node in graph.node:
        before = makers.get(node.input[0]) if node.input else None
        if before is None or before.op_type not in ("Reshape", "Transpose"):
            continue
        if node.op_type in ELEMENTWISE and uses[node.input[0]] == 1:
            others = [constants.get(name) for name in node.input[1:] if name]
            if all(other is not None and other.size == 1 and other.ndim < 2 for other in others):
                _exchange(before, node)
                changed = True
        elif before.op_type == "Reshape" and node.op_type in ("Reshape", "Unsqueeze"):
            sizes, by = (constants.get(one.input[1]) for one in (before, node))
            if node.op_type == "Unsqueeze":
                if by is None or sizes is None or not sizes.all():  # a size of 0 is that of the input
                    continue
                shape = list(map(int, sizes))
                for axis in sorted(int(axis) % (len(sizes) + len(by)) for axis in by):
                    shape.insert(axis, 1)
                name = f"{node.output[0]}.shape"
                graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
                node.CopyFrom(helper.make_node("Reshape", [before.input[0], name], [*node.output]))
            elif by is None or by.all():
                node.input[0] = before.input[0]
            else:
                continue
            changed = True
    return changed


def _exchange(before: Any, after: Any) -> None:
    """From after(before(x)) to before(after(x)), with the same name for the result."""
    first, second = type(before)(), type(before)()
    first.CopyFrom(after), second.CopyFrom(before)
    first.input[0], first.output[0] = before.input[0], before.output[0]
    second.input[0], second.output[0] = before.output[0], after.output[0]
    before.CopyFrom(first), after.CopyFrom(second)


def _drop_unused(graph: Any) -> None:
    """Drop operators and constants whose results nothing needs."""
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            loops = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            needed.update(name for loop in loops for inner in loop.node for name in inner.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(constants)
