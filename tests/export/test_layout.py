"""Graphs with fewer changes of layout have the same results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leapformer_fairseq.export.layout import simplify
from leapformer_fairseq.export.weights import share
from leapformer_fairseq.runtime.engine import open_graph
from leapformer_fairseq.runtime.folder import GRAPHS, LANGUAGE

SHAPES = ([2, 3, 4], [-1, 12], [6, 4], [4, 1, 6], [-1, 2, 1, 3], [24])
FUNCTIONS = (("Relu",), ("Sigmoid",), ("Cos",), ("Mul", 0.5), ("Add", 1.0), ("Add", [1.0] * 24))


def graph_of(rng):
    """A chain of random changes of layout and functions, with a second reader of some results."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, outputs, shape, value = [], [], [], [2, 3, 4], "x"

    def constant(array):
        constants.append(numpy_helper.from_array(array, f"c{len(constants)}"))
        return constants[-1].name

    for number in range(int(rng.integers(4, 12))):
        kind, new, attributes, more = rng.integers(5), f"y{number}", {}, []
        if kind == 0:
            sizes = SHAPES[rng.integers(len(SHAPES))]
            shape = list(np.empty(24).reshape(sizes).shape)
            name, more = "Reshape", [constant(np.array(sizes))]
        elif kind == 1:
            order = rng.permutation(len(shape)).tolist()
            name, shape, attributes = "Transpose", [shape[axis] for axis in order], {"perm": order}
        elif kind == 2 and len(shape) < 5:
            axis = int(rng.integers(-len(shape) - 1, len(shape) + 1))
            name, more = "Unsqueeze", [constant(np.array([axis]))]
            shape.insert(axis % (len(shape) + 1), 1)
        elif kind == 3 and 1 in shape:
            axis = shape.index(1)
            name, more, shape = "Squeeze", [constant(np.array([axis]))], shape[:axis] + shape[axis + 1 :]
        else:
            name, *given = FUNCTIONS[rng.integers(len(FUNCTIONS))]
            if given and isinstance(given[0], list) and shape != [24]:
                given = [1.0]
            more = [constant(np.array(one, np.float32)) for one in given]
        nodes.append(helper.make_node(name, [value, *more], [new], **attributes))
        value = new
        if rng.random() < 0.2:
            outputs.append(value)
    outputs = list(dict.fromkeys([*outputs, value]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])
    graph = helper.make_graph(nodes, "chain", [given], infos, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=onnx.IR_VERSION - 3)


def run(model, x):
    return open_graph(model.SerializeToString()).run(None, {"x": x})


@pytest.mark.parametrize("seed", range(12))
def test_random_chains_keep_their_results(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        model, x = graph_of(rng), rng.standard_normal((2, 3, 4)).astype(np.float32)
        before = run(model, x)
        simplify(model)
        for old, new in zip(before, run(model, x), strict=True):
            assert old.shape == new.shape
            assert np.array_equal(old, new)


def chain(*operators):
    """A graph of these operators one after the other: names, with a constant or an order of axes."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, value = [], [], "x"
    for number, (name, *given) in enumerate(operators):
        attributes = {"perm": given[0]} if name == "Transpose" else {}
        more = [] if attributes or not given else [f"c{number}"]
        constants += [numpy_helper.from_array(np.array(given[0]), name) for name in more]
        nodes.append(helper.make_node(name, [value, *more], [f"y{number}"], **attributes))
        value = f"y{number}"
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", value)]
    return helper.make_model(helper.make_graph(nodes, "chain", infos[:1], infos[1:], constants))


def test_sums_of_products_of_8_bits_do_not_overflow(tmp_path):
    """Processors with AVX2 but without VNNI add pairs of them in 16 bits, unless the runtime makes weights unsigned."""
    from onnx import TensorProto, helper, numpy_helper, save

    from leapformer_fairseq.export.tracing import quantize_graph

    weights = np.where(np.arange(512 * 64).reshape(512, 64) % 3, 1.0, -1.0).astype(np.float32)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in ("x", "y")]
    node, constant = helper.make_node("Gemm", ["x", "w"], ["y"]), numpy_helper.from_array(weights, "w")
    save(helper.make_model(helper.make_graph([node], "product", infos[:1], infos[1:], [constant])), tmp_path / "graph")
    quantize_graph(tmp_path / "graph")
    x = np.ones((3, 512), np.float32)
    x[1] = np.linspace(0, 1, 512)
    (found,) = open_graph(tmp_path / "graph").run(None, {"x": x})
    assert float(np.abs(found - x @ weights).max()) < 2  # of sums up to 170


@pytest.mark.parametrize(
    ("operators", "left"),
    [
        ((("Reshape", [2, 12]), ("Relu",), ("Reshape", [-1, 4]), ("Unsqueeze", [1])), ["Relu", "Reshape"]),
        ((("Transpose", [1, 0, 2]), ("Cos",), ("Transpose", [1, 0, 2]), ("Softmax",)), ["Cos", "Softmax"]),
        ((("Reshape", [6, 1, 4]), ("Transpose", [1, 0, 2]), ("Reshape", [1, 6, 4])), ["Reshape"]),
        ((("Reshape", [0, -1]), ("Unsqueeze", [0])), ["Reshape", "Unsqueeze"]),  # 0: the size of the input
        ((("Reshape", [2, 12]), ("Softmax",)), ["Reshape", "Softmax"]),
    ],
)
def test_what_is_left(operators, left):
    model = chain(*operators)
    simplify(model)
    assert [node.op_type for node in model.graph.node] == left


def test_embeddings_that_are_also_the_output_are_rounded_twice(tmp_path):
    """As a table of rows and as the weight of a product: one of them would else be made float32 for every token."""
    from onnx import TensorProto, helper, load, numpy_helper, save

    from leapformer_fairseq.export.tracing import quantize_graph

    table = np.random.default_rng(1).standard_normal((300, 64)).astype(np.float32)
    given = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n", 1])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1, 300])
    nodes = [
        helper.make_node("Gather", ["w", "tokens"], ["x"]),
        helper.make_node("Transpose", ["w"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "columns"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "tied", [given], [out], [numpy_helper.from_array(table, "w")])
    model, apart = helper.make_model(graph), {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    save(model, tmp_path / "graph", **apart)  # as in a folder
    quantize_graph(tmp_path / "graph")
    graph = load(tmp_path / "graph").graph
    assert max(np.prod(one.dims) for one in graph.initializer if one.data_type == TensorProto.FLOAT) < table.size
    weights = {tensor.name for tensor in graph.initializer}
    assert not [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in weights]
    (found,) = open_graph(tmp_path / "graph").run(None, {"tokens": np.arange(300)[:, None]})
    assert float(np.abs(found[:, 0] - table @ table.T).max()) < 3  # of products up to 120


def test_values_are_not_renamed_as_constants(tmp_path):
    """Rounding makes constants of values that a folder's graphs have renamed, and renames the others again."""
    from onnx import TensorProto, helper, numpy_helper, save

    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    nodes = [helper.make_node("Relu", ["x"], ["sum"]), helper.make_node("Add", ["sum", "_0"], ["y"])]
    constant = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "_0")
    for name in GRAPHS[LANGUAGE]:
        save(helper.make_model(helper.make_graph(nodes, "sum", infos[:1], infos[1:], [constant])), tmp_path / name)
    folder: Any = SimpleNamespace(path=tmp_path, task=LANGUAGE)
    share(folder)
    for name in GRAPHS[LANGUAGE]:
        (found,) = open_graph(tmp_path / name).run(None, {"x": np.array([-1, 0, 1], np.float32)})
        assert found.tolist() == [1, 2, 4]
