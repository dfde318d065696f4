"""What fairseq's own errors mean, on the errors that fairseq raises."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")
from fairseq import checkpoint_utils, options  # noqa: E402
from fairseq.tasks import FairseqTask  # noqa: E402
from fairseq.tasks.sentence_prediction import SentencePredictionTask  # noqa: E402
from fairseq.trainer import Trainer  # noqa: E402

from leapformer_fairseq.cli.main import main  # noqa: E402
from leapformer_fairseq.compat.errors_explained import explained  # noqa: E402
from leapformer_fairseq.models.loading import load_model  # noqa: E402
from leapformer_fairseq.support.errors import LeapformerError  # noqa: E402
from tests.commands import leapformer, run  # noqa: E402
from tests.reversed_text import reversed_text  # noqa: E402


def line(call, *args, **kwargs) -> str | None:
    """What is said of the error that a call ends in."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        found = explained(error)
        return None if found is None else str(found)
    raise AssertionError("no error")


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"PK\x03\x04 half a zip file"])
def test_a_file_that_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "broken.pt"
    path.write_bytes(content)
    said = line(checkpoint_utils.load_checkpoint_to_cpu, str(path))
    assert said.startswith(f"{path} cannot be read as a fairseq checkpoint (")
    assert said.endswith("); give one of fairseq-train") and "\n" not in said and "weights_only" not in said
    with pytest.raises(LeapformerError, match=r"broken\.pt cannot be read as a fairseq checkpoint \(.+\)"):
        load_model(str(path), ("leapformer_lm",), "this test", {})


def test_code_in_a_checkpoint(tmp_path):
    class Malicious:
        def __reduce__(self):
            return os.system, ("true",)

    torch.save({"args": argparse.Namespace(), "model": Malicious()}, tmp_path / "a.pt")
    assert "system" in line(checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "a.pt"))


def test_a_checkpoint_without_a_model(tmp_path):
    torch.save({"weights": 1}, tmp_path / "a.pt")
    assert "cannot be read as a fairseq checkpoint" in line(
        checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "a.pt")
    )


def test_a_missing_checkpoint():
    said = line(checkpoint_utils.load_model_ensemble_and_task, ["nowhere.pt"])
    assert said == "model file not found: nowhere.pt; check the path"
    assert line(checkpoint_utils.load_checkpoint_to_cpu, "nowhere.pt") == (
        "nowhere.pt: no such file or folder; check the path"
    )


class Loading:
    """A trainer that loads a checkpoint into a model, or an optimizer, that raises."""

    def __init__(self, tmp_path, monkeypatch, wrong=None, optimizer=None):
        def load_state_dict(*args, **kwargs):
            if wrong is not None:
                raise wrong

        self.file = str(tmp_path / "a.pt")
        (tmp_path / "a.pt").touch()
        criterion = torch.nn.CrossEntropyLoss()
        history = [{"criterion_name": "CrossEntropyLoss", "optimizer_name": type(optimizer).__name__}]
        state = {"model": {}, "extra_state": None, "optimizer_history": history, "last_optimizer_state": None}
        if optimizer is not None:
            other = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1)) for _ in range(3)])
            state["last_optimizer_state"] = other.state_dict()
            optimizer.load_state_dict_ = optimizer.load_state_dict
            optimizer.load_state_dict = lambda state, overrides: optimizer.load_state_dict_(state)
        monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", lambda *args, **kwargs: dict(state))
        config = SimpleNamespace(
            checkpoint=SimpleNamespace(load_checkpoint_on_all_dp_ranks=True),
            model=SimpleNamespace(),
            ema=SimpleNamespace(store_ema=False),
        )
        self.trainer = SimpleNamespace(
            cfg=config, model=SimpleNamespace(load_state_dict=load_state_dict), data_parallel_world_size=1, tpu=False,
            is_fsdp=False, get_criterion=lambda: criterion, _build_optimizer=lambda: None, optimizer=optimizer,
            set_num_updates=lambda number: None,
        )  # fmt: skip

    def __call__(self, **options):
        Trainer.load_checkpoint(self.trainer, self.file, reset_lr_scheduler=True, **options)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (LeapformerError("another vocabulary"), "another vocabulary"),
        (
            RuntimeError("errors:\n size of x\n size of y"),
            "a.pt does not fit this model (size of x); use the layers and sizes of its training",
        ),
    ],
)
def test_a_checkpoint_of_another_model(wrong, said, tmp_path, monkeypatch):
    assert line(Loading(tmp_path, monkeypatch, wrong)).endswith(said)


def test_an_optimizer_of_another_model(tmp_path, monkeypatch):
    load = Loading(tmp_path, monkeypatch, optimizer=torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]))
    said = line(load)
    assert said.startswith(f"{load.file}: its optimizer state belongs to another model or training (")
    assert "give the file to --finetune-from-model instead of --restore-file, or add --reset-optimizer" in said
    assert "\n" not in said
    load(reset_optimizer=True)


def test_another_optimizer(tmp_path, monkeypatch):
    load = Loading(tmp_path, monkeypatch, optimizer=torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]))
    load.trainer.optimizer.__class__ = torch.optim.AdamW
    said = line(load)
    assert "Optimizer does not match: Adam vs AdamW" in said and said.count("--reset-optimizer") == 1


def test_a_sample_that_is_too_long():
    class Dataset:
        def filter_indices_by_size(self, indices, limit):
            return indices[:1], indices[1:].tolist()

        def size(self, index):
            return np.int64(9), 4

    said = line(FairseqTask(SimpleNamespace()).filter_indices_by_size, np.arange(3), Dataset(), (5, 5))
    assert said.startswith("sample 1 is too long: (9, 4) tokens or frames, the model's positions are (5, 5); cut it")


def test_classes_that_are_left_out():
    said = line(SentencePredictionTask.setup_task, SimpleNamespace(num_classes=-1))
    assert said.startswith("--num-classes -1: sentence_prediction needs the number of labels; give it")


LM, NMT = "--task language_modeling --arch leapformer_lm_tiny", "--arch leapformer_nmt_tiny"
SPEECH = "--task speech_to_text --config-yaml c.yaml --arch leapformer_s2t_tiny"
MISSING = "no such file or folder; check the path of the data"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"nowhere {LM} --batch-size 3", f"nowhere/dict.txt: {MISSING}"),
        (f"nowhere {NMT} --batch-size 3", f"nowhere: {MISSING}"),
        (f"nowhere {SPEECH} --batch-size 3", f"nowhere/c.yaml: {MISSING}"),
        (f"words {LM} --batch-size 3", "words holds no prepared data; check the path, or prepare it"),
        (f"words {NMT} --batch-size 3", "words: no data of two languages; give the folder"),
        (f"words {LM}", "the batch size is missing; give --max-tokens or --batch-size"),
    ],
)
def test_data_that_are_missing(words, said, tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words/dict.txt").write_text("a 3\n")
    ended = run(leapformer("train", *words.split()), cwd=tmp_path)
    assert ended.returncode == 2 and ended.stderr.splitlines()[-1].startswith(f"leapformer: error: {said}")
    assert "Traceback" not in ended.stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return reversed_text(tmp_path_factory.mktemp("text"), train=20, valid=5, test=5)


TRAIN = "train {text}/mt --arch leapformer_nmt_tiny --optimizer adam --lr 1e-3 --max-update 1 --save-dir o "
PREPROCESS = "preprocess --source-lang en --target-lang de --trainpref {text}/train "
MISTAKES = [
    (TRAIN + "--max-tokens 2", "no sample is left to train on: there is none, or all are too long; give more data"),
    (TRAIN + "--max-tokens 6", "--max-tokens 6 is less than the length of the longest sample; give more, or"),
    (TRAIN + "--max-tokens 0", "train: --max-tokens 0: give at least 1"),
    (TRAIN + "--max-tokens 500 --update-freq 0", "train: --update-freq 0: give at least 1"),
    (TRAIN + "--max-tokens 500 --log-interval 0", "train: --log-interval 0: give at least 1"),
    (TRAIN + "--max-tokens 500 --dropout -1", "train: --dropout -1.0: give at least 0"),
    (TRAIN + "--max-tokens 500 --valid-subset other", "{text}/mt holds no subset 'other'; it holds test, train, valid"),
    (
        TRAIN + "--max-tokens 500 --max-update many",
        "train: argument --max-update: invalid int value: 'many'; see `leap",
    ),
    (TRAIN + "--max-tokens 500 --optimizer none", "train: argument --optimizer: invalid choice: 'none'; see `leapform"),
    (TRAIN + "--max-tokens 500 --no-such-option", "train: unrecognized arguments: --no-such-option; see `leapformer t"),
    ("generate {text}/mt --path x --beam 0", "generate: --beam 0: give at least 1"),
    ("generate {text}/mt --path x --beam 2 --nbest 3", "generate: --nbest 3 needs as many hypotheses; give --beam 3"),
    ("generate {text}/mt --path x --batch-size -1", "generate: --batch-size -1: give at least 1"),
    ("generate {text} --path x --no-such", "generate: unrecognized arguments: --no-such; see `leapformer generate"),
    (PREPROCESS + "--destdir {text}/mt", "{text}/mt/dict.en.txt exists already; give it to --srcdict or --tgtdict"),
    (
        PREPROCESS + "--destdir o --srcdict {text}/twice",
        "{text}/twice is not a dictionary (Duplicate word found",
    ),
    (
        PREPROCESS + "--destdir o --srcdict {text}/no-count",
        "{text}/no-count is not a dictionary (Incorrect dictionary",
    ),
    (PREPROCESS + "--destdir o --srcdict {text}/latin1", "{text}/latin1 is not a dictionary (Incorrect encoding"),
    (PREPROCESS + "--destdir o --srcdict {text}/none", "{text}/none: no such file or folder; check the path"),
    ("preprocess --source-lang en --target-lang de --trainpref {text}/none --destdir o", "{text}/none.en: no such fil"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line(words, said, text, tmp_path, monkeypatch, capfd):
    (text / "twice").write_text("a 1\na 2\n")
    (text / "no-count").write_text("a b\n")
    (text / "latin1").write_bytes("ä 1\n".encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    status = main([*shlex.split(words.format(text=text)), *(["--num-workers", "0"] * (words[0] in "tg"))])
    err = capfd.readouterr().err
    assert status == 2 and "Traceback" not in err and "usage:" not in err
    assert err.splitlines()[-1].startswith(f"leapformer: error: {said.format(text=text)}")


def test_a_validation_without_a_task():
    said = line(options.parse_args_and_arch, options.get_validation_parser(), ["data", "--path", "a.pt"])
    assert said == "--task is missing; give the task that the checkpoint was trained with"


def test_an_error_of_one_of_our_models_in_a_process_of_fairseq():
    text = "\n-- Process 0 terminated:\nTraceback:\nleapformer_fairseq.errors.LeapformerError: no such plan\n"
    assert str(explained(RuntimeError(text))) == "no such plan"


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), AssertionError("Must"), ValueError("parameter group")])
def test_what_is_nobodys_mistake_keeps_its_traceback(error):
    assert explained(error) is None


def test_an_interrupt_is_no_broken_checkpoint(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    (tmp_path / "a.pt").touch()
    monkeypatch.setattr(torch, "load", interrupted)
    assert line(checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "a.pt")) is None


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("torch", "the package torch is not installed; pip install 'leapformer-fairseq[train]'"),
        ("fairseq.data", "the package fairseq is not installed; pip install 'leapformer-fairseq[train]'"),
        ("simuleval", "the package simuleval is not installed; pip install 'leapformer-fairseq[simul]'"),
        ("websockets", "websockets is not installed; pip install websockets"),
        ("leapformer_fairseq.gone", None),  # a defect of ours
    ],
)
def test_a_missing_package_is_named_with_its_extra(name, remedy):
    found = explained(ModuleNotFoundError(f"No module named {name!r}", name=name))
    assert (None if found is None else str(found)) == remedy
