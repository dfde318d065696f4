"""Options of a checkpoint are data: nothing that is written in them is executed.

`weights_only` keeps code out of the file, but fairseq passes some options of a checkpoint to `eval` when it builds the
model, the task or the criterion. Every path that loads a checkpoint goes through `load_checkpoint_to_cpu`, so the
options are checked there, before anything is built. As a second barrier, for options that the list below misses, `eval`
itself is replaced in fairseq's modules.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from ..support.errors import LeapformerError
from .patch import patch, wrapping

_NUMBERS, _FLAG, _LAYERS = (int, float, list, tuple), (bool, int, list), (int, list, tuple)
#: options that fairseq passes to `eval` -> the types that they may have; a test searches its source for others
EVALUATED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("adaptive_softmax_cutoff", "adaptive_input_cutoff"), _NUMBERS),
    **dict.fromkeys(("adam_betas", "adamax_betas", "adafactor_eps", "lamb_betas"), _NUMBERS),
    **{f"pipeline_{half}{part}": _NUMBERS for half in ("", "encoder_", "decoder_") for part in ("balance", "devices")},
    **dict.fromkeys(("left_pad_source", "left_pad_target", "decoder_zero_init", "pretrained", "project_input"), _FLAG),
    **dict.fromkeys(("encoder_attention", "decoder_attention", "self_attention", "gated_attention"), _FLAG),
    **dict.fromkeys(("downsample", "weight_softmax", "encoder_glu", "decoder_glu"), _FLAG),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "character_filters", "conv_feature_layers"), _LAYERS),
    **dict.fromkeys(("conv_aggregator_layers", "feature_encoder_spec", "wer_args"), _LAYERS),
    **{f"{side}xformers_att_config": (dict,) for side in ("", "encoder_", "decoder_")},
}
#: options that matter only at the start of a training; a trained model has its weights in its own checkpoint
WARM_STARTS = (
    *("load_pretrained_encoder_from", "load_pretrained_decoder_from", "load_pretrained_aux_decoder_from"),
    *("encoder_embed_path", "decoder_embed_path", "embed_path"),
)
_ALLOWED = (
    *(ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Load, ast.BinOp, ast.Add, ast.Mult),
    *(ast.UnaryOp, ast.USub),
)
_MOST_REPEATS, _LONGEST = 1000, 10_000


def literal(source: str) -> Any:
    """The value of a literal, which may add and repeat lists, as in "[(512, 3)] * 4"; raises ValueError otherwise."""
    if len(source) > _LONGEST:
        raise ValueError("it is too long")
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is not a literal") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ValueError("it is not a literal")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            # One factor of at most 1000: nested products of a short text could fill the memory.
            times = next((part.value for part in (node.right, node.left) if isinstance(part, ast.Constant)), None)
            products = sum(isinstance(part, ast.Mult) for part in ast.walk(node))
            if not isinstance(times, int) or times > _MOST_REPEATS or products > 1:
                raise ValueError("it repeats too much")
    try:
        return eval(compile(tree, "<literal>", "eval"), {"__builtins__": {}})  # no name, attribute or call is left
    except (TypeError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError("it is not a literal") from error


def check_options(path: str, *sections: Any) -> None:
    """Raise LeapformerError if fairseq would execute an option, at any depth of these dictionaries and namespaces.

    `path` is the file that the error names.
    """
    for section in sections:
        for name, value in _options(section):
            _check_option(path, name, value)


def options_of(section: Any) -> Any:
    """The options of a section of a checkpoint's configuration by name; of what is no section, itself."""
    return vars(section) if isinstance(section, argparse.Namespace) else section


def _options(section: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of every option at any depth."""
    if isinstance(section, (list, tuple)):
        for part in section:
            yield from _options(part)
    items = options_of(section)
    if isinstance(items, dict):
        for name, value in items.items():
            yield str(name), value
            yield from _options(value)


def _check_option(path: str, name: str, value: Any) -> None:
    # "${name}" refers to another option, which is checked itself; "${resolver:...}" calls a function of OmegaConf.
    if isinstance(value, str) and ":" in value.partition("${")[2]:
        raise _refusal(path, name, value, "is computed when it is read")
    if name not in EVALUATED or value is None:
        return
    try:
        parsed = literal(value) if isinstance(value, str) else value
    except ValueError:
        raise _refusal(path, name, value, "is not a literal value") from None
    if parsed is not None and not isinstance(parsed, (*EVALUATED[name], bool)):
        raise _refusal(path, name, value, f"should be {' or '.join(kind.__name__ for kind in EVALUATED[name])}")


def _check_names(path: str, config: Any) -> None:
    """Raise LeapformerError unless architecture, task and criterion are registered, by us, fairseq or user plugins."""
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    registries: dict[str, Any] = {
        "model": {**ARCH_MODEL_REGISTRY, **MODEL_REGISTRY}, "task": TASK_REGISTRY, "criterion": CRITERION_REGISTRY
    }  # fmt: skip
    for part, registry in registries.items():
        options = options_of(config.get(part))
        for key in ("_name", "arch" if part == "model" else part):
            name = options.get(key) if isinstance(options, dict) else None
            if name is not None and (not isinstance(name, str) or name not in registry):
                kind = "architecture" if part == "model" else part
                raise LeapformerError(
                    f"{path}: {kind} {_short(name)} belongs neither to this package nor to fairseq, so the file is not "
                    "loaded; if it is your own, give its plugin with --user-dir"
                )


def _refusal(path: str, name: str, value: Any, reason: str) -> LeapformerError:
    return LeapformerError(
        f"{path}: option {name} {reason} ({_short(value)}); fairseq would execute it, so the file is not loaded; "
        "get the checkpoint from somebody you trust"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def forget_warm_starts(options: Any) -> None:
    """Clear the warm starts in a model's options, a DictConfig or a namespace, so that no other file is read."""
    arch = getattr(options, "arch", None) or getattr(options, "_name", None)
    if str(arch).startswith("xm_transformer"):
        return  # fairseq reads this model's sizes from the other checkpoint
    for part in (options, getattr(options, "encoder", None), getattr(options, "decoder", None)):
        for name in WARM_STARTS:
            if getattr(part, name, None) is not None:
                setattr(part, name, None)


def _options_are_executed() -> bool:
    from fairseq import utils

    try:
        return bool(utils.eval_str_list("[len('1')]", int) == [1])
    except LeapformerError:
        return False


@patch("options-are-data", "options, also those of a checkpoint, are executed with eval", _options_are_executed)
def _execute_nothing() -> None:
    _check_what_is_loaded()
    # A module's own global hides the builtin, so that only fairseq's code sees the replacement.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fairseq" and module is not None:
            vars(module)["eval"] = _literal_or_refuse


@wrapping("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def _check_what_is_loaded(load: Any, path: str, *args: Any, **options: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    state: dict[str, Any] = load(path, *args, **options)
    config = OmegaConf.to_container(state["cfg"]) if OmegaConf.is_config(state.get("cfg")) else {}
    check_options(str(path), state.get("args"), config)
    _check_names(str(path), config)
    for section in (state.get("args"), getattr(state.get("cfg"), "model", None)):
        forget_warm_starts(section)
    _note_origin(str(path), state, config)
    return state


def _note_origin(path: str, state: dict[str, Any], config: Any) -> None:
    """Attach the file's path and model options to the parameters, for whoever loads them; see `modules.origin`."""
    options = options_of(config.get("model") or state.get("args"))
    if isinstance(state.get("model"), dict) and isinstance(options, dict):
        if type(state["model"]) is dict:  # a plain dict cannot hold an attribute
            state["model"] = OrderedDict(state["model"])
        state["model"].origin = path, dict(options)


def _literal_or_refuse(source: Any, *_: Any) -> Any:
    """Replace `eval` in fairseq; raises LeapformerError for text that is not a literal."""
    if not isinstance(source, str):  # fairseq's eval_bool catches this error of `eval`
        raise TypeError("eval() arg 1 must be a string")
    try:
        return literal(source)
    except ValueError as error:
        raise LeapformerError(
            f"{_short(source)}: fairseq would execute this, and {error}; give a literal value such as 20000,60000"
        ) from error
