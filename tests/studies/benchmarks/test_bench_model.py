"""The benchmark of whole models: what it writes and refuses, that it measures what generators do, and its FLOPs."""

import json
from types import SimpleNamespace

import pytest
import torch
from fairseq.speech_generator import AutoRegressiveSpeechGenerator

from leapformer_fairseq.attention.decoding.linear import LinearStep
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.models.synthesis import Manner, synthesise
from leapformer_fairseq.studies.benchmarks import measure, model, tables
from leapformer_fairseq.support.errors import LeapformerError

CPU = measure.Place(torch.device("cpu"))
TINY = [model.Case(4, 6), model.Case(6, 9)]
# all sizes different, so that one cannot stand in for another
SIZES = {
    **model.SIZES,
    "n_frames_per_step": 2,
    "output_frame_dim": 5,
    "encoder_transformer_layers": 3,
    "decoder_transformer_layers": 2,
    "encoder_embed_dim": 32,
    "decoder_embed_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_embed_dim": 24,
    "decoder_ffn_embed_dim": 40,
    "encoder_conv_layers": 2,
    "encoder_conv_kernel_size": 3,
    "prenet_layers": 3,
    "prenet_dim": 20,
    "prenet_dropout": 0.0,
    "postnet_layers": 4,
    "postnet_conv_dim": 28,
}
PLANS = [*model.MECHANISMS_MEASURED, "elu", "rope", "elu/rope/relu", "leap/relu/rope"]


@pytest.fixture
def tiny(monkeypatch):
    for name, value in {"SIZES": SIZES, "QUICK_CASES": TINY, "SECONDS": 0.01, "COUNTED_STEPS": 8}.items():
        monkeypatch.setattr(model, name, value)


@pytest.mark.full
def test_both_files_and_the_picture(tiny, tmp_path, capsys):
    plans = ["leap", "softmax/relu/cosformer"]
    command = ["bench", "model", "--quick", "--out", str(tmp_path), "--device", "cpu", "--mechanisms", *plans]
    assert main([*command, "--dtype", "float32", "bfloat16"]) == 0
    found = json.loads((tmp_path / "model.json").read_text())
    assert found["benchmark"] == "model" and found["environment"]["threads"] == 1
    places, systems = ["cpu", "cpu bfloat16"], ["fairseq", "fairseq (post-net once)", *plans]
    for section, names in (("decoders", systems), ("encoders", ["fairseq", *plans])):
        labels = [(row["device"], row["case"], row["mechanism"]) for row in found[section]]
        also = {"cpu": ["leap (exported)"]} if section == "decoders" else {}
        assert labels == [
            (place, str(case), name) for place in places for case in TINY for name in [*names, *also.get(place, [])]
        ]
        assert all(row["it/s"] > 0 for row in found[section])
    rates = {row["mechanism"]: row for row in found["decoders"][:4]}
    assert rates["leap"]["ratio"] == pytest.approx(rates["leap"]["it/s"] / rates["fairseq"]["it/s"])
    assert [(row["steps"], row["counted_gflop"] is None) for row in found["flops"]] == [(6, False)] * 3 + [
        (9, True)
    ] * 3
    report = (tmp_path / "model.md").read_text()
    assert found["signature"] in report and "4 phonemes, 6 steps" in report
    assert "A sentence, counted by torch" in capsys.readouterr().out
    assert main(["plot", str(tmp_path / "model.json")]) == 0


def test_the_aim_is_that_of_the_fully_linear_plan(monkeypatch):
    monkeypatch.setattr(model, "_exported", lambda: lambda phonemes, steps: None)
    case = model.CASES[0]
    monkeypatch.setattr(measure, "medians", lambda calls, seconds: {name: (1.0,) for name in calls})
    decoder = SimpleNamespace(forward_encoder=lambda *sentence: None)
    models = dict.fromkeys(["fairseq", "leap", "softmax/softmax/leap"], decoder)
    rows = model.decoders(case, models, CPU, 1.0)
    assert [row["aim"] for row in rows] == [None, 1.07, None, None] and rows[0]["it/s"] == case.steps
    assert tables.missed({"decoders": rows}) == [f"leap, {case}, speed: 1.00, aim at least 1.07"]
    half = model.decoders(case, models, measure.Place.parse("cpu bfloat16"), 1.0)
    assert [row["aim"] for row in half] == [None] * 3
    assert set(model.AIMS) <= set(model.CASES) and model.AIMS_PLAN in model.MECHANISMS_MEASURED


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sofmax", "unknown attention mechanism 'sofmax'; did you mean softmax?"),
        ("leap/sofmax/leap", "unknown attention mechanism 'sofmax'"),
        ("leap//leap", "unknown attention mechanism ''"),
        ("leap/relu", "plan 'leap/relu' names 2 blocks; give encoder/decoder/cross"),
        ("leap/relu/leap/relu", "names 4 blocks"),
    ],
)
def test_names_that_are_no_plans(name, message, capsys):
    with pytest.raises(LeapformerError, match=message) as error:
        model.plan_of(name)
    assert "\n" not in str(error.value)
    assert main(["bench", "model", "--mechanisms", "leap", name]) == 2
    assert message in capsys.readouterr().err


def test_plans_are_of_this_benchmark_only(capsys):
    assert model.plan_of("leap/relu/softmax") == {
        "encoder_self_attention": "leap", "decoder_self_attention": "relu", "decoder_cross_attention": "softmax",
    }  # fmt: skip
    assert set(model.plan_of("elu").values()) == {"elu"}
    assert main(["bench", "decode", "--mechanisms", "leap/relu/softmax"]) == 2
    assert "unknown attention mechanism 'leap/relu/softmax'" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*model.MECHANISMS_MEASURED, "rope"])
def test_plans_agree(name):
    assert model.disagreement(name) is None


@pytest.mark.parametrize(("plan", "wrong"), [("leap", True), ("softmax/relu/softmax", True), ("softmax", False)])
def test_a_wrong_decoder_is_refused(plan, wrong, tiny, tmp_path, capsys, monkeypatch):
    right = LinearStep.attend
    monkeypatch.setattr(LinearStep, "attend", lambda self, *args: right(self, *args) * 1.001)
    assert main(["bench", "model", "--quick", "--out", str(tmp_path), "--mechanisms", plan]) == 2 * wrong
    assert (f"{plan} is not measured: its decoder differs by" in capsys.readouterr().err) == wrong


@torch.no_grad()
@pytest.mark.parametrize("name", [model.FAIRSEQ, model.ONCE])
def test_fairseq_is_measured_as_its_generator_calls_it(name, tiny):
    case = model.Case(5, 7)
    stock = model.make(model.FAIRSEQ, CPU)
    tokens, lengths = model.phonemes(case, CPU.device)
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": lengths}, "speaker": None}
    config = SimpleNamespace(global_cmvn_stats_npz=None)
    generator = AutoRegressiveSpeechGenerator(stock, None, config, max_iter=case.steps, eos_prob_threshold=2.0)
    (expected,) = generator.generate(stock, sample)
    measured = model.make(name, CPU)
    measured.load_state_dict(stock.state_dict(), strict=name == model.FAIRSEQ)
    frames = model.decode(measured, measured.forward_encoder(tokens, lengths), case.steps)
    whole = frames + stock.decoder.postnet(frames)
    torch.testing.assert_close(whole.view(-1, 5), expected["feature"])


@torch.no_grad()
def test_ours_are_measured_as_synthesis_calls_them(tiny):
    case = model.Case(5, 7)
    ours = model.make("cosformer/relu/leap", CPU)
    sentence = model.phonemes(case, CPU.device)
    (expected,) = synthesise(ours, *sentence, manner=Manner(threshold=2.0, max_steps=case.steps))
    frames = model.decode(ours, ours.forward_encoder(*sentence), case.steps)
    refined = (frames + ours.decoder.postnet(frames)).view(-1, 5)
    torch.testing.assert_close(refined, torch.from_numpy(expected.frames))
    assert expected.predicted == 7.5, "1.5 steps a phoneme"


def test_the_post_net_at_every_step_is_all_that_one_fairseq_saves(tiny):
    case = model.Case(5, 7)
    every, once = (model.counted(model.make(name, CPU), case) for name in (model.FAIRSEQ, model.ONCE))
    assert every - once == model.flops(model.arguments(model.FAIRSEQ), case)["postnet"]


def difference(name: str, case: model.Case) -> int:
    """FLOPs that the counter sees more than the formula has, as the benchmark's documentation puts it."""
    layers, heads, width = (SIZES[f"decoder_{size}"] for size in ("transformer_layers", "attention_heads", "embed_dim"))
    dim = width // heads
    encoder, own, cross = model.plan_of(name).values()
    features = 2 * dim if own in ("leap", "cosformer") else dim
    step = 0
    if own != "softmax":
        step = 2 * width - 2 * features * (dim + 1)
    # rope's normalizer is summed over the source without a product
    saved = 2 * dim * case.source * ((encoder == "rope") + (cross == "rope"))
    return layers * heads * (case.steps * step - saved)


@pytest.mark.parametrize("name", [model.FAIRSEQ, *PLANS])
def test_the_formula_is_what_the_counter_sees_to_the_last_flop(name, tiny):
    case = model.Case(13, 11)
    seen, formula = model.counted(model.make(name, CPU), case), model.flops(model.arguments(name), case)
    expected = 0 if name == model.FAIRSEQ else difference(name, case)
    assert seen - sum(formula.values()) == expected
    assert (expected == 0) == (model.arguments(name).decoder_self_attention == "softmax")


@pytest.mark.parametrize("name", ["abc-mlp", "softmax/abc-mlp/softmax"])
def test_the_formula_does_not_pretend_to_know_bounded_memories(name, tiny):
    (row,) = (row for row in model.sentences(model.Case(9, 6), [name]) if row["mechanism"] == name)
    assert row["gflop"] is None and row["counted_gflop"] > 0


def test_flops_of_the_papers_sentence():
    """By hand: 100 phonemes, 150 steps, all softmax, of the size that is measured by default."""
    found = model.flops(model.arguments("softmax"), model.CASES[0])
    square = 2 * 256 * 256
    encoder = 100 * square * (4 * 5 + 1 + 6 * (4 + 2 * 4)) + 6 * 4 * 256 * 100 * 100
    prenet_and_out = 2 * 320 * 256 + 2 * square + 2 * 256 * 321
    decoder = 150 * (prenet_and_out + square * 6 * (4 + 2 + 2 * 4)) + 100 * square * 6 * 2
    decoder += 6 * 4 * 256 * (150 * 151 // 2 + 150 * 100)
    assert (found["encoder"], found["decoder"]) == (encoder, decoder)
    assert found["postnet"] == 150 * 5 * 2 * (2 * 320 * 512 + 2 * 512 * 512)


def test_linear_attention_pays_with_the_length():
    """A plan's share of softmax's FLOPs falls, and only the blocks that it replaces change."""
    shares = []
    for case in model.CASES:
        softmax, leap, cross = (
            model.flops(model.arguments(n), case) for n in ("softmax", "leap", "softmax/softmax/leap")
        )
        assert cross["encoder"] == softmax["encoder"] and cross["postnet"] == softmax["postnet"]
        assert leap["decoder"] != cross["decoder"] != softmax["decoder"]
        shares.append(sum(leap.values()) / sum(softmax.values()))
    assert shares[1] < shares[0] < 1
