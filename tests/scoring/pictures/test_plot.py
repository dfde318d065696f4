"""The picture of a benchmark's results."""

from __future__ import annotations

import json

import pytest
from matplotlib.colors import to_rgba

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.pictures import results
from leapformer_fairseq.support.errors import LeapformerError
from tests.scoring.pictures.images import pixels

NAMES = ("fairseq", "softmax", "leap")


def attention():
    forms = [("sdpa", "sdpa"), *((name, form) for name in ("leap", "relu") for form in ("auto", "chunkwise"))]
    sizes = [("causal", 128, 128), ("causal", 2048, 2048), ("bidirectional", 128, 128), ("wait-k", 256, 2000)]
    rows = [
        {"device": "cpu", "kind": kind, "queries": t, "keys": s, "mechanism": name, "form": form, "ratio": s / 500}
        for kind, t, s in sizes
        for name, form in forms
    ]
    return {"times": rows, "steps": [], "memory": []}


def decode():
    sizes = [(10, 50), (150, 500), (150, 4000), (4000, 4000)]
    rows = [
        {
            "device": "cpu",
            "rows": n,
            "target": t,
            "source": s,
            "mechanism": name,
            "ms": n * t / 100 + 1,
            "state_bytes": s,
        }
        for n in (1, 5, 40)
        for t, s in sizes
        for name in NAMES
    ]
    return {"benchmark": "decode", "decoders": rows, "blocks": []}


def train(devices=("cpu",)):
    labels = [{"device": d, "length": n, "mechanism": name} for d in devices for n in (512, 4096) for name in NAMES]
    return {
        "benchmark": "train",
        "times": [{**label, "tokens_per_second": 1000 + i} for i, label in enumerate(labels)],
        "memory": [{**label, "peak_mib": 500 - i} for i, label in enumerate(labels)],
    }


def model(devices=("cpu",)):
    sizes, names = [(100, 150), (400, 600)], ("fairseq", "fairseq (post-net once)", "leap", "softmax/softmax/leap")
    labels = [{"source": s, "steps": t, "mechanism": name} for s, t in sizes for name in names]
    rates = [{**label, "device": device, "ratio": 1 + i} for device in devices for i, label in enumerate(labels)]
    flops = [{**label, "gflop": 3 + i} for i, label in enumerate(labels) if "once" not in label["mechanism"]]
    encoders = [{**row, "ratio": row["ratio"] / 2} for row in rates if "once" not in row["mechanism"]]
    return {"benchmark": "model", "decoders": rates, "encoders": encoders, "flops": flops}


def bounded():
    rows = {"device": "cpu", "ratio": 1.0}
    systems = ("sdpa", "abc-mlp")
    times = [{**rows, "length": n, "mechanism": name, "ms": n + i} for n in (64, 256) for i, name in enumerate(systems)]
    cumulative = [{**rows, "length": 64, "mechanism": name, "ms": 900} for name in ("cumulative sums", "abc-mlp")]
    memory = [{**row, "peak_mib": row["ms"] / 8} for row in (*times, cumulative[0])]
    return {"benchmark": "bounded", "times": times, "cumulative": cumulative, "memory": memory}


def gpu(lengths=("1,024", "2,048", "4,096")):
    names = ("sdpa", "leap", "relu", "entmax")
    labels = [
        {"device": place, "case": f"{kind} {n}", "mechanism": name, "ratio": i / 3 if n != "4,096" else 0.3}
        for place in ("cuda bfloat16", "cuda")
        for kind in ("causal", "bidirectional", "wait-k")
        for n in reversed(lengths)
        for i, name in enumerate(names, 1)
    ]
    return {"benchmark": "gpu", "attention": [*labels, {"case": "causal 8,192", "mechanism": "leap", "failure": "no"}]}


def lines_of(axes):
    """Label -> points of every line with a mechanism's name."""
    found = {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in axes.get_lines()}
    return {label: points for label, points in found.items() if not label.startswith("_")}


@pytest.mark.parametrize("make", [attention, bounded, decode, gpu, train, model])
def test_the_command_draws_beside_the_results(make, tmp_path, capsys):
    (tmp_path / "some.json").write_text(json.dumps(make()))
    assert main(["plot", str(tmp_path / "some.json")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'some.png'}\n"
    pixels(tmp_path / "some.png")


def test_attention_has_a_panel_per_kind_and_only_what_is_chosen_by_default():
    figure = results._attention(attention())
    causal, *others = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["causal, cpu", "bidirectional, cpu", "wait-k, cpu"]
    assert lines_of(causal) == {name: [(128, 128 / 500), (2048, 2048 / 500)] for name in ("leap", "relu")}
    assert lines_of(others[1])["leap"] == [(2000, 4)], "against the longer side"
    assert all((axes.get_xscale(), axes.get_yscale()) == ("log", "log") for axes in figure.axes)
    assert all(list(axes.get_lines()[-1].get_ydata()) == [1, 1] for axes in figure.axes)


def test_decode_draws_the_shortest_source_as_a_line_and_the_others_as_points():
    one, five, forty, state = results._decode(decode()).axes
    assert [axes.get_title() for axes in (one, five, forty, state)] == [
        "1 row, cpu", "5 rows, cpu", "40 rows, cpu", "state, 1 row, cpu",
    ]  # fmt: skip
    assert lines_of(five) == {name: [(10, 1.5), (150, 8.5), (4000, 201)] for name in NAMES}
    hollow = [tuple(line.get_xydata()[0]) for line in state.get_lines() if line.get_markerfacecolor() == "none"]
    assert hollow == [(150, 4000)] * len(NAMES)


def test_train_draws_a_bar_per_length_and_mechanism():
    speed, memory = results._train(train()).axes
    assert [bar.get_height() for bar in speed.patches] == [1000 + i for i in range(6)]
    assert [bar.get_height() for bar in memory.patches] == [500 - i for i in range(6)]
    places = [bar.get_x() + bar.get_width() / 2 for bar in memory.patches]
    assert places == sorted(places) and all(abs(x - i // 3) < 0.4 for i, x in enumerate(places))


def test_model_draws_ratios_by_length_and_flops_as_bars():
    decoder, encoder, flops = results._model(model()).axes
    assert [axes.get_title() for axes in (decoder, encoder)] == ["decoder, cpu", "encoder, cpu"]
    assert lines_of(decoder)["leap"] == [(150, 3), (600, 7)] and len(lines_of(decoder)) == 4
    assert lines_of(encoder)["softmax/softmax/leap"] == [(100, 2), (400, 4)] and len(lines_of(encoder)) == 3
    assert [bar.get_height() for bar in flops.patches] == [3, 5, 6, 7, 9, 10]
    assert [label.get_text() for label in flops.get_xticklabels()] == ["150", "600"]
    colour = {line.get_label(): line.get_color() for line in decoder.get_lines()}["leap"]
    assert to_rgba(colour) == flops.patches[1].get_facecolor(), "a plan has one colour"
    assert len(results._model(model(("cpu", "cuda"))).axes) == 6


def test_bounded_draws_every_system_by_length():
    speed, memory = results._bounded(bounded()).axes
    assert lines_of(speed) == {
        "sdpa": [(64, 64), (256, 256)],
        "abc-mlp": [(64, 65), (256, 257)],
        "cumulative sums": [(64, 900)],
    }
    assert lines_of(memory)["cumulative sums"] == [(64, 112.5)]
    assert len(results._bounded({**bounded(), "memory": []}).axes) == 1


def test_a_gpu_has_a_panel_per_precision_and_mask_with_names_beside_the_lines():
    figure = results._gpu(gpu())
    assert [axes.get_title() for axes in figure.axes] == [
        "causal, bfloat16", "bidirectional, bfloat16", "causal, float32", "bidirectional, float32",
    ]  # fmt: skip
    for axes in figure.axes:
        assert lines_of(axes)["leap"] == [(1024, 2 / 3), (2048, 2 / 3), (4096, 0.3)] and len(lines_of(axes)) == 2
        heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
        assert set(heights) == {"SDPA", "LeaPformer", "ReLU attention"}
        assert all(0 <= height <= 1 for height in heights.values())
        first, second, third = sorted(heights.values())
        assert min(second - first, third - second) > 0.99 * results.LABEL, "the ends are the same, the names apart"
    left_out = [row for row in gpu()["attention"] if (row.get("device"), row["case"][:2]) != ("cuda", "bi")]
    assert [axes.get_visible() for axes in results._gpu({"attention": left_out}).axes] == [True, True, True, False]
    with pytest.raises(LeapformerError, match="fewer than 3 lengths"):
        results._gpu(gpu(("1,024", "2,048")))


def test_unknown_memory_leaves_its_panel_out_and_devices_have_a_line_each():
    assert len(results._train({**train(), "memory": []}).axes) == 1
    assert len(results._train(train(("cpu", "cuda"))).axes) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "no results of a benchmark that can be drawn .attention, decode, train, bounded, model, gpu."),
        ('{"benchmark": "sleep"}', "no results"),
        ('{"benchmark": "model", "decoders": [{"device": "cpu", "mechanism": "leap"}]}', "lacks 'steps' in results"),
        ('{"benchmark": "decode"}', "lacks the decoders of decode; run the benchmark again"),
        ('{"benchmark": "attention", "times": []}', "lacks the times of attention"),
        ('{"benchmark": "train", "times": [{"device": "cpu"}]}', "lacks 'memory' in results of train"),
    ],
)
def test_files_without_results(content, message, tmp_path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(LeapformerError, match=message) as error:
        results.draw_results(tmp_path / "x.json", tmp_path / "x.png")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x.png").exists()


def test_paths_that_do_not_serve(tmp_path, capsys):
    assert main(["plot", str(tmp_path / "none.json")]) == 2
    (tmp_path / "some.json").write_text(json.dumps(train()))
    assert main(["plot", str(tmp_path / "some.json"), "--out", str(tmp_path / "some.pdf")]) == 2
    assert main(["plot", str(tmp_path / "some.json"), "--out", str(tmp_path / "none" / "some.png")]) == 2
    missing, suffix, folder = capsys.readouterr().err.splitlines()
    assert "none.json cannot be read" in missing and "end with .png" in suffix and "cannot be written" in folder
