"""Defaults for models whose options are flags, under `fairseq-hydra-train`."""

from __future__ import annotations

import functools
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any

from ..support.errors import LeapformerError
from .patch import Patch


def filled(config: Any, task: Any, model: type) -> Namespace:
    """The options that fairseq-train would give a model: those of `config`, the flags' defaults, and the task's.

    Raises LeapformerError for an option that the model does not have.
    """
    from omegaconf import OmegaConf

    configured: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    parser = ArgumentParser(add_help=False, argument_default=SUPPRESS, allow_abbrev=False)
    model.add_args(parser)  # type: ignore[attr-defined]
    defaults = vars(parser.parse_args([]))
    flags = {action.dest for action in parser._actions} | {"_name", "arch"}
    # A section with `arch` was converted from flags, and holds the options of the whole command.
    unknown = [] if "arch" in configured else sorted(configured.keys() - flags)
    arch = configured.get("_name")
    if unknown:
        raise LeapformerError(
            f"model.{unknown[0]}: {arch} has no such option; `leapformer train --arch {arch} --help` lists them"
        )
    task_config = getattr(task, "cfg", None)
    of_task: Any = OmegaConf.to_container(task_config, resolve=True) if OmegaConf.is_config(task_config) else {}
    rest = {name: value for name, value in of_task.items() if name not in flags}
    return Namespace(**{**rest, **defaults, **configured, "arch": arch or configured.get("arch")})


def _defaults_are_missing() -> bool:
    from fairseq import models
    from omegaconf import OmegaConf

    class Model:
        @classmethod
        def add_args(cls, parser: ArgumentParser) -> None:
            parser.add_argument("--width", type=int, default=3)

        @classmethod
        def build_model(cls, args: Any, task: Any) -> Any:
            return getattr(args, "width", None)

    name = "leapformer_defaults_are_looked_for"
    models.ARCH_MODEL_REGISTRY[name] = Model
    try:
        return bool(models.build_model(OmegaConf.create({"_name": name}), None) != 3)
    finally:
        del models.ARCH_MODEL_REGISTRY[name]


def _fill_defaults() -> None:
    from fairseq import models
    from omegaconf import OmegaConf

    build = models.build_model

    @functools.wraps(build)
    def build_model(cfg: Any, task: Any, *args: Any, **options: Any) -> Any:
        name = cfg.get("_name") or cfg.get("arch") if OmegaConf.is_config(cfg) else None
        model = models.ARCH_MODEL_REGISTRY.get(name)
        if model is not None and name not in models.MODEL_DATACLASS_REGISTRY:
            cfg = filled(cfg, task, model)
        return build(cfg, task, *args, **options)

    models.build_model = build_model


PATCHES = (
    Patch(
        "hydra-defaults",
        "fairseq-hydra-train sets no defaults for models whose options are flags",
        "fairseq 0.12",
        _defaults_are_missing,
        _fill_defaults,
    ),
)
