"""Warm start: an encoder or decoder from a checkpoint of another model, with whatever mechanisms that one has."""

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


def only_at_the_beginning(args: Namespace) -> None:
    """Clear warm starts for a training that goes on from a checkpoint, which has all weights.

    What they name may be gone by then. The options of a checkpoint have none of them, see `compat.trust`.
    """
    restored = getattr(args, "restore_file", None)
    if restored == "checkpoint_last.pt":  # fairseq's default, which it looks for in --save-dir
        restored = Path(args.save_dir, f"checkpoint_last{getattr(args, 'checkpoint_suffix', None) or ''}.pt")
    if restored and Path(restored).is_file():
        forget_warm_starts(args)


def load_component(component: nn.Module, kind: str, path: str, args: Namespace) -> None:
    """Warm start: load the "encoder" or "decoder" of a checkpoint, with whatever mechanisms it was trained.

    Projections, feed-forward layers and embeddings must fit; a mechanism's own parameters are taken where names agree
    and keep their initial value where not; a recogniser's CTC head is left out when this model has none. A length
    predictor is not loaded: what it learned of transcripts is not true of translations. With `args`, this model's
    options, the weights must be the same function as in the checkpoint.
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
    if origin is not None:
        report(origin, component, args, set(own) - set(new))


def _of_a_length_predictor(name: str) -> bool:
    return name.startswith("length_predictor.")
