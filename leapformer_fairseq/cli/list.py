"""`leapformer list`: all available choices, read from the registries."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from .. import register
from .fairseq_commands import ARCH_PREFIX

HELP = "attention mechanisms with their options and blocks, and our model architectures, tasks and criterions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    if args.json:
        found = {"mechanisms": mechanisms(), **{name: find() for name, find in REGISTERED.items()}}
        print(json.dumps(found, indent=2))
    else:
        for line in as_text():  # the mechanisms are on the screen before fairseq, which takes longer, is imported
            print(line)
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
    """Our models, each with its values of --arch; empty without fairseq."""
    if find_spec("fairseq") is None:
        return {}
    from fairseq.models import ARCH_MODEL_INV_REGISTRY

    register()
    ours = (model for model in sorted(ARCH_MODEL_INV_REGISTRY) if model.startswith(ARCH_PREFIX))
    return {model: sorted(ARCH_MODEL_INV_REGISTRY[model]) for model in ours}


def tasks() -> dict[str, str]:
    """Our tasks, each with its summary; empty without fairseq. Our other models use fairseq's tasks."""
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


REGISTERED = {"architectures": architectures, "tasks": tasks, "criterions": criterions}


def as_text() -> Iterator[str]:
    """The lines of the human-readable report that `run` prints."""
    yield "Attention mechanisms (values of --{encoder-self,decoder-self,decoder-cross}-attention):"
    for mechanism in mechanisms():
        length = "; needs the target length" if mechanism["needs_length"] else ""
        yield f"  {mechanism['name']}: {mechanism['summary']}"
        yield f"      blocks: {', '.join(mechanism['blocks'])}{length}"
        for option in mechanism["options"]:
            yield f"      {option['flag']} ({option['type']}, default {option['default']}): {option['help']}"
    yield from ("", "Architectures (values of --arch):")
    yield from (f"  {model}: {', '.join(archs)}" for model, archs in architectures().items())
    for kind, found in (("tasks", tasks()), ("criterions", criterions())):
        yield from ("", f"{kind.capitalize()} (values of --{kind.removesuffix('s')}), beside fairseq's:")
        yield from (f"  {name}: {summary}" for name, summary in found.items())
