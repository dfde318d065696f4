"""What fairseq's own errors mean, on the errors that fairseq raises."""

from __future__ import annotations

import argparse
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("fairseq")
from fairseq import checkpoint_utils, options  # noqa: E402
from fairseq.tasks import FairseqTask  # noqa: E402
from fairseq.tasks.sentence_prediction import SentencePredictionTask  # noqa: E402
from fairseq.trainer import Trainer  # noqa: E402

from leapformer_fairseq.errors import LeapformerError  # noqa: E402
from leapformer_fairseq.fairseq_errors import explained  # noqa: E402
from leapformer_fairseq.loading import load_model  # noqa: E402

from .commands import leapformer, run  # noqa: E402


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
    assert line(checkpoint_utils.load_checkpoint_to_cpu, "nowhere.pt") is None, "the file's own error says it"


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
            checkpoint=SimpleNamespace(load_checkpoint_on_all_dp_ranks=True), model=SimpleNamespace()
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
    assert said.startswith(f"{load.file}: its optimizer is that of another model or training (")
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
        (f"words {LM} --batch-size 3", f"words/valid: {MISSING}"),
        (f"words {NMT} --batch-size 3", "words: no data of two languages; give the folder"),
        (f"words {LM}", "no batch size is given; give --max-tokens or --batch-size"),
    ],
)
def test_data_that_are_missing(words, said, tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words/dict.txt").write_text("a 3\n")
    ended = run(leapformer("train", *words.split()), cwd=tmp_path)
    assert ended.returncode == 2 and ended.stderr.splitlines()[-1].startswith(f"leapformer: error: {said}")
    assert "Traceback" not in ended.stderr


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
