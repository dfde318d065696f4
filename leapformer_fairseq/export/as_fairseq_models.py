"""Exported models as fairseq's generator and scorer take them: encoder and decoder run in onnxruntime.

Shapes: B sentences, R hypotheses of each, V words.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel, FairseqEncoder, FairseqIncrementalDecoder, FairseqLanguageModel
from torch import Tensor, nn

from ..models.prompts import Prompted
from ..models.task import adapt
from ..runtime.engine import Graphs
from ..runtime.folder import LANGUAGE, SELF, TRANSLATION, Folder
from ..support.errors import LeapformerError

STATES, ROWS, ORDER, READ = "states", "rows", "order", "read"


class _Exported:
    """What exported models have in common, as fairseq asks for it."""

    folder: Folder

    def max_decoder_positions(self) -> int:
        return self.folder.max_target

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        """Of log-probabilities, which a temperature may have divided."""
        found: Tensor = net_output[0].log_softmax(-1)
        return found if log_probs else found.exp()


class ExportedTranslation(_Exported, BaseFairseqModel):
    """A translation model in a folder that `leapformer export` made."""

    def __init__(self, folder: Folder, task: Any) -> None:
        """Raises LeapformerError for another vocabulary than the task's."""
        super().__init__()
        self.folder = folder
        for side, dictionary in (("source", task.source_dictionary), ("target", task.target_dictionary)):
            _check(folder, side, dictionary)
        graphs = Graphs(folder, torch.get_num_threads())
        self.encoder = _Encoder(task.source_dictionary, graphs)
        self.decoder = _Decoder(task.target_dictionary, graphs)

    def max_positions(self) -> tuple[int, int]:
        return self.folder.max_target, self.folder.max_target


class ExportedLanguageModel(_Exported, FairseqLanguageModel):
    """A language model in such a folder."""

    def __init__(self, folder: Folder, task: Any) -> None:
        """Raises LeapformerError for another vocabulary than the task's."""
        _check(folder, "target", task.target_dictionary)
        super().__init__(_LanguageDecoder(task.target_dictionary, Graphs(folder, torch.get_num_threads())))
        self.folder = folder
        self.no_weights = nn.Parameter(torch.empty(0))  # fairseq looks where a model's first parameter is

    def max_positions(self) -> int:
        return self.folder.max_target


class ExportedReader:
    """A `scoring.stream.Reader` of an exported language model."""

    def __init__(self, folder: Folder, dictionary: Any) -> None:
        """Raises LeapformerError for a model of another kind or vocabulary."""
        if folder.language is None:
            raise LeapformerError(f"{folder.path} holds a model for {folder.task}; give a language model")
        _check(folder, "target", dictionary)
        self.folder, self.language, self.graphs = folder, folder.language, Graphs(folder, torch.get_num_threads())
        self.longest = folder.max_target

    def check(self, tokens: int) -> None:
        longest = self.language.longest
        if longest is not None and tokens > longest:
            raise LeapformerError(
                f"{self.folder.path} reads {longest} tokens with one state, and the text has {tokens}; give --no-carry"
            )

    def log_probs(self, tokens: Tensor, state: dict[str, Any]) -> Tensor:
        before, own = state.get(READ, 0), state.get(STATES) or self.graphs.begin(SELF, 1)
        found, state[STATES] = self.graphs.text(tokens.unsqueeze(0).numpy(), own, before)
        state[READ] = before + len(tokens)
        return torch.from_numpy(found[0])

    def state_bytes(self, state: dict[str, Any]) -> int:
        return sum(one.numpy().nbytes for one in state.get(STATES, {}).values())


MODELS = {TRANSLATION: ExportedTranslation, LANGUAGE: ExportedLanguageModel}
TASKS = {TRANSLATION: "translation", LANGUAGE: "language_modeling"}  # fairseq's


def _model(folder: Folder, task: Any) -> BaseFairseqModel:
    """The model of a folder. Raises LeapformerError for another task than its own."""
    if folder.task not in MODELS:
        raise LeapformerError(f"{folder.path} holds a model for {folder.task}; this needs one of text")
    adapt(task, Namespace(arch=str(folder.path)), TASKS[folder.task])
    return MODELS[folder.task](folder, task)


def _check(folder: Folder, side: str, dictionary: Any) -> None:
    if dictionary.symbols != folder.vocabularies[side].symbols:
        raise LeapformerError(
            f"{folder.path} has another {side} vocabulary than the data; give the data it was trained on"
        )


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
        self.reorder_incremental_state(incremental_state, new_order)
        order = new_order.cpu()
        incremental_state[ORDER] = incremental_state[ORDER][order] if ORDER in incremental_state else order


class _LanguageDecoder(Prompted, _Decoder):
    """Whole texts, or one more token of every hypothesis; a prompt is read at once."""

    def __init__(self, dictionary: Any, graphs: Graphs) -> None:
        super().__init__(dictionary, graphs)
        self.context = SimpleNamespace(prompt=None)

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Any = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """Log-probabilities after all tokens (B, T), or, with `incremental_state`, after the last of them."""
        if incremental_state is None:
            return self.read(prev_output_tokens, {}), None
        found = self.prompt_output(prev_output_tokens, incremental_state)
        if found is not None:
            return found, None
        alone = {ROWS: torch.arange(len(prev_output_tokens)), STATES: dict[str, Any]()}
        return super().forward(prev_output_tokens, alone, incremental_state)

    def read(self, tokens: Tensor, incremental_state: dict[str, Any]) -> Tensor:
        """Log-probabilities (B, T, V) after each of the tokens (B, T), the first of their texts."""
        own = self.graphs.begin(SELF, len(tokens))
        found, incremental_state[STATES] = self.graphs.text(tokens.cpu().numpy(), own)
        return torch.from_numpy(found).to(tokens.device)


@contextmanager
def exported_models() -> Iterator[None]:
    """Meanwhile fairseq's commands load exported folders, too, in place of checkpoints."""
    load = checkpoint_utils.load_model_ensemble_and_task

    def load_any(paths: Sequence[str], overrides: Any = None, task: Any = None, *args: Any, **options: Any) -> Any:
        folders = [Path(path) for path in paths if Path(path).is_dir()]
        if not folders:
            return load(paths, overrides, task, *args, **options)
        if len(folders) < len(paths):
            raise LeapformerError(f"--path {':'.join(paths)}: give exported models or checkpoints, not both")
        return [_model(Folder.read(folder), task) for folder in folders], SimpleNamespace(task=None), task

    checkpoint_utils.load_model_ensemble_and_task = load_any
    try:
        yield
    finally:
        checkpoint_utils.load_model_ensemble_and_task = load
