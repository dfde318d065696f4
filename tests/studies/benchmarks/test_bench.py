"""The attention benchmark: what it writes, what it refuses, and that its measuring instruments measure."""

import json
import sys
import time
import types
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from leapformer_fairseq.attention.ops import linear as forms
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.benchmarks import attention, measure, peers, tables
from leapformer_fairseq.support.memory import MIB
from tests.attention.cases import LINEAR
from tests.compiler import COMPILER

CPU = measure.Place(torch.device("cpu"))
TINY = [attention.Case("causal", 24, 24), attention.Case("bidirectional", 24, 24), attention.Case("wait-k", 8, 60)]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(attention, "QUICK_CASES", TINY)
    monkeypatch.setattr(attention, "SECONDS", 0.1)
    peaks = {"sdpa": 2 * MIB}
    monkeypatch.setattr(measure, "in_fresh_process", lambda _, name, *arguments: peaks.get(name, 3 * MIB))


@pytest.fixture
def wrong_gradients(monkeypatch):
    right = forms._Chunks.gradients

    def gradients(self, grad, grad_after):
        dq, dk, *others = right(self, grad, grad_after)
        return dq, dk * 1.001, *others

    monkeypatch.setattr(forms._Chunks, "gradients", gradients)


def test_quick_writes_both_files(tiny, tmp_path, capsys):
    out = tmp_path / "deep" / "er"
    assert (
        main(["bench", "attention", "--quick", "--out", str(out), "--mechanisms", "leap", "rope", "--device", "cpu"])
        == 0
    )
    found = json.loads((out / "attention.json").read_text())
    assert found["options"] == {"seed": 1, "quick": True, "devices": "cpu", "threads": 1}
    assert found["environment"]["threads"] == 1
    assert found["signature"].endswith("seed:1|quick:True|devices:cpu") and "CPU time" in found["method"]

    rows = {(row["case"], row["mechanism"], row["form"]): row for row in found["times"]}
    timed = [("sdpa", "sdpa"), *(("leap", form) for form in ("auto", "reference", "scan"))]
    timed += [("rope", form) for form in ("auto", "reference", "scan")]
    assert set(rows) == {(str(case), *form) for case in TINY for form in timed}
    for row in rows.values():
        assert 0 < row["forward_ms"] < row["forward_backward_ms"]
        assert (row["device"], row["batch"]) == ("cpu", 2048 // row["keys"])
    assert rows["causal 24", "sdpa", "sdpa"]["ratio"] == 1
    assert [(row["mechanism"], row["form"]) for row in found["steps"]] == [
        (n, "step") for n in ("softmax", "leap", "rope")
    ]
    assert [(row["mechanism"], row["ratio"]) for row in found["memory"]] == [("sdpa", 1), ("leap", 1.5), ("rope", 1.5)]

    report, printed = (out / "attention.md").read_text(), capsys.readouterr()
    assert found["signature"] in report and "| causal 24" in report and "wait-k 8/60" in printed.out
    assert "cpu: causal 24" in printed.err, "progress"


@pytest.mark.full
def test_half_precision_has_rows_of_its_own_without_aims(tiny, tmp_path):
    options = ["--mechanisms", "leap", "--device", "cpu", "--dtype", "float32", "bfloat16"]
    assert main(["bench", "attention", "--quick", "--out", str(tmp_path), *options]) == 0
    found = json.loads((tmp_path / "attention.json").read_text())
    for section in ("times", "steps", "memory"):
        assert {row["device"] for row in found[section]} == {"cpu", "cpu bfloat16"}
    assert not measure.Place.parse("cpu bfloat16").has_aims and measure.Place.parse("cpu").has_aims


@pytest.mark.parametrize("name", ["cpu", "cuda:1", "cuda bfloat16"])
def test_places_have_names(name):
    assert str(measure.Place.parse(name)) == name


class TestPeers:
    """There is no GPU in the tests: what can be tried without one is what is asked of others and what is believed."""

    GPU, HALF = measure.Place.parse("cuda"), measure.Place.parse("cuda bfloat16")

    @pytest.fixture
    def fla(self, monkeypatch):
        """A stand-in for the package's module, by its documented signature."""

        def chunk_linear_attn(q, k, v, scale=None, initial_state=None, output_final_state=False, normalize=True):
            assert normalize and scale == 1
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # from (B, T, H, D)
            scores = (q @ k.mT).tril()
            return (scores @ v / (scores.sum(-1, keepdim=True) + 1e-10)).transpose(1, 2), None

        module = types.ModuleType(peers.KERNEL_MODULE)
        module.chunk_linear_attn = chunk_linear_attn
        monkeypatch.setitem(sys.modules, peers.KERNEL_MODULE, module)
        return module

    def found(self, monkeypatch, kind, place, *names):
        monkeypatch.setattr(peers, "difference", lambda mechanism, way, place: 0.0)
        return set(peers.find({name: attention.make(name) for name in names}, kind, place))

    def test_who_is_measured_where(self, monkeypatch, fla):
        assert self.found(monkeypatch, "causal", CPU, "leap") == set()
        assert self.found(monkeypatch, "causal", self.GPU, "leap", "relu") == {"leap (fla)", "relu (fla)"}
        assert self.found(monkeypatch, "causal", self.HALF, "leap") == {"FlashAttention", "leap (fla)"}
        assert self.found(monkeypatch, "bidirectional", self.HALF, "leap") == {"FlashAttention"}
        assert self.found(monkeypatch, "wait-k", self.HALF, "leap") == set()

    def test_nobody_needs_fla(self, monkeypatch):
        monkeypatch.setitem(sys.modules, peers.KERNEL_MODULE, None)  # importing it fails
        assert self.found(monkeypatch, "causal", self.GPU, "leap") == set()

    @pytest.mark.parametrize("name", LINEAR)
    def test_their_sums_of_our_features_are_our_attention(self, name, fla):
        mechanism = attention.make(name)
        error = peers.difference(mechanism, partial(peers.by_kernel, fla.chunk_linear_attn, mechanism), CPU)
        different = name == "rope"  # its normalizer has other features
        assert error > peers.TOLERANCE if different else error < 1e-5

    def test_a_kernel_that_computes_something_else_is_left_out(self, monkeypatch, caplog, fla):
        mechanisms = {"relu": attention.make("relu")}
        monkeypatch.setattr(peers, "difference", lambda mechanism, way, place: float("nan"))
        assert peers.find(mechanisms, "causal", self.GPU) == {}
        assert "relu is not measured with the kernels of fla" in caplog.text

    def test_flash_attention_is_causal_when_asked(self):
        q, k, v = torch.randn(3, 1, 2, 9, 8)
        kwargs = {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(
            peers.flash(True, q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True), **kwargs
        )
        torch.testing.assert_close(peers.flash(False, q, k, v), F.scaled_dot_product_attention(q, k, v), **kwargs)


def test_a_mechanism_with_a_wrong_form_is_refused(tiny, tmp_path, capsys, wrong_gradients):
    out = tmp_path / "bench"
    arguments = ["bench", "attention", "--quick", "--out", str(out), "--mechanisms", "leap"]
    assert main(arguments) == 2
    assert not out.exists()
    error = capsys.readouterr().err
    assert error.startswith("leapformer: error: leap is not measured: its scan differs from the reference by")


def test_the_others_are_still_measured(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(attention, "disagreement", {"leap": "it is wrong", "relu": None}.get)
    arguments = ["bench", "attention", "--quick", "--out", str(tmp_path), "--mechanisms", "leap", "relu"]
    assert main(arguments) == 1
    assert "error: leap is not measured: it is wrong\n" in capsys.readouterr().err
    assert {row["mechanism"] for row in json.loads((tmp_path / "attention.json").read_text())["times"]} == {
        "sdpa",
        "relu",
    }


@pytest.mark.parametrize("name", attention.MECHANISMS_MEASURED)
def test_registered_mechanisms_agree(name):
    assert attention.disagreement(name) is None


def test_a_nan_is_a_disagreement(monkeypatch):
    monkeypatch.setattr(forms, "normalize", lambda sums, floor, *_, **__: sums[..., :-1] * float("nan"))
    assert "nan" in (attention.disagreement("relu") or "")


def test_user_errors(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["bench", "attention", "--mechanisms", "sofmax"]) == 2
    assert "unknown attention mechanism 'sofmax'; did you mean softmax?" in capsys.readouterr().err
    assert main(["bench", "attention", "--device", "abacus"]) == 2
    assert "--device abacus is not available; choose from: cpu" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made(tiny, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["bench", "attention", "--quick", "--mechanisms", "relu", "--out", str(tmp_path / "file")]
    assert main(arguments) == 2
    assert "cannot be created: " in capsys.readouterr().err


def test_aims_belong_to_measured_cases():
    assert {case for aims in attention.AIMS.values() for case in aims} <= set(attention.CASES)
    assert {attention.MEMORY_AIM_OF, *attention.AIMS} <= set(attention.MECHANISMS_MEASURED)


def test_missed_aims_are_listed():
    common = {"mechanism": "leap", "case": "causal 512"}
    times = [
        {**common, "ratio": 1.5, "aim": 1.6},
        {**common, "ratio": 1.7, "aim": 1.6},
        {**common, "ratio": 0.1, "aim": None},
    ]
    memory = [
        {**common, "peak_mib": 1.0, "ratio": 1.3, "aim": 1.2},
        {**common, "peak_mib": 1.0, "ratio": 1.1, "aim": 1.2},
    ]
    assert tables.missed({"times": times, "steps": [], "memory": memory}) == [
        "leap, causal 512, speed: 1.50, aim at least 1.6",
        "leap, causal 512, memory: 1.30, aim at most 1.2",
    ]


def test_medians_take_turns_and_ignore_the_first_round():
    order = []

    def call(name, values):
        order.append(name)
        return (values.pop(0), 1.0)

    slow, fast = [100.0, 3.0, 5.0, 4.0], [100.0, 1.0, 1.0, 2.0]
    found = measure.medians({"slow": lambda: call("slow", slow), "fast": lambda: call("fast", fast)}, seconds=0)
    assert found == {"slow": (4.0, 1.0), "fast": (1.0, 1.0)}
    assert order == ["slow", "fast"] * 4


def test_the_clock_counts_work_and_not_waiting():
    start = measure.clock(CPU.device)
    time.sleep(0.2)
    waited = measure.clock(CPU.device) - start
    assert waited < 0.1


def test_threads_are_undone():
    before = torch.get_num_threads()
    with measure.some_threads():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def grow(mebibytes):
    with measure.peak_growth(CPU.device) as growth:
        for _ in range(2):
            torch.ones(mebibytes * MIB, dtype=torch.uint8)
    return growth()


def test_memory_of_attention_is_at_least_its_results():
    case = attention.Case("causal", 16384, 16384)
    peak = measure.in_fresh_process(attention.peak_above_inputs, "relu", case, "cpu")
    if peak is None:
        pytest.skip("this system does not tell the peak of a process")
    # The output and the gradients of q, k and v in float32. Large, because what the process held before is used first.
    results = 4 * case.queries * attention.HEADS * attention.HEAD_DIM * 4
    assert 0.9 * results < peak < (3 if COMPILER else 4) * results  # without the kernel a little more


def test_peak_growth_of_a_fresh_process():
    """Peaks, not sums; and nothing of what the process that asks has ever held."""
    held = torch.ones(300 * MIB, dtype=torch.uint8)
    grown = measure.in_fresh_process(grow, 64)
    if grown is None:
        pytest.skip("this system does not tell the peak of a process")
    assert len(held) and 60 < grown / MIB < 75


def test_a_case_is_asked_for_by_the_name_that_is_shown(capsys, tmp_path):
    """And not with others whose names begin like it."""
    options = ["--dry-run", "--device", "cpu", "--out", str(tmp_path), "--only", "cpu: causal 8"]
    assert main(["bench", "attention", *options]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("# cpu")] == ["# cpu: causal 8"]
