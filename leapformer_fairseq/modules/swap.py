"""The attention blocks of a stock fairseq model, their flags, and the swap of their attention for mechanisms."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from ..attention import CAUSAL, MECHANISMS, OPTIONS, ChunkMask, Context, Mask, Mechanism, Option, find
from ..attention.registry import create
from ..support.errors import LeapformerError
from .attention import MechanismAttention
from .context import PassContext, StackFacts
from .plan import expand_plan, names_in
from .positions import grow_in_turn


class Block(NamedTuple):
    """An attention block: its name, where it is (the model's `stack`, each layer's `attribute`), and its mask."""

    name: str
    stack: str
    attribute: str
    mask: Mask

    @property
    def argument(self) -> str:
        """The name of the plan in the options, such as `encoder_self_attention` for `encoder-self`."""
        return self.name.replace("-", "_") + "_attention"

    @property
    def flag(self) -> str:
        return "--" + self.argument.replace("_", "-")


BLOCKS = (
    Block("encoder-self", "encoder", "self_attn", None),
    Block("decoder-self", "decoder", "self_attn", CAUSAL),
    Block("decoder-cross", "decoder", "encoder_attn", None),
)


def add_attention_args(parser: argparse.ArgumentParser, stacks: tuple[str, ...] = ("encoder", "decoder")) -> None:
    """Declare the plan flags of the blocks in `stacks` and the options of all mechanisms.

    They have no defaults here: fairseq's presets fill in what the user does not give (`fill_attention_args`).
    """
    choices = ", ".join(sorted(MECHANISMS))
    for block in BLOCKS:
        if block.stack in stacks:
            parser.add_argument(
                block.flag,
                metavar="PLAN",
                help="mechanism for every layer, or one per layer as in softmax,leap*4,softmax (default: leap); known: "
                + choices,
            )
    for stack in stacks:
        # fairseq's flag can only turn normalize_before on, and some presets turn it on without the flag.
        parser.add_argument(
            f"--{stack}-normalize-after",
            action="store_false",
            dest=f"{stack}_normalize_before",
            default=argparse.SUPPRESS,
            help="norms after each block, not before it, as in many of fairseq's own models, whose checkpoints need it",
        )
    add_options(parser, OPTIONS.values())


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Declare options as flags, without their defaults."""
    for option in options:
        kind: dict[str, Any] = {"type": type(option.default), "metavar": "X"}
        if isinstance(option.default, bool):
            kind = {"action": "store_true"}
        elif option.choices:
            kind = {"choices": option.choices}
        parser.add_argument(option.flag, help=f"{option.help} (default: {option.default})", **kind)


def fill_attention_args(args: argparse.Namespace, plan: str = "leap", encoder: bool = True) -> None:
    """Set every missing plan to `plan`, and every missing option to its default with or without an `encoder`."""
    fill_options(args, {block.argument: plan for block in BLOCKS})
    if not encoder:
        alone = {option.name: option.without_encoder for option in OPTIONS.values()}
        fill_options(args, {name: value for name, value in alone.items() if value is not None})
    fill_options(args, {option.name: option.default for option in OPTIONS.values()})


def fill_options(args: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
    """Set every missing option to its default."""
    for name, default in defaults.items():
        if getattr(args, name, None) is None:
            setattr(args, name, default)


def swap_attention(
    stack: nn.Module,
    kind: str,
    args: argparse.Namespace,
    *,
    length_known: bool = False,
    chunks: ChunkMask | None = None,
    target_length: int | None = None,
) -> PassContext:
    """Replace the attention of every layer in an encoder or decoder (`kind`) by the mechanism that its plan names.

    `length_known`: the length of a decoder's target will be predicted. `target_length`: the longest target, if known.
    `chunks`: the mask of self-attention in a streaming encoder. Returns the context of the stack's passes, in which the
    caller of the layers sets the target lengths, and clears the carry or sets it to the encoder's. Raises
    LeapformerError, with block, layer, mechanism, reason and remedy, if a mechanism cannot be used in a block.
    """
    grow_in_turn(stack)
    layers, facts = layers_of(stack), StackFacts(length_known)
    passing = PassContext(facts)
    reads_source = getattr(layers[0], BLOCKS[2].attribute, None) is not None
    context = Context(
        length_known=length_known,
        carry_width=_carry_width(args) if reads_source else None,
        reruns_layers=getattr(args, "checkpoint_activations", False),
        target_length=target_length,
    )
    for block in BLOCKS:
        if block.stack != kind or getattr(layers[0], block.attribute, None) is None:
            continue
        first: dict[str, Mechanism] = {}
        for i, name in enumerate(expand_plan(getattr(args, block.argument), len(layers))):
            stock, mask = getattr(layers[i], block.attribute), chunks or block.mask
            mechanism = create(
                name,
                stock.head_dim,
                stock.num_heads,
                dropout=stock.dropout_module.p,
                block=block.name,
                input_dim=stock.kdim,
                **{option.name: getattr(args, option.name) for option in find(name).options},
            )
            check_use(mechanism, i, mask, context)
            _tie(mechanism, first.setdefault(name, mechanism))
            facts.guesses_lengths = facts.guesses_lengths or mechanism.capabilities.guesses_length
            if mechanism.capabilities.carry_width is not None:
                facts.carrier = facts.carrier or mechanism
            setattr(layers[i], block.attribute, MechanismAttention(stock, mechanism, mask, passing))
    return passing


def check_use(mechanism: Mechanism, layer: int, mask: Mask, context: Context) -> None:
    """Raise LeapformerError if a mechanism cannot be used in its block with this mask and context."""
    reason = mechanism.capabilities.unsupported_reason(mechanism.block, mask, context)
    if reason is not None:
        where = f"{mechanism.block} attention, layer {layer + 1}: {mechanism.name}"
        raise LeapformerError(f"{where} cannot be used: {reason}")


def check_decoder(decoder: nn.Module, cross_mask: Mask, context: Context) -> None:
    """Call `check_use` for every attention of a decoder that is already built, before it is used in another way."""
    for i, layer in enumerate(layers_of(decoder)):
        for block in BLOCKS[1:]:
            attention = getattr(layer, block.attribute, None)
            if attention is None:
                continue
            mask = cross_mask if attention.encoder_decoder_attention else block.mask
            check_use(attention.mechanism, i, mask, context)


def _tie(mechanism: Mechanism, first: Mechanism) -> None:
    """Share the mechanism's tied parameters with `first`, the first layer of the block with the same mechanism."""
    for name in mechanism.tied:
        setattr(mechanism, name, getattr(first, name))


def _carry_width(args: argparse.Namespace) -> int | None:
    """The width of the encoder's carry, given the model's arguments; None if it has no carry."""
    has_carry = any(
        find(name).capabilities.carry_width is not None for name in names_in(getattr(args, BLOCKS[0].argument))
    )
    return args.encoder_embed_dim if has_carry else None


def layers_of(stack: Any) -> nn.ModuleList:
    """The layers of a fairseq encoder or decoder. Index them; iteration skips layers under layer drop."""
    return stack.layers if hasattr(stack, "layers") else stack.transformer_layers


def attentions(module: nn.Module) -> Iterator[MechanismAttention]:
    """All swapped attention inside `module`."""
    return (part for part in module.modules() if isinstance(part, MechanismAttention))
