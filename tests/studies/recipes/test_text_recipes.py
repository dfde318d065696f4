"""The recipes for translation and language models, from the layout of the releases to the scores, with tiny models."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from fairseq import options as fairseq_options

from leapformer_fairseq import register
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.data.parallel import SEPARATOR
from leapformer_fairseq.data.wikitext import count_tokens
from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.studies.recipes import configuration
from leapformer_fairseq.studies.recipes.plans import Attention
from leapformer_fairseq.studies.recipes.translation import last_sentence
from tests.data.text_trees import (
    SIZES,
    iwslt14_archive,
    iwslt14_talks_archive,
    multi30k_tree,
    plain_tree,
    python_docs_tree,
    wikitext_tree,
    wmt14_archives,
)
from tests.studies.recipes.running import dry_run, finished, leapformer, ran, recipe, refused, table

register()  # the architectures that configurations name
DOCUMENTS = "iwslt14_esen_doc"
TRANSLATION = ("multi30k", "iwslt14_deen", "iwslt17", "wmt14_ende", "tatoeba", "python_docs", DOCUMENTS)
LANGUAGE = ("wikitext2", "wikitext103")
SMALL_BATCHES = "--max-tokens 600 --update-freq 1 --warmup-updates 2"
TINY_NMT = (
    "--vocab-size", "150",
    "--train-options", f"--arch leapformer_nmt_tiny {SMALL_BATCHES}",
    "--eval-options", "--beam 2 --max-len-a 0 --max-len-b 15",
)  # fmt: skip
TINY_SIZES = "--decoder-layers 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
CUTOFFS = "--adaptive-input-cutoff 20,40 --adaptive-softmax-cutoff 20,40"


def check_translation(folder: Path, run: str, size: int = SIZES["test"]) -> dict:
    """All test sentences were scored; returns what is known of the model."""
    scores = json.loads((folder / run / "test/scores.json").read_text(encoding="utf-8"))
    assert scores["n_instances"] == size
    assert {"BLEU", "chrF"} <= scores["scores"].keys()
    assert "|commit:" in scores["model"]["signature"]
    return scores["model"]


@pytest.mark.full
def test_a_table_of_multi30k_that_was_interrupted(tmp_path):
    out = tmp_path / "out"
    options = ("--root", multi30k_tree(tmp_path / "data"), "--out", out, *TINY_NMT, "--epochs", 1)
    finished("multi30k", *options, "--attention", "softmax")
    assert check_translation(out, "softmax-seed1")["epoch"] == 1
    assert [row["attention"] for row in table(out)["rows"]] == ["softmax"]
    kept = {path.name for path in (out / "softmax-seed1/model").glob("*.pt")}
    assert kept == {"checkpoint_best.pt", "checkpoint_last.pt"}

    assert "== done: " not in finished("multi30k", "prepare", *options), "there may be no table"
    shown = finished("multi30k-blocks", *options, "--rows", "softmax/relu/softmax softmax")
    assert shown.count("is finished, skipped") == 3, "the data, the training and the translations of one run"
    rows = table(out)["rows"]
    assert [row["attention"] for row in rows] == ["softmax/relu/softmax", "softmax"], "in the order that was given"
    assert rows[1]["difference"] is None and rows[0]["difference"] is not None
    assert "  softmax+relu+softmax-seed1: update " in shown and ": valid loss " in shown
    commands = (out / "commands.sh").read_text(encoding="utf-8")
    assert commands.count("leapformer train ") == 2 and commands.count("leapformer prepare ") == 1

    told = refused("multi30k", *options, "--attention", "relu", "--vocab-size", 99)
    assert "vocab" in told and not (out / "relu-seed1").exists(), "data of other options is refused before all else"

    teacher = out / "softmax-seed1/model/checkpoint_best.pt"
    few = ("--linearize", teacher, "--linearize-options", "--align-updates 2 --distill-updates 2")
    finished("multi30k", *options, "--attention", "softmax/leap/softmax", *few)
    check_translation(out, "softmax+leap+softmax_linearized-seed1")
    check_shards(teacher, out / "data")
    rows = {row["attention"]: row for row in table(out)["rows"]}
    assert rows["softmax/leap/softmax:linearized"]["difference"] is not None, "beside the teacher"


@pytest.mark.full
def test_bounded_memories_with_options_of_their_own(tmp_path):
    """The options of an attention are those of its run, and what the papers expect of them is in the table."""
    out, name = tmp_path / "out", "luna:luna-length=16:luna-packed=non-contextual"
    options = ("--root", multi30k_tree(tmp_path / "data"), "--out", out, *TINY_NMT, "--epochs", 1)
    finished("multi30k-bounded", *options, "--rows", f"luna:luna-length=16 {name}")
    run = out / f"{name.translate(str.maketrans(':=', '__'))}-seed1"
    args = load_checkpoint(run / "model/checkpoint_best.pt")["cfg"]["model"]
    assert (args.luna_length, args.luna_packed, args.decoder_cross_attention) == (16, "non-contextual", "luna")
    content = table(out)
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
    blocks = ("--encoder-self-attention", "--decoder-self-attention", "--decoder-cross-attention")
    expected = [word for pair in zip(blocks, flags[:3], strict=True) for word in pair] + flags[3:]
    assert Attention(attention).flags == expected
    assert Attention(attention).encoder == Attention(encoder)
    assert Attention(attention).recogniser.flags == [*expected[:2], "--decoder-self-attention", "softmax",
                                                     "--decoder-cross-attention", "softmax", *expected[6:]]  # fmt: skip


@pytest.mark.full
def test_iwslt14_step_by_step_from_the_release(tmp_path):
    options = ("--root", iwslt14_archive(tmp_path / "data"), "--out", tmp_path / "out", *TINY_NMT, "--epochs", 1)
    for step in ("prepare", "train", "evaluate"):
        finished("iwslt14_deen", step, *options)
    check_translation(tmp_path / "out", "leap-seed1", size=5)
    assert (tmp_path / "out/data/text/raw/test.en").is_file()


def check_shards(checkpoint: Path, data: Path) -> None:
    """Jobs that share a test set write what one job writes, and are scored as one."""
    outputs = []
    for name, shard in (("whole", ()), ("shard0", ("0",)), ("shard1", ("1",))):
        results = checkpoint.parent / name
        words = [data / "binary", "--path", checkpoint, "--batch-size", 3, "--max-len-b", 9, "--results-path", results]
        words += ["--bpe", "sentencepiece", "--sentencepiece-model", data / "text/spm.model", "--num-workers", 0]
        words += ["--required-batch-size-multiple", 1]
        words += ["--distributed-world-size", 2, "--distributed-rank", *shard] if shard else []
        leapformer("generate", *words)
        outputs.append(results / "generate-test.txt")
    whole, *shards = outputs
    kinds = re.compile(r"[SHDPT]-\d+\t.*")
    lines = sorted(line for shard in shards for line in kinds.findall(shard.read_text(encoding="utf-8")))
    assert lines == sorted(kinds.findall(whole.read_text(encoding="utf-8"))) and lines
    assert len(kinds.findall(shards[1].read_text(encoding="utf-8"))) not in (0, len(lines))
    found = []
    for name, files in (("together", shards), ("alone", [whole])):
        to = whole.parent / f"{name}.json"
        assert main(["score", *map(str, files), "--references", f"{data}/text/raw/test.de", "--json", str(to)]) == 0
        found.append(json.loads(to.read_text()))
    assert found[0]["scores"] == found[1]["scores"] and found[0]["n_instances"] == SIZES["test"]


@pytest.mark.full
def test_wmt14_averages_its_last_epochs(tmp_path):
    out = tmp_path / "out"
    more = ("--epochs", 2, "--average", 2, "--attention", "relu/softmax/cosformer", "--seed", 4)
    finished("wmt14_ende", "--root", wmt14_archives(tmp_path / "data"), "--out", out, *TINY_NMT, *more)
    assert check_translation(out, "relu+softmax+cosformer-seed4")["averaged"] == 2
    assert table(out)["rows"][0]["seeds"] == [4]


def test_talks_are_translated_in_windows_with_the_plan_of_the_paper(tmp_path):
    out = tmp_path / "out"
    options = ("--root", iwslt14_talks_archive(tmp_path / "data"), "--out", out, *TINY_NMT, "--window", 2)
    finished(DOCUMENTS, *options, "--epochs", 2, "--average", 2, "--train-options", "--abc-slots 4")
    run = "softmax+abc-mlp+abc-mlp-seed1"
    assert check_translation(out, run)["averaged"] == 2
    assert table(out)["rows"][0]["attention"] == "softmax/abc-mlp/abc-mlp"
    binary = (out / "data/binary/dict.en.txt").read_text(encoding="utf-8")
    assert f"\n{SEPARATOR} " in binary, "the model knows the separator"
    assert "in windows of sentences" in (out / "table.md").read_text(encoding="utf-8")


AVERAGED = "--epochs 2 --average 2 --seed 4"
WORDS = [
    (
        f"{DOCUMENTS} --window 2 {AVERAGED} --train-options '--abc-slots 4'",
        [
            "prepare iwslt14-documents /d --out /o/data/text --pair es-en --vocab-size 30000 --window 2",
            "--save-dir /o/RUN/model .* --seed 4 --keep-last-epochs 2 --max-epoch 2 .* --abc-slots 4 .*"
            "--encoder-self-attention softmax --decoder-self-attention abc-mlp --decoder-cross-attention abc-mlp$",
            "average --inputs /o/RUN/model --last 2 --output /o/RUN/model/average2.pt",
            "generate /o/data/binary .* --path /o/RUN/model/average2.pt .* --results-path /o/RUN/test ",
            "score /o/RUN/test/sentences-test.txt --references /o/data/text/raw/test.en "
            "--checkpoint /o/RUN/model/average2.pt --json /o/RUN/test/scores.json",
        ],
        "softmax+abc-mlp+abc-mlp-seed4",
    ),
    (
        f"wmt14_ende {AVERAGED} --attention relu/softmax/cosformer",
        [
            "prepare wmt14 /d --out /o/data/text --pair en-de",
            "--keep-last-epochs 2 .*--encoder-self-attention relu --decoder-self-attention softmax "
            "--decoder-cross-attention cosformer$",
            "score /o/RUN/test/generate-test.txt .*--checkpoint /o/RUN/model/average2.pt",
        ],
        "relu+softmax+cosformer-seed4",
    ),
    (
        "translation --pair de-en --set valid",
        [
            "prepare text /d --out /o/data/text --pair de-en",
            "preprocess --source-lang de --target-lang en .*--joined-dictionary",
            "--no-epoch-checkpoints .*--decoder-cross-attention leap$",
            "--gen-subset valid --path /o/RUN/model/checkpoint_best.pt .* --results-path /o/RUN/valid",
            "score /o/RUN/valid/generate-valid.txt --references /o/data/text/raw/valid.en",
        ],
        "leap-seed1",
    ),
    (
        "wikitext103 --paper leapformer_script --contexts '0 32'",
        [
            "prepare wikitext103 /d --out /o/data/text$",
            "train .*--decoder-self-attention leap --seed 1 .* --t-mult 2",
            "eval-lm /o/data/binary --path /o/RUN/model/checkpoint_best.pt --gen-subset valid .* --context-window 0$",
            "score /o/RUN/valid-context0/eval.log --text /o/data/text/valid.txt",
            "eval-lm .* --gen-subset valid .* --context-window 32$",
            "eval-lm .* --gen-subset test .* --context-window 0$",
            "score /o/RUN/test-context0/eval.log --text /o/data/text/test.txt",
            "eval-lm .* --context-window 32$",
            "score /o/RUN/test-context32/eval.log .*--json /o/RUN/test-context32/scores.json",
        ],
        "leap-seed1",
    ),
    (
        "language_model --attention relu --vocab-size 120",
        [
            "prepare mlm /d --out /o/data/text --vocab-size 120",
            "preprocess --only-source .* --srcdict /o/data/text/dict.txt",
            "train .*--decoder-self-attention relu",
            "table .*'Perplexity of the subwords",
        ],
        "relu-seed1",
    ),
]


@pytest.mark.parametrize(("words", "expected", "run"), WORDS, ids=[words.split()[0] for words, *_ in WORDS])
def test_the_commands_of_a_recipe(words, expected, run):
    """In this order, with others between them; what they do is tested with one recipe of each kind."""
    status, shown, _ = ran(*shlex.split(words), "--root", "/d", "--out", "/o", "--dry-run")
    commands = iter(line for line in shown.splitlines() if line.startswith("leapformer "))
    for wanted in expected:
        pattern = wanted.replace("RUN", re.escape(run))
        assert any(re.search(pattern, line) for line in commands), f"no {wanted}, or too late:\n{shown}"
    assert status == 0 and not Path("/o").exists()


def test_only_some_of_the_runs():
    """And what they need."""
    words = ("wikitext2", "--root", "/d", "--out", "/o", "--attention", "relu leap", "--seeds", "1 2")
    lines = dry_run(*words, "--only", "relu-seed2/test leap-seed1")
    saved = [line.split("--save-dir ")[1].split()[0] for line in lines if line.startswith("leapformer train ")]
    assert saved == ["/o/relu-seed2/model", "/o/leap-seed1/model"]
    assert sum(line.startswith("leapformer eval-lm ") for line in lines) == 1
    assert sum(line.startswith("leapformer prepare ") for line in lines) == 1
    assert "--only sofa: no cell has this in its name" in refused(
        *words, "--train-on-valid", "--only", "sofa", "--dry-run"
    )


def test_of_a_window_only_the_last_sentence_counts():
    written = {0: "One. <sep> Two, two.", 10: "Alone.", 2: "", 3: "A <sep> b <sep> ", 4: "A<sep><sep>b"}
    lines = [f"{kind}-{n}\t-0.5\t{line}" for n, line in written.items() for kind in "HD"]
    source, *found = map(last_sentence, ["S-0\tUno. <sep> Dos.", *lines])
    assert source == "S-0\tUno. <sep> Dos." and found[::2] == lines[::2], "the rest is left as it is"
    assert found[1::2] == [f"D-{n}\t-0.5\t{line.split(SEPARATOR)[-1].strip()}" for n, line in written.items()]


@pytest.mark.parametrize("dataset", TRANSLATION)
def test_the_options_of_every_configuration_exist(dataset):
    """fairseq refuses what it does not know, after the data was prepared."""
    parsers = {"train": fairseq_options.get_training_parser, "eval": fairseq_options.get_generation_parser}
    for name in configuration.names(dataset):
        for options, make_parser in parsers.items():
            words = configuration.flags(configuration.load(dataset, name)[options])
            fairseq_options.parse_args_and_arch(make_parser(), ["data", *words])


def test_wikitext2_trained_on_its_validation_text(tmp_path):
    out = tmp_path / "out"
    options = (
        "--root", wikitext_tree(tmp_path / "data", ("valid", "test")), "--out", out, "--train-on-valid",
        "--attention", "relu leap", "--seeds", "3", "--epochs", 1, "--jobs", 2,
        "--train-options", f"{TINY_SIZES} {CUTOFFS} {SMALL_BATCHES} --tokens-per-sample 32",
        "--eval-options", "--tokens-per-sample 32 --context-window 16",
    )  # fmt: skip
    shown = finished("wikitext2", *options)
    assert "  relu-seed3: update" in shown and "  leap-seed3: update" in shown, "side by side"
    content = table(out)
    assert [row["attention"] for row in content["rows"]] == ["relu", "leap"], "as asked"
    (order,) = content["expected"]
    assert order["held"] is None and order["missing"] == ["cosformer"]
    assert "trained on the validation text" in (out / "table.md").read_text(encoding="utf-8")
    sizes = {run["size"] for run in content["runs"]}
    assert sizes == {count_tokens(tmp_path / "data/test.txt")}
    (out / "table.json").unlink()
    told = refused("wikitext2", *options, "--attention", "leap:leap-factor=64 relu")
    assert told.startswith("leapformer: error: leap_leap-factor_64-seed3: ") and "see --help" not in told
    assert [row["attention"] for row in table(out)["rows"]] == ["relu", "leap"], "the others go on, to their table"
    other = refused("wikitext2", "train", *(word for word in options if word != "--train-on-valid"))
    assert "holds the run of another command" in other


@pytest.mark.full
def test_wikitext103_with_adaptive_embeddings(tmp_path):
    out = tmp_path / "out"
    files = wikitext_tree(tmp_path / "data", suffix=".tokens")
    finished(
        "wikitext103", "--root", files, "--out", out, "--paper", "leapformer_script", "--contexts", "0 32",
        "--train-options", f"{TINY_SIZES} {CUTOFFS} --max-tokens 512 --max-update 2",
        "--eval-options", "--tokens-per-sample 64",
    )  # fmt: skip
    rows = table(out)["rows"]
    assert [row["set"] for row in rows] == ["test-context0", "test-context32", "valid-context0", "valid-context32"]
    assert len({row["scores"]["perplexity"]["mean"] for row in rows}) == 4
    assert all("--t-mult 2" in row["options"] for row in rows)


@pytest.mark.full
def test_parallel_text_of_ones_own(tmp_path):
    root, out = plain_tree(tmp_path / "data"), tmp_path / "out"
    finished("translation", "--root", root, "--pair", "de-en", "--out", out, *TINY_NMT, "--epochs", 1)
    check_translation(out, "leap-seed1")


def test_parallel_text_of_ones_own_that_is_not_there(tmp_path):
    root = plain_tree(tmp_path / "data")
    for pair in ("", "de", "de-de"):
        assert "give two languages" in refused("translation", "--root", root, "--pair", pair, "--out", tmp_path / "no")
    told = refused("translation", "--root", root, "--pair", "de-fi", "--out", tmp_path / "no")
    assert "no file" in told and "train.fi" in told and "download" not in told
    (root / "valid.en").write_text("")
    told = refused("translation", "--root", root, "--pair", "de-en", "--out", tmp_path / "empty")
    assert "valid.en is empty" in told


@pytest.mark.full
def test_text_of_ones_own_in_subwords(tmp_path):
    out = tmp_path / "out"
    finished(
        "language_model", "--root", wikitext_tree(tmp_path / "data"), "--out", out, "--attention", "relu",
        "--epochs", 1, "--vocab-size", 120, "--train-options", f"{TINY_SIZES} {SMALL_BATCHES} --tokens-per-sample 32",
    )  # fmt: skip
    (row,) = table(out)["rows"]
    assert row["attention"] == "relu" and row["scores"]["perplexity"]["mean"] > 1
    (run,) = table(out)["runs"]
    assert run["size"] == count_tokens(out / "data/text/test.txt") > count_tokens(tmp_path / "data/test.txt")
    assert "Perplexity of the subwords" in (out / "table.md").read_text(encoding="utf-8")


def test_a_release_is_prepared_by_its_whole_name(tmp_path):
    shown = finished("python_docs", "prepare", "--root", "/R", "--out", tmp_path / "out", "--dry-run")
    assert f"leapformer prepare python_docs /R --out {tmp_path}/out/data/text --pair en-es --vocab-size 8000\n" in shown


@pytest.mark.full
def test_a_release_that_is_split_here(tmp_path):
    root, out = python_docs_tree(tmp_path / "data"), tmp_path / "out"
    options = ("--root", root, "--out", out, *TINY_NMT, "--epochs", 1, "--attention", "softmax")
    finished("python_docs", *options)
    check_translation(out, "softmax-seed1", 6)
    assert "python_docs, en-es" in (out / "table.md").read_text(encoding="utf-8")


class TestErrors:
    @pytest.mark.parametrize("dataset", [*TRANSLATION, *LANGUAGE])
    def test_missing_root_is_named(self, dataset, tmp_path):
        told = refused(dataset, "--root", tmp_path / "nowhere", "--out", tmp_path / "out")
        assert str(tmp_path / "nowhere") in told
        assert not (tmp_path / "out").exists()

    def test_there_is_no_download_of_talks(self, tmp_path):
        told = refused(DOCUMENTS, "prepare", "--root", tmp_path, "--out", tmp_path / "out")
        assert "train.es, and no es-en.tgz" in told and "with a browser" in told
        told = refused(DOCUMENTS, "prepare", "--root", tmp_path, "--out", tmp_path / "out", "--download")
        assert "unknown option --download" in told

    @pytest.mark.parametrize(
        ("name", "file"),
        [
            ("multi30k", "train.en"),
            ("iwslt14_deen", "train.de"),
            ("wmt14_ende", "train.en"),
            ("wikitext2", "wiki.train.tokens"),
        ],
    )
    def test_a_missing_file_is_named_with_the_way_out(self, name, file, tmp_path):
        told = refused(name, "prepare", "--root", tmp_path, "--out", tmp_path / "out")
        assert file in told and "--download" in told
        assert ("--train-on-valid" in told) == ("wikitext" in name)

    def test_misaligned_text_is_named_with_both_counts(self, tmp_path):
        root = plain_tree(tmp_path / "data")
        with open(root / "train.de", "a", encoding="utf-8") as file:
            file.write("Noch ein Satz\n")
        told = refused("wmt14_ende", "prepare", "--root", root, "--out", tmp_path / "out", *TINY_NMT)
        assert "train.en has 60 lines but" in told and "train.de has 61" in told

    def test_a_failed_download_is_one_line(self, tmp_path):
        nobody = "http://127.0.0.1:9"  # a proxy that is not there
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), nobody)
        options = ("--root", tmp_path / "data", "--out", tmp_path / "out", "--download")
        done = recipe("wikitext103", "prepare", *options, **proxies, no_proxy="", NO_PROXY="")
        assert done.returncode == 1
        assert "wikitext-103-v1.zip cannot be downloaded" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_unknown_plan_is_named(self, tmp_path):
        out = tmp_path / "out"
        (out / "data/binary").mkdir(parents=True)
        for language in ("en", "de"):
            (out / f"data/binary/dict.{language}.txt").write_text("a 1\nb 1\n", encoding="utf-8")
        (out / "data/binary/done").touch()
        told = refused("multi30k", "train", "--out", out, "--attention", "softmax/warp")
        assert "unknown attention mechanism 'warp'" in told and not any(out.glob("softmax*"))

    def test_one_plan_is_enough_for_a_language_model(self, tmp_path):
        told = refused("wikitext2", "train", "--out", tmp_path, "--attention", "leap leap/relu")
        assert "leap/relu" in told and "one attention block" in told

    @pytest.mark.parametrize("dataset", [*TRANSLATION, *LANGUAGE])
    @pytest.mark.parametrize(("step", "before"), [("train", "prepare"), ("evaluate", "train")])
    def test_steps_need_the_one_before(self, dataset, tmp_path, step, before):
        assert f"run the step {before} first" in refused(dataset, step, "--out", tmp_path / "out")

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ([], "no --out given"),
            (["--out"], "--out needs a value"),
            (["--speed", "3"], "unknown option --speed"),
            (["--epochs", "many", "--out", "x"], "--epochs many: give a whole number from 1"),
            (["--paper", "nature", "--out", "x"], "no configs/multi30k/nature.yaml; choose from small"),
            (["--train-options", "--lr '3", "--out", "x"], "close the quotes"),
        ],
    )
    def test_wrong_option_is_named(self, options, named):
        assert named in refused("multi30k", *options)


@pytest.mark.parametrize("dataset", [*TRANSLATION, *LANGUAGE])
def test_help_is_complete(dataset):
    status, shown, _ = ran(dataset, "--help")
    assert status == 0
    assert f"leapformer recipe {dataset} [STEP ...]" in shown
    assert ("--download" in shown) == (dataset not in ("tatoeba", "python_docs", DOCUMENTS))
    assert ("--window N" in shown) == (dataset == DOCUMENTS)
