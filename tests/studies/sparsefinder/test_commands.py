"""`leapformer sparsefinder` from trained models to curves: through the command line, interrupted, and misused."""

from __future__ import annotations

import csv
import json
import re
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from leapformer_fairseq.attention.sparse.fitted import read_file
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.studies.sparsefinder import extraction, quality
from leapformer_fairseq.studies.sparsefinder.extraction import Graphs
from leapformer_fairseq.studies.sparsefinder.quality import Scored, score
from leapformer_fairseq.support.errors import LeapformerError
from tests.commands import done, leapformer
from tests.reversed_text import TRAINING, reversed_text

ROUTING = {"decoder_self_attention": "entmax-routing", "routing_centroids": 2}
ALL_EDGES = {"sparsefinder_threshold": 1e6}
GENERATION = "generate ROOT/mt --path ROOT/nmt/checkpoint_last.pt --max-tokens 2000 --gen-subset test --num-workers 0"


def trained(root: Path, name: str, options: str, updates: int) -> Path:
    save = root / name
    limit = f"--dropout 0 --max-tokens 200 --no-epoch-checkpoints --max-update {updates} --save-dir {save}"
    done(leapformer("train", *options.split(), *TRAINING.split(), *limit.split()))
    return save / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Binary data, and three small models: a translation and a masked language model with entmax, one with softmax."""
    root = reversed_text(tmp_path_factory.mktemp("sparsefinder"), train=120, valid=20, test=20)
    mt = f"{root}/mt --task translation --arch leapformer_nmt_tiny --encoder-self-attention softmax"
    trained(root, "nmt", f"{mt} --decoder-self-attention entmax --decoder-cross-attention softmax", 40)
    trained(root, "softmax", f"{mt} --decoder-self-attention softmax --decoder-cross-attention softmax", 1)
    mlm = f"{root}/lm --task masked_lm --criterion masked_lm --arch leapformer_mlm_tiny --encoder-self-attention entmax"
    trained(root, "mlm_entmax", f"{mlm} --tokens-per-sample 24 --sample-break-mode none", 10)
    return root


def extract(root, model="nmt", data="mt", block="decoder-self", out="graphs", sentences=40, length=4):
    options = f"--block {block} --out {root}/{out} --sentences {sentences} --min-length {length}"
    return f"sparsefinder extract {root}/{data} --path {root}/{model}/checkpoint_last.pt {options}".split()


@pytest.fixture(scope="module")
def graphs(root) -> Path:
    assert main(extract(root)) == 0
    return root / "graphs"


@pytest.fixture(scope="module")
def fitted(root, graphs) -> list[str]:
    assert main(["sparsefinder", "fit", str(graphs), "--out", str(root / "fitted"), "--seeds", "1", "2"]) == 0
    return [str(root / "fitted" / f"seed{seed}.pt") for seed in (1, 2)]


# --------------------------------------------------------------------------------------------------------- extract
def test_sentences_are_long_enough_and_causal(graphs):
    found = Graphs(graphs)
    whole = list(found.sentences())
    assert len(whole) == 40 and [s.index for s in whole] == found.about["indexes"]
    for sentence in whole:
        assert len(sentence.words) >= 4 == len(sentence.graph.shape) and sentence.q.shape[:2] == (2, 2)
        assert not (sentence.graph & ~found.seen(sentence)).any() and sentence.graph.any(-1).all()
    assert [s.index for s in found.sentences(15, 18)] == found.about["indexes"][15:18]


def test_an_interrupted_extraction_goes_on_to_identical_files(root, graphs, monkeypatch):
    calls, real = [], extraction.capture

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(extraction, "capture", interrupted)
    assert main(extract(root, out="again")) == 130
    assert [path.name for path in sorted((root / "again").glob("*.pt"))] == ["part-0000.pt"]
    with pytest.raises(LeapformerError, match="2 of 3 parts are missing; repeat"):
        Graphs(root / "again")
    assert main(extract(root, out="again")) == 0
    assert len(calls) == 20 + 24  # what was kept is not read again
    for one, other in zip(Graphs(graphs).sentences(), Graphs(root / "again").sentences(), strict=True):
        assert one[:2] == other[:2] and all(torch.equal(a, b) for a, b in zip(one[2:], other[2:], strict=True))


def test_a_full_disk_is_one_line_and_keeps_what_is_finished(root, monkeypatch, capsys):
    real, saved = torch.save, []

    def full(content, path):
        saved.append(path)
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        real(content, path)

    monkeypatch.setattr(torch, "save", full)
    assert main(extract(root, out="full")) == 2
    assert "part-0001.pt cannot be written" in (err := capsys.readouterr().err) and "make room" in err
    assert [path.name for path in (root / "full").glob("*.p*t*")] == ["part-0000.pt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": "softmax"},
            "layer 1, is softmax, whose graph has all edges; train with --decoder-self-attention entmax",
        ),
        ({"block": "encoder-self"}, "is softmax, whose graph has all edges"),
        ({"block": "middle"}, "choose from: encoder-self, decoder-self, decoder-cross"),
        ({"sentences": 500}, "train has 120 of at least 4 tokens; give --sentences 120"),
        ({"length": 9, "sentences": 100}, "of at least 9 tokens; give --sentences"),
        ({"sentences": 0}, "--sentences 0: give at least 1"),
        ({"length": -1}, "--min-length -1: give at least 1"),
        ({"out": "graphs", "sentences": 39}, "holds a set of graphs with another sentences (40, not 39)"),
    ],
)
def test_bad_requests_are_one_line(root, graphs, change, message, capsys):
    assert main(extract(root, **{"out": "bad" + "".join(map(str, change.values())), **change})) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("leapformer: error") == 1


def test_the_remedy_for_too_few_sentences_works_in_the_same_folder(root, capsys):
    assert main(extract(root, out="few", sentences=500)) == 2
    assert "give --sentences 120" in capsys.readouterr().err and not (root / "few").exists()
    assert main(extract(root, out="few", sentences=120)) == 0 and len(Graphs(root / "few")) == 120


@pytest.mark.full
def test_a_part_of_the_data_that_is_not_there(root, graphs, fitted, tmp_path, capsys):
    assert main([*extract(root, out="nosuch"), "--subset", "nosuch"]) == 2
    assert f"--subset nosuch: {root}/mt holds no such part of the data" in capsys.readouterr().err
    options = ("--data", f"{root}/mt", "--references", f"{root}/test.de", "--subset", "nosuch")
    assert main(pareto(root, graphs, fitted, tmp_path / "out", *options)) == 2
    assert "--subset nosuch" in capsys.readouterr().err and not (tmp_path / "out/points").exists(), "before the sweep"


def limited(command: list[str]) -> int:
    """The status of a command while files may have 4096 bytes, which PyTorch takes as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # Python ignores SIGXFSZ
    try:
        return main(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.full
def test_what_really_cannot_be_written_is_one_line(graphs, fitted, tmp_path, capsys):
    command = ["sparsefinder", "fit", str(graphs), "--out", str(tmp_path / "fitted"), "--seeds", "1"]
    assert limited(command) == 2
    errors = capsys.readouterr().err
    assert "seed1.pt cannot be written: the disk is full, or a limit of file sizes was reached" in errors
    assert not (tmp_path / "fitted").exists()
    pattern = ["--mechanism", "sparsefinder-distance", "--set", "sparsefinder_threshold=1", "--layer", "1"]
    command = ["sparsefinder", "draw", str(graphs), "--fitted", fitted[0], "--out", str(tmp_path / "drawn"), *pattern]
    assert limited(command) == 2
    errors = capsys.readouterr().err
    assert "head0.svg cannot be written: File too large" in errors and "Traceback" not in errors
    assert not (tmp_path / "drawn").exists()


# ------------------------------------------------------------------------------------------------------------- fit
@pytest.mark.full
def test_a_fit_is_the_same_from_the_same_seed(root, graphs, fitted, capsys):
    assert main(["sparsefinder", "fit", str(graphs), "--out", str(root / "fitted2"), "--seeds", "1"]) == 0
    assert "132 parameters per head, 264 per layer of 2 heads" in capsys.readouterr().out
    one, other, second = (read_file(path) for path in (fitted[0], str(root / "fitted2" / "seed1.pt"), fitted[1]))
    for key, entry in one["entries"].items():
        assert all(torch.equal(entry[name], other["entries"][key][name]) for name in entry)
        assert not torch.equal(entry["q.weight"], second["entries"][key]["q.weight"])
        assert torch.equal(entry["q.weight"], entry["k.weight"])  # shared


def test_other_settings_in_the_same_folder_are_refused(root, graphs, fitted, capsys):
    command = ["sparsefinder", "fit", str(graphs), "--out", str(root / "fitted"), "--seeds", "1", "--margin", "2"]
    assert main(command) == 2
    assert "was fitted with other settings" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- curves
def pareto(root, graphs, fitted, out, *more):
    return [
        "sparsefinder", "pareto", str(graphs), "--fitted", *fitted, "--out", str(root / out), "--grid", "small",
        "--windows", "0", "3", *more,
    ]  # fmt: skip


def test_curves_tables_and_quality(root, graphs, fitted):
    quality = ["--data", str(root / "mt"), "--references", str(root / "test.de"), "--quality-points", "1"]
    assert main(pareto(root, graphs, fitted, "curves", *quality)) == 0
    out = root / "curves"
    rows = list(csv.DictReader((out / "curves.csv").open()))
    mechanisms = {row["mechanism"] for row in rows}
    assert mechanisms == {
        "entmax-bigbird", "entmax-longformer", "entmax-reformer", "entmax-routing", "entmax-window",
        "sparsefinder-distance", "sparsefinder-kmeans", "sparsefinder-quantize",
    }  # fmt: skip
    assert {row["seed"] for row in rows if row["mechanism"] == "sparsefinder-distance"} == {"1", "2"}
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in ("sparsity", "recall", "precision", "exact"))
    found = json.loads((out / "curves.json").read_text())
    assert found["gold"]["name"] == "BLEU" and 0 < found["gold"]["sparsity"] < 1
    scored = {row["mechanism"]: row for row in found["quality"]}
    assert scored["sparsefinder-distance"]["incremental"] and not scored["entmax-routing"]["incremental"]
    text = (out / "curves.md").read_text()
    assert "entmax-routing (non-causal)" in text and "full entmax: BLEU" in text
    for picture in ("recall.svg", "quality.svg", "heads.svg"):
        assert (out / picture).stat().st_size > 5000


@pytest.mark.full
def test_scores_of_other_data_or_another_fit_are_not_taken_for_these(root, graphs, tmp_path, capsys):
    one = tmp_path / "one"
    assert main(["sparsefinder", "fit", str(graphs), "--out", str(one), "--seeds", "1"]) == 0
    files, quality = [str(one / "seed1.pt")], ["--data", str(root / "mt"), "--references", str(root / "test.de")]
    few = ["--mechanisms", "sparsefinder-distance", "--quality-points", "1"]
    command = pareto(root, graphs, files, tmp_path / "out", *quality, *few)
    assert main([*command, "--limit", "2"]) == 0
    assert main([*command, "--limit", "3"]) == 2
    assert "holds a set of scores with another limit (2, not 3)" in capsys.readouterr().err
    shutil.rmtree(one)
    assert main(["sparsefinder", "fit", str(graphs), "--out", str(one), "--seeds", "1", "--epochs", "3"]) == 0
    assert main([*command, "--limit", "2"]) == 2
    assert "holds a sweep with another files (" in capsys.readouterr().err


def test_an_option_for_all_patterns_that_have_it(root, graphs, fitted, tmp_path):
    few = ["--mechanisms", "sparsefinder-distance", "sparsefinder-kmeans", "--set", "sparsefinder_distance=squared"]
    assert main(pareto(root, graphs, fitted, tmp_path / "out", *few)) == 0
    rows = list(csv.DictReader((tmp_path / "out/curves.csv").open()))
    squared = {row["mechanism"] for row in rows if "distance=squared" in row["options"]}
    assert squared == {"sparsefinder-distance"} < {row["mechanism"] for row in rows}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--window", "4"], "--window 4: it has no middle, and the longest sentence has"),
        (["--window", "-3"], "--window -3: it has no middle"),
        (["--sentences", "0"], "--sentences 0: give at least 1"),
        (["--mechanism", "softmax"], "--mechanism softmax: it is no sparsity pattern"),
        (["--fitted", "moved.pt"], "--fitted moved.pt: there is no such file"),
        (["--set", "sparse_noncausal=maybe"], "give sparse_noncausal=True or sparse_noncausal=False"),
        (
            ["--mechanism", "sparsefinder-block1", "--set", "sparsefinder_block_size=4"],
            "fit it with `.* fit --blocks 4`",
        ),
    ],
)
def test_bad_patterns_are_one_line(graphs, fitted, tmp_path, more, message, capsys):
    command = ["sparsefinder", "evaluate", str(graphs), "--fitted", *fitted, "--out", str(tmp_path)]
    assert main([*command, "--mechanism", "sparsefinder-distance", *more]) == 2
    err = capsys.readouterr().err
    assert re.search(message, err) and err.count("leapformer: error") == 1


def test_bad_windows_of_a_sweep(root, graphs, fitted, tmp_path, capsys):
    assert main([*pareto(root, graphs, fitted, tmp_path / "out"), "--windows", "0", "4"]) == 2
    assert "--window 4: it has no middle" in capsys.readouterr().err


def test_the_teachers_alpha_is_drawn_and_compared(root, graphs, fitted, tmp_path, capsys):
    from leapformer_fairseq.studies.sparsefinder.grids import Point
    from leapformer_fairseq.studies.sparsefinder.sweep import mechanisms

    point = Point("sparsefinder-distance", {"sparsefinder_threshold": 1.0})
    for alpha, wanted in (("1.5", 1.5), ("2", 2.0)):
        other = Graphs(graphs)
        other.about["alpha"] = alpha
        assert [one.alpha for one in mechanisms(other, point, "none", fitted, 0)] == [wanted, wanted]
    other.about |= {"alpha": "learned", "alphas": [[1.2, 1.8], [1.5, 1.9]]}
    found = [one.alpha.flatten().tolist() for one in mechanisms(other, point, "none", fitted, 0)]
    assert found == [pytest.approx([1.2, 1.8]), pytest.approx([1.5, 1.9])]
    plan = {"decoder_self_attention": "sparsefinder-distance", "sparsefinder_file": fitted[0], "entmax_alpha": "2"}
    command = GENERATION.replace("ROOT", str(root))
    assert main([*command.split(), "--model-overrides", repr(plan)]) == 2
    assert "fitted to a teacher with --entmax-alpha 1.5, this model has 2" in capsys.readouterr().err


@pytest.mark.full
def test_an_interrupted_sweep_goes_on_to_identical_files(root, graphs, fitted, monkeypatch):
    from leapformer_fairseq.studies.sparsefinder import study

    assert main(pareto(root, graphs, fitted, "whole")) == 0
    real, calls = study.measure_point, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(study, "measure_point", interrupted)
    assert main(pareto(root, graphs, fitted, "parts")) == 130
    assert main(pareto(root, graphs, fitted, "parts")) == 0
    names = ["curves.csv", "curves.md", *(f"points/{path.name}" for path in (root / "whole" / "points").iterdir())]
    assert len(calls) == len(names) - 2 + 1
    for name in names:
        assert (root / "whole" / name).read_bytes() == (root / "parts" / name).read_bytes()


@pytest.mark.full
def test_points_in_parallel_are_the_same(root, graphs, fitted):
    for out, more in (("alone", []), ("beside", ["--jobs", "2"]), ("some", ["--only", "kmeans"])):
        assert (
            main([*pareto(root, graphs, fitted, out), "--mechanisms", "entmax-window", "sparsefinder-kmeans", *more])
            == 0
        )
    alone, beside, some = (
        {path.name: path.read_text() for path in (root / out / "points").iterdir()}
        for out in ("alone", "beside", "some")
    )
    assert alone == beside and some == {name: text for name, text in alone.items() if "kmeans" in name} != alone
    assert not (root / "some" / "curves.md").exists(), "some points are no curve"


def test_one_pattern(root, graphs, fitted, capsys):
    command = [
        "sparsefinder", "evaluate", str(graphs), "--fitted", fitted[0], "--out", str(root / "one"), "--window", "3",
        "--mechanism", "sparsefinder-distance", "--set", "sparsefinder_threshold=1.5",
    ]  # fmt: skip
    assert main(command) == 0
    assert "recall" in capsys.readouterr().out
    (row,) = json.loads((root / "one" / "evaluate.json").read_text())["rows"]
    assert len(row["layers"]["recall"]) == 2 and row["options"] == {"sparsefinder_threshold": 1.5}
    for wrong, message in (("threshold=1", "has no option 'threshold'"), ("sparsefinder_threshold=x", "give a number")):
        assert main([*command[:-1], wrong]) == 2
        assert message in capsys.readouterr().err


def test_pictures_of_heads_have_stars_at_gold_edges(root, graphs, fitted, monkeypatch, capsys):
    from leapformer_fairseq.studies.sparsefinder import pictures

    drawn = []
    real = pictures.draw_graph
    monkeypatch.setattr(pictures, "draw_graph", lambda *x: drawn.append(x) or real(*x))
    command = f"sparsefinder draw {graphs} --fitted {fitted[0]} --out {root}/heads --mechanism sparsefinder-kmeans"
    command = [*command.split(), "--set", "sparsefinder_centroids=4", "--window", "3", "--layer", "2"]
    assert main(command) == 0
    assert "2 pictures in" in capsys.readouterr().out
    assert sorted(path.name for path in (root / "heads").glob("*.svg")) == ["layer2-head0.svg", "layer2-head1.svg"]
    sentence = list(Graphs(graphs).sentences())[36]
    for head, (predicted, weights, gold, axes, *_) in enumerate(drawn):
        assert torch.equal(gold, sentence.graph[1, head]) and list(axes[0].tokens) == sentence.words
        assert not weights[~predicted].any() and predicted.diagonal().all()  # the window
    assert main([*command[:-1], "3"]) == 2
    assert "--layer 3: choose from 1 to 2" in capsys.readouterr().err


def tags_command(root, graphs, fitted, *more):
    return f"sparsefinder tags {graphs} --fitted {fitted[0]} --out {root}/tags --centroids 4".split() + list(more)


def test_tags_of_buckets(root, graphs, fitted, monkeypatch, capsys):
    """Each tagged token is in a bucket of each head once as a query and once as a key; the mark of the beginning not.

    The picture has for each tag the shares of the buckets, of queries and of keys apart.
    """
    from leapformer_fairseq.studies.sparsefinder import pictures

    drawn = []
    real = pictures.draw_tags
    monkeypatch.setattr(pictures, "draw_tags", lambda *x: drawn.append(x[0]) or real(*x))
    assert main(tags_command(root, graphs, fitted)) == 0
    assert "4 sentences in" in capsys.readouterr().out
    lines = (root / "tags" / "text.txt").read_text().splitlines()
    words = [word for line in lines for word in line.split()]
    tagged = "\n\n".join("\n".join(f"{word}\t{word[0]}" for word in line.split()) for line in lines)
    (root / "tags.tsv").write_text(tagged + "\n")
    assert main(tags_command(root, graphs, fitted, "--tags", str(root / "tags.tsv"), "--most", "2")) == 0
    rows = list(csv.DictReader((root / "tags" / "tags.csv").open()))
    assert len(rows) == 2 * 2 * 2 * 4 and set(rows[0]) >= {"layer", "head", "side", "bucket", "other"}
    common = next(name for name in rows[0] if name not in ("layer", "head", "side", "bucket", "other"))
    for layer, head, side in ((1, 0, "queries"), (2, 1, "keys")):
        at = (str(layer), str(head), side)
        own = [int(row[common]) for row in rows if (row["layer"], row["head"], row["side"]) == at]
        expected, entry = torch.zeros(4), list(read_file(fitted[0])["entries"].values())[layer - 1]
        for sentence in list(Graphs(graphs).sentences())[36:]:
            x = {"queries": sentence.q, "keys": sentence.k}[side][layer - 1, head]
            low = x @ entry[f"{side[0]}.weight"][head] + entry[f"{side[0]}.bias"][head]
            nearest = torch.cdist(low, entry["centroids.4"][head]).argmin(1)
            expected += nearest[[word[0] == common for word in sentence.words]].bincount(minlength=4)
        assert own == expected.tolist() and sum(own) == sum(word[0] == common for word in words)
        shares = drawn[2 * (layer - 1) + head][side]
        assert shares[:, 0].tolist() == pytest.approx([count / sum(own) for count in own])
        torch.testing.assert_close(shares.sum(0), torch.ones(3))
    assert len(drawn) == 4 and (root / "tags" / "tags-layer2-head0.svg").stat().st_size > 5000
    assert "buckets in use of keys" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("word tag\n", "line 1: 'word tag' is no word, tab and tag"),
        ("word\ttag\n", "there are tags for 1 sentences, and 4 sentences"),
        ("a\tX\n\n" * 4, "the tags of sentence 1 are of other words than line 1 of text.txt"),
    ],
)
def test_tags_of_other_text_are_one_line(root, graphs, fitted, text, message, tmp_path, capsys):
    (tmp_path / "tags.tsv").write_text(text)
    assert main(tags_command(root, graphs, fitted, "--tags", str(tmp_path / "tags.tsv"))) == 2
    assert message in (err := capsys.readouterr().err) and err.count("leapformer: error") == 1


def test_a_pipeline_that_is_not_installed_is_one_line(root, graphs, fitted, capsys):
    assert main(tags_command(root, graphs, fitted, "--spacy", "en_missing")) == 2
    assert "install spacy and this pipeline, or give the tags as --tags" in capsys.readouterr().err


def test_graphs_of_another_teacher_are_refused(root, fitted, capsys):
    assert main(extract(root, "mlm_entmax", "lm", "encoder-self", "masked", sentences=20, length=20)) == 0
    assert all("<mask>" not in sentence.words for sentence in Graphs(root / "masked").sentences())  # the text itself
    assert main(pareto(root, root / "masked", fitted, "mixed")) == 2
    assert "was fitted to" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- quality
def test_all_edges_are_full_entmax_and_fewer_are_not(root, fitted):
    test = Scored(
        str(root / "nmt" / "checkpoint_last.pt"), str(root / "mt"), "decoder-self", references=str(root / "test.de")
    )
    full = score(test)
    file = {"sparsefinder_file": fitted[0]}
    assert score(test, "sparsefinder-distance", {**file, **ALL_EDGES}).quality == full.quality and full.incremental
    whole = score(test, "sparsefinder-quantize", {**file, "sparsefinder_bins": 1})
    assert whole.quality == full.quality and not whole.incremental  # read again for every token


def test_long_sentences_are_scored_apart(root, monkeypatch):
    def scored(long, limit=None):
        references, data = str(root / "test.de"), str(root / "mt")
        checkpoint = str(root / "nmt" / "checkpoint_last.pt")
        return score(Scored(checkpoint, data, "decoder-self", references=references, limit=limit, long=long))

    monkeypatch.setattr(quality, "bleu", lambda _, references: SimpleNamespace(value=references))
    references = (root / "test.de").read_text().splitlines()
    long = [line for line in references if len(line.split()) + 1 >= 6]
    some, none = scored(6), scored(99)
    assert 0 < len(long) < 20 and some.long == long and some.long_count == len(long) and some.quality == references
    assert none.long is None and none.long_count == 0
    assert scored(6, limit=7).long == [line for line in references[:7] if line in long]  # of the first seven


def test_perplexity_of_a_masked_language_model(root):
    test = Scored(str(root / "mlm_entmax" / "checkpoint_last.pt"), str(root / "lm"), "encoder-self")
    full, again = score(test), score(test)
    assert full.name == "perplexity" and full.quality == again.quality > 1
    assert score(test, "entmax-window", {"sparse_window": 99}).quality == pytest.approx(full.quality, rel=1e-5)
    assert score(test, "entmax-window", {"sparse_window": 1}).quality != full.quality


@pytest.mark.full
def test_the_experiment_with_blocks(root, capsys):
    """Also from its files, without another pass; where every block is attended to it is full entmax.

    Blocks of one token have what was fitted to tokens.
    """
    assert main(extract(root, "mlm_entmax", "lm", "encoder-self", "block_graphs", sentences=20, length=20)) == 0
    fit = f"sparsefinder fit {root}/block_graphs --out {root}/block_fitted --seeds 1 --blocks 1 16"
    assert main(fit.split()) == 0
    command = f"sparsefinder blocks {root}/lm --path {root}/mlm_entmax/checkpoint_last.pt --out {root}/blocks"
    command = [*command.split(), "--fitted", f"{root}/block_fitted/seed1.pt", "--grid", "small"]
    assert main(command) == 0
    found = json.loads((root / "blocks" / "blocks.json").read_text())
    assert len(found["rows"]) == 3 * 2 * 2 and (root / "blocks" / "blocks.svg").stat().st_size > 5000
    assert (root / "blocks" / "blocks-sizes.svg").stat().st_size > (root / "blocks" / "blocks.svg").stat().st_size
    for row in found["rows"]:
        if row["options"]["sparsefinder_block_size"] == 16:  # a sample has two blocks
            assert row["quality"] == pytest.approx(found["full"]["quality"], rel=1e-5)
    capsys.readouterr()
    assert main(command) == 0
    assert json.loads((root / "blocks" / "blocks.json").read_text())["rows"] == found["rows"]
    assert main([*command, "--mechanisms", "sparsefinder-distance"]) == 2
    assert "does not attend to blocks; choose from: entmax-bigbird-blocks" in capsys.readouterr().err
    assert main([*command, "--limit", "3"]) == 2
    assert "another limit" in capsys.readouterr().err


@pytest.mark.full
def test_a_language_model(root, capsys):
    lm = f"{root}/lm --task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 24"
    trained(root, "lm_entmax", f"{lm} --decoder-self-attention entmax", 10)
    assert main(extract(root, "lm_entmax", "lm", out="lm_graphs", sentences=10, length=20)) == 0
    graphs = Graphs(root / "lm_graphs")
    assert graphs.about["causal"] and len(next(graphs.sentences()).words) >= 20
    command = f"sparsefinder evaluate {root}/lm_graphs --out {root}/lm_window --mechanism entmax-window --window 99"
    assert main([*command.split(), "--data", str(root / "lm"), "--global", "none"]) == 0
    (row,) = json.loads((root / "lm_window" / "evaluate.json").read_text())["rows"]
    assert row["recall"] == 1 and row["sparsity"] == 0
    full = score(Scored(str(root / "lm_entmax" / "checkpoint_last.pt"), str(root / "lm"), "decoder-self"))
    assert row["quality"] == pytest.approx(full.quality, rel=1e-5) and full.name == "perplexity"


def test_translations_need_a_reference_each(root, tmp_path):
    test = Scored(str(root / "nmt" / "checkpoint_last.pt"), str(root / "mt"), "decoder-self")
    with pytest.raises(LeapformerError, match="--references is missing"):
        score(test)
    short = tmp_path / "short.de"
    short.write_text("one line\n")
    with pytest.raises(LeapformerError, match="has 1 lines for 20 sentences"):
        score(Scored(test.checkpoint, test.data, test.block, references=str(short)))


# -------------------------------------------------------------------------------------------- in fairseq's commands
def test_generation_with_a_fitted_pattern(root, fitted):
    """The checkpoint of the teacher, the pattern by --model-overrides."""
    common = GENERATION.replace("ROOT", str(root))
    overrides = {
        "decoder_self_attention": "sparsefinder-kmeans",
        "sparsefinder_file": fitted[0],
        "sparsefinder_centroids": 4,
    }
    out = done(leapformer(*common.split(), "--model-overrides", repr(overrides)))
    assert out.count("\nH-") == 20


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sparsefinder_file": ""}, "give the file that `leapformer sparsefinder fit` makes"),
        ({"sparsefinder_file": "moved.pt"}, "moved.pt: there is no such file"),
        (ROUTING, "take sparsefinder-distance or -kmeans, or for analysis only --sparse-noncausal"),
        ({**ROUTING, "sparse_noncausal": True}, "cannot decode token by token"),
        ({"decoder_self_attention": "sparsefinder-block1"}, "blocks are chosen among those of the whole text"),
    ],
)
def test_what_generation_refuses_is_one_line(root, fitted, overrides, message, capsys):
    plan = {"decoder_self_attention": "sparsefinder-distance", "sparsefinder_file": fitted[0], **overrides}
    command = GENERATION.replace("ROOT", str(root))
    assert main([*command.split(), "--model-overrides", repr(plan)]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_training_from_scratch_is_refused(root, fitted, capsys):
    plan = "--decoder-self-attention sparsefinder-distance"
    command = f"train {root}/mt --arch leapformer_nmt_tiny {plan} --save-dir {root}/no"
    assert main([*command.split(), *TRAINING.split()]) == 2
    assert "train that, and give the file" in capsys.readouterr().err
    more = [*TRAINING.split(), "--sparsefinder-file", fitted[0]]
    assert main([*command.split(), *more]) == 2
    assert "changes in training; train with entmax, and put it in the place of that" in capsys.readouterr().err
    assert main([*command.split(), *more, "--finetune-from-model", f"{root}/nmt/checkpoint_last.pt"]) == 2
    assert "changes in training; train with entmax, and put it in the place of that" in capsys.readouterr().err
