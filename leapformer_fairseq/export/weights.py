"""The weights of a folder's graphs, each stored once in a common file.

The file has the format of safetensors (a JSON header with names, types, shapes and offsets, then the numbers), so that
other programs can read it, too. For onnxruntime it is the external data of the graphs.
"""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..runtime.folder import GRAPHS, WEIGHTS, Folder
from ..support.files import replacing

LEAST = 1024  # bytes; smaller tensors stay in their graph
KINDS = {"float32": "F32", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}  # names in safetensors


class Shared(NamedTuple):
    """An array in the file, and the tensors of the graphs that are equal to it."""

    name: str
    array: np.ndarray
    tensors: list[Any]


def share(folder: Folder) -> None:
    """Move the weights of all graphs of a folder into one file."""
    import onnx

    models = {name: onnx.load(folder.path / name) for name in GRAPHS[folder.task]}
    weights: dict[tuple[bytes, str, tuple[int, ...]], Shared] = {}
    for graph, model in models.items():
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.nbytes < LEAST or array.dtype.name not in KINDS:
                continue
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))  # as raw bytes, if it was not
            key = array.tobytes(), array.dtype.name, array.shape
            if key not in weights:
                taken = any(weight.name == tensor.name for weight in weights.values())
                weights[key] = Shared(f"{Path(graph).stem}.{tensor.name}" if taken else tensor.name, array, [])
            weights[key].tensors.append(tensor)
    # In this order all are aligned without gaps.
    shared = sorted(weights.values(), key=lambda weight: -weight.array.itemsize)
    with replacing(folder.path / WEIGHTS) as partial:
        starts = _write(shared, partial)
    for weight, start in zip(shared, starts, strict=True):
        for tensor in weight.tensors:
            onnx.external_data_helper.set_external_data(tensor, WEIGHTS, start, weight.array.nbytes)
            tensor.ClearField("raw_data")
    for graph, model in models.items():
        model.ClearField("metadata_props")
        _slim(model.graph)
        with replacing(folder.path / graph) as partial:
            partial.write_bytes(model.SerializeToString())


def _slim(graph: Any) -> None:
    """Drop what no runtime needs: shapes of intermediate values, metadata, and long names."""
    graph.ClearField("value_info")
    named = [*graph.input, *graph.output, *graph.initializer]
    for value in named:
        value.ClearField("metadata_props")
    kept = {value.name for value in named}
    intermediate = [name for node in graph.node for name in node.output if name and name not in kept]
    free = (name for number in count() if (name := f"_{number}") not in kept)
    _rename(graph, dict(zip(intermediate, free, strict=False)))


def _rename(graph: Any, names: dict[str, str]) -> None:
    """Rename values of a graph, also where loops inside it use them, and delete the names of its operators."""
    for node in graph.node:
        for field in "name", "doc_string", "metadata_props":
            node.ClearField(field)
        for values in node.input, node.output:
            values[:] = [names.get(name, name) for name in values]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                loop = attribute.g
                inner = {value.name for value in (*loop.input, *loop.initializer)}
                inner |= {name for inner_node in loop.node for name in inner_node.output}
                outer = {name: new for name, new in names.items() if name not in inner}
                _rename(loop, outer)
                for value in loop.output:
                    value.name = outer.get(value.name, value.name)


def _write(weights: list[Shared], path: Path) -> list[int]:
    """Write the file; return where the bytes of each array begin in it."""
    arrays = [weight.array for weight in weights]
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)]).tolist()
    about = {
        weight.name: {"dtype": KINDS[array.dtype.name], "shape": list(array.shape), "data_offsets": [first, stop]}
        for weight, array, first, stop in zip(weights, arrays, offsets, offsets[1:], strict=False)
    }
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays:
            file.write(array.tobytes())
    return [8 + len(header) + offset for offset in offsets[:-1]]
