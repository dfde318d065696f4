"""An exported translation model as fairseq's generator takes one: encoder and decoder run in onnxruntime.

Shapes: B sentences, R hypotheses of each, V words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel, FairseqEncoder, FairseqIncrementalDecoder
from torch import Tensor

from ..errors import LeapformerError
from ..runtime.engine import Graphs
from ..runtime.folder import SELF, TRANSLATION, Folder

STATES, ROWS, ORDER = "states", "rows", "order"


class ExportedTranslation(BaseFairseqModel):
    """The model in a folder that `leapformer export` made, for fairseq's `SequenceGenerator`."""

    def __init__(self, folder: Folder, task: Any) -> None:
        """Raises LeapformerError for a model of another kind, or another vocabulary than the task's."""
        super().__init__()
        if folder.task != TRANSLATION:
            raise LeapformerError(f"{folder.path} holds a model for {folder.task}; `generate` needs one of translation")
        for side, dictionary in (("source", task.source_dictionary), ("target", task.target_dictionary)):
            if dictionary.symbols != folder.vocabularies[side].symbols:
                raise LeapformerError(
                    f"{folder.path} has another {side} vocabulary than the data; give the data it was trained on"
                )
        self.folder, graphs = folder, Graphs(folder, torch.get_num_threads())
        self.encoder = _Encoder(task.source_dictionary, graphs)
        self.decoder = _Decoder(task.target_dictionary, graphs)

    def max_positions(self) -> tuple[int, int]:
        return self.folder.max_target, self.folder.max_target

    def max_decoder_positions(self) -> int:
        return self.folder.max_target

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        """Of log-probabilities, which a temperature may have divided."""
        found = net_output[0].log_softmax(-1)
        return found if log_probs else found.exp()


class _Encoder(FairseqEncoder):
    """What cross-attention needs of B sentences, and which of them each of B R batch entries belongs to."""

    def __init__(self, dictionary: Any, graphs: Graphs) -> None:
        super().__init__(dictionary)
        self.graphs = graphs

    def forward_torchscript(self, net_input: dict[str, Tensor]) -> dict[str, Any]:
        tokens = net_input["src_tokens"].cpu()
        return {STATES: self.graphs.read(tokens.numpy()), ROWS: torch.arange(len(tokens))}

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """Sentences that no entry belongs to any more are dropped."""
        states, rows = encoder_out[STATES], encoder_out[ROWS]
        left, entries = rows[new_order.cpu()].unique(return_inverse=True)
        if len(left) < int(rows.max()) + 1:
            states = {name: self.graphs.value(one.numpy()[left.numpy()]) for name, one in states.items()}
        return {STATES: states, ROWS: entries}


class _Decoder(FairseqIncrementalDecoder):
    """One more token of every hypothesis."""

    def __init__(self, dictionary: Any, graphs: Graphs) -> None:
        super().__init__(dictionary)
        self.graphs = graphs

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, Any], incremental_state: dict[str, Any]
    ) -> tuple[Tensor, None]:
        """Log-probabilities (B R, 1, V) after the last of the tokens (B R, T); R is the same for all sentences."""
        rows, position = encoder_out[ROWS], prev_output_tokens.shape[1]
        shape = (int(rows.max()) + 1, -1)
        own = incremental_state.get(STATES) or self.graphs.begin(SELF, len(rows))
        order = incremental_state.pop(ORDER, torch.arange(len(rows)))
        # A graph wants the hypotheses of a sentence side by side, as fairseq has them.
        tokens = prev_output_tokens[:, -1].cpu().view(shape).numpy()
        found, own = self.graphs.step(tokens, position, order.view(shape).numpy(), own, encoder_out[STATES])
        incremental_state[STATES] = own
        return torch.from_numpy(found).flatten(0, 1).unsqueeze(1).to(prev_output_tokens.device), None

    def reorder_incremental_state_scripting(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """The graph follows with the next step."""
        order = new_order.cpu()
        incremental_state[ORDER] = incremental_state[ORDER][order] if ORDER in incremental_state else order


@contextmanager
def exported_models() -> Iterator[None]:
    """Meanwhile fairseq's commands load exported folders, too, in place of checkpoints."""
    load = checkpoint_utils.load_model_ensemble

    def load_any(paths: Sequence[str], *args: Any, task: Any = None, **options: Any) -> Any:
        folders = [Path(path) for path in paths if Path(path).is_dir()]
        if not folders:
            return load(paths, *args, task=task, **options)
        if len(folders) < len(paths):
            raise LeapformerError(f"--path {':'.join(paths)}: give exported models or checkpoints, not both")
        return [ExportedTranslation(Folder.read(folder), task) for folder in folders], SimpleNamespace(task=None)

    checkpoint_utils.load_model_ensemble = load_any
    try:
        yield
    finally:
        checkpoint_utils.load_model_ensemble = load
