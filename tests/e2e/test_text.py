"""Language models and text translation through the real commands: preprocess, train, evaluate, generate, stream."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli.main import main

from ..commands import done, leapformer, run
from ..fresh import run_after
from ..reversed_text import TRAINING, reversed_text

TRAINING += " --max-tokens 200 --no-epoch-checkpoints"  # few epochs: each writes checkpoints


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return reversed_text(tmp_path_factory.mktemp("text"), train=200, valid=20, test=30)


class TestLanguageModel:
    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, data) -> Path:
        save = data / "lm_save"
        options = f"--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 {TRAINING}"
        done(leapformer("train", str(data / "lm"), *options.split(), "--save-dir", str(save)))
        return save / "checkpoint_last.pt"

    def evaluated(self, data, model, *options: str) -> tuple[int, float]:
        output = done(leapformer("eval-lm", str(data / "lm"), "--path", str(model), "--max-tokens", "800", *options))
        tokens = re.search(r"Evaluated ([\d,]+) tokens", output).group(1)
        return int(tokens.replace(",", "")), float(re.search(r"Perplexity: ([\d.]+)", output).group(1))

    def test_every_length_and_window_evaluates_the_whole_text(self, data, model):
        found = {
            options: self.evaluated(data, model, *options.split())
            for options in (
                "--tokens-per-sample 32",
                "--tokens-per-sample 100",
                "--tokens-per-sample 48 --context-window 16",
            )
        }
        counts = {tokens for tokens, _ in found.values()}
        assert len(counts) == 1 and counts.pop() > 150, found
        assert all(1 < perplexity < 30 for _, perplexity in found.values())

    def test_without_a_length_fairseq_takes_1024_and_all_is_read(self, data, model):
        tokens, perplexity = self.evaluated(data, model)
        assert tokens > 150 and perplexity > 1

    def test_a_stream_is_read_with_a_state_of_constant_size(self, data, model, tmp_path):
        scores = {}
        for options in ("", "--no-carry", "--limit 40"):
            out = tmp_path / "scores.json"
            command = ["eval-stream", str(data / "lm"), "--path", str(model), "--json", str(out), *options.split()]
            assert "perplexity" in done(leapformer(*command))
            scores[options] = json.loads(out.read_text())
        assert scores[""]["tokens"] == scores["--no-carry"]["tokens"] > scores["--limit 40"]["tokens"] == 40
        assert scores[""]["state_bytes"] == scores["--limit 40"]["state_bytes"] > 0
        # segments with an empty state are the blocks of fairseq-eval-lm
        _, perplexity = self.evaluated(data, model, "--tokens-per-sample", "32")
        assert scores["--no-carry"]["perplexity"] == pytest.approx(perplexity, abs=0.02)

    @pytest.mark.parametrize("options", ["--beam 3", "--beam 1 --sampling --sampling-topk 5"])
    def test_prompts_of_unequal_lengths_are_continued(self, data, model, options):
        prompts = "the small house\nthe\n\na dog sees the old tree\n"
        batches = "--buffer-size 4 --batch-size 4 --max-len-b 12"
        command = f"interactive {data / 'lm'} --task language_modeling --path {model} {batches} {options}"
        command = leapformer(*command.split())
        lines = [line for line in done(command, prompts).splitlines() if line.startswith("H-")]
        texts = {int(line.split("\t")[0][2:]): line.split("\t")[2] for line in lines}
        assert (
            len(texts) == 4
            and texts[0].startswith("the small house")
            and texts[3].startswith("a dog sees the old tree")
        )

    def test_generate_continues_test_sentences(self, data, model):
        options = "--sample-break-mode eos --prefix-size 2 --beam 2 --max-len-b 12 --required-batch-size-multiple 1"
        command = f"generate {data / 'lm'} --task language_modeling --path {model} {options}"
        output = done(leapformer(*command.split()))
        assert output.count("\nH-") == 30

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["eval-stream", "LM", "--path", "nowhere.pt"], "no file nowhere.pt"),
            (["eval-stream", "LM", "--path", "MODEL", "--gen-subset", "tests"], "no data set"),
            (["eval-stream", "LM", "--path", "MODEL", "--segment", "0"], "give at least 1"),
            (["eval-stream", "LM", "--path", "MODEL", "--limit", "-5"], "--limit -5: give at least 1 token"),
            (["eval-stream", "LM", "--path", "MODEL", "--device", "cuda"], "cuda is not available here"),
            (["eval-stream", "WORDS", "--path", "MODEL"], "knows other words than this data set's dictionary"),
            (["eval-lm", "LM", "--path", "nowhere.pt"], "nowhere.pt; check the path"),
            (["eval-lm", "LM", "--path", "GARBAGE"], "cannot be read as a fairseq checkpoint"),
            (["eval-lm", "WORDS", "--path", "MODEL"], "knows other words than this data set's dictionary"),
            (
                ["eval-lm", "LM", "--path", "MODEL", "--tokens-per-sample", "0"],
                "--tokens-per-sample 0: give at least 1",
            ),
            (
                ["eval-lm", "LM", "--path", "MODEL", "--tokens-per-sample", "8", "--context-window", "9"],
                "--tokens-per-sample leaves -1 new tokens per block; give at least 1, and more than --context-window",
            ),
            (
                [
                    "generate",
                    "LM",
                    "--task",
                    "language_modeling",
                    "--path",
                    "MODEL",
                    "--print-alignment",
                    "--num-workers",
                    "0",
                ],
                "--print-alignment: a language model has no source for that; leave it out",
            ),
        ],
    )
    def test_bad_input_ends_with_one_clear_line(self, data, model, tmp_path, capsys, arguments, message):
        (tmp_path / "garbage.pt").write_bytes(b"no checkpoint")
        names = {"LM": data / "lm", "MODEL": model, "GARBAGE": tmp_path / "garbage.pt", "WORDS": tmp_path / "words"}
        if "WORDS" in arguments:
            shutil.copytree(data / "lm", tmp_path / "words")
            dictionary = tmp_path / "words" / "dict.txt"
            dictionary.write_text(dictionary.read_text().replace("house ", "horse "))
        assert main([str(names.get(argument, argument)) for argument in arguments]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert message in line and "weights_only" not in line

    @pytest.mark.parametrize("precision", ["fp16", "bf16"])
    def test_half_precision_without_a_gpu(self, data, tmp_path, capsys, precision):
        options = f"--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 {TRAINING} --{precision}"
        status = main(["train", str(data / "lm"), *options.split(), "--max-update", "2", "--save-dir", str(tmp_path)])
        if precision == "bf16":
            assert status == 0 and (tmp_path / "checkpoint_last.pt").is_file()
        else:
            assert status == 2
            assert "--fp16 needs a GPU; leave it out on a CPU" in capsys.readouterr().err.splitlines()[-1]

    def test_empty_lines_and_unknown_words_are_told(self, data, model, caplog, monkeypatch, capsys):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the unheard house\n\n")))
        command = f"interactive {data / 'lm'} --task language_modeling --path {model} --beam 1 --max-len-b 12 --cpu"
        assert main(command.split()) == 0
        assert "'the unheard house': not in the dictionary: unheard; prepare the text as in training" in caplog.text
        assert "an empty line: the model gets nothing to read" in caplog.text

    def test_fairseqs_own_command_prints_one_line_too(self, data, model):
        argv = ["/bin/fairseq-eval-lm", str(data / "lm"), "--user-dir", str(PLUGIN_DIR), "--path", "nowhere.pt"]
        code = f"import sys; sys.argv[:] = {argv}; from fairseq_cli.eval_lm import cli_main; cli_main()"
        finished = run_after("import fairseq", code)
        assert finished.returncode == 1 and "Traceback" not in finished.stderr
        assert finished.stderr.splitlines()[-1].endswith("nowhere.pt; check the path")

    @pytest.mark.parametrize("file", ["--restore-file", "--restore-file --reset-optimizer", "--finetune-from-model"])
    def test_a_checkpoint_of_another_mechanism_brings_no_optimizer(self, data, model, tmp_path, capsys, file):
        options = (
            f"--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 {TRAINING} --max-update 31"
        )
        flag, *reset = file.split()
        other = ["--decoder-self-attention", "softmax", "--save-dir", str(tmp_path), flag, str(model), *reset]
        status = main(["train", str(data / "lm"), *options.split(), *other])
        if file == "--restore-file":
            line = capsys.readouterr().err.splitlines()[-1]
            assert status == 2 and line.startswith(
                f"leapformer: error: {model}: its optimizer state belongs to another model"
            )
            assert line.endswith("to --finetune-from-model instead of --restore-file, or add --reset-optimizer")
        else:
            assert status == 0

    def test_an_optimizer_of_as_many_parameters_fails_at_its_first_step(self, data, tmp_path, capsys):
        options = f"--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 {TRAINING} --max-update"
        save, other = tmp_path / "mlp", tmp_path / "linformer"
        plan = ["--decoder-self-attention", "abc-mlp", "--save-dir", str(save)]
        assert main(["train", str(data / "lm"), *options.split(), "1", *plan]) == 0
        checkpoint = str(save / "checkpoint_last.pt")
        plan = ["--decoder-self-attention", "abc-linformer", "--save-dir", str(other), "--restore-file", checkpoint]
        assert main(["train", str(data / "lm"), *options.split(), "3", *plan]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"leapformer: error: {checkpoint}: its optimizer state belongs to another model")

    @pytest.mark.parametrize(
        "load",
        [
            "from leapformer_fairseq.models.loading import load_model\n"
            "load_model(path, ('leapformer_lm',), 'this test', {'data': data})",
            "from leapformer_fairseq.models.lm import LeapformerLanguageModel\n"
            "hub = LeapformerLanguageModel.from_pretrained(folder, file, data)\n"
            "assert hub.sample('the small', beam=2, max_len_b=6).startswith('the small')",
            "import fairseq, leapformer_fairseq; leapformer_fairseq.register()\n"
            "fairseq.checkpoint_utils.load_model_ensemble_and_task([path], {'data': data})",
            "import fairseq, leapformer_fairseq\n"
            "try:\n"
            "    fairseq.checkpoint_utils.load_model_ensemble_and_task([path], {'data': data})\n"
            "except Exception:\n"
            "    pass\n"
            "else:\n"
            "    raise AssertionError('what does register() do?')",
        ],
        ids=["load_model", "from_pretrained", "register", "without"],
    )
    def test_loaded_from_python(self, data, model, load):
        names = (
            f"path, folder, file, data = {str(model)!r}, {str(model.parent)!r}, {model.name!r}, {str(data / 'lm')!r}"
        )
        finished = run_after("import fairseq", f"{names}\n{load}")
        assert finished.returncode == 0, finished.stderr[-3000:]

    def test_a_softmax_model_is_no_stream(self, data, tmp_path):
        options = f"--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 32 {TRAINING} --max-update 1"
        mixed = ["--decoder-self-attention", "leap,softmax", "--save-dir", str(tmp_path)]
        done(leapformer("train", str(data / "lm"), *options.split(), *mixed))
        finished = run(leapformer("eval-stream", str(data / "lm"), "--path", str(tmp_path / "checkpoint_last.pt")))
        assert finished.returncode == 2
        assert "layer 2: softmax cannot be used: it keeps every key" in finished.stderr.splitlines()[-1]


class TestTranslation:
    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, data) -> Path:
        save = data / "mt_save"
        options = (
            f"--arch leapformer_nmt_tiny --share-all-embeddings {TRAINING} --required-batch-size-multiple 1 "
            '--criterion label_smoothed_cross_entropy --eval-bleu --eval-bleu-args {"beam":2} --max-update 10'
        )
        done(leapformer("train", str(data / "mt"), *options.split(), "--save-dir", str(save)))
        return save / "checkpoint_last.pt"

    @pytest.mark.parametrize("options", ["--beam 5", "--beam 3 --prefix-size 2", "--beam 4 --print-alignment hard"])
    def test_every_sentence_is_translated(self, data, model, options):
        batches = "--batch-size 7 --required-batch-size-multiple 1 --max-len-b 15"
        command = f"generate {data / 'mt'} --path {model} {batches} {options}"
        output = done(leapformer(*command.split()))
        assert output.count("\nH-") == 30
        if "alignment" in options:
            assert re.search(r"^A-\d+\t\d+-\d+", output, re.M)

    @pytest.mark.parametrize(
        "command",
        [["leapformer"], pytest.param(["fairseq-generate", "--user-dir", str(PLUGIN_DIR)], marks=pytest.mark.full)],
    )
    def test_no_sentence_is_left_out_by_default(self, data, model, command):
        """30 are no multiple of 8."""
        program = leapformer("generate") if command == ["leapformer"] else command
        program = [str(Path(sys.executable).with_name(program[0])), *program[1:]] if len(command) > 1 else program
        output = done([*program, str(data / "mt"), "--path", str(model), "--batch-size", "16"])
        assert output.count("\nH-") == 30

    def test_a_stock_model_is_treated_as_fairseq_does(self, data, tmp_path):
        """And what it leaves out is found when it is scored."""
        sizes = "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16"
        options = f"train {data / 'mt'} --arch transformer {sizes} {TRAINING} --max-update 1 --save-dir {tmp_path}"
        done(leapformer(*options.split()))
        path = tmp_path / "checkpoint_last.pt"
        output = done(leapformer("generate", str(data / "mt"), "--path", str(path), "--batch-size", "16"))
        assert output.count("\nH-") < 30

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["generate", "MT", "--max-source-positions", "3", "--num-workers", "0"],
                r"sample \d+ is too long: \(\d+, \d+\) tokens or frames, the model's positions are",
            ),
            (["eval-lm", "LM"], "'leapformer_nmt_tiny' is for --task translation, not for language_modeling"),
        ],
    )
    def test_bad_input_ends_with_one_clear_line(self, data, model, capsys, arguments, message):
        names = {"MT": data / "mt", "LM": data / "lm"}
        assert main([*(str(names.get(argument, argument)) for argument in arguments), "--path", str(model)]) == 2
        assert re.search(message, capsys.readouterr().err.splitlines()[-1])

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ("--decoder-ffn-embed-dim 24", "does not fit this model .*; use the layers and sizes of its training"),
            ("--encoder-embed-dim 32 --decoder-embed-dim 32", "in the checkpoint and .* in this model; use the --arch"),
        ],
    )
    def test_a_warm_start_of_other_sizes_is_named(self, data, model, tmp_path, capsys, sizes, message):
        options = f"--arch leapformer_nmt_tiny --share-all-embeddings {TRAINING} {sizes} --save-dir {tmp_path}"
        assert main(["train", str(data / "mt"), *options.split(), "--finetune-from-model", str(model)]) == 2
        assert re.search(message, capsys.readouterr().err.splitlines()[-1])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                f"--task speech_to_text --arch leapformer_lm_tiny {TRAINING}",
                "'leapformer_lm_tiny' is for --task language_modeling",
            ),
            (
                "--task speech_to_text --arch leapformer_nmt_tiny",
                "'leapformer_nmt_tiny' is for --task translation, not",
            ),
            (
                f"--arch leapformer_nmt_tiny {TRAINING} --optimizer sgd --lr 1e30 --max-update 5",
                r"the gradients of update \d are NaN or infinite; lower --lr, .* \(the model is in .*/crash.pt\)",
            ),
        ],
    )
    def test_a_training_that_cannot_go_on_says_why(self, data, tmp_path, capsys, options, message):
        assert main(["train", str(data / "mt"), *options.split(), "--save-dir", str(tmp_path)]) == 2
        assert re.search(message, capsys.readouterr().err.splitlines()[-1])

    def test_constraints(self, data, model):
        command = f"interactive {data / 'mt'} --path {model} --beam 6 --constraints --max-len-b 12"
        output = done(leapformer(*command.split()), "the small dog\tunder\n")
        assert re.search(r"^H-0\t\S+\t.*\bunder\b", output, re.M)

    def test_a_stock_checkpoint_is_a_warm_start(self, data, tmp_path):
        sizes = " ".join(
            f"--{side}-{name} {value}"
            for side in ("encoder", "decoder")
            for name, value in (("layers", 2), ("embed-dim", 64), ("ffn-embed-dim", 128), ("attention-heads", 2))
        )
        options = f"{TRAINING} --max-update 2 --share-all-embeddings"
        stock, ours = tmp_path / "stock", tmp_path / "ours"
        command = f"train {data / 'mt'} --arch transformer {sizes} {options} --save-dir {stock}"
        done(leapformer(*command.split()))
        command = f"train {data / 'mt'} --arch leapformer_nmt_tiny {options} --save-dir {ours}"
        done(leapformer(*command.split(), "--finetune-from-model", str(stock / "checkpoint_last.pt")))
        assert (ours / "checkpoint_last.pt").exists()

    def test_another_vocabulary_is_named(self, data, model, tmp_path):
        other = tmp_path / "other"
        shutil.copytree(data / "mt", other)
        for language in ("en", "de"):
            with (other / f"dict.{language}.txt").open("a") as file:
                file.write("unheard 1\n")
        finished = run(leapformer("generate", str(other), "--path", str(model)))
        assert finished.returncode == 2
        assert "this data set's dictionary gives" in finished.stderr.splitlines()[-1]
