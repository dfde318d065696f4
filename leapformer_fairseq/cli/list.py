"""`leapformer list`: everything that can be chosen, read off the registries."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from .. import register
from .fairseq_commands import ARCH_PREFIX

HELP = "attention mechanisms with their options and blocks, and our model architectures, tasks and criterions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    found = {"mechanisms": mechanisms(), "architectures": architectures(), "tasks": tasks(), "criterions": criterions()}
    print(json.dumps(found, indent=2) if args.json else as_text(found))
    return 0


def mechanisms() -> list[dict[str, Any]]:
    """Name, summary, blocks and options of every registered attention mechanism."""
    from ..attention import MECHANISMS

    return [
        {
            "name": name,
            "summary": (inspect.getdoc(mechanism) or "").partition("\n")[0],
            "blocks": list(mechanism.capabilities.blocks),
            "needs_length": mechanism.capabilities.needs_length,
            "options": [
                {
                    "flag": option.flag,
                    "type": type(option.default).__name__,
                    "default": option.default,
                    "help": option.help,
                }
                for option in mechanism.options
            ],
        }
        for name, mechanism in sorted(MECHANISMS.items())
    ]


def architectures() -> dict[str, list[str]]:
    """Our models, each with the values of --arch that choose it; empty without fairseq."""
    if find_spec("fairseq") is None:
        return {}
    from fairseq.models import ARCH_MODEL_INV_REGISTRY

    register()
    ours = (model for model in sorted(ARCH_MODEL_INV_REGISTRY) if model.startswith(ARCH_PREFIX))
    return {model: sorted(ARCH_MODEL_INV_REGISTRY[model]) for model in ours}


def tasks() -> dict[str, str]:
    """Our tasks, each with its summary; empty without fairseq. The others of our models are fairseq's."""
    if find_spec("fairseq") is None:
        return {}
    from fairseq.tasks import TASK_REGISTRY

    return _ours(TASK_REGISTRY)


def criterions() -> dict[str, str]:
    """Our criterions, each with its summary; empty without fairseq."""
    if find_spec("fairseq") is None:
        return {}
    from fairseq.criterions import CRITERION_REGISTRY

    return _ours(CRITERION_REGISTRY)


def _ours(registry: Mapping[str, type]) -> dict[str, str]:
    """What this package put into a registry of fairseq."""
    register()
    package = __name__.partition(".")[0]
    return {
        name: (inspect.getdoc(registry[name]) or "").partition("\n")[0]
        for name in sorted(registry)
        if registry[name].__module__.startswith(package)
    }


def as_text(found: dict[str, Any]) -> str:
    """What `run` prints for people."""
    lines = ["Attention mechanisms (values of --{encoder-self,decoder-self,decoder-cross}-attention):"]
    for mechanism in found["mechanisms"]:
        length = "; needs the target length" if mechanism["needs_length"] else ""
        lines += [
            f"  {mechanism['name']}: {mechanism['summary']}",
            f"      blocks: {', '.join(mechanism['blocks'])}{length}",
        ]
        for option in mechanism["options"]:
            lines.append(f"      {option['flag']} ({option['type']}, default {option['default']}): {option['help']}")
    lines += ["", "Architectures (values of --arch):"]
    lines += [f"  {model}: {', '.join(archs)}" for model, archs in found["architectures"].items()]
    for kind in ("tasks", "criterions"):
        lines += ["", f"{kind.capitalize()} (values of --{kind.removesuffix('s')}), beside fairseq's:"]
        lines += [f"  {name}: {summary}" for name, summary in found[kind].items()]
    return "\n".join(lines)
