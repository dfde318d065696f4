"""Checks whether the weights of a checkpoint compute the same function in this model, and reports what is new.

Some options change a model's function without changing the shape of any tensor, such as the place of its norms. If such
an option has another value, the checkpoint loads but the model computes something else.
"""

from __future__ import annotations

import copy
import logging
import re
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..attention import Option, find
from ..support.errors import LeapformerError
from .plan import expand_plan

logger = logging.getLogger(__name__)

STACKS = ("encoder", "decoder")
PREFIX = "leapformer_"


class Differing(NamedTuple):
    """An option that changes the function of a model, but no shapes.

    default: fairseq's default, for checkpoints without the option
    stack:   the stack in which it matters; both if empty
    matters: whether a difference matters, given the options of the checkpoint and of this model
    remedy:  how to set it to True and to False; None: by giving its flag and leaving it out
    """

    default: Any = False
    stack: str = ""
    matters: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda there, here: True
    remedy: Mapping[bool, str] | None = None


def _only_shared_here(name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], bool]:
    """Whether sharing matters: one matrix in place of two changes the function, two copies in place of one do not."""
    return lambda there, here: bool(here.get(name))


def _norm_place(stack: str) -> Differing:
    after = f"--{stack}-normalize-after"
    return Differing(
        stack=stack, remedy={True: f"leave {after} out, or give --{stack}-normalize-before", False: f"give {after}"}
    )


#: such options by name; a test compares them with all options of fairseq's models
FUNCTION: dict[str, Differing] = {
    **{f"{stack}_normalize_before": _norm_place(stack) for stack in STACKS},
    **{f"{stack}_attention_heads": Differing(None, stack) for stack in STACKS},
    **{f"{stack}_learned_pos": Differing(stack=stack) for stack in STACKS},
    "no_decoder_final_norm": Differing(
        stack="decoder", matters=lambda there, here: bool(there.get("decoder_normalize_before"))
    ),
    **dict.fromkeys(("no_scale_embedding", "no_token_positional_embeddings", "layernorm_embedding"), Differing()),
    **dict.fromkeys(("scale_fc", "scale_attn", "scale_heads", "scale_resids"), Differing()),
    **dict.fromkeys(("no_cross_attention", "cross_self_attention"), Differing(stack="decoder")),
    "activation_fn": Differing("relu"),
    "positions": Differing("learned", "encoder"),
    "pooler_activation_fn": Differing("tanh", "encoder"),
    "untie_weights_roberta": Differing(
        stack="encoder", matters=lambda there, here: not here.get("untie_weights_roberta")
    ),
    **{
        name: Differing(stack="decoder", matters=_only_shared_here(name))
        for name in (
            *("share_decoder_input_output_embed", "share_all_embeddings", "merge_src_tgt_embed"),
            *("tie_adaptive_weights", "tie_adaptive_proj"),
        )
    },
}


class Origin(NamedTuple):
    """Where weights come from: a file, and the options of its model."""

    path: str
    options: Mapping[str, Any]

    @property
    def arch(self) -> str:
        return str(self.options.get("arch") or self.options.get("_name"))


def origin_of(state_dict: Mapping[str, Tensor]) -> Origin | None:
    """The origin that `compat.trust` attaches to the parameters of every checkpoint that fairseq loads; else None."""
    attached = getattr(state_dict, "origin", None)
    return None if attached is None else Origin(*attached)


def check_function(origin: Origin, args: Any, stacks: Collection[str] = STACKS) -> None:
    """Raise LeapformerError if the weights compute another function in the `stacks` of a model with options `args`."""
    there, here = _completed(origin.options), _completed(_as_dict(args))
    if any(there.get(name) != here.get(name) for name in (f"{stack}_embed_dim" for stack in stacks)):
        return  # a model of another size; loading its first tensor raises a clear error
    for name, option in FUNCTION.items():
        if option.stack and option.stack not in stacks:
            continue
        wanted, current = (_value(options, name, option) for options in (there, here))
        if wanted is None or current is None or wanted == current or not option.matters(there, here):
            continue
        raise LeapformerError(
            f"{origin.path}: {name} is {wanted} in the checkpoint and {current} in this model; "
            + _remedy(name, option, wanted)
        )
    if "encoder" in stacks and origin.arch.startswith("convtransformer") and there.get("encoder_normalize_before"):
        raise LeapformerError(
            f"{origin.path}: fairseq's {origin.arch} leaves out the last norm of its encoder, this model does not; "
            "train one of ours, or take a checkpoint without --encoder-normalize-before"
        )


def _as_dict(args: Any) -> dict[str, Any]:
    """Options of the command line or of fairseq-hydra-train as a dictionary."""
    return dict(vars(args)) if isinstance(args, Namespace) else dict(args)


def _value(options: Mapping[str, Any], name: str, option: Differing) -> Any:
    value = options.get(name, option.default)
    value = option.default if value is None else value
    return bool(value) if isinstance(option.default, bool) else value


def _remedy(name: str, option: Differing, wanted: Any) -> str:
    flag = "--" + name.replace("_", "-")
    if option.remedy is not None:
        return option.remedy[wanted]
    if not isinstance(wanted, bool):
        return f"give {flag} {wanted}"
    return f"give {flag}" if wanted else f"leave {flag} out"


def _completed(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, completed by the defaults of their architecture, as when fairseq builds the model."""
    from fairseq.models import ARCH_CONFIG_REGISTRY

    filled = Namespace(**copy.deepcopy(dict(options)))
    fill = ARCH_CONFIG_REGISTRY.get(options.get("arch") or options.get("_name"))
    if fill is not None:
        fill(filled)
    return {**vars(filled), **options}


def report(origin: Origin, model: nn.Module, args: Any, known: Collection[str]) -> None:
    """Log how a model differs from the origin of its weights: mechanisms, and parameters not among the `known` ones."""
    lines = [*_replaced(origin, model, args)]
    new = {name: value for name, value in model.named_parameters() if name not in known}
    if new:
        shown = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in new})
        numbers = sum(value.numel() for value in new.values())
        rest = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        lines.append(
            f"new, with initial values: {len(new)} parameters, {', '.join(shown[:3])}{rest} ({numbers:,} numbers)"
        )
    for line in lines:
        logger.info("weights of %s (%s): %s", origin.path, origin.arch, line)


def _replaced(origin: Origin, model: nn.Module, args: Any) -> Iterator[str]:
    from .capture import attentions_by_block
    from .swap import BLOCKS

    ours = origin.arch.startswith(PREFIX)
    there, here = _completed(origin.options), _completed(_as_dict(args))
    for block in BLOCKS:
        current = [attention.mechanism.name for attention in attentions_by_block(model).get(block.name, ())]
        plan = (there.get(block.argument) if ours else None) or "softmax"
        try:
            before = expand_plan(plan, len(current)) if current else []
        except LeapformerError:  # the plan is for another number of layers
            continue
        pairs = list(zip(current, before, strict=True))
        for pair in dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]):
            layers = _listed([i for i, mechanisms in enumerate(pairs, 1) if mechanisms == pair])
            assumed = f" (without {block.flag} every layer is leap)" if set(current) == {"leap"} else ""
            yield f"{block.name} attention: {pair[0]} instead of {pair[1]} in {layers}{assumed}"
        for option in _options({name for name, other in pairs if name == other}):
            values = [options.get(option.name, option.default) for options in (here, there)]
            if values[0] != values[1]:
                yield f"{block.name} attention: {option.flag} {values[0]} instead of {values[1]}"


def _options(mechanisms: Iterable[str]) -> list[Option]:
    return list(dict.fromkeys(option for name in sorted(mechanisms) for option in find(name).options))


def _listed(layers: list[int]) -> str:
    """Layer numbers, from 1, in words."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(map(str, layers[:-1]))} and {layers[-1]}"


class OfAnyOrigin:
    """The first base class of each of our models: checks the origin of the weights that it loads."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, model_cfg: Any = None, args: Any = None) -> Any:
        """As in fairseq. Raises LeapformerError if the checkpoint would compute another function in this model."""
        origin, options = origin_of(state_dict), args if model_cfg is None else model_cfg
        if origin is None or options is None:
            return super().load_state_dict(state_dict, strict, model_cfg, args)  # type: ignore[misc]
        check_function(origin, options, [stack for stack in STACKS if hasattr(self, stack)])
        known = set(state_dict)
        keys = super().load_state_dict(state_dict, strict, model_cfg, args)  # type: ignore[misc]
        report(origin, self, options, known)  # type: ignore[arg-type]
        return keys
