"""From a checkpoint and its data folder to all that a simultaneous translation needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import LeapformerError
from ..loading import load_model
from .features import Cmvn
from .stream import TranslationSystem
from .text import Detokenizer

STREAMABLE_TRANSFORMS = ("global_cmvn",)  # utterance_cmvn needs the whole utterance


def load_system(
    checkpoint: str | Path,
    data_root: str | Path,
    config_yaml: str = "config.yaml",
    lagging: int | None = None,
    pre_decision_ratio: int | None = None,
) -> TranslationSystem:
    """Load a `leapformer_simulst*` checkpoint, or a `leapformer_s2t*` one for test-time wait-k.

    `data_root` holds `config_yaml` with the vocabulary, sentencepiece model and CMVN statistics of training. `lagging`
    (k) and `pre_decision_ratio` (encoder states per step) default to the trained values; an offline model has none.
    Raises LeapformerError for missing or unusable files, another architecture, or missing or impossible values.
    """
    files = {"--checkpoint": Path(checkpoint), "--data-root and --config-yaml": Path(data_root, config_yaml)}
    for options, path in files.items():
        if not path.is_file():
            raise LeapformerError(f"no file {path}; check {options}")
    overrides = {"data": str(data_root), "config_yaml": config_yaml}
    model, task = load_model(str(checkpoint), ("leapformer_simulst", "leapformer_s2t"), "the agent", overrides)
    lagging, ratio = resolve_policy(model, lagging, pre_decision_ratio)
    model.make_generation_fast_(need_attn=False)  # no attention weights are composed for nobody to see
    if hasattr(model, "set_lagging"):
        # The policy hands out the source, and all of it may be seen. (eval() has set the trained lagging.)
        model.set_lagging(None)
    dictionary, config, root = task.target_dictionary, task.data_cfg, Path(data_root)
    return TranslationSystem(
        model=model,
        eos=dictionary.eos(),
        forbidden=tuple({dictionary.pad(), dictionary.bos()} - {dictionary.eos()}),
        detokenizer=_detokenizer(dictionary, config, root),
        cmvn=_cmvn(config, root),
        lagging=lagging,
        step_frames=model.encoder.pooling_ratio() * ratio,
    )


def resolve_policy(model: Any, lagging: int | None, ratio: int | None) -> tuple[int, int]:
    """(k, pre-decision ratio): those given, else those of training; of a trained range (low, high) the high end.

    Raises LeapformerError when a value is below 1, or neither given nor trained.
    """
    for value, option in ((lagging, "--waitk-lagging"), (ratio, "--pre-decision-ratio")):
        if value is not None and value < 1:
            raise LeapformerError(f"{option} is {value}; it must be at least 1")
    if lagging is None:
        trained = getattr(model, "lagging", None)
        lagging = trained if trained is None or isinstance(trained, int) else max(trained)
    if ratio is None:
        ratio = getattr(model, "pre_decision_ratio", None)
    if lagging is None or ratio is None:
        raise LeapformerError("this model was not trained with wait-k; give --waitk-lagging and --pre-decision-ratio")
    return lagging, ratio


def _detokenizer(dictionary: Any, config: Any, root: Path) -> Detokenizer:
    tokenizer = config.bpe_tokenizer
    if tokenizer.get("bpe") != "sentencepiece" or not tokenizer.get("sentencepiece_model"):
        raise LeapformerError(f"bpe_tokenizer is {tokenizer.get('bpe')!r} in the config yaml; it must be sentencepiece")
    if config.prepend_tgt_lang_tag or config.pre_tokenizer.get("tokenizer"):
        raise LeapformerError("the agent does not support prepend_tgt_lang_tag and pre_tokenizer of the config yaml")
    return Detokenizer(dictionary, _resolve(tokenizer["sentencepiece_model"], root))


def _cmvn(config: Any, root: Path) -> Cmvn | None:
    """The normalisation that evaluation data got in training's terms, None when there was none."""
    transforms = [name for kind in ("", "feature_") for name in config.get_transforms(kind, "_eval", False) or []]
    unknown = sorted(set(transforms) - set(STREAMABLE_TRANSFORMS))
    if unknown:
        raise LeapformerError(f"feature transform {unknown[0]!r} cannot be streamed; train with global_cmvn instead")
    if "global_cmvn" not in transforms:
        return None
    return Cmvn.load(_resolve(config.config.get("global_cmvn", {}).get("stats_npz_path", "gcmvn.npz"), root))


def _resolve(path: str, root: Path) -> Path:
    """As fairseq does: relative to the working directory if it is there, else to the data folder."""
    return Path(path) if Path(path).exists() else root / path
