"""A trained model as a folder of graphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..attention.ops import dispatch
from ..errors import LeapformerError
from ..runtime.folder import LOG_PROBS, NEXT, SOURCE, STEP, Folder, Vocabulary
from .graphs import DecoderStep, Source
from .states import CROSS, SELF, Held, first_state, names_of, tensors_of

ROWS, LONGEST = 4, 7  # of the examples that are traced
LARGEST = 1023


def export_translation(model: Any, task: Any, out: Path, signature: str) -> Folder:
    """Write the graphs of a text translation model, and what goes with them.

    Raises LeapformerError for mechanisms that cannot be exported, and without the libraries for it.
    """
    model = model.float().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    out.mkdir(parents=True, exist_ok=True)
    step, source = DecoderStep(model.decoder), Source(model)
    dictionary = task.source_dictionary
    tokens = torch.full((ROWS, LONGEST), dictionary.eos())
    rows, length = torch.export.Dim("rows", min=2, max=LARGEST), torch.export.Dim("length", min=2, max=1 << 16)
    own, read = (
        tensors_of(first_state(block.attention, ROWS) for block in step.blocks[side]) for side in (SELF, CROSS)
    )
    write(source, (tokens,), ({0: rows, 1: length},), ["tokens"], names_of(source.blocks), out / SOURCE)
    names = {side: names_of(step.blocks[side]) for side in (SELF, CROSS)}
    write(
        step,
        (tokens[:, 0], torch.ones(ROWS, dtype=torch.long), torch.arange(ROWS), own, read),
        ({0: rows}, {0: rows}, {0: rows}, [{0: rows} for _ in own], [{0: rows} for _ in read]),
        ["tokens", "positions", "order", *names[SELF], *names[CROSS]],
        [LOG_PROBS, *(f"{name}{NEXT}" for name in names[SELF])],
        out / STEP,
    )
    folder = Folder(
        out,
        "translation",
        _shapes(step.blocks[SELF]),
        _shapes(step.blocks[CROSS]),
        {"source": vocabulary(dictionary), "target": vocabulary(task.target_dictionary)},
        model.max_decoder_positions(),
        signature,
    )
    folder.write()
    return folder


def write(
    part: nn.Module, given: tuple[Any, ...], dynamic: Any, inputs: Sequence[str], outputs: Sequence[str], path: Path
) -> None:
    """Trace a part of a model with an example and write its graph."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise LeapformerError(f"{error.name} is not installed; pip install 'leapformer_fairseq[onnx]'") from error
    # With gradients enabled states are not changed in place, which a graph could not do; nothing wants one. Which
    # implementation runs may not depend on the length of the example.
    with _quiet(), torch.enable_grad(), dispatch.override(pairs=0, pairs_per_token=0):
        try:
            traced = torch.export.export(part.eval(), given, dynamic_shapes=dynamic, strict=False)
            program = torch.onnx.export(
                traced, given, dynamo=True, verbose=False, input_names=list(inputs), output_names=list(outputs)
            )
        except Exception as error:  # of many kinds
            reason = str(error).strip().partition("\n")[0][:200]
            raise LeapformerError(
                f"{path.name}: PyTorch cannot make a graph of this model ({reason}); try other mechanisms"
            ) from error
    assert program is not None
    program.save(str(path), external_data=False)


def vocabulary(dictionary: Any) -> Vocabulary:
    return Vocabulary(list(dictionary.symbols), dictionary.pad(), dictionary.eos(), dictionary.unk())


def _shapes(blocks: Sequence[Held]) -> dict[str, list[int]]:
    return {
        name: list(shape) for block in blocks for name, shape in zip(block.names, block.shapes.values(), strict=True)
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch and onnxscript tell their developers."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
