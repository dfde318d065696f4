"""Exported models do what their checkpoints do: states step by step, and whole translations without PyTorch."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.data import LanguagePairDataset
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch.onnx._constants import ONNX_DEFAULT_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry

from leapformer_fairseq.attention import MECHANISMS, State, TokenInfo
from leapformer_fairseq.attention.linear.base import LinearMechanism, SeparateState
from leapformer_fairseq.attention.recurrent.base import RecurrentMechanism
from leapformer_fairseq.attention.softmax import GraphCache, KVCache
from leapformer_fairseq.export import tracing, write
from leapformer_fairseq.export.check import compared
from leapformer_fairseq.export.graphs import DecoderStep, Source
from leapformer_fairseq.export.language import Prompt
from leapformer_fairseq.export.plain import check_task, multilingual_of
from leapformer_fairseq.export.states import Held, held, keys_of, tensors_of
from leapformer_fairseq.export.streaming import Writing
from leapformer_fairseq.export.write import export_text, quantize
from leapformer_fairseq.models.loading import load_model
from leapformer_fairseq.models.task import adapt
from leapformer_fairseq.runtime.__main__ import main
from leapformer_fairseq.runtime.beam import Search, go_on
from leapformer_fairseq.runtime.engine import Graphs
from leapformer_fairseq.runtime.folder import CROSS, GRAPHS, MODEL, SELF, SOURCE, STEP, WEIGHTS, Folder, Language
from leapformer_fairseq.support.errors import LeapformerError

from ..exported import ONE_LAYER, language_model, translation
from ..models.tiny import PLANS, dictionary, make_model

WORDS = dictionary()
OPTIONS = SimpleNamespace(tokens_per_sample=64)
TASK = SimpleNamespace(source_dictionary=WORDS, target_dictionary=WORDS, args=OPTIONS)


def model_of(plan: str, seed: int = 0, encoder: str = "softmax", **options: Any) -> Any:
    model = make_model("leapformer_nmt", plan, seed, encoder_self_attention=encoder, **options)
    model.decoder.output_projection.weight.data[2] *= -2  # so that sentences end now and then
    return model


def serves(name: str) -> bool:
    """Whether the tiny models have it in both blocks of the decoder, and graphs can hold its state."""
    kind = MECHANISMS[name]
    blocks = {"decoder-self", "decoder-cross"} <= set(kind.capabilities.blocks)
    return blocks and kind.capabilities.incremental and kind.capabilities.carry_width is None and kind.fits_graphs()


RATIO = {"length_predictor": "ratio", "length_ratio": 1.3, "cosformer_length": 0}


def in_graph(block: Held, state: State) -> State:
    """The state of a source as a graph holds it."""
    if block.kind is SeparateState:
        return SeparateState.of_joined(state)
    if not isinstance(state, KVCache):
        return state
    k, v, keep = state.columns()
    return GraphCache(k, v, k.new_ones(len(k), k.shape[2]) if keep is None else keep.to(k.dtype))


LEARNED = {"luna_packed": "learned"}
STEPPED = {"predicted lengths": ("cosformer", RATIO), "luna": ("luna", LEARNED)}


@pytest.mark.parametrize("plan", [*(name for name in PLANS if serves(name)), "kda-conv", *STEPPED])
def test_steps_with_explicit_states_equal_the_decoder(plan):
    """Two hypotheses for each of two sentences of other lengths, which change places and replace each other.

    Attention weights, too, of the first layer, where graphs have them.
    """
    name, options = STEPPED.get(plan, (plan, {}))
    model = model_of(name, **options)
    weighs = not model.decoder.layers[0].encoder_attn.mechanism.capabilities.needs_inputs
    keys = keys_of(model.decoder, 1) if weighs else None
    decoder, tokens = model.requires_grad_(False).decoder, torch.randint(4, 34, (4, 6))
    source = torch.tensor([[5, 6, 7, 8, 2], [1, 1, 6, 5, 2]]).repeat_interleave(2, 0)
    orders = [torch.tensor([*order, 2, 3]) for order in ([0, 1], [1, 0], [1, 1], [0, 1], [1, 0], [0, 0])]
    memory: dict[str, Any] = {}
    step, own, read = DecoderStep(decoder, keys), None, None
    with torch.no_grad():
        encoded = model.encoder.forward_torchscript({"src_tokens": source, "src_lengths": torch.tensor([5, 5, 3, 3])})
    for t, order in enumerate(orders):
        with torch.no_grad():
            if t:
                decoder.reorder_incremental_state_scripting(memory, order)
            logits, extra = decoder(tokens[:, : t + 1], encoded, incremental_state=memory, alignment_layer=0)
        if own is None:
            own = tensors_of(one.empty(4) for one in step.layers.blocks[SELF])
            states = ((one, memory[one.attention.slot].state) for one in step.layers.blocks[CROSS])
            read = tensors_of(in_graph(one, state.reorder(torch.tensor([0, 2]))) for one, state in states)
            if keys is not None:
                keep = TokenInfo.whole(5, ~encoded["encoder_padding_mask"][0][[0, 2]])
                read += keys.written([], encoded["encoder_out"][0][:, [0, 2]], keep)
            read += [lengths[[0, 2]] for lengths in encoded.get("target_length", [])]
        rows = (tokens[:, t], torch.full((4,), t + 1), order)
        with torch.enable_grad():  # as in the graph
            log_probs, *weights, own = step(*(row.view(2, 2) for row in rows), own, read)
        expected = logits[:, -1].log_softmax(-1).view(2, 2, -1)
        assert float((expected - log_probs).abs().max()) < 1e-6  # fairseq normalises in float32
        assert len(weights) == weighs
        for one in weights:
            torch.testing.assert_close(one, extra["attn"][0].view(2, 2, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("plan", "reason"), [("luna", "hands something on")])
def test_states_that_graphs_cannot_hold_are_refused(plan, reason):
    model = model_of(plan, encoder=plan)
    with pytest.raises(
        LeapformerError, match=f"decoder self-attention, layer 1: {plan} .*{reason}.*; take --luna-packed"
    ):
        held(model.decoder, SELF)


@pytest.mark.parametrize(("plan", "layer", "reason"), [
    ("leap", 3, "--alignments 3: the decoder has the layers 1 to 2"),
    ("leap", 0, "--alignments 0: the decoder has the layers 1 to 2"),
    ("gated-delta", -2, "cross-attention, layer 1: the weights of gated-delta depend on the encoder's states"),
])  # fmt: skip
def test_weights_that_steps_cannot_have_are_refused(plan, layer, reason):
    with pytest.raises(LeapformerError, match=reason):
        keys_of(model_of(plan).decoder, layer)


RECURRENT = [name for name, kind in MECHANISMS.items() if issubclass(kind, RecurrentMechanism)]


RECURRENT_AND_LINEAR = [name for name in PLANS if issubclass(MECHANISMS[name], RecurrentMechanism | LinearMechanism)]


@pytest.mark.parametrize("encoder", [name for name in RECURRENT if name in PLANS])
def test_encoders_with_decay_or_delta_rule_go_from_row_to_row(encoder):
    """A padded source, too; afterwards the model is as it was."""
    model = model_of("leap", encoder=encoder).requires_grad_(False)
    source = Source(model)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 2], [1, 1, 4, 11, 6, 2]])  # padded on the left, as in fairseq
    with torch.no_grad():
        encoded = model.encoder(tokens, tokens.ne(1).sum(1))
    with torch.enable_grad():
        found = source(tokens)
    rows, keep = encoded["encoder_out"][0], tokens.ne(1)
    info = TokenInfo(keep.long().cumsum(1), keep=keep, inputs=rows.transpose(0, 1)).cleared()
    for block, kv, normalizer in zip(source.blocks, found[::2], found[1::2], strict=True):
        first = block.empty(2).joined()
        expected = block.attention.mechanism.write(first, *block.attention.project_keys(rows, info), info)
        assert float((torch.cat([kv, normalizer], -1) - expected.kv).abs().max()) < 1e-10
    with torch.no_grad():
        assert torch.equal(model.encoder(tokens, keep.sum(1))["encoder_out"][0], rows)
    assert all("_in_segments" not in vars(layer.self_attn.mechanism) for layer in model.encoder.layers)


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.full)])
def test_encoders_that_cannot_be_traced_are_refused(tmp_path, monkeypatch, traced):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such thing\nin a graph")

    if not traced:
        monkeypatch.setattr(torch.export, "export", fail)
    model = model_of("leap", encoder="reformer").float()
    with pytest.raises(LeapformerError, match="source.onnx: PyTorch cannot") as found:
        export_text(model, TASK, tmp_path, "signature", {})
    assert "\n" not in str(found.value)


class Guarded(torch.nn.Module):
    """Numbers within 1e-8 of 0 and of 1, which change something."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        scaled = x * 1e20 * (1 + 2**-23)
        return [(x.square() + 1e-12).rsqrt(), x - 3e-9, 1e-36 + x, scaled, x / (1 + 2**-22)]


def test_small_numbers_stay_in_a_graph(tmp_path):
    """Padding is zeros, of which there would be 0 / 0."""
    x = torch.tensor([0.0, 1.0, 1e-9])
    tracing.write_graph(Guarded(), (x,), None, ["x"], list("abcde"), tmp_path / STEP)
    found = Graphs(Folder(tmp_path, "translation", {}, {}, 1, "", {}), names=[STEP]).run(
        STEP, {"x": x.numpy()}, "abcde"
    )
    for ours, theirs in zip(Guarded()(x), found, strict=True):
        torch.testing.assert_close(torch.from_numpy(theirs.numpy()), ours, rtol=1e-7, atol=0)


def test_torchs_table_of_operators_is_made_once_and_is_its_own_again():
    before = vars(ONNXRegistry)["from_torchlib"]
    with tracing._one_table():
        one, other = (ONNXRegistry().from_torchlib(opset_version=ONNX_DEFAULT_OPSET) for _ in range(2))
    assert one is other and one.functions and vars(ONNXRegistry)["from_torchlib"] is before


def padded_sources_are_read(model: Any, path: Path) -> None:
    """Of sources padded on the left, as in fairseq, a graph makes the model's states of cross-attention."""
    path.mkdir(exist_ok=True)
    source = Source(model.float().requires_grad_(False))
    write.write_source(source, path)
    graphs = Graphs(Folder(path, "translation", {CROSS: source.shapes}, {}, 1, "", {}), names=[SOURCE])
    for lines in ([[1, 4, 5, 6, 7, 2], [5, 6, 7, 8, 9, 2]], [[8] * 30 + [2], [1] * 29 + [4, 2]], [[5, 2]]):
        tokens = torch.tensor(lines)
        keep = tokens.ne(1)
        with torch.no_grad():
            rows = model.encoder(tokens, keep.sum(1))["encoder_out"][0]
        info = TokenInfo(keep.long().cumsum(1), keep=keep, inputs=rows.transpose(0, 1)).cleared()
        states = [
            block.attention.mechanism.write_loop(
                block.empty(len(tokens)), *block.attention.project_keys(rows, info), info
            )
            for block in source.blocks
        ]
        for ours, theirs in zip(tensors_of(states), graphs.read(tokens.numpy()).values(), strict=True):
            torch.testing.assert_close(torch.from_numpy(theirs.numpy()), ours, rtol=1e-4, atol=1e-4)


ENCODERS = [
    *RECURRENT_AND_LINEAR,
    "softmax",
    "luna",
    "abc-mlp",
    "abc-cluster",
    "abc-linformer",
    "kda-conv",
    "simple-gla-conv",
]


@pytest.mark.parametrize("encoder", ["relu", *(pytest.param(name, marks=pytest.mark.full) for name in ENCODERS[1:])])
def test_encoders_read_padded_sources(encoder, tmp_path):
    padded_sources_are_read(model_of("leap", encoder=encoder, **ONE_LAYER), tmp_path)


@pytest.mark.full
def test_cross_attention_over_clusters(tmp_path):
    padded_sources_are_read(model_of("leap", decoder_cross_attention="abc-cluster", **ONE_LAYER), tmp_path / "graph")
    model = model_of("leap", decoder_cross_attention="abc-cluster", **ONE_LAYER).float()
    found = compared(model, TASK, export_text(model, TASK, tmp_path / "folder", "signature", {}), 8)
    assert found.equal == found.sources and found.error < 1e-4


class Tagging:
    """A task that puts tokens where it is told to, as those of several languages do."""

    source_dictionary = target_dictionary = WORDS
    args = SimpleNamespace(task="tagging")

    def __init__(self, where: str) -> None:
        self.where = where

    def build_dataset_for_inference(self, tokens: list[torch.Tensor], lengths: list[int]) -> Any:
        if self.where == "unknown":
            raise KeyError("no language\nis known")
        if self.where == "source":
            tokens = [torch.cat([torch.tensor([7]), one]) for one in tokens]
        return LanguagePairDataset(tokens, [len(one) for one in tokens], WORDS)

    def inference_step(self, generator: Any, models: Any, sample: Any, prefix_tokens: Any = None) -> Any:
        if self.where == "prefix":
            prefix_tokens = torch.tensor([[7]])
        options = {"bos_token": 7} if self.where == "first" else {}
        return generator.generate(models, sample, prefix_tokens=prefix_tokens, **options)


@pytest.mark.parametrize("where", ["source", "prefix", "first", "unknown"])
def test_tasks_that_add_tokens_are_refused(where, tmp_path):
    """The runtime reads and writes plain lines, and would translate into no language, or into any."""
    with pytest.raises(LeapformerError, match="--task tagging .* use `leapformer generate`") as found:
        export_text(model_of("leap"), Tagging(where), tmp_path / "out", "signature", {})
    assert "\n" not in str(found.value) and not (tmp_path / "out").exists()
    assert multilingual_of(Tagging("")) is None


def test_language_models_that_begin_with_a_language_are_refused():
    task = LanguageModelingTask(SimpleNamespace(add_bos_token=False), WORDS, output_dictionary=WORDS)
    adapt(task, Namespace(), "language_modeling")
    check_task(task, task.target_dictionary.eos())
    with pytest.raises(LeapformerError, match="adds tokens to what a model reads or writes, and not only"):
        check_task(task, 7)


def test_the_comparison_goes_the_way_of_the_task(exported):
    """A folder whose task adds tokens, had it been exported, differs."""
    model, task, folder = exported
    other = Tagging("prefix")
    other.source_dictionary = other.target_dictionary = task.target_dictionary
    assert compared(model, task, folder, 4).equal == 4
    assert compared(model, other, folder, 4).equal < 4


def test_clusters_of_speech_are_refused():
    """A graph could not tell that a source was read before."""
    with pytest.raises(LeapformerError, match="cross-attention, layer 1: abc-cluster reads a source at once"):
        Writing(model_of("leap", decoder_cross_attention="abc-cluster", **ONE_LAYER).decoder)


@pytest.fixture(scope="module")
def exported() -> tuple[Any, Any, Folder]:
    """A model, its task and its folder."""
    text = translation()
    model, task = load_model(str(text.checkpoint), ("leapformer_nmt",), "a test", {"data": str(text.data)})
    return model, task, Folder.read(text.exported)


def test_translations_equal_fairseqs(exported):
    found = compared(*exported, 20)
    assert found.equal == found.sources == 20 and found.error < 1e-4
    assert compared(*exported, 5, beam=1).equal == 5


def test_weights_are_there_once_under_their_names(exported):
    """Other programs read them as safetensors."""
    model, _, folder = exported
    numbers = (folder.path / WEIGHTS).read_bytes()
    start = 8 + int.from_bytes(numbers[:8], "little")
    header, numbers = json.loads(numbers[8:start]), numbers[start:]
    offsets = [one["data_offsets"] for one in header.values()]
    assert [first for first, _ in offsets] == [0, *(stop for _, stop in offsets[:-1])] and offsets[-1][1] == len(
        numbers
    )
    contents = [numbers[first:stop] for first, stop in offsets]
    assert len(set(contents)) == len(contents)
    table = header["encoder.embed_tokens.weight"]
    assert (
        table["dtype"] == "F32"
        and numbers[slice(*table["data_offsets"])] == model.encoder.embed_tokens.weight.detach().numpy().tobytes()
    )
    for name in GRAPHS[folder.task]:
        graph = (folder.path / name).read_bytes()
        assert WEIGHTS.encode() in graph and b"leapformer_fairseq" not in graph, "no trace of where it was made"
        assert b"node_" not in graph, "nor names of operators"


@pytest.mark.parametrize("block", ["encoder_attn", "self_attn"])
def test_the_comparison_can_fail(exported, block):
    model, task, folder = exported
    other = copy.deepcopy(model)
    getattr(other.decoder.layers[0], block).v_proj.weight.data.mul_(3)
    found = compared(other, task, folder, 5)
    assert found.equal < 5 and found.error > 0.01


@pytest.mark.full
@pytest.mark.parametrize(
    ("plan", "encoder", "options"),
    [
        ("leap", "leap", {"encoder_layers": 2, "decoder_layers": 2}),
        ("leap", "leap", {"leap_input": "raw"}),
        ("gated-delta", "gated-leap", {"short_conv": 4}),
        ("abc-mlp", "gated-delta", {"decoder_self_attention": "abc-window"}),
        ("cosformer", "cosformer", RATIO),
        ("cosformer", "cosformer", {"cosformer_step": 4, "cosformer_length": 0}),
        ("luna", "luna", {"luna_packed": "learned", **ONE_LAYER}),
        ("softmax", "softmax", {"decoder_layers": 2, "decoder_self_attention": "leap,softmax"}),
        ("leap", "softmax", {"decoder_cross_attention": "softmax"}),
        ("entmax", "entmax", {}),
    ],
)
def test_other_mechanisms(plan, encoder, options, tmp_path):
    """Sources are read row by row, a state has several tensors or is not zero at first, cosFormer knows lengths."""
    model = model_of(plan, encoder=encoder, **{**ONE_LAYER, **options}).float()
    found = compared(model, TASK, export_text(model, TASK, tmp_path, "signature", {}), 8)
    assert found.equal == found.sources and found.error < 1e-4


@pytest.fixture(scope="module")
def language() -> tuple[Any, Any, Folder]:
    text = language_model()
    model, task = load_model(str(text.checkpoint), ("leapformer_lm",), "a test", {"data": str(text.data)})
    return model, task, Folder.read(text.exported)


@pytest.mark.full
def test_language_models_go_on_as_in_fairseq(language, capsys, monkeypatch):
    model, task, folder = language
    found = compared(*language, 8)
    assert found.equal == found.sources == 8 and found.error < 1e-4
    other = copy.deepcopy(model)
    other.decoder.output_projection.weight.data.mul_(-1)
    assert compared(other, task, folder, 3).equal == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the dog sees\nred\n\n")))
    assert main([str(folder.path), "--max-len-b", "12"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].startswith("the dog sees") and lines[1].startswith("red") and len(lines) == 4


@pytest.mark.full
def test_a_prompt_that_is_longer_than_a_text_may_become(language):
    folder = language[2]
    (found,) = go_on(Graphs(folder), [7] * 80, Search(beam=1, max_len_b=63))
    assert found.tokens == [7] * 63 + [language[1].target_dictionary.eos()]


BANDS = {"adaptive_input": True, "adaptive_input_cutoff": "10,20", "adaptive_softmax_cutoff": "10,20"}


@pytest.mark.parametrize(
    "name",
    [name for name in PLANS if serves(name) or name in ("abc-window", "abc-dilated")] + ["kda-conv", "words in bands"],
)
def test_many_tokens_at_once_leave_what_single_steps_leave(name):
    """Two texts, piece by piece: what a piece leaves, the next one reads."""
    plan, options = ("leap", BANDS) if name == "words in bands" else (name, {})
    model = make_model("leapformer_lm_tiny", plan, tokens_per_sample=40, **options).requires_grad_(False)
    prompt, decoder, text = Prompt(model.decoder), model.decoder, torch.randint(4, 34, (2, 9))
    memory, before = dict[str, Any](), 0
    states = tensors_of(block.empty(2) for block in prompt.blocks)
    for piece in text.split((5, 3, 1), 1):
        places = torch.arange(1, piece.shape[1] + 1).repeat(2, 1)
        with torch.enable_grad():  # as in the graph
            log_probs, states = prompt(piece, places, torch.tensor([before]), states)
        with torch.no_grad():
            expected = decoder.get_normalized_probs((decoder.output_layer(decoder.read(piece, memory)), None), True)
        assert float((expected - log_probs).abs().max()) < 1e-6
        before += piece.shape[1]
    assert not {"scan", "_few_pairs"} & set(vars(model.decoder.layers[0].self_attn.mechanism)), "the model is as it was"


@pytest.mark.full
def test_texts_that_begin_with_another_symbol_and_adaptive_embeddings(tmp_path):
    """Words of three bands; a prompt that is as long as a text may become."""
    model = make_model("leapformer_lm_tiny", "leap", tokens_per_sample=64, decoder_layers=1, **BANDS).float()
    task = SimpleNamespace(**vars(TASK) | {"args": SimpleNamespace(tokens_per_sample=64, add_bos_token=True)})
    folder = export_text(model, task, tmp_path, "signature", {})
    assert folder.language is not None and folder.language.first == WORDS.bos() != WORDS.eos()
    found = compared(model, TASK, folder, 6)
    assert found.equal == found.sources and found.error < 1e-4
    (found,) = go_on(Graphs(folder), [7] * 80, Search(beam=1, max_len_b=63))
    assert found.tokens == [7] * 63 + [WORDS.eos()]


@pytest.mark.full
def test_adaptive_embeddings_are_rounded_to_8_bits(tmp_path):
    """Also those that are the rows of the output."""
    options = {**BANDS, "tie_adaptive_weights": True, "tokens_per_sample": 64, "decoder_layers": 1}
    model = make_model("leapformer_lm_tiny", "softmax", **options).float()
    folder = quantize(export_text(model, TASK, tmp_path, "signature", {}))
    (found,) = go_on(Graphs(folder), [7, 15, 25], Search(beam=1, max_len_b=9))
    assert found.tokens[:3] == [7, 15, 25]


@pytest.fixture
def untraced(monkeypatch):
    """Exports write empty graphs, which takes no time."""
    for module in tracing, write:
        monkeypatch.setattr(module, "write_graph", lambda *given: given[-1].touch())
    monkeypatch.setattr(write, "share", lambda folder: (folder.path / WEIGHTS).touch())


@pytest.mark.usefixtures("untraced")
def test_what_a_folder_says_of_a_model(tmp_path):
    """What texts begin with, how long they may be, and states that are not zeros at first."""
    for first, bos in ((WORDS.bos(), True), (WORDS.eos(), False)):
        model = make_model("leapformer_lm_tiny", "cosformer", cosformer_length=60, tokens_per_sample=50)
        args = SimpleNamespace(tokens_per_sample=30, add_bos_token=bos)
        task = SimpleNamespace(**vars(TASK) | {"args": args})
        folder = export_text(model, task, tmp_path / "lm", "signature", {})
        assert folder.language == Language(first, 60, 30) and folder.max_target == model.max_decoder_positions()
        assert Folder.read(tmp_path / "lm") == folder
    model = model_of("leap", decoder_self_attention="abc-window")
    folder = export_text(model, TASK, tmp_path / "mt", "signature", {"updates": 3})
    starts = {
        f"self.{layer}.{name}": tensor[0].float().tolist()
        for layer, one in enumerate(model.decoder.layers)
        for name, tensor in one.self_attn.empty_state(1).tensors().items()
        if tensor.any()
    }
    assert folder.starts == starts != {} and Folder.read(tmp_path / "mt") == folder


def test_an_exported_model_needs_neither_torch_nor_fairseq(exported):
    folder, lines = exported[2], "the dog sees\nred unknown red\n\n"
    code = (
        "import sys\nfor name in ('torch', 'fairseq', 'onnx'): sys.modules[name] = None\n"
        "from leapformer_fairseq.runtime.__main__ import main\n"
        f"sys.exit(main([{str(folder.path)!r}, '--max-len-b', '20']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, text=True, timeout=100, env=dict(os.environ)
    )
    assert run.returncode == 0, run.stderr
    words = run.stdout.split("\n")
    assert len(words) == 4 and words[0] and set(run.stdout.split()) <= set(exported[1].target_dictionary.symbols)


def test_damaged_folders_are_told_in_one_line(exported, tmp_path, capsys, monkeypatch):
    def said(change: Any = None, *options: str) -> str:
        folder = tmp_path / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(exported[2].path, folder)
        if change is not None:
            change(folder)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"red\n")))
        assert main([str(folder), *options]) == 2
        return capsys.readouterr().err

    def formatted(folder: Path) -> None:
        about = json.loads((folder / MODEL).read_text())
        (folder / MODEL).write_text(json.dumps({**about, "format": 9}))

    assert "has format 9, not 5 to 7; update leapformer-fairseq, which is older than the folder" in said(formatted)
    assert "has format None, not 5 to 7; export it again" in said(lambda folder: (folder / MODEL).write_text("{}"))
    assert "is damaged" in said(lambda folder: (folder / MODEL).write_text("{"))
    assert f"has no {MODEL}; give a folder" in said(lambda folder: (folder / MODEL).unlink())
    assert f"has no {STEP}; export" in said(lambda folder: (folder / STEP).unlink())
    assert "is damaged, or of another export" in said(lambda folder: (folder / STEP).write_bytes(b"no graph"))

    def rewritten(folder: Path) -> None:
        (folder / STEP).write_bytes(b"no graph")
        replace(exported[2], path=folder).write()

    assert "cannot be read" in said(rewritten)
    assert f"has no {WEIGHTS}; export" in said(lambda folder: (folder / WEIGHTS).unlink())
    half = (exported[2].path / WEIGHTS).read_bytes()[:5_000]
    assert "is damaged, or of another export" in said(lambda folder: (folder / WEIGHTS).write_bytes(half))
    assert "--beam 0: give at least 1" in said(None, "--beam", "0")
