"""Load everything that simultaneous translation needs, from a checkpoint and its data folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..attention import Context
from ..models.loading import load_model
from ..modules import check_decoder
from ..runtime.cmvn import Cmvn
from ..runtime.simul.policy import PolicyOptions
from ..runtime.simul.text import Detokenizer
from ..support.errors import LeapformerError
from .engine import IncrementalEngine, engine_for
from .system import TranslationSystem

KINDS = ("leapformer_simulst", "leapformer_s2t", "leapformer_s2t_transformer")
STREAMABLE_TRANSFORMS = ("global_cmvn",)  # utterance_cmvn needs the whole utterance


def load_system(
    checkpoint: str | Path,
    data_root: str | Path,
    config_yaml: str = "config.yaml",
    policy: PolicyOptions | None = None,
    pre_decision_ratio: int | None = None,
    engine: str = "auto",
) -> TranslationSystem:
    """Load a `leapformer_simulst*` checkpoint, or a `leapformer_s2t*` one that was trained on whole utterances.

    The latter may be one of fairseq's own, see `models.stock`.

    `data_root` contains `config_yaml` with the vocabulary, sentencepiece model and CMVN statistics of training. The
    policy's k and `pre_decision_ratio` (encoder states per step) default to the trained values; an offline model has
    none. `engine` is "auto", "incremental" or "recompute". Raises LeapformerError for missing or unusable files,
    another architecture, missing or impossible values, and options that the model does not support.
    """
    files = {"--checkpoint": Path(checkpoint), "--data-root and --config-yaml": Path(data_root, config_yaml)}
    for options, path in files.items():
        if not path.is_file():
            raise LeapformerError(f"no file {path}; check {options}")
    overrides = {"data": str(data_root), "config_yaml": config_yaml}
    model, task = load_model(str(checkpoint), KINDS, "the agent", overrides)
    policy, ratio = resolve_policy(model, policy or PolicyOptions(), pre_decision_ratio)
    _check_policy(model, policy, engine)
    predictor = getattr(model.encoder, "length_predictor", None)
    oracle = predictor is not None and predictor.chosen == "oracle"
    if oracle and not model.decoder.context.facts.guesses_lengths:
        raise LeapformerError(
            f"{checkpoint} was trained with the true length of its target (--length-predictor oracle), which is "
            "unknown during translation; train a plan that needs no length, or give --cosformer-step in training"
        )
    if predictor is not None and not oracle:
        raise LeapformerError(
            f"{checkpoint} predicts the target's length from the whole source, which arrives while it is translated; "
            "train without --length-predictor, or use `leapformer generate`"
        )
    model.make_generation_fast_(need_attn=False)  # no attention weights are composed for nobody to see
    dictionary, config, root = task.target_dictionary, task.data_cfg, Path(data_root)
    return TranslationSystem(
        model=model,
        eos=dictionary.eos(),
        forbidden=tuple({dictionary.pad(), dictionary.bos()} - {dictionary.eos()}),
        detokenizer=_detokenizer(dictionary, config, root),
        cmvn=_cmvn(config, root),
        policy=policy,
        step_frames=model.encoder.pooling_ratio() * ratio,
        engine=engine,
    )


def with_policy(
    system: TranslationSystem, policy: PolicyOptions, pre_decision_ratio: int | None = None
) -> TranslationSystem:
    """The same model with another policy, k or step: sessions of both may run at once, and the weights are shared.

    `pre_decision_ratio` defaults to that of `system`. Raises LeapformerError as `load_system` does.
    """
    frames_of = system.state_frames
    ratio = system.step_frames // frames_of if pre_decision_ratio is None else pre_decision_ratio
    policy, ratio = resolve_policy(system.model, policy, ratio)
    _check_policy(system.model, policy, system.engine)
    return replace(system, policy=policy, step_frames=frames_of * ratio)


def _check_policy(model: Any, policy: PolicyOptions, engine: str) -> None:
    """Raise LeapformerError for an engine that the model cannot have, or attention that cannot stream."""
    if not policy.policy.early:
        return
    in_parts = engine_for(model, engine) is IncrementalEngine
    width = model.decoder.embed_dim  # of a carry, which fitted when the model was built
    check_decoder(model.decoder, None, Context(True, width, source_streams=True, source_in_parts=in_parts))


def resolve_policy(model: Any, policy: PolicyOptions, ratio: int | None) -> tuple[PolicyOptions, int]:
    """The policy and the pre-decision ratio; missing values are those of training, for a trained range the highest k.

    Raises LeapformerError if a value is impossible, or if it is needed but neither given nor trained.
    """
    if ratio is not None and ratio < 1:
        raise LeapformerError(f"--pre-decision-ratio is {ratio}; it must be at least 1")
    policy = policy.with_lagging(getattr(model, "lagging", None))
    ratio = getattr(model, "pre_decision_ratio", None) if ratio is None else ratio
    if ratio is None or policy.lacks_lagging:
        raise LeapformerError("this model was not trained with wait-k; give --waitk-lagging and --pre-decision-ratio")
    return policy.of_layers(len(model.decoder.layers)), ratio


def _detokenizer(dictionary: Any, config: Any, root: Path) -> Detokenizer:
    tokenizer = config.bpe_tokenizer
    if tokenizer.get("bpe") != "sentencepiece" or not tokenizer.get("sentencepiece_model"):
        raise LeapformerError(f"bpe_tokenizer is {tokenizer.get('bpe')!r} in the config yaml; it must be sentencepiece")
    if config.prepend_tgt_lang_tag or config.pre_tokenizer.get("tokenizer"):
        raise LeapformerError("the agent does not support prepend_tgt_lang_tag and pre_tokenizer of the config yaml")
    return Detokenizer(dictionary, _resolve(tokenizer["sentencepiece_model"], root))


def _cmvn(config: Any, root: Path) -> Cmvn | None:
    """The normalisation that evaluation data got in training's terms, None when there was none."""
    unknown = sorted(set(transforms_of(config)) - set(STREAMABLE_TRANSFORMS))
    if unknown:
        raise LeapformerError(f"feature transform {unknown[0]!r} cannot be streamed; train with global_cmvn instead")
    return global_cmvn(config, root)


def transforms_of(config: Any) -> list[str]:
    """The feature transforms of evaluation data, by fairseq's names."""
    return [name for kind in ("", "feature_") for name in config.get_transforms(kind, "_eval", False) or []]


def global_cmvn(config: Any, root: Path) -> Cmvn | None:
    """The statistics of the training data; None unless they normalise evaluation data."""
    if "global_cmvn" not in transforms_of(config):
        return None
    return Cmvn.load(_resolve(config.config.get("global_cmvn", {}).get("stats_npz_path", "gcmvn.npz"), root))


def _resolve(path: str, root: Path) -> Path:
    """As fairseq does: relative to the working directory if it is there, else to the data folder."""
    return Path(path) if Path(path).exists() else root / path
