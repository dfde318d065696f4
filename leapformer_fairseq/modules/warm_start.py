"""Warm start: load an encoder or decoder from a checkpoint of another model, whose mechanisms may differ."""

from __future__ import annotations

import logging
from argparse import Namespace
from pathlib import Path

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from torch import Tensor, nn

from ..compat.trust import forget_warm_starts
from ..support.errors import LeapformerError
from .attention import MechanismAttention
from .origin import check_function, origin_of, report
from .vocabulary import FINGERPRINT, check_vocabulary

logger = logging.getLogger(__name__)

CTC_HEAD = "ctc_proj."
NOT_REQUIRED = (CTC_HEAD, "length_predictor.")  # prefixes of weights that may keep their initial values


def forget_if_resumed(args: Namespace) -> None:
    """Clear the options of warm starts if training resumes from a checkpoint, which has all weights.

    The files that they name may no longer exist. Options saved in checkpoints never contain them (see `compat.trust`).
    """
    restored = getattr(args, "restore_file", None)
    if restored == "checkpoint_last.pt":  # fairseq's default, which it looks for in --save-dir
        restored = Path(args.save_dir, f"checkpoint_last{getattr(args, 'checkpoint_suffix', None) or ''}.pt")
    if restored and Path(restored).is_file():
        forget_warm_starts(args)


def load_component(component: nn.Module, kind: str, path: str, args: Namespace) -> None:
    """Load the encoder or decoder (`kind`) of a checkpoint, whose mechanisms may differ, into `component`.

    Projections, feed-forward layers and embeddings must fit. Parameters of mechanisms are loaded if their names agree,
    and otherwise keep their initial values. A recogniser's CTC head is loaded only if its size fits, so that an encoder
    trained on another language can be used. A length predictor is never loaded, because lengths of transcripts are not
    those of translations. `args` are this model's options, with which the weights must compute the same function as in
    the checkpoint. Raises LeapformerError if anything does not fit.
    """
    if not PathManager.exists(path):
        raise LeapformerError(
            f"--load-pretrained-{kind}-from {path}: no such checkpoint; train it first or correct the path"
        )
    state = checkpoint_utils.load_checkpoint_to_cpu(path)["model"]
    origin = origin_of(state)
    if origin is not None:
        check_function(origin, args, [kind])
    prefix = kind + "."
    if hasattr(component, FINGERPRINT):
        check_vocabulary(component, state, kind)
    stored: dict[str, Tensor] = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    current = component.state_dict()
    heads = {
        n for n, value in stored.items() if n.startswith(CTC_HEAD) and n in current and value.shape == current[n].shape
    }
    stored = {name: value for name, value in stored.items() if name in heads or not name.startswith(NOT_REQUIRED)}
    new = [name for name in current if name not in stored]
    extra = [name for name in stored if name not in current]
    for name, part in component.named_modules():
        if isinstance(part, MechanismAttention):
            part.upgrade_state_dict_named(stored, name)
    wrong = [n for n in new if ".mechanism." not in n and not n.startswith(NOT_REQUIRED)]
    wrong += [n for n in extra if ".mechanism." not in n]
    wrong += [n for n in stored if n in current and stored[n].shape != current[n].shape]
    if wrong:
        raise LeapformerError(
            f"--load-pretrained-{kind}-from {path}: {wrong[0]} does not fit this model ({len(wrong)} tensors differ); "
            "use the same layers and sizes as the checkpoint"
        )
    component.load_state_dict({**current, **{name: value for name, value in stored.items() if name in current}})
    logger.info("%s: loaded %d tensors from %s, %d new", kind, len(current) - len(new), path, len(new))
    if origin is not None:
        report(origin, component, args, set(current) - set(new))
