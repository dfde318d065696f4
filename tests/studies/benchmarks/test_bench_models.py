"""The decoding and training benchmarks: what they write and refuse, and that they measure what they say."""

import json
import logging
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from leapformer_fairseq import register
from leapformer_fairseq.attention import Mechanism
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.modules import attentions
from leapformer_fairseq.studies.benchmarks import decode, measure, papers, train

CPU = measure.Place(torch.device("cpu"))
EXPORTED = decode.exported
TINY = [decode.Case(1, 1, 6, 9), decode.Case(2, 3, 5, 7)]


@pytest.fixture(autouse=True)
def shallow(monkeypatch):
    """Decoders of one layer, and none is exported, which takes seconds; tests of exports see that graphs are right."""
    monkeypatch.setattr(decode, "LAYERS", 1)
    monkeypatch.setattr(decode, "make", partial(decode.make, layers=1))
    monkeypatch.setattr(decode, "exported", lambda case, quantized: (lambda: (1e-3,), 4))


@pytest.fixture
def tiny_decode(monkeypatch):
    for name, value in {"QUICK_CASES": TINY, "QUICK_KEYS": (8,), "BLOCK_ROWS": (2,), "SECONDS": 0.1}.items():
        monkeypatch.setattr(decode, name, value)


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.full)])
def test_decode_writes_both_files(tiny_decode, traced, tmp_path, capsys, monkeypatch):
    if traced:
        monkeypatch.setattr(decode, "exported", EXPORTED)
    command = ["bench", "decode", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "relu", "--device", "cpu"]
    assert main(command) == 0
    found = json.loads((tmp_path / "decode.json").read_text())
    assert found["benchmark"] == "decode" and found["environment"]["threads"] == 1 and "seed:1" in found["signature"]
    systems = ["fairseq", "softmax", "leap", "relu", "leap (torch)", "leap (exported)", "leap (8 bits)"]
    assert [(row["case"], row["mechanism"]) for row in found["decoders"]] == [
        (str(c), n) for c in TINY for n in systems
    ]
    assert all(row["ms"] > 0 for row in found["decoders"])
    assert [row["mechanism"] for row in found["blocks"]] == ["softmax", *decode.BLOCKS]
    report = (tmp_path / "decode.md").read_text()
    assert found["signature"] in report and "times as fast as fairseq" in report and "6 rows, 5/7" in report
    assert "A step of one block" in capsys.readouterr().out


def test_state_bytes_are_those_of_the_tensors():
    rows, layers, heads, dim = 6, decode.LAYERS, decode.HEADS, decode.WIDTH // decode.HEADS
    found = {row["mechanism"]: row["state_bytes"] for row in decode.decoders(TINY[1], ["leap", "relu"], CPU, 0.01)}
    sentences = 2
    state = 4 * heads * dim * (dim + 1)  # of one row and layer: K^T [V, 1] in float32
    assert found["relu"] == layers * state * (rows + sentences)  # self-attention by row, cross-attention by sentence
    assert found["leap"] == 2 * found["relu"]


def test_a_longer_state_costs_softmax_only_bytes():
    short, long = ({row["mechanism"]: row["state_bytes"] for row in decode.decoders(case, ["leap"], CPU, 0.01)}
                   for case in (decode.Case(1, 1, 5, 7), decode.Case(1, 1, 50, 70)))  # fmt: skip
    assert short["leap"] == long["leap"]
    assert long["fairseq"] > 5 * short["fairseq"] and long["softmax"] > 3 * short["softmax"]


def test_filled_states_are_what_decoding_would_have_left():
    """The benchmark writes keys into the states; they must be of the size and count that reading tokens leaves."""
    decoder, case = decode.make("leap", CPU, layers=2), decode.Case(1, 1, 4, 3)
    source = torch.randn(3, 1, decode.WIDTH)
    filled, read = {}, {}
    with torch.no_grad():
        decode.fill(decoder, filled, case, source)
        decoder.read(torch.randint(4, 20, (1, 4)), read, {"encoder_out": [source], "encoder_padding_mask": []})
    for attention in attentions(decoder):
        ours, theirs = attention.memory(filled), attention.memory(read)
        assert ours.queries == theirs.queries == 4
        if attention.self_attention:
            assert ours.state.kv.shape == theirs.state.kv.shape


def test_a_wrong_decoder_is_refused(tiny_decode, tmp_path, capsys, monkeypatch):
    from leapformer_fairseq.attention.decoding.linear import LinearStep

    right = LinearStep.attend
    monkeypatch.setattr(LinearStep, "attend", lambda self, *args: right(self, *args) * 1.001)
    assert main(["bench", "decode", "--quick", "--out", str(tmp_path), "--mechanisms", "leap"]) == 2
    assert "leap is not measured: its decoder differs by" in capsys.readouterr().err


@pytest.mark.parametrize("name", decode.MECHANISMS_MEASURED)
def test_decoders_agree(name):
    assert decode.disagreement(name) is None


def test_aims_belong_to_measured_cases():
    assert set(decode.AIMS) <= {(case.rows, case.target, case.source) for case in decode.CASES}
    assert set(train.AIMS) | set(train.MEMORY_AIMS) <= set(train.CASES)
    assert all(set(aims) == set(decode.BLOCK_ROWS) for aims in decode.BLOCK_AIMS.values())


def test_train_writes_both_files(tmp_path, monkeypatch):
    for name, value in {"QUICK_CASES": (train.Case(16),), "TOKENS": 32, "SECONDS": 0.1, "VOCABULARY": 50}.items():
        monkeypatch.setattr(train, name, value)
    monkeypatch.setattr(train, "disagreement", lambda name: None)
    peaks = {"fairseq": 4 * measure.MIB}
    monkeypatch.setattr(measure, "in_fresh_process", lambda _, name, *arguments: peaks.get(name, measure.MIB))
    assert main(["bench", "train", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "--device", "cpu"]) == 0
    found = json.loads((tmp_path / "train.json").read_text())
    assert [row["mechanism"] for row in found["times"]] == ["fairseq", "leap"]
    assert all(row["tokens_per_second"] == pytest.approx(32 / row["seconds"]) for row in found["times"])
    assert [row["ratio"] for row in found["memory"]] == [1, 0.25]
    assert "# Training: speed and memory" in (tmp_path / "train.md").read_text()


@pytest.mark.parametrize("what", ["decode", "train"])
def test_half_precision_is_measured_beside_float32(tiny_decode, what, tmp_path, monkeypatch):
    for name, value in {"QUICK_CASES": (train.Case(16),), "TOKENS": 32, "SECONDS": 0.1, "VOCABULARY": 50}.items():
        monkeypatch.setattr(train, name, value)
    monkeypatch.setattr(measure, "in_fresh_process", lambda *_: None)
    command = ["bench", what, "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "--device", "cpu"]
    assert main([*command, "--dtype", "float32", "bfloat16"]) == 0
    found = json.loads((tmp_path / f"{what}.json").read_text())
    rows = found["decoders" if what == "decode" else "times"]
    assert list(dict.fromkeys(row["device"] for row in rows)) == ["cpu", "cpu bfloat16"]
    assert found["options"]["devices"] == "cpu+cpu bfloat16"
    if what == "decode":
        states = {(row["device"], row["mechanism"]): row["state_bytes"] for row in rows if row["case"] == str(TINY[0])}
        assert states["cpu", "fairseq"] == 2 * states["cpu bfloat16", "fairseq"], "the model is in half precision"
        assert states["cpu", "leap"] == states["cpu bfloat16", "leap"], "its sums are not"


def test_peak_of_a_training_step_is_seen():
    peak = train.peak_of_step("leap", train.Case(256), "cpu", quick=True)
    assert peak is None or peak > measure.MIB


def register_and_warn():
    register()  # imports fairseq
    logging.getLogger("fairseq").info("a hint")
    logging.getLogger("leapformer_fairseq").warning("a warning")


@pytest.mark.full
def test_fresh_processes_log_warnings_only(capfd):
    measure.in_fresh_process(register_and_warn)
    assert capfd.readouterr() == ("", "WARNING:leapformer_fairseq:a warning\n")


class TestPapers:
    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch):
        for name, value in {"QUICK_LENGTHS": (16,), "SECONDS": 0.2, "DECODER_SIZES": {"width": 64, "ffn": 64}}.items():
            monkeypatch.setattr(papers, name, value)
        found = measure.in_fresh_process
        monkeypatch.setattr(measure, "in_fresh_process", lambda *call: found(*call) if call[1] == "softmax" else 2**30)

    @pytest.mark.full
    def test_all_sections_are_written(self, tmp_path, capsys):
        command = ["bench", "papers", "--quick", "--out", str(tmp_path), "--mechanisms", "abc-mlp", "t2r", "relu"]
        assert main([*command, "--device", "cpu"]) == 0
        found = json.loads((tmp_path / "papers.json").read_text())
        encoders = ["softmax", "abc-mlp, 64", "abc-mlp, 128"]
        systems = {
            "encoding": encoders,
            "memory": encoders,
            "decoding": ["softmax", "fairseq", "abc-mlp, 32/8", "t2r, 32/4"],
            "steps": ["softmax", "relu, naive", "relu, reuse"] * 4,
        }
        for section, names in systems.items():
            assert [row["mechanism"] for row in found[section]] == names, section
            assert all(row["ratio"] > 0 for row in found[section])
        cases = [f"{block}, {batch} x 32, width 64" for batch in (1, 2) for block in ("decoder-self", "decoder-cross")]
        assert [row["case"] for row in found["steps"][::3]] == cases
        assert "Encoding (ABC, table 6)" in capsys.readouterr().out

    def test_the_state_of_bounded_memories_does_not_grow(self):
        names = ["abc-mlp", "rfa", "t2r"]
        short, long = (
            {row["mechanism"]: row["state_bytes"] for row in papers.decoding(names, length, CPU, 0.01)}
            for length in (8, 64)
        )
        for name in papers.DECODERS:
            assert (short[name] == long[name]) == (name not in ("softmax", "fairseq")), name
        assert long["t2r, 32/4"] < long["abc-mlp, 32/8"] < long["rfa, 256/128"], "as the paper's sizes have it"

    @pytest.mark.parametrize("block", papers.DECODER_BLOCKS)
    @pytest.mark.usefixtures("in_pytorch")  # or else nothing is counted
    @torch.no_grad()
    def test_sums_that_are_made_anew_are_those_that_are_reused(self, block):
        """And cost products with every key, while those that are kept cost the same after any past."""
        place, costs = measure.Place(torch.device("cpu"), torch.float64), {}
        for length in (8, 64):
            past = papers.past_of(block, 3, 16, length, place)
            for kind in ("relu", "cosformer"):
                outputs = []
                for way in (papers.NAIVE, papers.REUSE):
                    call = papers.one_step(kind, way, past)
                    with FlopCounterMode(display=False) as counter:
                        outputs.append(call())
                    costs[kind, way, length] = counter.get_total_flops()
                torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
                # Inverted control: with another past they differ.
                other = papers.one_step(kind, papers.NAIVE, past._replace(keys=past.keys.flip(2)))()
                assert not torch.allclose(other, outputs[1], atol=1e-3)
        for kind, features in (("relu", 1), ("cosformer", 2)):
            per_key = 2 * 3 * 16 * features * 17
            assert costs[kind, papers.NAIVE, 64] - costs[kind, papers.NAIVE, 8] == 56 * per_key
            assert costs[kind, papers.REUSE, 64] == costs[kind, papers.REUSE, 8]

    def test_steps_make_no_weights(self, monkeypatch):
        monkeypatch.setattr(Mechanism, "weights", lambda *_, **__: pytest.fail("all pairs of queries and keys"))
        rows = papers.steps(["relu"], "decoder-self", 1, 64, 16, CPU, 0.01)
        assert [row["mechanism"] for row in rows] == ["softmax", "relu, naive", "relu, reuse"]


@pytest.mark.full
def test_two_processes_are_measured_against_one_and_two_copies(tmp_path):
    command = ["bench", "scaling", "--quick", "--mechanisms", "relu", "--device", "cpu", "--out", str(tmp_path)]
    assert main(command) == 0
    rows = json.loads((tmp_path / "scaling.json").read_text())["scaling"]
    assert [row["mechanism"] for row in rows] == ["one process", "two processes", "two copies"]
    assert rows[0]["ratio"] == 1 and all(row["tokens_per_second"] > 0 for row in rows)
    assert main(["bench", "scaling", "--device", "cpu", "--dtype", "bfloat16", "--out", str(tmp_path)]) == 2
