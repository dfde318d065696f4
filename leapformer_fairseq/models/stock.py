"""Checkpoints of fairseq's own transformers, read as models of ours with softmax attention in every block.

Their weights have the same names, and their options the same meaning; only the name of the architecture differs.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..modules.swap import BLOCKS

#: fairseq's models that ours extend, and ours
OURS = {"transformer": "leapformer_nmt", "transformer_lm": "leapformer_lm", "s2t_transformer": "leapformer_s2t"}


def model_options(state: dict[str, Any]) -> dict[str, Any]:
    """The options of a checkpoint's model: a section of its configuration; before fairseq 0.10, among all others."""
    from omegaconf import OmegaConf

    section = (state.get("cfg") or {}).get("model") or state.get("args")
    if OmegaConf.is_config(section):
        section = OmegaConf.to_container(section, resolve=True)
    return dict(vars(section) if isinstance(section, Namespace) else section or {})


def architecture(state: dict[str, Any]) -> str:
    """The --arch of a checkpoint, "" if it has none."""
    options = model_options(state)
    return str(options.get("arch") or options.get("_name") or "")


def adopted(arch: str) -> str:
    """The architecture of ours for one of fairseq's transformers; any other as it is."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    return OURS.get(ARCH_MODEL_NAME_REGISTRY.get(arch, arch), arch)


def adopt(state: dict[str, Any]) -> None:
    """Make a checkpoint of one of fairseq's transformers, as fairseq loads it, one of ours; leave others alone."""
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from omegaconf import flag_override

    arch = architecture(state)
    if adopted(arch) == arch:
        return
    options = Namespace(**model_options(state))
    if arch in ARCH_CONFIG_REGISTRY:  # what a checkpoint of an earlier version does not say
        ARCH_CONFIG_REGISTRY[arch](options)
    vars(options).pop("_name", None)
    softmax = dict.fromkeys((block.argument for block in BLOCKS), "softmax")
    with flag_override(state["cfg"], ["struct", "allow_objects"], [False, True]):
        state["cfg"]["model"] = Namespace(**{**vars(options), **softmax, "arch": adopted(arch)})
    state["args"] = None  # else fairseq would read the options there
