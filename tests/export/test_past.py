"""Decoding steps that share memory give what those of earlier folders give, whose caches are copied and reordered."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from leapformer_fairseq.export.check import compared
from leapformer_fairseq.export.states import shared_of
from leapformer_fairseq.export.write import export_text, quantize
from leapformer_fairseq.runtime.beam import Search
from leapformer_fairseq.runtime.engine import PAST, Graphs
from leapformer_fairseq.runtime.folder import MODEL, ORDER, PATHS, SELF, STEP, Folder
from leapformer_fairseq.runtime.past import LEAST, Past
from leapformer_fairseq.runtime.translator import Translator

from ..exported import aligning_translation
from ..models.tiny import dictionary, make_model

WORDS = dictionary()
TASK = SimpleNamespace(
    source_dictionary=WORDS, target_dictionary=WORDS, args=SimpleNamespace(tokens_per_sample=128, add_bos_token=False)
)
STEPS = "DecoderMaskedMultiHeadAttention"


def earlier(folder: Path, out: Path) -> Path:
    """The folder as earlier versions exported it: a step returns all keys and values, after reordering the past."""
    shutil.copytree(folder, out)
    model, nodes = onnx.load(out / STEP, load_external_data=False), list[Any]()
    graph, add = model.graph, onnx.helper.make_node
    graph.initializer.append(onnx.helper.make_tensor("flat", onnx.TensorProto.INT64, [1], [-1]))
    nodes.append(add("Reshape", [ORDER, "flat"], ["rows"]))
    for node in graph.node:
        if node.op_type == STEPS:
            q, k, v, _, _, *past, _, _, _ = node.input
            moved = [f"{name}.moved" for name in past]
            nodes += [add("Gather", [name, "rows"], [to]) for name, to in zip(past, moved, strict=True)]
            (heads,) = (one.i for one in node.attribute if one.name == "num_heads")
            names = [q, k, v, "", "", "", *moved], [*node.output]
            about = {"domain": "com.microsoft", "num_heads": heads, "unidirectional": 1}
            nodes.append(add("MultiHeadAttention", *names, **about))
        else:
            nodes.append(node)
    assert len(nodes) > len(graph.node) + 1
    del graph.node[:]
    graph.node.extend(nodes)
    inputs = [one for one in graph.input if one.name not in ("used", "width", "paths")]
    del graph.input[:]
    graph.input.extend(inputs)
    for one in graph.output:
        one.type.tensor_type.ClearField("shape")
    onnx.save(model, out / STEP)
    replace(Folder.read(folder), path=out, shared=[]).write()
    return out


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Translator, Translator]:
    """A model with softmax in one decoder layer of two, in the form of earlier versions and as it is."""
    ours = aligning_translation().exported
    path = earlier(ours, tmp_path_factory.mktemp("earlier") / "folder")
    assert '"format": 6' in (path / MODEL).read_text() and '"format": 7' in (ours / MODEL).read_text()
    return Translator(path), Translator(ours)


def lines(translator: Translator, count: int = 9) -> list[str]:
    draw = random.Random(3)
    words = [symbol for symbol in translator._source.symbols if symbol.isalpha()]
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(count)]


def equal(both: tuple[Translator, Translator], search: Search, given: Any = None, **options: Any) -> None:
    """Texts, scores and alignments of all hypotheses."""
    given = lines(both[0]) if given is None else given
    theirs, ours = (list(one.translate(given, nbest=search.beam, search=search, **options)) for one in both)
    assert [[one._replace(score=0.0) for one in each] for each in theirs] == [
        [one._replace(score=0.0) for one in each] for each in ours
    ]
    for one, other in zip(theirs, ours, strict=True):
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)


@pytest.mark.parametrize("name", ["greedy", "beam", "long", "sampling", "prefixes", "alignments", "single"])
def test_texts_are_those_of_earlier_folders(both, name):
    """Rows end one after the other, and texts outgrow the room that there is at first, twice."""
    if name == "long":
        return equal(both, Search(3, max_len_b=2 * LEAST + 7, min_len=LEAST - 1), lines(both[0], 3))
    search = Search(1 if name == "greedy" else 5, max_len_a=1.3, max_len_b=3)
    if name == "sampling":
        return equal(both, replace(search, sampling=True, temperature=2.0), seed=3)
    if name == "prefixes":
        draw = random.Random(4)
        return equal(both, search, prefixes=[" ".join(line.split()[: draw.randint(0, 4)]) for line in lines(both[0])])
    more = {"alignments": {"alignments": True}, "single": {"batch_tokens": 1}}
    return equal(both, search, **more.get(name, {}))


@pytest.mark.parametrize("beam", [1, 4])
def test_texts_depend_on_the_paths(both, beam, monkeypatch):
    """The control. Greedy search has one row of each sentence."""
    inputs = Past.inputs
    monkeypatch.setattr(Past, "inputs", lambda past: {**inputs(past), PATHS: np.zeros_like(past.paths)})
    if beam == 1:
        return equal(both, Search(beam, max_len_b=9))
    with pytest.raises(AssertionError):
        equal(both, Search(beam, max_len_b=9))


def test_a_step_writes_its_token_where_it_is(both):
    """Other states of self-attention are reordered in the graph."""
    graphs = Graphs(both[1].folder)
    source, states = graphs.read(np.array([[5, 6, 2]])), graphs.begin(SELF, 1)
    arrays = list[np.ndarray]()
    for position in range(1, 5):
        _, states = graphs.step(np.array([[7, 8]]), position, np.array([[0, 0]]), states, source)
        past = states[PAST]
        assert [*past.buffers] == graphs.folder.shared == ["self.1.k", "self.1.v"] and len(states) > 1
        arrays = [buffer.array for buffer in past.buffers.values()]
        assert all(array[:, :, position - 1].all() and array.shape[2] == LEAST for array in arrays)


@pytest.mark.full
def test_8_bits_are_those_of_earlier_folders(both, tmp_path):
    folders = [shutil.copytree(one.folder.path, tmp_path / str(number)) for number, one in enumerate(both)]
    rounded = [Translator(quantize(Folder.read(folder)).path) for folder in folders]
    equal((rounded[0], rounded[1]), Search(5, max_len_b=12))
    (ours,), (exact,) = (next(one.translate(["the dog"], search=Search(max_len_b=9))) for one in (rounded[1], both[1]))
    assert ours.score != exact.score


@pytest.mark.full
@pytest.mark.parametrize("plan", ["softmax", "gated-delta,softmax"])
def test_prompts_are_read_at_once_before_the_steps(plan, tmp_path):
    """Prompts longer than the room that there is at first, too; fairseq's generator has the same texts."""
    model = make_model("leapformer_lm_tiny", plan, tokens_per_sample=128).float()
    model.decoder.output_projection.weight.data[2] *= -2
    folder = export_text(model, TASK, tmp_path / "ours", "signature", {})
    found = compared(model, TASK, folder, 8)
    assert found.equal == found.sources == 8 and found.error < 1e-4
    pair = Translator(earlier(folder.path, tmp_path / "earlier")), Translator(folder.path)
    prompts = [[f"w{(7 * place) % 30}" for place in range(count)] for count in (0, 1, 5, LEAST - 1, LEAST, 2 * LEAST)]
    for search in Search(4, max_len_b=90), Search(3, max_len_b=90, sampling=True), Search(1, max_len_b=90):
        equal(pair, search, prompts)


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_softmax_in_every_layer(threads, tmp_path):
    model = make_model("leapformer_nmt", "softmax").float()
    model.decoder.output_projection.weight.data[2] *= -2
    folder = export_text(model, TASK, tmp_path / "ours", "signature", {})
    assert folder.shared == shared_of(model.decoder) == [f"self.{layer}.{name}" for layer in (0, 1) for name in "kv"]
    found = compared(model, TASK, folder, 12)
    assert found.equal == found.sources == 12 and found.error < 1e-4
    pair = Translator(earlier(folder.path, tmp_path / "earlier")), Translator(folder.path, threads)
    equal(pair, Search(5, max_len_b=70), [["w3", "w9"], ["w1"] * 30, ["w5"] * 3])
