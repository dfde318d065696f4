"""The picture of a benchmark's results."""

from __future__ import annotations

import json

import pytest

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.scoring.pictures import results
from leapformer_fairseq.support.errors import LeapformerError
from tests.scoring.pictures.images import overlapping, texts

NAMES = ("fairseq", "softmax", "leap")
TITLES = ("fairseq", "softmax", "LeaPformer")
KINDS = ("causal", "bidirectional", "wait-k")


def attention():
    forms = [("sdpa", "sdpa"), *((name, form) for name in ("leap", "relu") for form in ("auto", "chunkwise"))]
    sizes = [(kind, n, 2 * n if kind == "wait-k" else n) for kind in KINDS for n in (128, 512, 1000)]
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
            "state_bytes": s * 2**20,
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
    times = [
        {**rows, "length": n, "mechanism": name, "ms": n + i} for n in (64, 128, 256) for i, name in enumerate(systems)
    ]
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


def panels(draw, content):
    figure = draw(content)
    figure.finish()
    return [panel.axes for panel in figure.panels]


def titles(axes):
    return [one.get_title("left") for one in axes]


def lines_of(axes):
    """Label -> points of every line with a mechanism's name."""
    found = {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in axes.get_lines()}
    return {label: points for label, points in found.items() if not label.startswith("_") and label != "SDPA"}


@pytest.mark.parametrize("make", [attention, bounded, decode, gpu, train, model])
def test_the_command_draws_beside_the_results(make, tmp_path, capsys):
    (tmp_path / "some.json").write_text(json.dumps(make()))
    assert main(["plot", str(tmp_path / "some.json")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'some.svg'}\n"
    assert {"LeaPformer", "ABC (MLP)"} & set(texts(tmp_path / "some.svg"))


def test_attention_has_a_panel_per_kind_and_only_what_is_chosen_by_default():
    axes = panels(results._attention, attention())
    assert titles(axes) == ["causal, cpu", "bidirectional, cpu", "wait-k, cpu"]
    points = [(n, n / 500) for n in (128, 512, 1000)]
    assert lines_of(axes[0]) == {"LeaPformer": points, "ReLU attention": points}
    assert lines_of(axes[2])["LeaPformer"][-1] == (2000, 4), "against the longer side"
    assert all((one.get_xscale(), one.get_yscale()) == ("log", "log") for one in axes)
    assert all(list(one.get_lines()[-1].get_ydata()) == [1, 1] for one in axes)


def test_decode_draws_the_shortest_source_as_a_line_and_the_others_as_points():
    axes = panels(results._decode, decode())
    assert titles(axes) == ["1 row, cpu", "5 rows, cpu", "40 rows, cpu", "state, 1 row, cpu"]
    lines = [line for line in axes[1].get_lines() if line.get_markerfacecolor() != "white"]
    found = {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in lines}
    assert found == {name: [(10, 1.5), (150, 8.5), (4000, 201)] for name in TITLES}
    hollow = [tuple(line.get_xydata()[0]) for line in axes[3].get_lines() if line.get_markerfacecolor() == "white"]
    assert hollow == [(150, 4000)] * len(NAMES)


def heights(axes):
    return [bar.get_height() for bar in sorted(axes.patches, key=lambda bar: bar.get_x())]


def test_train_draws_a_bar_per_length_and_mechanism():
    speed, memory = panels(results._train, train())
    assert heights(speed) == [1000 + i for i in range(6)]
    assert heights(memory) == [500 - i for i in range(6)]
    places = sorted(bar.get_x() + bar.get_width() / 2 for bar in memory.patches)
    assert all(abs(x - i // 3) < 0.4 for i, x in enumerate(places))


def test_model_draws_ratios_and_flops_as_bars_where_there_are_two_lengths():
    decoder, encoder, flops = panels(results._model, model())
    assert titles([decoder, encoder]) == ["decoder, cpu", "encoder, cpu"]
    assert heights(decoder) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert heights(encoder) == [0.5, 1.5, 2, 2.5, 3.5, 4]
    assert heights(flops) == [3, 5, 6, 7, 9, 10]
    assert [label.get_text() for label in flops.get_xticklabels()] == ["150", "600"]
    colours = [[bar.get_facecolor() for bar in axes.containers[-1]] for axes in (decoder, flops)]
    assert colours[0] == colours[1], "a plan has one colour"
    assert len(panels(results._model, model(("cpu", "cuda")))) == 6


def test_bounded_draws_every_system_by_length():
    speed, memory = panels(results._bounded, bounded())
    assert lines_of(speed) == {
        "ABC (MLP)": [(64, 65), (128, 129), (256, 257)],
        "cumulative sums": [(64, 900)],
    }
    assert lines_of(memory)["cumulative sums"] == [(64, 112.5)]
    assert len(panels(results._bounded, {**bounded(), "memory": []})) == 1


def test_a_gpu_has_a_panel_per_precision_and_mask_with_names_beside_the_lines():
    figure = results._gpu(gpu())
    drawing = figure.finish()
    assert titles(drawing.axes) == [
        "causal, bfloat16", "bidirectional, bfloat16", "causal, float32", "bidirectional, float32",
    ]  # fmt: skip
    for axes in drawing.axes:
        assert lines_of(axes)["LeaPformer"] == [(1024, 2 / 3), (2048, 2 / 3), (4096, 0.3)] and len(lines_of(axes)) == 2
        assert {text.get_text() for text in axes.texts} == {"SDPA", "LeaPformer", "ReLU attention"}
    assert overlapping(drawing) == [], "the ends are the same, the names apart"
    left_out = [row for row in gpu()["attention"] if (row.get("device"), row["case"][:2]) != ("cuda", "bi")]
    assert titles(panels(results._gpu, {"attention": left_out})) == [
        "causal, bfloat16", "bidirectional, bfloat16", "causal, float32",
    ]  # fmt: skip
    assert heights(panels(results._gpu, gpu(("1,024", "2,048")))[0]), "bars for two lengths"


def test_unknown_memory_leaves_its_panel_out_and_devices_have_a_line_each():
    assert len(panels(results._train, {**train(), "memory": []})) == 1
    assert len(panels(results._train, train(("cpu", "cuda")))) == 4


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


def test_other_stored_results_are_known_by_their_keys(tmp_path, capsys):
    row = {"attention": "leap", "set": "test", "options": "", "measure": "BLEU", "difference": None}
    rows = [{**row, "scores": {"BLEU": {"mean": 1.0 + n, "min": 1.0, "max": 5.0}}} for n in range(3)]
    (tmp_path / "table.json").write_text(json.dumps({"title": "T", "expected": [], "runs": [], "rows": rows}))
    assert main(["plot", str(tmp_path / "table.json")]) == 0 and "LeaPformer" in texts(tmp_path / "table.svg")
    (tmp_path / "table.json").write_text(json.dumps({"title": "T", "expected": [], "runs": [], "rows": rows[:2]}))
    assert main(["plot", str(tmp_path / "table.json")]) == 2
    assert "has fewer than 3 points" in capsys.readouterr().err


def test_paths_that_do_not_serve(tmp_path, capsys):
    assert main(["plot", str(tmp_path / "none.json")]) == 2
    (tmp_path / "some.json").write_text(json.dumps(train()))
    assert main(["plot", str(tmp_path / "some.json"), "--out", str(tmp_path / "some.pdf")]) == 2
    assert main(["plot", str(tmp_path / "some.json"), "--out", str(tmp_path / "none" / "some.png")]) == 2
    missing, suffix, folder = capsys.readouterr().err.splitlines()
    assert (
        "none.json cannot be read" in missing
        and "end its name with .svg or .png" in suffix
        and "cannot be written" in folder
    )
