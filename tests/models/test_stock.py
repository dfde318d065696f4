"""Checkpoints of fairseq's own transformers, read as ours: the same outputs, whatever their version and options.

Of speech, of one utterance: in a batch, padding changes what fairseq's convolutions make of the last frames.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

from leapformer_fairseq.cli.main import main
from leapformer_fairseq.export.check import compared, compared_recordings
from leapformer_fairseq.models.loading import load_model
from leapformer_fairseq.models.s2t import LeapformerS2TModel
from leapformer_fairseq.models.stock import OURS as OF_OURS
from leapformer_fairseq.modules import BLOCKS
from leapformer_fairseq.runtime.folder import Folder
from leapformer_fairseq.studies.linearize.command import words_of
from leapformer_fairseq.studies.linearize.pair import load_pair
from leapformer_fairseq.studies.linearize.stages import _teacher
from leapformer_fairseq.support.errors import LeapformerError

from ..made import made
from ..reversed_text import reversed_text
from ..spoken import OWN, spoken
from ..untrained import save_checkpoint

DECODER = (
    "--decoder-layers 2 --decoder-embed-dim 32 --decoder-ffn-embed-dim 48 --decoder-attention-heads 4 --max-tokens 99"
)
BOTH = f"{DECODER} --encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 48 --encoder-attention-heads 4"
BANDS = "--adaptive-softmax-cutoff 8,16"
LEARNED = "--encoder-learned-pos --decoder-learned-pos"
KINDS = {
    "post-norm": ("translation", "transformer", BOTH),
    "pre-norm": ("translation", "transformer_iwslt_de_en", f"{BOTH} --encoder-normalize-before {LEARNED}"),
    "shared": ("translation", "transformer_wmt_en_de", f"{BOTH} --share-all-embeddings --decoder-normalize-before"),
    "big": ("translation", "transformer_vaswani_wmt_en_de_big", f"{BOTH} --layernorm-embedding"),
    "words in bands": ("translation", "transformer", f"{BOTH} {BANDS} --criterion adaptive_loss"),
    "layerdrop": ("translation", "transformer", f"{BOTH} --encoder-layerdrop 0.2 --decoder-layerdrop 0.2"),
    "gpt": ("language_modeling", "transformer_lm_gpt", f"{DECODER} --tokens-per-sample 32"),
    "lm": ("language_modeling", "transformer_lm", f"{DECODER} --tokens-per-sample 32 --decoder-learned-pos"),
    "speech": ("speech_to_text", "s2t_transformer_xs", f"{BOTH} --conv-channels 24 --share-decoder-input-output-embed"),
    "speech in eighths": (
        "speech_to_text",
        "s2t_transformer_s",
        f"{BOTH} --conv-channels 24 --conv-kernel-sizes 5,3,3 --no-scale-embedding --activation-fn gelu "
        "--layernorm-embedding --criterion label_smoothed_cross_entropy_with_ctc --ctc-weight 0.3",
    ),
    "speech over frequencies": (
        "speech_to_text",
        "s2t_transformer",
        f"{BOTH} --conv-version convtransformer --conv-out-channels 4 --config-yaml {OWN}",
    ),
    "post-norm speech": ("speech_to_text", "convtransformer", f"{BOTH} --conv-out-channels 4"),
    "lm of words in bands": (
        "language_modeling",
        "transformer_lm_wiki103",
        f"{DECODER} {BANDS} --adaptive-input-cutoff 8,16 --decoder-input-dim 32 --decoder-output-dim 32 "
        "--tokens-per-sample 32 --criterion adaptive_loss",
    ),
}
OURS = tuple(OF_OURS.values())
DATA = {"translation": lambda: text() / "mt", "language_modeling": lambda: text() / "lm", "speech_to_text": spoken}


def text() -> Path:
    return made("reversed text", lambda folder: reversed_text(folder, train=200, valid=4, test=12))


def stock(kind: str, folder: Path) -> Path:
    """A checkpoint of a random model."""
    task, arch, flags = KINDS[kind]
    return save_checkpoint(folder / "stock.pt", DATA[task](), arch, *flags.split(), task=task)


def in_fairseq(checkpoint: Path) -> tuple[Any, Any]:
    """The model that fairseq makes of it, and the task."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    assert type(model).__module__.startswith("fairseq.")
    return model.eval(), task


def agree(checkpoint: Path, truth: Any) -> None:
    model, _ = load_model(str(checkpoint), OURS, "a test", {})
    assert type(model).__module__.startswith("leapformer_fairseq.")
    source, target = torch.randint(4, 24, (2, 9)), torch.randint(4, 24, (2, 7))
    source[1, :3] = 1  # padding
    given = (source, torch.tensor([9, 6]), target) if hasattr(model, "encoder") else (target,)
    if isinstance(model, LeapformerS2TModel):
        given = (torch.randn(1, 53, 80), torch.tensor([53]), target[:1])
    with torch.no_grad():
        found, expected = (one.get_normalized_probs(one(*given), log_probs=True) for one in (model, truth))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_model_gives_the_same_outputs(kind, tmp_path):
    checkpoint = stock(kind, tmp_path)
    agree(checkpoint, in_fairseq(checkpoint)[0])


@pytest.mark.parametrize("kind", ["post-norm", "speech"])
def test_a_checkpoint_of_an_old_version_gives_the_same_outputs(kind, tmp_path):
    """Options in one namespace, without those that came later; one matrix for queries, keys and values."""
    checkpoint = stock(kind, tmp_path)
    truth, _ = in_fairseq(checkpoint)
    state = torch.load(checkpoint, weights_only=True)
    later = {"encoder_layerdrop", "layernorm_embedding", "quant_noise_pq", "checkpoint_activations", "base_layers"}
    later |= {"conv_version", "encoder_freezing_updates"}
    options = vars(state["cfg"]["model"])
    state["args"] = Namespace(**{name: value for name, value in options.items() if name not in later})
    del state["cfg"]
    weights = state["model"]
    for name in [name for name in weights if name.endswith("self_attn.q_proj.weight")]:
        stem = name.removesuffix("q_proj.weight")
        for part in ("weight", "bias"):
            weights[f"{stem}in_proj_{part}"] = torch.cat([weights.pop(f"{stem}{side}_proj.{part}") for side in "qkv"])
    torch.save(state, checkpoint)
    agree(checkpoint, truth)


@pytest.mark.parametrize("kind", ["pre-norm", "gpt", "speech"])
def test_a_stock_model_can_be_the_teacher_of_a_linear_one(kind, tmp_path):
    checkpoint = stock(kind, tmp_path)
    args = _teacher(checkpoint)["cfg"]["model"]
    assert args.arch in OURS and args.max_tokens == 99, "with the options of its whole training"
    plans = [word for block in BLOCKS for word in (f"--{block.argument.replace('_', '-')}", "relu")]
    words = [args.data, *words_of(args), *(plans[2:4] if kind == "gpt" else plans), "--optimizer", "adam", "--cpu"]
    pair = load_pair(words, str(checkpoint))
    assert {block.teacher.mechanism.name for block in pair.blocks} == {"softmax"}
    assert {block.student.mechanism.name for block in pair.blocks} == {"relu"}


@pytest.mark.parametrize("arch", ["s2t_conformer", "s2t_berard", "xm_transformer", "fconv_iwslt_de_en"])
def test_other_models_are_not_exported(arch, tmp_path, capsys):
    checkpoint = stock("speech", tmp_path)
    state = torch.load(checkpoint, weights_only=True)
    state["cfg"]["model"].arch = arch
    torch.save(state, checkpoint)
    for words in ([], ["--sentencepiece-model", "spm.model"]):  # which would have no meaning for it
        assert main(["export", "--path", str(checkpoint), "--out", str(tmp_path / "out"), *words]) == 2
        said = capsys.readouterr().err
        assert f"holds architecture '{arch}'; export needs leapformer_simulst* or leapformer_s2t*" in said
        assert "fairseq's transformer*, transformer_lm*, s2t_transformer*, convtransformer*" in said
        assert said.count("\n") == 1


def test_a_norm_that_fairseq_leaves_out_is_not_put_in(tmp_path):
    checkpoint = save_checkpoint(
        tmp_path / "stock.pt", spoken(), "convtransformer", *BOTH.split(), "--encoder-normalize-before"
    )
    with pytest.raises(LeapformerError, match="convtransformer leaves out the last norm of its encoder"):
        load_model(str(checkpoint), OURS, "a test", {})


def test_a_model_that_is_no_transformer_is_refused(tmp_path):
    checkpoint = save_checkpoint(tmp_path / "fconv.pt", text() / "mt", "fconv_iwslt_de_en", task="translation")
    with pytest.raises(LeapformerError, match="architecture 'fconv_iwslt_de_en'; a test needs leapformer_nmt"):
        load_model(str(checkpoint), OURS, "a test", {})


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_stock_model_writes_what_it_writes_in_fairseq(kind, tmp_path):
    checkpoint = stock(kind, tmp_path)
    assert main(["export", "--path", str(checkpoint), "--out", str(tmp_path / "out")]) == 0
    model, task = in_fairseq(checkpoint)
    if not hasattr(model, "encoder") and "learned" not in KINDS[kind][2]:
        model.max_decoder_positions = lambda: 10_000  # fairseq stops where the training's texts end
    comparison = compared_recordings if "speech" in kind else compared
    found = comparison(model, task, Folder.read(tmp_path / "out"), 25)
    assert found.equal == found.sources and found.error < 1e-4
