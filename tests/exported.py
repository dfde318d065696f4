"""A tiny model of each kind and its exported folder, made once per run: tracing is most of what tests of exports cost.

Their blocks differ, so that these few graphs have states of every sort: sums, with decay, by the delta rule, of slots,
of several tensors, and others than zeros at first; predicted lengths; look-ahead; several speakers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.export.write import export_speech, export_synthesis
from leapformer_fairseq.runtime.acoustics.mel import MelConfig
from leapformer_fairseq.runtime.cmvn import Cmvn
from leapformer_fairseq.runtime.folder import HASH, MODEL, Folder, _hash
from leapformer_fairseq.runtime.simul.policy import PolicyOptions
from leapformer_fairseq.runtime.simul.text import Detokenizer
from leapformer_fairseq.runtime.voice import ExportedVoice
from leapformer_fairseq.simul.system import TranslationSystem
from tests.simul.conftest import subwords

from .made import made
from .models.tiny import dictionary, make_model, make_tts
from .reversed_text import TRAINING, reversed_text
from .spoken import OWN, spoken
from .untrained import save_checkpoint

ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
AHEAD = {"encoder_chunk_ms": 160, "encoder_right_context_ms": 120}
MELS = MelConfig(sample_rate=8000, n_fft=64, win_length=50, hop_length=20, n_mels=6, f_max=4000.0)
LENGTHS = {"length_predictor": "ratio", "length_ratio": 1.3, "cosformer_length": 0}
SPEAKERS = {"ann": 0, "bob": 1, "cid": 2}
EOS = 2


def resealed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the model.json of a folder says, with a hash that fits."""
    about = json.loads((path / MODEL).read_text())
    del about[HASH]
    about = change(about) or about
    (path / MODEL).write_text(json.dumps({**about, HASH: _hash(about)} if isinstance(about, dict) else about))


# ---------------------------------------------------------------------------------------------------------------- text
class Text(NamedTuple):
    """Prepared data, a checkpoint of a short training, and its exported folder."""

    data: Path
    checkpoint: Path
    exported: Path


def translation() -> Text:
    flags = (
        "--encoder-layers 1 --decoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 "
        "--decoder-embed-dim 32 --encoder-self-attention gated-relu --decoder-self-attention abc-window,softmax "
        "--decoder-cross-attention cosformer --length-predictor ratio --length-ratio 1.3 --cosformer-length 0"
    )
    return _text("mt", "--task translation --arch leapformer_nmt", flags)


def aligning_translation() -> Text:
    """The same checkpoint, and its folder with attention weights."""
    text = translation()

    def make(folder: Path) -> None:
        command = ["export", "--path", str(text.checkpoint), "--out", str(folder / "exported"), "--alignments"]
        assert main(command) == 0

    return text._replace(exported=made("exported mt with alignments", make) / "exported")


def language_model() -> Text:
    """Its attention is a loop in the graph."""
    flags = "--decoder-layers 1 --tokens-per-sample 32 --decoder-self-attention gated-delta"
    return _text("lm", "--task language_modeling --arch leapformer_lm_tiny", flags)


def _text(name: str, kind: str, flags: str) -> Text:
    data = made("reversed text", lambda folder: reversed_text(folder, train=200, valid=4, test=12)) / name

    def make(folder: Path) -> None:
        command = f"{kind} {flags} {TRAINING} --disable-validation --no-epoch-checkpoints"
        assert main(["train", str(data), *command.split(), "--save-dir", str(folder / "model")]) == 0
        paths = ["--path", str(folder / "model" / "checkpoint_last.pt"), "--out", str(folder / "exported")]
        assert main(["export", *paths, "--check", "5"]) == 0

    folder = made(f"exported {name}", make)
    return Text(data, folder / "model" / "checkpoint_last.pt", folder / "exported")


# -------------------------------------------------------------------------------------------------------------- speech
def speech_model(plan: str, **options: Any) -> Any:
    return make_model(
        "leapformer_simulst_tiny", plan, waitk_lagging=2, fixed_pre_decision_ratio=3, input_feat_per_channel=80,
        **{"encoder_self_attention": plan, "decoder_self_attention": plan, "decoder_cross_attention": plan, **options},
    )  # fmt: skip


def speech_system(plan: str, **options: Any) -> TranslationSystem:
    """A system around a small random model."""
    model = speech_model(plan, **options).float().eval()
    cmvn = Cmvn(np.full(80, 8.0, np.float32), np.full(80, 3.0, np.float32))
    words = Detokenizer(model.decoder.dictionary, subwords())
    return TranslationSystem(model, EOS, (0, 1, 3), words, cmvn, PolicyOptions(k=2), 12)


def speech() -> tuple[TranslationSystem, Folder]:
    """A system with a look-ahead, and its folder, which has attention weights."""
    system = speech_system("gated-relu", **AHEAD, **ONE_LAYER, decoder_cross_attention="leap")
    path = made("exported speech", lambda folder: export_speech(system, folder, "signature", {}, alignments=-1))
    return system, Folder.read(path)


def recordings() -> Text:
    """A model of fairseq's own for whole recordings, each normalised by itself, random."""
    data = spoken()
    flags = (
        "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --conv-channels 16 "
        f"--encoder-attention-heads 2 --decoder-attention-heads 2 --config-yaml {OWN}"
    )

    def make(folder: Path) -> None:
        path = folder / "checkpoint.pt"
        save_checkpoint(path, data, "s2t_transformer_xs", *flags.split(), scaled={EOS: 2.0})
        words = ["--path", str(path), "--out", str(folder / "exported"), "--check", "5"]
        assert main(["export", *words]) == 0

    folder = made("exported recordings", make)
    return Text(data, folder / "checkpoint.pt", folder / "exported")


# ----------------------------------------------------------------------------------------------------- text to speech
def synthesizer(seed: int = 0, speakers: int = len(SPEAKERS), **options: Any) -> Any:
    """A model whose frames were normalised, with dropout."""
    layers = {"encoder_transformer_layers": 1, "decoder_transformer_layers": 1, "prenet_dropout": 0.25}
    attention = {"encoder_self_attention": "softmax", "decoder_cross_attention": "cosformer", **LENGTHS}
    model = make_tts("leap", seed=seed, **{**layers, **attention, **options})
    if speakers:
        model.encoder.embed_speaker = torch.nn.Embedding(speakers, 4)
        model.encoder.spk_emb_proj = torch.nn.Linear(16 + 4, 16)
    return model


def write_voice(model: Any, path: Path, stats: Path | None = None, speakers: dict[str, int] | None = None) -> None:
    config = {"features": MELS.features(), "espeak": {"voice": "en-us", "silence": False}, "audio_root": "/secret"}
    data = SimpleNamespace(config=config, global_cmvn_stats_npz=stats)
    task = SimpleNamespace(src_dict=dictionary(), data_cfg=data, speaker_to_id=speakers)
    export_synthesis(model.float(), task, path, "signature", {"checkpoint": "best.pt"})


def voice() -> tuple[Any, ExportedVoice]:
    """A model and its exported voice."""
    model = synthesizer().float()

    def make(folder: Path) -> None:
        np.savez(folder / "stats.npz", mean=np.arange(6.0), std=np.full(6, 2.0))
        write_voice(model, folder / "model", folder / "stats.npz", SPEAKERS)

    return model, ExportedVoice(Folder.read(made("exported voice", make) / "model"))
