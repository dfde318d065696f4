"""Checkpoints of fairseq's own transformers, read as models of ours with softmax attention in every block.

Their weights have the same names, and their options the same meaning; only the name of the architecture differs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from ..compat.trust import options_of
from ..modules.swap import BLOCKS

#: fairseq's models that ours extend, and ours
OURS = {
    "transformer": "leapformer_nmt",
    "transformer_lm": "leapformer_lm",
    "s2t_transformer": "leapformer_s2t_transformer",
    "convtransformer": "leapformer_s2t",
}
# Sections of a configuration whose name is the value of an option.
_NAMED = ("task", "criterion", "optimizer", "lr_scheduler", "bpe", "tokenizer", "scoring")


def architecture(state: dict[str, Any]) -> str:
    """The --arch of a checkpoint, "" if it has none."""
    options = options_of((state.get("cfg") or {}).get("model") or state.get("args") or {})
    return str(options.get("arch") or options.get("_name") or "")


def needed(kinds: Iterable[str]) -> str:
    """The architectures of some kinds of our models, and fairseq's that are read as these."""
    theirs = [f"{model}*" for model, ours in OURS.items() if ours in kinds]
    return " or ".join(f"{kind}*" for kind in kinds) + (f" or fairseq's {', '.join(theirs)}" if theirs else "")


def adopted(arch: str) -> str:
    """The architecture of ours for one of fairseq's transformers; any other as it is."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    return OURS.get(ARCH_MODEL_NAME_REGISTRY.get(arch, arch), arch)


def adopt(state: dict[str, Any]) -> None:
    """Make a checkpoint of one of fairseq's transformers one of ours; leave others alone.

    The model's section then holds the options of the whole training, as if ours had been trained with its flags.
    """
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from omegaconf import OmegaConf, flag_override

    arch = architecture(state)
    if adopted(arch) == arch:
        return
    if not state.get("cfg"):  # before fairseq 0.10
        state["cfg"] = convert_namespace_to_omegaconf(state["args"])
    config = state["cfg"]
    sections: Any = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    options = Namespace(**_flat(sections))
    if arch in ARCH_CONFIG_REGISTRY:  # what a checkpoint of an earlier version does not say
        ARCH_CONFIG_REGISTRY[arch](options)
    softmax = dict.fromkeys((block.argument for block in BLOCKS), "softmax")
    model = Namespace(**{**vars(options), **softmax, "arch": adopted(arch)})
    if OmegaConf.is_config(config):
        with flag_override(config, ["struct", "allow_objects"], [False, True]):
            config["model"] = model
    else:
        config["model"] = model
    state["args"] = None  # else fairseq would read the options there


def _flat(sections: dict[str, Any]) -> dict[str, Any]:
    """The options of a configuration as those of a command line, the model's last, since they decide."""
    found = dict[str, Any]()
    for name, section in sorted(sections.items(), key=lambda item: item[0] == "model"):
        options = options_of(section)
        if not isinstance(options, dict):
            continue
        found |= {option: value for option, value in options.items() if option != "_name"}
        if name in _NAMED and options.get("_name"):
            found[name] = options["_name"]
    return found
