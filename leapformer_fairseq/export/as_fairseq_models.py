"""Exported models with the interface of fairseq models: encoder and decoder run in onnxruntime.

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
    """Common methods of exported models that fairseq calls."""

    folder: Folder

    def max_decoder_positions(self) -> int:
        return self.folder.max_target

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        """Normalise log-probabilities again, because fairseq may have divided them by a temperature."""
        normalized: Tensor = net_output[0].log_softmax(-1)
        return normalized if log_probs else normalized.exp()


class ExportedTranslation(_Exported, BaseFairseqModel):
    """A translation model in a folder that `leapformer export` wrote."""

    def __init__(self, folder: Folder, task: Any) -> None:
        """Raises LeapformerError if the task has another vocabulary than the folder."""
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
    """A language model in a folder that `leapformer export` wrote."""

    def __init__(self, folder: Folder, task: Any) -> None:
        """Raises LeapformerError if the task has another vocabulary than the folder."""
        _check(folder, "target", task.target_dictionary)
        super().__init__(_LanguageDecoder(task.target_dictionary, Graphs(folder, torch.get_num_threads())))
        self.folder = folder
        self.no_weights = nn.Parameter(torch.empty(0))  # fairseq asks for the device of a model's first parameter

    def max_positions(self) -> int:
        return self.folder.max_target


class ExportedReader:
    """A `scoring.stream.Reader` for an exported language model."""

    def __init__(self, folder: Folder, dictionary: Any) -> None:
        """Raises LeapformerError if the folder holds another kind of model, or one with another vocabulary."""
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
        before, states = state.get(READ, 0), state.get(STATES) or self.graphs.begin(SELF, 1)
        scores, state[STATES] = self.graphs.text(tokens.unsqueeze(0).numpy(), states, before)
        state[READ] = before + len(tokens)
        return torch.from_numpy(scores[0])

    def state_bytes(self, state: dict[str, Any]) -> int:
        return sum(value.numpy().nbytes for value in state.get(STATES, {}).values())


MODELS = {TRANSLATION: ExportedTranslation, LANGUAGE: ExportedLanguageModel}
TASKS = {TRANSLATION: "translation", LANGUAGE: "language_modeling"}  # fairseq's names


def _model(folder: Folder, task: Any) -> BaseFairseqModel:
    """The model of a folder. Raises LeapformerError if the folder's model is not for text, or for another task."""
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
    """The states of cross-attention for B sentences, and the index of the sentence of each of B R batch entries."""

    def __init__(self, dictionary: Any, graphs: Graphs) -> None:
        super().__init__(dictionary)
        self.graphs = graphs

    def forward_torchscript(self, net_input: dict[str, Tensor]) -> dict[str, Any]:
        tokens = net_input["src_tokens"].cpu()
        return {STATES: self.graphs.read(tokens.numpy()), ROWS: torch.arange(len(tokens))}

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """Reorder batch entries, and drop sentences without entries."""
        states, rows = encoder_out[STATES], encoder_out[ROWS]
        left, entries = rows[new_order.cpu()].unique(return_inverse=True)
        if len(left) < int(rows.max()) + 1:
            states = {name: self.graphs.value(value.numpy()[left.numpy()]) for name, value in states.items()}
        return {STATES: states, ROWS: entries}


class _Decoder(FairseqIncrementalDecoder):
    """One decoding step for all hypotheses."""

    def __init__(self, dictionary: Any, graphs: Graphs) -> None:
        super().__init__(dictionary)
        self.graphs, self.aligns = graphs, False

    def make_generation_fast_(self, need_attn: Any = False, **unused: Any) -> None:
        """Called by fairseq's commands: whether alignments will be printed.

        Raises LeapformerError if they will and the folder has none.
        """
        self.aligns = bool(need_attn)
        if self.aligns:
            self.graphs.folder.align_layer()

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, Any], incremental_state: dict[str, Any]
    ) -> tuple[Tensor, dict[str, list[Tensor | None]]]:
        """Log-probabilities (B R, 1, V) after the last of the tokens (B R, T); R is the same for all sentences.

        `attn` are the weights (B R, 1, S) of the source, if alignments will be printed.
        """
        rows, position = encoder_out[ROWS], prev_output_tokens.shape[1]
        shape = (int(rows.max()) + 1, -1)
        states = incremental_state.get(STATES) or self.graphs.begin(SELF, len(rows))
        order = incremental_state.pop(ORDER, torch.arange(len(rows)))
        # In fairseq the hypotheses of a sentence are neighbours, so a view separates sentences and hypotheses.
        tokens = prev_output_tokens[:, -1].cpu().view(shape).numpy()
        step = self.graphs.attending_step if self.aligns else self.graphs.step
        *values, incremental_state[STATES] = step(
            tokens, position, order.view(shape).numpy(), states, encoder_out[STATES]
        )
        scores, *weights = (
            torch.from_numpy(value).flatten(0, 1).unsqueeze(1).to(prev_output_tokens.device) for value in values
        )
        return scores, {"attn": [*weights, None][:1]}

    def reorder_incremental_state_scripting(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """Save the order; the graph of the next step reorders the states."""
        self.reorder_incremental_state(incremental_state, new_order)
        order = new_order.cpu()
        incremental_state[ORDER] = incremental_state[ORDER][order] if ORDER in incremental_state else order


class _LanguageDecoder(Prompted, _Decoder):
    """Reads whole texts, or makes one decoding step for all hypotheses; a prompt is read in one pass."""

    def __init__(self, dictionary: Any, graphs: Graphs) -> None:
        super().__init__(dictionary, graphs)
        self.context = SimpleNamespace(prompt=None)

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Any = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """Log-probabilities after all tokens (B, T), or, with `incremental_state`, after the last of them."""
        if incremental_state is None:
            return self.read(prev_output_tokens, {}), None
        scores = self.prompt_output(prev_output_tokens, incremental_state)
        if scores is not None:
            return scores, None
        alone = {ROWS: torch.arange(len(prev_output_tokens)), STATES: dict[str, Any]()}
        return super().forward(prev_output_tokens, alone, incremental_state)

    def read(self, tokens: Tensor, incremental_state: dict[str, Any]) -> Tensor:
        """Log-probabilities (B, T, V) after each of the tokens (B, T), which begin a text."""
        states = self.graphs.begin(SELF, len(tokens))
        scores, incremental_state[STATES] = self.graphs.text(tokens.cpu().numpy(), states)
        return torch.from_numpy(scores).to(tokens.device)


@contextmanager
def exported_models() -> Iterator[None]:
    """Inside this context fairseq's commands also load exported folders where they expect checkpoints."""
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
