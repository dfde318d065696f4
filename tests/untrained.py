"""Checkpoints of models with random weights, as fairseq's trainer writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from leapformer_fairseq import register


def save_checkpoint(
    path: Path,
    data: Path,
    arch: str,
    *flags: str,
    task: str = "speech_to_text",
    scaled: Mapping[int, float] | None = None,
) -> Path:
    """`path` with a model of the architecture `arch` for a task with this data.

    scaled: factors of rows of the output projection, by token, which the model then likes more or less.
    """
    register()
    parser = options.get_training_parser(default_task=task)
    args = options.parse_args_and_arch(parser, [str(data), "--task", task, "--arch", arch, *flags])
    torch.manual_seed(3)
    config = convert_namespace_to_omegaconf(args)
    model = tasks.setup_task(config.task).build_model(config.model)
    for token, factor in (scaled or {}).items():
        model.decoder.output_projection.weight.data[token] *= factor
    history = [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}]
    content = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    extra = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}}
    state = {"args": None, "cfg": content, "model": model.state_dict(), "optimizer_history": history}
    torch.save({**state, "extra_state": extra, "last_optimizer_state": None}, path)
    return path
