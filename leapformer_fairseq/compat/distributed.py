"""Training with several processes on CPUs or under torchrun; fairseq starts and connects them only for GPUs."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from ..support.errors import LeapformerError
from .patch import patch, source_has, wrapping

TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")


# ------------------------------------------------------------------------------------------- starting and connecting
def place(cfg: Any, environment: Mapping[str, str], gpus: int) -> int:
    """Write this process's place in the job into fairseq's configuration; return how many processes to start here.

    The number is 0 if fairseq's own code should go on: for processes of torchrun, which connect through its
    environment on GPUs and CPUs, for a single process, and on GPUs. On CPUs, `--distributed-world-size N` starts N
    processes on this machine. Raises LeapformerError for settings with which fairseq would silently train independent
    copies or start no process.
    """
    training, on_cpu = cfg.distributed_training, cfg.common.cpu or not gpus
    if on_cpu and training.distributed_backend == "nccl":  # fairseq's default, for GPUs only
        training.distributed_backend = "gloo"
    if all(environment.get(name) for name in TORCHRUN):
        _place_by_torchrun(training, environment, on_cpu, gpus)
        return 0
    if not on_cpu:
        return 0
    processes = training.distributed_world_size
    if processes == 1 and int(environment.get("SLURM_NTASKS", 1)) > 1 and environment.get("SLURM_STEP_ID"):
        raise LeapformerError(
            f"SLURM started {environment['SLURM_NTASKS']} tasks, which on CPUs would train independent copies; start "
            "one task per machine, `srun --ntasks-per-node 1 torchrun ...`"
        )
    if training.distributed_no_spawn or (processes == 1 and not training.distributed_init_method):
        return 0
    if training.distributed_rank:
        raise LeapformerError(
            f"--distributed-rank {training.distributed_rank}: on CPUs, start the processes of several machines with "
            "torchrun"
        )
    training.distributed_init_method = training.distributed_init_method or f"tcp://localhost:{_free_port()}"
    return int(processes)


def _place_by_torchrun(training: Any, environment: Mapping[str, str], on_cpu: bool, gpus: int) -> None:
    world, rank, local = (int(environment[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    if training.distributed_world_size not in (1, gpus, world):
        raise LeapformerError(
            f"--distributed-world-size {training.distributed_world_size}: torchrun started {world} processes; leave "
            "the option out"
        )
    if not on_cpu and local >= gpus:
        raise LeapformerError(f"torchrun --nproc-per-node: process {local} has no GPU, there are {gpus}; start fewer")
    training.distributed_world_size, training.distributed_rank = world, rank
    training.device_id = 0 if on_cpu else local
    if world > 1:
        training.distributed_init_method, training.distributed_no_spawn = "env://", True


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@patch(
    "processes",
    "on CPUs several processes train independent copies, or none starts; those of torchrun are not connected",
    source_has("fairseq.distributed.utils:call_main", "torch.multiprocessing.spawn"),
)
@wrapping("fairseq.distributed.utils:call_main")
def _start_processes_anywhere(original: Any, cfg: Any, main: Any, **kwargs: Any) -> None:
    from omegaconf import OmegaConf, open_dict

    with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
        processes = place(cfg, os.environ, torch.cuda.device_count())
    if not processes:
        original(cfg, main, **kwargs)
        return
    cfg.distributed_training.distributed_rank = None  # distributed_main then takes start_rank plus its number
    # Forked processes and their data loaders need not import everything again, which would take a minute.
    arguments = (processes, main, cfg, {**kwargs, "start_rank": 0})
    start_processes(_run_process, arguments, processes, start_method="fork")


def _run_process(number: int, processes: int, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Run one of the processes started here, with its share of the cores unless OMP_NUM_THREADS is set."""
    from fairseq.distributed import utils

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    utils.distributed_main(number, main, cfg, kwargs)


# ----------------------------------------------------------------------------------------------- communication on CPUs
@patch(
    "gathering",
    "processes on CPUs exchange statistics through a GPU",
    source_has("fairseq.distributed.utils:all_gather_list", "torch.cuda.ByteTensor"),
)
@wrapping("fairseq.distributed.utils:all_gather_list")
def _gather_anywhere(original: Any, data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    from fairseq.distributed import utils

    group = utils.get_global_group() if group is None else group
    if torch.distributed.get_backend(group) != "gloo":
        return list(original(data, group, max_size))
    gathered = [None] * utils.get_world_size(group)
    torch.distributed.all_gather_object(gathered, data, group=group)
    return gathered


def _ddp_needs_gpus() -> bool:
    from fairseq.models import distributed_fairseq_model

    unpatched = distributed_fairseq_model.DistributedDataParallel is torch.nn.parallel.DistributedDataParallel
    wrapper = inspect.getsource(distributed_fairseq_model.DistributedFairseqModel)
    return unpatched and "device_ids=[args.device_id]" in wrapper


@patch("ddp", "DistributedDataParallel is given the number of a GPU even on CPUs", _ddp_needs_gpus)
def _let_ddp_take_cpus() -> None:
    """Drop the device numbers that fairseq passes: PyTorch rejects them for a module on a CPU."""
    from fairseq.models import distributed_fairseq_model

    original = distributed_fairseq_model.DistributedDataParallel

    def parallel(module: torch.nn.Module, **kwargs: Any) -> torch.nn.Module:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            kwargs.update(device_ids=None, output_device=None)
        return original(module, **kwargs)

    distributed_fairseq_model.DistributedDataParallel = parallel


@patch(
    "broadcast",
    "torch.load refuses the object that the first process sends to the others when a training resumes",
    source_has("fairseq.distributed.utils:_broadcast_object_slow", 'torch.load(buffer, map_location="cpu")'),
    "torch >= 2.6 (weights_only=True by default)",
)
@wrapping("fairseq.distributed.utils:_broadcast_object_slow")
def _broadcast_anything(_: Any, obj: Any, src_rank: int, group: Any, dist_device: torch.device) -> Any:
    """Broadcast with torch's function, which unpickles freely.

    That is safe here: the source is a process of the same job, which has read the checkpoint with protection.
    """
    box = [obj]
    torch.distributed.broadcast_object_list(box, src_rank, group=group, device=dist_device)
    return box[0]
