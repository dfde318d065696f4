"""A small model with the interface of ours, and what is needed to run the agent on it."""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from torch import Tensor, nn

from leapformer_fairseq.modules import PassContext
from leapformer_fairseq.modules.context import StackFacts
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.text import Detokenizer
from leapformer_fairseq.simul import engine as engine_module
from leapformer_fairseq.simul.system import TranslationSystem
from tests.made import made

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
EOS = 2
SENTENCES = (
    "hallo welt das ist ein test",
    "der hund läuft im park",
    "eins zwei drei vier fünf sechs sieben acht",
    "ein kleines haus am see",
)


class FakeEncoder(nn.Module):
    """Four frames to one state; bidirectional: every state depends on all frames."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(80, dim)
        self.context = PassContext(StackFacts())

    def pooling_ratio(self) -> int:
        return 4

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> dict[str, Any]:
        return self.encode(*self.convolve(src_tokens, src_lengths))

    def convolve(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([part.mean(1) for part in self.project(frames).split(4, dim=1)], dim=1), lengths

    def encode(self, states: Tensor, lengths: Tensor) -> dict[str, Any]:
        return {"encoder_out": states + states.mean(1, keepdim=True)}


class FakeDecoder(nn.Module):
    """Keeps a sum as its own state and a mean as cross-attention state, as linear attention does.

    `visible` lists the number of encoder states seen at every call.
    """

    def __init__(self, n_symbols: int, dim: int, eos_bias: float) -> None:
        super().__init__()
        self.embed, self.output = nn.Embedding(n_symbols, dim), nn.Linear(dim, n_symbols)
        nn.init.normal_(self.output.weight, std=3.0)
        self.eos_bias = eos_bias
        self.visible: list[int] = []
        self.context = PassContext(StackFacts())

    def forward(self, tokens: Tensor, encoder_out: dict[str, Any], incremental_state: dict[str, Any]) -> Any:
        state = incremental_state
        if state.get("consumed", 0) != tokens.size(1) - 1:
            raise AssertionError("every token has to be consumed exactly once")
        state["consumed"] = tokens.size(1)
        states = encoder_out["encoder_out"]
        if "cross" not in state:
            state["cross"], state["cross_length"] = states.mean(1), states.size(1)
        if state["cross_length"] != states.size(1):
            raise AssertionError("cross-attention states of an older encoder output")
        self.visible.append(states.size(1))
        state["self"] = state.get("self", 0.0) * 0.7 + self.embed(tokens[:, -1])
        logits = self.output(torch.tanh(state["self"] + state["cross"]))
        logits[:, EOS] += self.eos_bias
        return logits[:, None], None


class FakeModel(nn.Module):
    def __init__(self, n_symbols: int, eos_bias: float = 0.0, dim: int = 16) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.encoder, self.decoder = FakeEncoder(dim), FakeDecoder(n_symbols, dim, eos_bias)

    def max_decoder_positions(self) -> int:
        return 64


def _forget_source(state: dict[str, Any]) -> None:
    state.pop("cross", None)


def _fork_state(state: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(state)


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def subwords() -> Path:
    """A sentencepiece model with byte fallback."""

    def train(folder: Path) -> None:
        (folder / "text").write_text("\n".join(SENTENCES * 30), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"), model_prefix=str(folder / "spm"), vocab_size=330, byte_fallback=True,
            character_coverage=0.99, hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip

    return made("subwords", train) / "spm.model"


@pytest.fixture(scope="session")
def spm_model() -> Path:
    return subwords()


@pytest.fixture(scope="session")
def symbols(spm_model: Path) -> list[str]:
    """Symbols in the order of a fairseq dictionary: specials first."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm_model))
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    return SPECIALS + [piece for piece in pieces if piece not in SPECIALS]


@pytest.fixture(scope="session")
def detokenizer(spm_model: Path, symbols: list[str]) -> Detokenizer:
    return Detokenizer(symbols, spm_model)


@pytest.fixture
def make_system(
    monkeypatch: pytest.MonkeyPatch, detokenizer: Detokenizer, symbols: list[str]
) -> Callable[..., TranslationSystem]:
    """Builds a system around a FakeModel; `eos_bias` makes it want to end early or never."""
    monkeypatch.setattr(engine_module, "forget_source", _forget_source)
    monkeypatch.setattr(engine_module, "fork_state", _fork_state)

    def make(
        lagging: int = 3, ratio: int = 7, eos_bias: float = 0.0, policy: PolicyOptions | None = None
    ) -> TranslationSystem:
        cmvn = Cmvn(np.full(80, 8.0, np.float32), np.full(80, 3.0, np.float32))
        model = FakeModel(len(symbols), eos_bias).eval()
        # Byte pieces would make replacement characters of a random model's output.
        bytes_ = tuple(index for index, symbol in enumerate(symbols) if symbol.startswith("<0x"))
        policy = PolicyOptions("wait-k", k=lagging) if policy is None else policy
        return TranslationSystem(model, EOS, (0, 1, 3, *bytes_), detokenizer, cmvn, policy, 4 * ratio)

    return make


@pytest.fixture
def make_agent(monkeypatch: pytest.MonkeyPatch, make_system: Callable[..., TranslationSystem]) -> Callable[..., Any]:
    """Builds a LeapformerAgent on the fake system, with command-line options as a list."""
    pytest.importorskip("simuleval")
    from leapformer_fairseq.simul import agent as agent_module

    def make(*options: str, output: Path | None = None, **system: Any) -> Any:
        monkeypatch.setattr(agent_module, "open_system", lambda *args: make_system(**system))
        parser = argparse.ArgumentParser()
        agent_module.LeapformerAgent.add_args(parser)
        args = parser.parse_args(["--checkpoint", "x", "--data-root", "x", *options])
        args.output = output and str(output)
        return agent_module.LeapformerAgent.from_args(args)

    return make


@pytest.fixture(scope="session")
def speech() -> Callable[[float, int], np.ndarray]:
    """Noise with a changing envelope: `speech(seconds, seed)`, samples in [-1, 1] at 16 kHz."""

    def make(seconds: float, seed: int = 0) -> np.ndarray:
        time = np.arange(round(seconds * 16_000)) / 16_000
        noise = np.random.default_rng(seed).normal(size=time.size)
        return (0.1 * noise * (1 + np.sin(2 * np.pi * 3 * time))).clip(-1, 1).astype(np.float32)

    return make
