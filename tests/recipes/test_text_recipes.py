"""The recipes for translation and language models, from the layout of the releases to the scores, with tiny models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq import options as fairseq_options

from leapformer_fairseq import PLUGIN_DIR, register
from leapformer_fairseq.checkpoints import load_checkpoint
from leapformer_fairseq.data.wikitext import count_tokens
from leapformer_fairseq.data.windows import SEPARATOR
from leapformer_fairseq.scoring.runs import describe_checkpoint

from ..data.text_trees import (
    SIZES,
    iwslt14_archive,
    iwslt14_talks_archive,
    multi30k_tree,
    plain_tree,
    wikitext_tree,
    wmt14_archives,
)

register()  # the architectures that configurations name
SCRIPTS = PLUGIN_DIR.parent / "scripts"
CONFIGS = SCRIPTS.parent / "configs"
DOCUMENTS = "iwslt14_esen_doc"
TRANSLATION = ("multi30k", "iwslt14_deen", "iwslt17", "wmt14_ende", DOCUMENTS)
LANGUAGE = ("wikitext2", "wikitext103")
SMALL_BATCHES = "--max-tokens 600 --update-freq 1 --warmup-updates 2"
TINY_NMT = (
    "--vocab-size", "150",
    "--train-options", f"--arch leapformer_nmt_tiny {SMALL_BATCHES}",
    "--eval-options", "--beam 2 --max-len-a 0 --max-len-b 15",
)  # fmt: skip
TINY_SIZES = "--decoder-layers 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
CUTOFFS = "--adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the installed package has no scripts beside it")


def recipe(script: str, *options: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe in the environment of the tests."""
    environment = {**os.environ, "LEAPFORMER_VENV": sys.prefix, "OMP_NUM_THREADS": "1", **environment}
    command = ["bash", str(SCRIPTS / script), *map(str, options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def finished(script: str, *options: object) -> str:
    """The output of a recipe that has to end well."""
    done = recipe(script, *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def table(folder: Path) -> dict:
    """The comparison that a recipe wrote, as data; the Markdown beside it names every attention."""
    content = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    page = (folder / "table.md").read_text(encoding="utf-8")
    assert all(f"| {row['attention']} " in page for row in content["rows"])
    assert content["signature"] in page
    return content


def check_translation(folder: Path, run: str, size: int = SIZES["test"]) -> dict:
    """All test sentences were scored; returns what is known of the model."""
    scores = json.loads((folder / run / "test/scores.json").read_text(encoding="utf-8"))
    assert scores["n_instances"] == size
    assert {"BLEU", "chrF"} <= scores["scores"].keys()
    assert "|commit:" in scores["model"]["signature"]
    return scores["model"]


def run_of(epochs: int, plan: str, done: Path, folder: Path, leave_out: tuple[str, ...] = ()) -> None:
    """Make a finished run of one epoch with softmax look like one of several epochs with another plan."""
    shutil.copytree(done, folder, ignore=shutil.ignore_patterns(*leave_out))
    options = (folder / "options").read_text(encoding="utf-8")
    for old, new in (("--attention softmax ", f"--attention {plan} "), ("--max-epoch 1 ", f"--max-epoch {epochs} ")):
        assert old in options
        options = options.replace(old, new)
    (folder / "options").write_text(options, encoding="utf-8")


def test_multi30k_and_its_ablation_that_was_interrupted(tmp_path):
    out = tmp_path / "out"
    options = ("--root", multi30k_tree(tmp_path / "data"), "--out", out, *TINY_NMT)
    finished("multi30k/run.sh", *options, "--attention", "softmax", "--epochs", 1)
    assert check_translation(out, "softmax-seed1")["epoch"] == 1
    assert [row["attention"] for row in table(out)["rows"]] == ["softmax"]
    kept = {path.name for path in (out / "softmax-seed1/model").glob("*.pt")}
    assert kept == {"checkpoint_best.pt", "checkpoint_last.pt"}

    run_of(2, "softmax/relu/softmax", out / "softmax-seed1", out / "epochs2/softmax+relu+softmax-seed1")
    run_of(2, "softmax", out / "softmax-seed1", out / "epochs2/softmax-seed1", leave_out=("test", "done"))
    plans = ("--epochs", 2, "--plans", "softmax/relu/softmax softmax")
    shown = finished("multi30k/ablation.sh", *options, *plans)
    assert shown.count("is finished, skipped") == 3, "the data, the training and the translations of the finished run"
    log = (out / "epochs2/softmax-seed1/model/train.log").read_text(encoding="utf-8")
    assert log.count("begin training epoch 1") == 1, "done before the break"
    assert "Loaded checkpoint" in log
    assert describe_checkpoint(out / "epochs2/softmax-seed1/model/checkpoint_last.pt")["epoch"] == 2
    check_translation(out / "epochs2", "softmax-seed1")
    rows = table(out / "epochs2")["rows"]
    assert [row["attention"] for row in rows] == ["softmax", "softmax/relu/softmax"], "in the order of the whole table"
    assert rows[0]["difference"] is None and rows[1]["difference"] is not None

    finished("multi30k/ablation.sh", *options, "--epochs", 3, "--plans", "softmax")
    log = (out / "epochs3/softmax-seed1/model/train.log").read_text(encoding="utf-8")
    assert [log.count(f"begin training epoch {epoch}\n") for epoch in (1, 2, 3)] == [1, 1, 1], "goes on from 2 epochs"
    assert describe_checkpoint(out / "epochs3/softmax-seed1/model/checkpoint_last.pt")["epoch"] == 3
    assert describe_checkpoint(out / "epochs2/softmax-seed1/model/checkpoint_last.pt")["epoch"] == 2


def test_bounded_memories_with_options_of_their_own(tmp_path):
    """The options of an attention are those of its run, and what the papers expect of them is in the table."""
    out, name = tmp_path / "out", "luna:luna-length=16:luna-packed=non-contextual"
    options = ("--root", multi30k_tree(tmp_path / "data"), "--out", out, *TINY_NMT, "--epochs", 1)
    finished("multi30k/ablation.sh", *options, "--bounded", "--plans", f"luna:luna-length=16 {name}")
    run = out / f"epochs1/{name.translate(str.maketrans(':=', '__'))}-seed1"
    args = load_checkpoint(run / "model/checkpoint_best.pt")["cfg"]["model"]
    assert (args.luna_length, args.luna_packed, args.decoder_cross_attention) == (16, "non-contextual", "luna")
    content = table(out / "epochs1")
    assert [row["attention"] for row in content["rows"]] == ["luna:luna-length=16", name]
    assert [order["missing"] == [] for order in content["expected"]] == [False, False, True]


@pytest.mark.parametrize(
    ("attention", "encoder", "flags"),
    [
        ("leap", "leap", ["leap", "leap", "leap"]),
        ("softmax,leap/relu", "softmax,leap", ["softmax,leap", "relu", "relu"]),
        ("relu/luna:luna-length=8", "relu:luna-length=8", ["relu", "luna", "luna", "--luna-length", "8"]),
        (
            "softmax/abc-mlp/leap:abc-slots=32/8/32:abc-untied",
            "softmax:abc-slots=32/8/32:abc-untied",
            ["softmax", "abc-mlp", "leap", "--abc-slots", "32/8/32", "--abc-untied"],
        ),
    ],
)
def test_an_attention_is_a_plan_and_options(attention, encoder, flags):
    command = f'. {SCRIPTS}/common.sh; plan_flags "{attention}"; encoder_of "{attention}"'
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    blocks = ("--encoder-self-attention", "--decoder-self-attention", "--decoder-cross-attention")
    expected = [word for pair in zip(blocks, flags[:3], strict=True) for word in pair] + flags[3:]
    assert shown == [" ".join(expected), encoder]


def test_iwslt14_step_by_step_from_the_release(tmp_path):
    options = ("--root", iwslt14_archive(tmp_path / "data"), "--out", tmp_path / "out", *TINY_NMT, "--epochs", 1)
    for step in ("prepare", "train", "evaluate"):
        finished(f"iwslt14_deen/{step}.sh", *options)
    check_translation(tmp_path / "out", "leap-seed1", size=5)
    assert (tmp_path / "out/data/text/raw/test.en").is_file()


def test_wmt14_averages_its_last_epochs(tmp_path):
    out = tmp_path / "out"
    more = ("--epochs", 2, "--average", 2, "--attention", "relu/softmax/cosformer", "--seed", 4)
    finished("wmt14_ende/run.sh", "--root", wmt14_archives(tmp_path / "data"), "--out", out, *TINY_NMT, *more)
    assert check_translation(out, "relu+softmax+cosformer-seed4")["averaged"] == 2
    assert table(out)["rows"][0]["seeds"] == [4]


def test_talks_are_translated_in_windows_with_the_plan_of_the_paper(tmp_path):
    out = tmp_path / "out"
    options = ("--root", iwslt14_talks_archive(tmp_path / "data"), "--out", out, *TINY_NMT, "--window", 2)
    finished(f"{DOCUMENTS}/run.sh", *options, "--epochs", 2, "--average", 2, "--train-options", "--abc-slots 4")
    run = "softmax+abc-mlp+abc-mlp-seed1"
    assert check_translation(out, run)["averaged"] == 2
    assert table(out)["rows"][0]["attention"] == "softmax/abc-mlp/abc-mlp"
    binary = (out / "data/binary/dict.en.txt").read_text(encoding="utf-8")
    assert f"\n{SEPARATOR} " in binary, "the model knows the separator"
    assert "in windows of sentences" in (out / "table.md").read_text(encoding="utf-8")


def test_of_a_window_only_the_last_sentence_counts(tmp_path):
    written = {0: "One. <sep> Two, two.", 10: "Alone.", 2: "", 3: "A <sep> b <sep> ", 4: "A<sep><sep>b"}
    lines = [f"{kind}-{n}\t-0.5\t{line}" for n, line in written.items() for kind in "HD"]
    shell = f'dataset={DOCUMENTS} && . "$0" && last_sentences'
    done = subprocess.run(
        ["bash", "-euc", shell, str(SCRIPTS / "translation.sh")],
        input="\n".join(["S-0\tUno. <sep> Dos.", *lines]), capture_output=True, text=True, check=True,
    )  # fmt: skip
    source, *found = done.stdout.splitlines()
    assert source == "S-0\tUno. <sep> Dos." and found[::2] == lines[::2], "the rest is left as it is"
    assert found[1::2] == [f"D-{n}\t-0.5\t{line.split(SEPARATOR)[-1].strip()}" for n, line in written.items()]


@pytest.mark.parametrize("dataset", TRANSLATION)
def test_the_options_of_every_configuration_exist(dataset):
    """fairseq refuses what it does not know, after the data was prepared."""
    parsers = {
        '"${train_options[@]}" $(plan_flags "$attention")': fairseq_options.get_training_parser,
        '"${eval_options[@]}"': fairseq_options.get_generation_parser,
    }
    for path in sorted((CONFIGS / dataset).glob("*.sh")):
        for values, make_parser in parsers.items():
            shell = f"""dataset={dataset} && . "$0" && . "$1" && printf '%s\\n' {values}"""
            shown = subprocess.run(
                ["bash", "-euc", shell, str(SCRIPTS / "translation.sh"), str(path)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            fairseq_options.parse_args_and_arch(make_parser(), ["data", *shown.stdout.splitlines()])


def test_wikitext2_trained_on_its_validation_text(tmp_path):
    out = tmp_path / "out"
    options = (
        "--root", wikitext_tree(tmp_path / "data", ("valid", "test")), "--out", out, "--train-on-valid",
        "--attention", "relu leap", "--seeds", "3", "--epochs", 1, "--jobs", 2,
        "--train-options", f"{TINY_SIZES} {CUTOFFS} {SMALL_BATCHES} --tokens-per-sample 32",
        "--eval-options", "--tokens-per-sample 32 --context-window 16",
    )  # fmt: skip
    shown = finished("wikitext2/run.sh", *options)
    assert "job2 " in shown
    content = table(out)
    assert [row["attention"] for row in content["rows"]] == ["relu", "leap"], "as asked"
    (order,) = content["expected"]
    assert order["held"] is None and order["missing"] == ["cosformer"]
    assert "trained on the validation text" in (out / "table.md").read_text(encoding="utf-8")
    sizes = {run["size"] for run in content["runs"]}
    assert sizes == {count_tokens(tmp_path / "data/test.txt")}


def test_wikitext103_with_adaptive_embeddings(tmp_path):
    out = tmp_path / "out"
    files = wikitext_tree(tmp_path / "data", suffix=".tokens")
    finished(
        "wikitext103/run.sh", "--root", files, "--out", out, "--paper", "leapformer_script", "--contexts", "0 32",
        "--train-options", f"{TINY_SIZES} {CUTOFFS} --max-tokens 512 --max-update 2",
        "--eval-options", "--tokens-per-sample 64",
    )  # fmt: skip
    rows = table(out)["rows"]
    assert [row["set"] for row in rows] == ["test-context0", "test-context32"]
    assert rows[0]["scores"]["perplexity"]["mean"] != rows[1]["scores"]["perplexity"]["mean"] > 1
    assert all("--t-mult 2" in row["options"] for row in rows)


class TestErrors:
    @pytest.mark.parametrize("dataset", [*TRANSLATION, *LANGUAGE])
    def test_missing_root_is_named(self, dataset, tmp_path):
        done = recipe(f"{dataset}/run.sh", "--root", tmp_path / "nowhere", "--out", tmp_path / "out")
        assert done.returncode == 1
        assert str(tmp_path / "nowhere") in done.stderr
        assert not (tmp_path / "out").exists()

    def test_there_is_no_download_of_talks(self, tmp_path):
        done = recipe(f"{DOCUMENTS}/prepare.sh", "--root", tmp_path, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert "train.es, and no es-en.tgz" in done.stderr and "with a browser" in done.stderr
        done = recipe(f"{DOCUMENTS}/prepare.sh", "--root", tmp_path, "--out", tmp_path / "out", "--download")
        assert done.returncode == 1 and "unknown option --download" in done.stderr

    @pytest.mark.parametrize(
        ("script", "file"),
        [
            ("multi30k/ablation.sh", "train.en"),
            ("iwslt14_deen/prepare.sh", "train.de"),
            ("wmt14_ende/prepare.sh", "train.en"),
            ("wikitext2/prepare.sh", "wiki.train.tokens"),
        ],
    )
    def test_a_missing_file_is_named_with_the_way_out(self, script, file, tmp_path):
        done = recipe(script, "--root", tmp_path, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert done.stderr.startswith("leapformer: error: ")
        assert file in done.stderr and "--download" in done.stderr
        assert ("--train-on-valid" in done.stderr) == ("wikitext" in script)

    def test_misaligned_text_is_named_with_both_counts(self, tmp_path):
        root = plain_tree(tmp_path / "data")
        with open(root / "train.de", "a", encoding="utf-8") as file:
            file.write("Noch ein Satz\n")
        done = recipe("wmt14_ende/prepare.sh", "--root", root, "--out", tmp_path / "out", *TINY_NMT)
        assert done.returncode == 2
        assert "train.en has 60 lines but" in done.stderr and "train.de has 61" in done.stderr

    def test_a_failed_download_is_one_line(self, tmp_path):
        nobody = "http://127.0.0.1:9"  # a proxy that is not there
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nobody)
        options = ("--root", tmp_path / "data", "--out", tmp_path / "out", "--download")
        done = recipe("wikitext103/prepare.sh", *options, **proxies, no_proxy="", NO_PROXY="")
        assert done.returncode == 2
        assert "wikitext-103-v1.zip cannot be downloaded" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_unknown_plan_is_named(self, tmp_path):
        out = tmp_path / "out"
        (out / "data/binary").mkdir(parents=True)
        for language in ("en", "de"):
            (out / f"data/binary/dict.{language}.txt").write_text("a 1\nb 1\n", encoding="utf-8")
        (out / "data/binary/done").touch()
        done = recipe("multi30k/train.sh", "--out", out, "--attention", "softmax/warp")
        assert done.returncode == 1
        assert "leapformer: error: " in done.stdout and "warp" in done.stdout

    def test_one_plan_is_enough_for_a_language_model(self, tmp_path):
        (tmp_path / "data/binary").mkdir(parents=True)
        (tmp_path / "data/binary/done").touch()
        done = recipe("wikitext2/train.sh", "--out", tmp_path, "--attention", "leap leap/relu")
        assert done.returncode == 1
        assert "leap/relu" in done.stderr and "one attention block" in done.stderr

    @pytest.mark.parametrize("dataset", [*TRANSLATION, *LANGUAGE])
    @pytest.mark.parametrize(("step", "before"), [("train", "prepare"), ("evaluate", "train")])
    def test_steps_need_the_one_before(self, dataset, tmp_path, step, before):
        done = recipe(f"{dataset}/{step}.sh", "--out", tmp_path / "out")
        assert done.returncode == 1
        assert f"run scripts/{dataset}/{before}.sh first" in done.stderr

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ([], "--out"),
            (["--out"], "--out needs a value"),
            (["--speed", "3"], "--speed"),
            (["--epochs", "many", "--out", "x"], "--epochs many"),
            (["--paper", "nature", "--out", "x"], "nature"),
        ],
    )
    def test_wrong_option_is_named(self, options, named):
        done = recipe("multi30k/ablation.sh", *options)
        assert done.returncode == 1
        assert named in done.stderr


@pytest.mark.parametrize("dataset", [*TRANSLATION, *LANGUAGE])
def test_help_is_complete(dataset):
    for script in sorted((SCRIPTS / dataset).glob("*.sh")):
        done = recipe(f"{dataset}/{script.name}", "--help")
        assert done.returncode == 0
        assert f"scripts/{dataset}/{script.name}" in done.stdout
        assert ("--download" in done.stdout) == (dataset != DOCUMENTS)
        assert ("--window N" in done.stdout) == (dataset == DOCUMENTS)
