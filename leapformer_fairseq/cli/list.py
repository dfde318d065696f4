"""`leapformer list`: attention mechanisms and their options, our models, tasks, criterions, policies."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from json import dumps
from typing import TYPE_CHECKING, Any

from .. import register
from ..runtime.simul import own
from ..runtime.simul.policy import POLICIES
from ..runtime.simul.policy import find as find_policy
from ..support.declared import Option
from ..support.errors import LeapformerError, suggestion
from .fairseq_commands import ARCH_PREFIX

if TYPE_CHECKING:
    from ..attention import Mask

OPTIONS = """
what [NAME]             a mechanism, a policy, a family, or models, tasks, criterions, policies
--policy-file FILE*     a file with policies of your own, to be listed too
--json                  print all of it as JSON
"""
WIDTH = 100  # columns of a screen
# Folder or file of `attention` that defines a mechanism -> its family's name, and what the members have in common.
FAMILIES = {
    "softmax": ("exact", "time T^2 d; the state grows with T"),
    "linear": ("linear", "time T d^2, state d^2"),
    "recurrent": ("recurrent", "linear with decay or the delta rule: time T d^2, state d^2"),
    "bounded": ("bounded", "a memory of n slots: time T n d, state n d"),
    "sparse": ("sparse", "entmax over all, predicted or fixed pairs: time T^2 d, or that of chosen blocks"),
    "bidirectional": ("encoders", "encoders only, most of them from Long Range Arena"),
}
OTHERS = ("others", "registered outside this package")
LETTERS = {"encoder-self": "E", "decoder-self": "D", "decoder-cross": "C"}


def run(what: str | None, json: bool, policy_file: Sequence[str] = ()) -> None:
    """Print all mechanisms on one screen, or the page of a name. Raises LeapformerError for an unknown name."""
    for file in policy_file:
        own.load(file)
    if json and what:
        raise LeapformerError(f"--json prints everything; leave {what} out")
    if json:
        print(dumps({"mechanisms": mechanisms(), **{name: find() for name, find in REGISTERED.items()}}, indent=2))
        return
    for line in screen() if what is None else _lines_of(what):
        print(line)


def _lines_of(name: str) -> Iterator[str]:
    if name in KINDS:
        return KINDS[name]()
    from ..attention import MECHANISMS

    if name in MECHANISMS:
        return mechanism_page(name)
    families = by_family()
    if name in families:
        return family_page(families[name])
    policies = [*POLICIES, *own.installed()]
    if name in policies:
        return policy_page(name)
    near = suggestion(name, [*MECHANISMS, *families, *KINDS, *policies])
    raise LeapformerError(
        f"list knows no {name!r}; {near}`leapformer list` shows all; --user-dir FOLDER adds the mechanisms that its "
        "__init__.py imports, --policy-file FILE policies"
    )


# ---------------------------------------------------------------------------------------------------------- mechanisms
def mechanisms() -> list[dict[str, Any]]:
    """Name, summary, blocks and options of every registered attention mechanism."""
    from ..attention import MECHANISMS

    return [
        {
            "name": name,
            "summary": _summary(mechanism),
            "blocks": list(mechanism.capabilities.blocks),
            "needs_length": mechanism.capabilities.needs_length,
            "options": _described(mechanism.options),
        }
        for name, mechanism in sorted(MECHANISMS.items())
    ]


def _described(options: Iterable[Option]) -> list[dict[str, Any]]:
    return [
        {"flag": option.flag, "type": option.type.__name__, "default": option.default, "help": option.help}
        for option in options
    ]


def by_family() -> dict[str, list[str]]:
    """The names of mechanisms in each family, in the order of `FAMILIES`."""
    from ..attention import MECHANISMS

    families: dict[str, list[str]] = {name: [] for name, _ in (*FAMILIES.values(), OTHERS)}
    for name, mechanism in sorted(MECHANISMS.items()):
        folder = mechanism.__module__.partition(".attention.")[2].partition(".")[0]
        families[FAMILIES.get(folder, OTHERS)[0]].append(name)
    return {family: names for family, names in families.items() if names}


def screen() -> Iterator[str]:
    """Every mechanism by family and blocks: at most 45 lines of at most 100 columns."""
    from ..attention import MECHANISMS

    notes = dict((*FAMILIES.values(), OTHERS))
    yield "Attention mechanisms, by the blocks that they can serve. Each block has a flag, which takes a"
    yield "mechanism for all layers, or one per layer, as in softmax,leap*4,softmax:"
    yield "  E: --encoder-self-attention   D: --decoder-self-attention   C: --decoder-cross-attention"
    for family, names in by_family().items():
        yield from ("", f"{family}: {notes[family]}")
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(_letters(MECHANISMS[name].capabilities.blocks), []).append(name)
        for letters, group in groups.items():
            yield from textwrap.wrap(
                ", ".join(group), WIDTH, initial_indent=f"  {letters}  ", subsequent_indent=" " * 9,
                break_on_hyphens=False,
            )  # fmt: skip
    yield from (
        "",
        "leapformer list leap      options of one, and where it is refused",
        "leapformer list linear    what the members of a family compute",
        "leapformer list models    our architectures; also: tasks, criterions, policies",
    )


def family_page(names: list[str]) -> Iterator[str]:
    """The blocks and the summary of each of these mechanisms."""
    from ..attention import MECHANISMS

    for name in names:
        yield f"{_letters(MECHANISMS[name].capabilities.blocks)}  {name}"
        yield from _wrapped(_summary(MECHANISMS[name]), 7)


def mechanism_page(name: str) -> Iterator[str]:
    """A mechanism's summary, blocks and options, and where it is refused."""
    from ..attention import find

    mechanism = find(name)
    yield name
    yield from _wrapped(_summary(mechanism), 2)
    yield from ("", f"blocks: {', '.join(mechanism.capabilities.blocks)}", "")
    yield "options:" if mechanism.options else "options: none"
    yield from _options(mechanism.options)
    refused = refusals(name)
    yield from ("", "refused, with these defaults:" if refused else "refused: nowhere")
    for reason, places in refused.items():
        yield f"  {', '.join(places)}"
        yield from _wrapped(reason, 6)


def _options(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        choices = f": {', '.join(option.choices)}" if option.choices else ""
        bounds = (("at least", option.least), ("above", option.above), ("at most", option.most))
        choices += "".join(f", {words} {bound}" for words, bound in bounds if bound is not None)
        default = "none" if option.default in ("", None) else option.default
        yield f"  {option.flag} ({option.type.__name__}{choices}; default: {default})"
        yield from _wrapped(option.help, 6)


def uses(name: str) -> dict[str, str | None]:
    """The uses of a mechanism with its default options, each with the reason if it is refused there, or None."""
    from ..attention import BLOCKS, CAUSAL, ChunkMask, Context, PrefixMask, build

    encoder, decoder, cross = BLOCKS
    situations = {
        encoder: (encoder, None, Context()),
        decoder: (decoder, CAUSAL, Context()),
        cross: (cross, None, Context()),
        "a streaming encoder": (encoder, ChunkMask(1), Context()),
        "cross-attention with wait-k": (cross, PrefixMask(3), Context(length_known=True)),
        "a decoder that writes token by token": (decoder, CAUSAL, Context(length_known=True, incremental=True)),
        "text without end": (decoder, CAUSAL, Context(length_known=True, endless=True)),
        "--checkpoint-activations": (encoder, None, Context(reruns_layers=True)),
    }

    def reason(block: str, mask: Mask, context: Context) -> str | None:
        capabilities = build(name, 16, 2, block=block, input_dim=32).capabilities  # sizes do not matter here
        return capabilities.unsupported_reason(block, mask, context)

    return {where: reason(*situation) for where, situation in situations.items()}


def refusals(name: str) -> dict[str, list[str]]:
    """The reasons why a mechanism with its default options is refused, each with the uses that it applies to."""
    from ..attention import BLOCKS

    reasons: dict[str, list[str]] = {}
    for where, reason in uses(name).items():
        if reason and (where in BLOCKS or reason not in reasons):  # a refused block covers its special uses
            reasons.setdefault(reason, []).append(where)
    return reasons


def _summary(thing: Any) -> str:
    """The first line of a class's own docstring; that of its base would say what all of its kind are."""
    return inspect.cleandoc(thing.__doc__ or "(its class has no docstring)").partition("\n")[0]


def _letters(blocks: tuple[str, ...]) -> str:
    return " ".join(letter if block in blocks else " " for block, letter in LETTERS.items())


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


# ------------------------------------------------------------------------------------------------ fairseq's registries
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


def policies() -> dict[str, Any]:
    """Every policy of simultaneous translation, those of installed packages too, with its summary and options."""
    failed = {name: {"error": reason} for name, reason in own.load_installed().items()}
    described = {
        name: {"summary": _summary(policy), "options": _described(policy.options)} for name, policy in POLICIES.items()
    }
    return {**described, **failed}


def _ours(registry: Mapping[str, type]) -> dict[str, str]:
    """The names that this package added to a registry of fairseq, each with its summary."""
    register()
    package = __name__.partition(".")[0]
    return {
        name: _summary(registry[name]) for name in sorted(registry) if registry[name].__module__.startswith(package)
    }


REGISTERED = {"architectures": architectures, "tasks": tasks, "criterions": criterions, "policies": policies}


def _models_page() -> Iterator[str]:
    yield "Architectures (values of --arch), by model:"
    for model, archs in architectures().items():
        yield from (f"  {model}", *_wrapped(", ".join(archs), 6))


def _registered_page(kind: str) -> Iterator[str]:
    yield f"{kind.capitalize()} (values of --{kind.removesuffix('s')}), beside fairseq's:"
    for name, summary in (tasks if kind == "tasks" else criterions)().items():
        yield from (f"  {name}", *_wrapped(summary, 6))


def policy_page(name: str) -> Iterator[str]:
    """A policy's summary and options."""
    policy = find_policy(name)
    yield from (name, *_wrapped(_summary(policy), 2), *_options(policy.options))


def _policies_page() -> Iterator[str]:
    failed = own.load_installed()
    yield "Policies of simultaneous translation (values of --policy), each with its options:"
    for name in POLICIES:
        yield from ("", *policy_page(name))
    for name, reason in failed.items():
        yield from ("", name, *_wrapped(reason, 2))
    yield from ("", "docs/adding_a_policy.md tells how to write your own.")


KINDS = {
    "models": _models_page,
    "tasks": lambda: _registered_page("tasks"),
    "criterions": lambda: _registered_page("criterions"),
    "policies": _policies_page,
}
