"""Build the stock model, then swap its attention for mechanisms: blocks, flags, the swap, and loading from others."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from torch import Tensor, nn

from ..attention import CAUSAL, MECHANISMS, OPTIONS, Blocks, Mechanism, Option, Visible, build, find
from ..errors import LeapformerError
from .mechanism_attention import MechanismAttention
from .memory import CurrentPass, IncrementalState, Memory
from .plan import expand_plan, names_in
from .vocabulary import FINGERPRINT, check_vocabulary

logger = logging.getLogger(__name__)


class Block(NamedTuple):
    """An attention block: its name, the model part and layer attribute it lives in, and what its queries may see."""

    name: str
    stack: str
    attribute: str
    visible: Visible | None

    @property
    def argument(self) -> str:
        """`encoder-self` is planned by `--encoder-self-attention`, stored as `encoder_self_attention`."""
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
    """Declare the plan flags of the blocks in `stacks` and every mechanism's options.

    No defaults here: fairseq's presets fill in what the user did not say (`fill_attention_args`).
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


def fill_attention_args(args: argparse.Namespace, plan: str = "leap") -> None:
    """Give every plan that is not set the value `plan`, every option its declared default."""
    fill_options(args, {block.argument: plan for block in BLOCKS})
    fill_options(args, {option.name: option.default for option in OPTIONS.values()})


def fill_options(args: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
    """Give every option that is not set its default."""
    for name, default in defaults.items():
        if getattr(args, name, None) is None:
            setattr(args, name, default)


def swap_attention(
    stack: nn.Module,
    kind: str,
    args: argparse.Namespace,
    *,
    length_known: bool = False,
    blocks: Blocks | None = None,
) -> CurrentPass:
    """Replace the attention of every layer in an "encoder" or "decoder" by the mechanism its plan names.

    `length_known` says that there will be a predicted length of a decoder's target; the self-attention of an encoder of
    arriving speech is in `blocks`. Gives what the stack tells its attention: whoever runs the layers says there how
    long the target becomes, and empties `packed` or fills in what the encoder handed on. Raises LeapformerError naming
    block, layer, mechanism, reason and remedy when a mechanism cannot serve a block.
    """
    layers, current = layers_of(stack), CurrentPass(length_known)
    reads_a_source = getattr(layers[0], BLOCKS[2].attribute, None) is not None
    source = getattr(args, BLOCKS[0].argument) if reads_a_source else "softmax"
    for block in BLOCKS:
        if block.stack != kind or getattr(layers[0], block.attribute, None) is None:
            continue
        first: dict[str, Mechanism] = {}
        for i, name in enumerate(expand_plan(getattr(args, block.argument), len(layers))):
            stock = getattr(layers[i], block.attribute)
            options = {option.name: getattr(args, option.name) for option in find(name).options}
            mechanism = build(
                name,
                stock.head_dim,
                stock.num_heads,
                dropout=stock.dropout_module.p,
                block=block.name,
                input_dim=stock.kdim,
                **options,
            )
            refusal = mechanism.refusal(block.name, length_known)
            refusal = refusal or _packing_refusal(mechanism, args, source) or (blocks and mechanism.objection(blocks))
            if refusal:
                raise LeapformerError(f"{block.name} attention, layer {i}: {name} cannot be used: {refusal}")
            mechanism.share(first.setdefault(name, mechanism))
            if mechanism.packs and current.packing is None:
                current.packing = mechanism
            attention = MechanismAttention(stock, mechanism, blocks or block.visible, current)
            setattr(layers[i], block.attribute, attention)
    return current


def _packing_refusal(mechanism: Mechanism, args: argparse.Namespace, source: str) -> str | None:
    """Why a model of these `args` cannot hand a packed sequence on as the mechanism needs it, with the remedy.

    `source` is the plan of the encoder that a decoder reads.
    """
    if mechanism.packs and getattr(args, "checkpoint_activations", False):
        return (
            "its layers hand on a packed sequence, which is gone when layers are run again in the backward pass; leave "
            "--checkpoint-activations out"
        )
    if mechanism.needs_packed and not any(find(name).packs for name in names_in(source)):
        return (
            f"no layer of an encoder hands on a packed sequence; give one to {BLOCKS[0].flag}, or take --luna-packed "
            "learned"
        )
    width = mechanism.head_dim * mechanism.num_heads
    if mechanism.needs_packed and args.encoder_embed_dim != width:
        return (
            f"the encoder's packed sequence is {args.encoder_embed_dim} wide, the decoder {width}; make them equal, or "
            "take --luna-packed learned"
        )
    return None


def layers_of(stack: nn.Module) -> nn.ModuleList:
    """The layers of a fairseq encoder or decoder, by either name. Index, never iterate: layer drop skips some."""
    return stack.layers if hasattr(stack, "layers") else stack.transformer_layers


def attentions(module: nn.Module) -> Iterator[MechanismAttention]:
    """Every swapped attention inside `module`."""
    return (part for part in module.modules() if isinstance(part, MechanismAttention))


def forget_source(decoder: nn.Module, incremental_state: IncrementalState) -> None:
    """Drop what cross-attention read, because the encoder was run again: the next step reads the source anew."""
    for attention in attentions(decoder):
        if attention.encoder_decoder_attention and attention.slot in incremental_state:
            memory = incremental_state[attention.slot]
            memory.keys, memory.read = None, 0


def fork_state(decoder: nn.Module, incremental_state: IncrementalState) -> IncrementalState:
    """An independent copy of a decoder's state, to come back to after a trial step."""
    copy = dict(incremental_state)
    for attention in attentions(decoder):
        if attention.slot in copy:
            copy[attention.slot] = copy[attention.slot].fork()
    return copy


def state_bytes(incremental_state: IncrementalState) -> int:
    """Bytes that swapped attention keeps in a decoder's state."""
    memories = (held for held in incremental_state.values() if isinstance(held, Memory))
    return sum(memory.keys.nbytes() for memory in memories if memory.keys is not None)


def load_component(component: nn.Module, kind: str, path: str) -> None:
    """Warm start: load the "encoder" or "decoder" of a checkpoint, with whatever mechanisms it was trained.

    Projections, feed-forward layers and embeddings must fit; a mechanism's own parameters are taken where names agree
    and keep their initial value where not; a recogniser's CTC head is left out when this model has none. A length
    predictor starts anew: what it learned of transcripts is not true of translations.
    """
    if not PathManager.exists(path):
        raise LeapformerError(
            f"--load-pretrained-{kind}-from {path}: no such checkpoint; train it first or mend the path"
        )
    state = checkpoint_utils.load_checkpoint_to_cpu(path)["model"]
    prefix = kind + "."
    if hasattr(component, FINGERPRINT):
        check_vocabulary(component, state, kind)
    found: dict[str, Tensor] = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    found = {name: value for name, value in found.items() if not _of_a_length_predictor(name)}
    own = component.state_dict()
    new = [name for name in own if name not in found]
    extra = [name for name in found if name not in own]
    for name, part in component.named_modules():
        if isinstance(part, MechanismAttention):
            part.upgrade_state_dict_named(found, name)
    wrong = [n for n in new if ".mechanism." not in n and not _of_a_length_predictor(n)] + [
        n for n in extra if ".mechanism." not in n and "ctc_proj" not in n
    ]
    wrong += [n for n in found if n in own and found[n].shape != own[n].shape]
    if wrong:
        raise LeapformerError(
            f"--load-pretrained-{kind}-from {path}: {wrong[0]} does not fit this model ({len(wrong)} tensors differ); "
            "use the same layers and sizes as the checkpoint"
        )
    component.load_state_dict({**own, **{name: value for name, value in found.items() if name in own}})
    logger.info("%s: loaded %d tensors from %s, %d new", kind, len(own) - len(new), path, len(new))


def _of_a_length_predictor(name: str) -> bool:
    return name.startswith("length_predictor.")
