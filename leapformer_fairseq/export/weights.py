"""The weights of a folder's graphs: in one file, each once, which the graphs and other programs read.

The file has the format of safetensors (a JSON header with names, types, shapes and offsets, then the numbers); to
onnxruntime it is external data of the graphs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..runtime.folder import GRAPHS, WEIGHTS, Folder
from ..support.files import replacing

LEAST = 1024  # bytes; what is smaller stays in its graph
KINDS = {"float32": "F32", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8"}  # as safetensors calls them


class Shared(NamedTuple):
    """Numbers, and the tensors that hold them in some graph."""

    name: str
    array: np.ndarray
    tensors: list[Any]


def share(folder: Folder) -> None:
    """Move the weights of all graphs into one file."""
    import onnx

    models = {name: onnx.load(folder.path / name) for name in GRAPHS[folder.task]}
    found: dict[tuple[bytes, str, tuple[int, ...]], Shared] = {}
    for graph, model in models.items():
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.nbytes < LEAST or array.dtype.name not in KINDS:
                continue
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))  # as bytes, if it was anything else
            key = array.tobytes(), array.dtype.name, array.shape
            if key not in found:
                taken = any(one.name == tensor.name for one in found.values())
                found[key] = Shared(f"{Path(graph).stem}.{tensor.name}" if taken else tensor.name, array, [])
            found[key].tensors.append(tensor)
    shared = sorted(found.values(), key=lambda one: -one.array.itemsize)  # so that all are aligned without gaps
    with replacing(folder.path / WEIGHTS) as partial:
        starts = _write(shared, partial)
    for one, start in zip(shared, starts, strict=True):
        for tensor in one.tensors:
            onnx.external_data_helper.set_external_data(tensor, WEIGHTS, start, one.array.nbytes)
            tensor.ClearField("raw_data")
    for graph, model in models.items():
        model.ClearField("metadata_props")
        _slim(model.graph)
        with replacing(folder.path / graph) as partial:
            partial.write_bytes(model.SerializeToString())


def _slim(graph: Any) -> None:
    """Drop what no runtime needs: shapes between the operators, where they came from, and long names."""
    graph.ClearField("value_info")
    named = [*graph.input, *graph.output, *graph.initializer]
    for one in named:
        one.ClearField("metadata_props")
    kept = {one.name for one in named}
    made = [name for node in graph.node for name in node.output if name and name not in kept]
    _rename(graph, {name: f"_{number}" for number, name in enumerate(made)})


def _rename(graph: Any, names: dict[str, str]) -> None:
    """Rename values of a graph, also where the loops in it take them, and forget what its operators are called."""
    for node in graph.node:
        for field in "name", "doc_string", "metadata_props":
            node.ClearField(field)
        for values in node.input, node.output:
            values[:] = [names.get(name, name) for name in values]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                loop = attribute.g
                own = {one.name for one in (*loop.input, *loop.initializer)} | {y for x in loop.node for y in x.output}
                outer = {name: new for name, new in names.items() if name not in own}
                _rename(loop, outer)
                for one in loop.output:
                    one.name = outer.get(one.name, one.name)


def _write(weights: list[Shared], path: Path) -> list[int]:
    """Where each begins in the file."""
    offsets = np.cumsum([0, *(one.array.nbytes for one in weights)]).tolist()
    about = {
        one.name: {"dtype": KINDS[one.array.dtype.name], "shape": list(one.array.shape), "data_offsets": [first, stop]}
        for one, first, stop in zip(weights, offsets, offsets[1:], strict=False)
    }
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for one in weights:
            file.write(one.array.tobytes())
    return [8 + len(header) + offset for offset in offsets[:-1]]
