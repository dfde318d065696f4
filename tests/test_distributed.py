"""Several processes: two train what one does with two batches an update, what fairseq does in silence is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.compat import distributed
from leapformer_fairseq.data.arrays import About, Example, write_about, write_split
from leapformer_fairseq.models.averaging import load_checkpoint
from leapformer_fairseq.studies.engine import Cell, Engine
from leapformer_fairseq.studies.launching import Launcher
from leapformer_fairseq.studies.recipes.recipe import training
from leapformer_fairseq.support.errors import LeapformerError

from .commands import done, leapformer, run
from .covering import kept
from .data.tiny_corpus import tiny_corpus
from .data.tts_trees import MELS, tts_tree
from .forks import Fork
from .reversed_text import reversed_text
from .studies.recipes.running import Cells

TORCHRUN = {"MASTER_ADDR": "here", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}


def configuration(cpu: bool = True, **training):
    values = {
        "distributed_world_size": 1, "distributed_rank": 0, "distributed_init_method": None, "device_id": 0,
        "distributed_backend": "nccl", "distributed_no_spawn": False, **training,
    }  # fmt: skip
    return SimpleNamespace(common=SimpleNamespace(cpu=cpu), distributed_training=SimpleNamespace(**values))


class TestPlace:
    def test_a_process_alone(self):
        cfg = configuration()
        assert distributed.place(cfg, {}, 0) == 0 and cfg.distributed_training.distributed_init_method is None
        assert distributed.place(configuration(), {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, 0) == 0

    @pytest.mark.parametrize(("cpu", "gpus", "device", "backend"), [(True, 2, 0, "gloo"), (False, 2, 1, "nccl")])
    def test_one_of_torchruns(self, cpu, gpus, device, backend):
        cfg = configuration(cpu, distributed_world_size=gpus)
        assert distributed.place(cfg, TORCHRUN, gpus) == 0
        found = cfg.distributed_training
        assert (found.distributed_world_size, found.distributed_rank, found.device_id) == (4, 3, device)
        assert found.distributed_init_method == "env://" and found.distributed_no_spawn
        assert found.distributed_backend == backend

    def test_processes_to_start_on_this_machine(self):
        cfg = configuration(distributed_world_size=3)
        assert distributed.place(cfg, {}, 0) == 3
        assert cfg.distributed_training.distributed_init_method.startswith("tcp://localhost:")

    def test_gpus_are_left_to_fairseq(self):
        cfg = configuration(cpu=False, distributed_world_size=2)
        assert distributed.place(cfg, {}, 2) == 0 and cfg.distributed_training.distributed_init_method is None

    @pytest.mark.parametrize(
        ("environment", "training", "cpu", "gpus", "message"),
        [
            (TORCHRUN, {"distributed_world_size": 3}, True, 0, "--distributed-world-size 3: torchrun started 4"),
            (TORCHRUN, {}, False, 1, "process 1 has no GPU, there are 1; start fewer"),
            ({"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, {}, True, 0, "would train independent copies"),
            ({}, {"distributed_world_size": 2, "distributed_rank": 1}, True, 0, "--distributed-rank 1: on CPUs"),
        ],
    )
    def test_what_would_be_silent(self, environment, training, cpu, gpus, message):
        with pytest.raises(LeapformerError, match=message):
            distributed.place(configuration(cpu, **training), environment, gpus)


def test_shards_that_fairseq_would_ignore_are_refused(monkeypatch, capsys):
    assert main(["generate", "DATA", "--path", "x", "--num-shards", "3", "--shard-id=1"]) == 2
    assert "does not read --num-shards; give --distributed-world-size 3 --distributed-rank" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["generate", "DATA", "--path", "x"]) == 2
    assert "2 processes would each translate everything into one file" in capsys.readouterr().err


COMMON = (
    "--optimizer sgd --lr 0.003 --max-update 5 --num-workers 0 --seed 1 --cpu --log-format simple "
    "--no-epoch-checkpoints --required-batch-size-multiple 1 --disable-validation "
    "--dropout 0 --attention-dropout 0 --activation-dropout 0 --batch-size 4"
)
TEXT = "--encoder-layers 1 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16"
SPEECH = (
    f"DATA/speech --task speech_to_text --config-yaml config_st.yaml --train-subset train_st --valid-subset dev_st "
    f"{TEXT} --conv-out-channels 2 --criterion label_smoothed_cross_entropy"
)
LM = "DATA/lm --task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 16"
NMT = f"DATA/mt --arch leapformer_nmt_tiny {TEXT}"
STUDENT = (
    f"{NMT} --encoder-self-attention leap --decoder-self-attention gated-delta "
    "--decoder-cross-attention softmax,hedgehog "
    "--teacher DATA/nmt-teacher/one/checkpoint_last.pt --finetune-from-model DATA/nmt-teacher/one/checkpoint_last.pt"
)
CLASSES = (
    "DATA/classes --task leapformer_classification --criterion leapformer_classification --arch leapformer_classifier "
    "--longest 64"
)
TTS = (
    "DATA/tts --task text_to_speech --config-yaml config.yaml --train-subset train --valid-subset dev "
    "--criterion tacotron2 --arch leapformer_tts_tiny --encoder-embed-dim 16 --encoder-ffn-embed-dim 24 "
    "--decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --prenet-dim 16 --postnet-conv-dim 16 --n-frames-per-step 2 "
    f"--output-frame-dim {MELS.n_mels} --prenet-dropout 0 --postnet-dropout 0 --lr 0.0003"
)
#: every model, and every family of mechanisms
CASES = {
    "lm-leap": f"{LM} --decoder-self-attention leap",
    "lm-abc-rope": f"{LM} --decoder-self-attention abc-mlp,rope",
    "lm-rfa-gate": f"{LM} --decoder-self-attention rfa-gate,entmax --entmax-alpha learned",
    "mlm-luna": "DATA/lm --task masked_lm --criterion masked_lm --arch leapformer_mlm_tiny --tokens-per-sample 24 "
    "--encoder-self-attention luna",
    "nmt-luna": f"{NMT} --encoder-self-attention luna --decoder-self-attention luna --decoder-cross-attention luna",
    "nmt-mixed": f"{NMT} --encoder-self-attention t2r --decoder-self-attention softmax,leap "
    "--decoder-cross-attention abc-linformer --abc-max-length 64",
    "nmt-recurrent": f"{NMT} --encoder-self-attention kda --decoder-self-attention gated-delta,hgrn2 "
    "--decoder-cross-attention delta",
    "nmt-teacher": f"{NMT} --encoder-self-attention softmax --decoder-self-attention softmax "
    "--decoder-cross-attention softmax",
    "nmt-aligned": f"{STUDENT} --criterion leapformer_alignment --lr 0.1",
    "nmt-distilled": f"{STUDENT} --criterion leapformer_distillation",
    "nmt-length": f"{NMT} --encoder-self-attention cosformer --decoder-self-attention cosformer "
    "--decoder-cross-attention cosformer --length-predictor conv --length-dropout 0 "
    "--criterion label_smoothed_cross_entropy_with_length",
    "s2t": f"{SPEECH} --arch leapformer_s2t_tiny --encoder-self-attention leap",
    "simulst": f"{SPEECH} --arch leapformer_simulst_tiny --waitk-lagging 2 --fixed-pre-decision-ratio 3",
    "classifier-bigbird": f"{CLASSES} --encoder-self-attention bigbird",
    "classifier-packed": f"{CLASSES} --encoder-self-attention luna --pooling packed",
    "classifier-s4d": f"{CLASSES} --encoder-self-attention s4d,sinkhorn",
    "tts": f"{TTS} --encoder-self-attention leap --decoder-self-attention leap --decoder-cross-attention relu",
}
WAYS = {
    "one": "--update-freq 2",
    "c10d": "--distributed-world-size 2 --find-unused-parameters",
    "legacy_ddp": "--distributed-world-size 2 --ddp-backend legacy_ddp",
}
NOT_BY = {"nmt-aligned": "c10d"}
#: --all compares every case, and so every criterion, in both ways
BY_DEFAULT = {("lm-leap", "c10d"), ("nmt-aligned", "legacy_ddp"), ("simulst", "c10d"), ("tts", "legacy_ddp")}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = reversed_text(tmp_path_factory.mktemp("distributed"), train=100, valid=20)
    (root / "speech").symlink_to(tiny_corpus())
    tts_tree(root / "tts")
    random, about = np.random.default_rng(1), About(12, 2)
    (root / "classes").mkdir()
    write_about(root / "classes", about)
    for split in ("train", "valid"):
        examples = (
            Example((random.integers(1, 11, random.integers(5, 30)),), int(random.integers(2))) for _ in range(60)
        )
        write_split(root / "classes", split, examples, about)
    return root


def trained(data: Path, name: str, way: str = "one") -> Path:
    """The folder of a case that was trained in one of the ways, once."""
    save, options = data / name / way, CASES[name].replace("DATA", str(data))
    if "--teacher " in options:
        trained(data, "nmt-teacher")
    if not save.exists():
        done(leapformer(*f"train {COMMON} {options} {WAYS[way]} --save-dir {save}".split()))
    return save


def parameters(save: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(save / "checkpoint_last.pt")["model"]


@pytest.mark.parametrize(
    ("name", "way"),
    kept([(name, way) for name in CASES for way in ("c10d", "legacy_ddp") if NOT_BY.get(name) != way], *BY_DEFAULT),
)
def test_two_processes_train_what_one_does_with_two_batches_an_update(data, name, way):
    one, two = parameters(trained(data, name)), parameters(trained(data, name, way))
    assert one.keys() == two.keys()
    for key, value in ((key, value) for key, value in one.items() if value.is_floating_point()):
        if "running_" in key:  # of batch norm: each process keeps those of its own batches, in fairseq as well
            continue
        torch.testing.assert_close(two[key], value, atol=1e-5, rtol=0, msg=lambda text, key=key: f"{key}: {text}")


def test_another_batch_ends_at_other_parameters(data):
    """Inverted control: the comparison would notice processes that do not talk to each other."""
    command = f"{CASES['lm-leap'].replace('DATA', str(data))} {COMMON} --save-dir {data}/alone"
    done(leapformer("train", *command.split()))
    one, alone = parameters(trained(data, "lm-leap")), parameters(data / "alone")
    assert max(float((one[key] - alone[key]).abs().max()) for key in one if one[key].is_floating_point()) > 1e-4


def test_alignment_is_refused_where_gradients_would_not_be_summed(data):
    trained(data, "nmt-teacher")
    command = f"{CASES['nmt-aligned'].replace('DATA', str(data))} {COMMON} {WAYS['c10d']} --save-dir {data}/refused"
    ended = run(leapformer("train", *command.split()))
    assert ended.returncode and "in several processes needs --ddp-backend legacy_ddp" in ended.stderr


def agent(*options: str) -> list[str]:
    """The beginning of a command under torchrun."""
    return [sys.executable, "-m", "torch.distributed.run", *options]


OURS = ("-m", "leapformer_fairseq.cli.main")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(said: Path, *arguments: str) -> list[int]:
    """What two processes end with that have what torchrun gives them, as real ones have in the tests of agents."""
    meeting = {
        **ONE_THREAD,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(distributed._free_port()),
        "WORLD_SIZE": "2",
    }
    with said.open("wb") as log:
        started = [
            Fork(leapformer(*arguments), subprocess.DEVNULL, log, log, {**meeting, "RANK": rank, "LOCAL_RANK": rank})
            for rank in "01"
        ]
        return [process.wait(300) for process in started]


def check_alike(one: Path, other: Path) -> None:
    expected, found = parameters(one), parameters(other)
    assert max(float((expected[key] - found[key]).abs().max()) for key in expected) < 1e-5


def test_torchrun_trains_one_model_and_resumes(data):
    """Stopped after 3 of 5 updates, it ends where one process does that was never stopped."""
    command = f"train {CASES['lm-leap'].replace('DATA', str(data))} {COMMON} --save-dir {data}/torchrun"
    done(leapformer(*command.split(), *["--max-update", "3", "--distributed-world-size", "2"]))
    said = data / "torchrun.log"
    assert torchrun(said, *command.split()) == [0, 0], said.read_text()[-3000:]
    check_alike(trained(data, "lm-leap"), data / "torchrun")
    assert "Loaded checkpoint" in said.read_text()


@pytest.mark.full
def test_two_machines_train_one_model(data):
    """Two agents of torchrun that meet on the loopback stand for two machines of one process each."""
    command = f"train {CASES['lm-leap'].replace('DATA', str(data))} {COMMON} --save-dir {data}/machines"
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{distributed._free_port()}", "--rdzv-id", "1")
    words = [*agent("--nnodes", "2", "--nproc-per-node", "1", *meeting), *OURS, *command.split()]
    machines = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=ONE_THREAD) for _ in range(2)]
    said = [machine.communicate(timeout=300)[1] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    check_alike(trained(data, "lm-leap"), data / "machines")


@pytest.mark.full
def test_a_killed_process_is_restarted_and_ends_at_the_same_model(data, tmp_path):
    """A recipe starts torchrun again, which on CPUs does not restart its processes itself."""
    words = f"{CASES['lm-leap'].replace('DATA/lm', '')} {COMMON} --max-update 150 --save-interval-updates 20".split()
    launcher, said = Launcher("torchrun", processes=2, restarts=1), list[str]()
    killed = Thread(target=kill_the_second_process, args=(tmp_path / "killed",))
    killed.start()
    cells = [Cell(name, (training(data / "lm", tmp_path / name, *words, threads=1),)) for name in ("killed", "whole")]
    assert not Engine(Cells(tmp_path, *cells), say=said.append, launcher=launcher).run().failed
    killed.join()
    assert any("killed goes on from its last checkpoint, it died: " in line for line in said), said
    assert "Loaded checkpoint" in (tmp_path / "killed/train.log").read_text()
    check_alike(tmp_path / "whole", tmp_path / "killed")


def kill_the_second_process(save: Path) -> None:
    """Once there is a checkpoint."""
    end = time.monotonic() + 240
    while not (save / "checkpoint_last.pt").is_file():
        assert time.monotonic() < end
        time.sleep(0.05)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = str(save).encode() in (process / "cmdline").read_bytes()
            if ours and b"\0RANK=1\0" in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                return


def test_errors_are_one_line_of_one_process(data):
    command = f"train {CASES['lm-leap'].replace('DATA', str(data))} {COMMON} --save-dir {data}/no"
    ran = run(leapformer(*command.split(), "--distributed-world-size", "2", "--decoder-self-attention", "leep"))
    assert ran.returncode == 2 and "unknown attention mechanism 'leep'" in ran.stderr
    assert "Traceback" not in ran.stderr
