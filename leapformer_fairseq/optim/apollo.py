"""Apollo, the quasi-Newton optimizer of Luna's best translation models, as implemented by pytorch_optimizer."""

# No `from __future__ import annotations`: fairseq reads the types of the configurations' fields.
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import Tensor

from ..support.errors import LeapformerError


@dataclass
class ApolloConfig(FairseqDataclass):
    """Options of Apollo; the defaults are those of Luna's translation models."""

    apollo_beta: float = field(default=0.9, metadata={"help": "decay of the running average of gradients"})
    apollo_eps: float = field(default=1e-4, metadata={"help": "added to denominators"})
    apollo_warmup_updates: int = field(
        default=1000,
        metadata={"help": "updates in which the learning rate rises to --lr, regardless of the scheduler"},
    )
    apollo_init_lr: float = field(default=1e-5, metadata={"help": "learning rate at the start of the warm-up"})
    weight_decay: float = field(default=0.0, metadata={"help": "L2 regularisation"})
    lr: list[float] = II("optimization.lr")


@register_optimizer("apollo", dataclass=ApolloConfig)
class Apollo(FairseqOptimizer):
    """`--optimizer apollo` (Ma, 2020, arXiv:2009.13586), with the diagonal of the Hessian bounded by a constant.

    Raises LeapformerError if pytorch_optimizer is not installed.
    """

    def __init__(self, cfg: ApolloConfig, params: Iterable[Tensor]) -> None:
        super().__init__(cfg)
        try:
            from pytorch_optimizer import ApolloDQN
        except ImportError as error:
            raise LeapformerError(
                "--optimizer apollo: the package pytorch_optimizer is not installed; pip install "
                "'leapformer-fairseq[apollo]', or take --optimizer adam"
            ) from error
        # During its warm-up, the optimizer computes the rate itself and ignores the one that fairseq's scheduler sets.
        self._optimizer = ApolloDQN(params, warmup_steps=cfg.apollo_warmup_updates, **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The options that replace those in a checkpoint when a training resumes."""
        return {
            "lr": self.cfg.lr[0],
            "init_lr": self.cfg.apollo_init_lr,
            "beta": self.cfg.apollo_beta,
            "eps": self.cfg.apollo_eps,
            "weight_decay": self.cfg.weight_decay,
        }
