"""Loads a trained model that another model learns from, and the criterion of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fairseq import checkpoint_utils
from fairseq import models as fairseq_models
from fairseq.criterions import FairseqCriterion, build_criterion
from omegaconf import OmegaConf
from torch import nn

from ..support.errors import LeapformerError
from .stock import adopt


class Teacher(NamedTuple):
    """A model in eval mode, without gradients, and the criterion of its training."""

    model: Any
    criterion: FairseqCriterion


def load_teacher(path: str, task: Any) -> Teacher:
    """Load a checkpoint's model, built for this task. Raises LeapformerError without a file or for another vocabulary.

    The file is loaded with PyTorch's protection on (`weights_only`, see `compat`).
    """
    if not Path(path).is_file():
        raise LeapformerError(f"no file {path}; --teacher is the checkpoint of a trained model")
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    adopt(state)
    args = state["cfg"]["model"]
    model: nn.Module = fairseq_models.build_model(args, task)
    model.load_state_dict(state["model"], strict=True, model_cfg=args)  # type: ignore[call-arg]
    criterion = build_criterion(OmegaConf.create(dict(state["cfg"]["criterion"])), task)
    return Teacher(model.eval().requires_grad_(False), criterion)
