"""Fewer changes of layout in a graph: what a few tokens cost is mostly the number of its operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

# Functions of single numbers, given constants for their other inputs: they can as well come before a change of layout.
ELEMENTWISE = {"Add", "Clip", "Cos", "Div", "Erf", "Exp", "Mul", "Neg", "Relu", "Sigmoid", "Softplus", "Sub", "Tanh"}
FEW = 16  # numbers in a constant that rules look at


def simplify(model: Any) -> None:
    """Rewrite the main graph of an ONNX model in place, with the same results.

    Functions of single numbers move before changes of layout, where onnxruntime fuses them with products. Of several
    changes of shape in a row only the last is left, and none that changes nothing.
    """
    while _moved(model.graph):
        pass
    _skip_unchanged(model.graph)
    _drop_unused(model.graph)
    model.graph.ClearField("value_info")  # shapes of results, some of which have changed


def _constants(graph: Any) -> dict[str, np.ndarray]:
    from onnx import numpy_helper

    small = (tensor for tensor in graph.initializer if np.prod(tensor.dims) <= FEW)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in small}


def _moved(graph: Any) -> bool:
    """Move functions of single numbers and merge changes of shape, once. Whether anything has changed."""
    constants, changed = _constants(graph), False
    makers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    for node in graph.node:
        before = makers.get(node.input[0]) if node.input else None
        if before is None or before.op_type not in ("Reshape", "Transpose"):
            continue
        if node.op_type in ELEMENTWISE and uses[node.input[0]] == 1:
            others = [constants.get(name) for name in node.input[1:] if name]
            if all(other is not None and other.size == 1 and other.ndim < 2 for other in others):
                _exchange(before, node)
                changed = True
        elif before.op_type == node.op_type == "Transpose":
            changed |= _joined(before, node)
        elif before.op_type == "Reshape" and node.op_type in ("Reshape", "Squeeze", "Transpose", "Unsqueeze"):
            changed |= _merged(before, node, constants, graph)
    return changed


def _exchange(before: Any, after: Any) -> None:
    """From after(before(x)) to before(after(x)), with the same name for the result."""
    first, second = type(before)(), type(before)()
    first.CopyFrom(after), second.CopyFrom(before)
    first.input[0], first.output[0] = before.input[0], before.output[0]
    second.input[0], second.output[0] = before.output[0], after.output[0]
    before.CopyFrom(first), after.CopyFrom(second)


def _joined(before: Any, node: Any) -> bool:
    """Make two transpositions one."""
    first, then = (list(one.attribute[0].ints) if one.attribute else None for one in (before, node))
    if first is None or then is None:
        return False
    node.input[0] = before.input[0]
    node.attribute[0].ints[:] = [first[axis] for axis in then]
    return True


def _merged(before: Any, node: Any, constants: Mapping[str, np.ndarray], graph: Any) -> bool:
    """Make a change of shape after a Reshape a single Reshape, if it can be. A size of 0 is that of the input."""
    from onnx import helper, numpy_helper

    by = constants.get(node.input[1]) if len(node.input) > 1 else None
    if node.op_type == "Transpose":
        by = np.array(node.attribute[0].ints) if node.attribute else None
    if node.op_type == "Reshape":
        if by is not None and not by.all():
            return False
        node.input[0] = before.input[0]
        return True
    shape = constants.get(before.input[1])
    if by is None or shape is None or not shape.all():
        return False
    sizes = shape.tolist()
    if node.op_type == "Transpose":
        longer = [axis for axis in by.tolist() if sizes[axis] != 1]
        if longer != sorted(longer):
            return False
        sizes = [sizes[axis] for axis in by.tolist()]
    elif node.op_type == "Squeeze":
        axes = {axis % len(sizes) for axis in by.tolist()}
        sizes = [size for axis, size in enumerate(sizes) if axis not in axes]
    else:
        for axis in sorted(axis % (len(sizes) + len(by)) for axis in by.tolist()):
            sizes.insert(axis, 1)
    name = f"{node.output[0]}.shape"
    graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), name))
    node.CopyFrom(helper.make_node("Reshape", [before.input[0], name], [*node.output]))
    return True


def _skip_unchanged(graph: Any) -> None:
    """Skip every Reshape to the shape that its input has."""
    constants, shapes, same = _constants(graph), dict[str, list[int]](), dict[str, str]()
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        known = shapes.get(node.input[0]) if node.input else None
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        if node.op_type == "Transpose" and node.attribute and node.output[0] not in outputs:
            order = list(node.attribute[0].ints)
            if order == sorted(order):
                same[node.output[0]] = node.input[0]
        elif node.op_type == "Reshape" and (sizes := constants.get(node.input[1])) is not None and sizes.all():
            shapes[node.output[0]] = sizes.tolist()
            if known == sizes.tolist() and node.output[0] not in outputs:
                same[node.output[0]] = node.input[0]
        elif node.op_type == "Split" and known is not None and len(node.input) == 1 and known[axis] > 0:
            for name in node.output:
                shapes[name] = [*known]
                shapes[name][axis] //= len(node.output)


def _drop_unused(graph: Any) -> None:
    """Drop operators and constants whose results nothing needs."""
    needed, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            loops = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
            needed.update(name for loop in loops for inner in loop.node for name in inner.input)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)
