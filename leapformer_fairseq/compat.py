"""What makes fairseq 0.12.3 run on today's Python, PyTorch and numpy: one small patch per defect, each with its reason.

`apply` is called as soon as fairseq is imported together with this package. A patch is applied only where the defect is
found; `leapformer doctor` lists what was done. No patch weakens a protection: checkpoints are still loaded with
`weights_only=True`, only the few harmless types that fairseq stores are allowed in addition.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import math
import queue
import time
import types
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .errors import LeapformerError

PLUGIN_DIR = Path(__file__).absolute().parent


class Patch(NamedTuple):
    """One mended defect; `needed` looks for the defect itself, `applies_to` says in words where it is found."""

    name: str
    reason: str
    applies_to: str
    needed: Callable[[], bool]
    mend: Callable[[], None]


_applied: dict[str, bool] = {}  # name of a patch -> whether it was needed, filled by the first `apply`


def apply() -> list[Patch]:
    """Mend what is broken, once per process; returns the patches that are in force."""
    import fairseq  # noqa: F401  (calls this function, the first time: so not from within the loop)

    for patch in PATCHES:
        if patch.name not in _applied:
            _applied[patch.name] = patch.needed()
            if _applied[patch.name]:
                patch.mend()
    return [patch for patch in PATCHES if _applied[patch.name]]


# ---------------------------------------------------------------------------------------------------- checkpoints
def checkpoint_types() -> list[Any]:
    """The types in fairseq's checkpoints beyond tensors and builtins; none of them can run code when unpickled.

    `argparse.Namespace` holds the configuration of models without a dataclass, numpy arrays the metrics of --eval-bleu.
    """
    reconstruct, scalar = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
    # numpy 2 renamed `numpy.core`; files written by either version are read by both.
    functions = [
        (function, f"{package}.multiarray.{name}")
        for function, name in ((reconstruct, "_reconstruct"), (scalar, "scalar"))
        for package in ("numpy._core", "numpy.core")
    ]
    dtypes = {type(np.dtype(code)) for code in ("?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8")}
    return [argparse.Namespace, np.ndarray, np.dtype, *functions, *dtypes]


def _namespace_is_refused() -> bool:
    return argparse.Namespace not in torch.serialization.get_safe_globals()


def _allow_checkpoint_types() -> None:
    torch.serialization.add_safe_globals(checkpoint_types())


# ---------------------------------------------------------------------------------------------------------- numpy
def _np_compat_is_missing() -> bool:
    return not hasattr(np, "compat")


def _restore_np_compat() -> None:
    np.compat = types.SimpleNamespace(long=int)  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------- audio
def _convert_waveform(
    waveform: np.ndarray | torch.Tensor,
    sample_rate: int,
    normalize_volume: bool = False,
    to_mono: bool = False,
    to_sample_rate: int | None = None,
) -> tuple[np.ndarray | torch.Tensor, int]:
    """fairseq's `convert_waveform` on (channels, T), in its order: volume to full scale, rate, mix-down."""
    samples = np.asarray(waveform)
    if normalize_volume:
        samples = samples / max(float(np.abs(samples).max(initial=0.0)), 1e-8)
    if to_sample_rate is not None and to_sample_rate != sample_rate:
        from scipy.signal import resample_poly  # a slow import, needed by few

        shared = math.gcd(int(sample_rate), int(to_sample_rate))
        samples = resample_poly(samples, to_sample_rate // shared, sample_rate // shared, axis=-1)
        sample_rate = to_sample_rate
    if to_mono and samples.shape[0] > 1:
        samples = samples.mean(axis=0, keepdims=True)
    samples = samples.astype(np.float32, copy=False)
    return (torch.from_numpy(samples) if isinstance(waveform, torch.Tensor) else samples), sample_rate


def _kaldi_fbank(waveform: np.ndarray, sample_rate: int, n_bins: int = 80) -> np.ndarray:
    """fairseq's feature hook: `waveform` is (1, T) at 16-bit integer scale."""
    from .audio import INT16_SCALE, fbank

    return fbank(np.asarray(waveform)[0] / np.float32(INT16_SCALE), sample_rate, n_bins)


def _fairseq_wants_torchaudio() -> bool:
    from fairseq.data.audio import audio_utils

    return hasattr(audio_utils, "_get_torchaudio_fbank")


def _replace_torchaudio() -> None:
    from fairseq.data.audio import audio_utils

    audio_utils.convert_waveform = _convert_waveform
    audio_utils._get_torchaudio_fbank = _kaldi_fbank


def _always() -> bool:
    return True


def _name_unreadable_rows() -> None:
    """Turn 'file not found' deep in a data loader into an error that names the manifest, the row and the file."""
    import soundfile
    from fairseq.data.audio.speech_to_text_dataset import SpeechToTextDataset

    read = SpeechToTextDataset._get_source_audio

    @functools.wraps(read)
    def read_or_name_row(self: Any, index: Any) -> torch.Tensor:
        try:
            return read(self, index)
        except (OSError, soundfile.LibsndfileError) as error:
            rows = np.atleast_1d(index).tolist()  # several when recordings are concatenated as augmentation
            where = ", ".join(f"row {row + 1} ({self.audio_paths[row]})" for row in rows)
            raise LeapformerError(
                f"{self.split}.tsv, {where}: the audio cannot be read ({error}); mend the path or remove the row"
            ) from error

    SpeechToTextDataset._get_source_audio = read_or_name_row


# -------------------------------------------------------------------------------------------------- data loading
def _consumer_is_daemon() -> bool:
    from fairseq.data import iterators

    return hasattr(iterators.BufferedIterator, "_create_consumer")


def _stop_consumers_at_exit() -> None:
    """Let the batch reading threads end before the interpreter does."""
    from fairseq.data.iterators import BufferedIterator

    consumers: weakref.WeakSet[Any] = weakref.WeakSet()
    create = BufferedIterator._create_consumer

    @functools.wraps(create)
    def create_and_remember(self: Any) -> None:
        create(self)
        consumers.add(self._consumer)

    BufferedIterator._create_consumer = create_and_remember
    atexit.register(lambda: _stop(list(consumers)))


def _stop(consumers: list[Any], patience_s: float = 30.0) -> None:
    deadline = time.monotonic() + patience_s  # better an ugly exit than one that never comes
    for consumer in consumers:
        consumer._max_len = 0  # the thread looks at it after each batch
        while consumer.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                consumer._queue.get(timeout=0.05)  # makes room: the thread may wait in put()


# ----------------------------------------------------------------------------------------------- language modelling
def _read_prompts_at_once() -> None:
    """Let decoders that can read many tokens in one pass do so with what all prompts of a batch have in length."""
    from fairseq.tasks.language_modeling import LanguageModelingTask

    step = LanguageModelingTask.inference_step

    @functools.wraps(step)
    def inference_step(
        self: Any, generator: Any, models: Any, sample: Any, prefix_tokens: Any = None, **more: Any
    ) -> Any:
        dictionary = self.source_dictionary
        first = dictionary.bos() if getattr(self.args, "add_bos_token", False) else dictionary.eos()
        prompt = sample["net_input"]["src_tokens"] if prefix_tokens is None else prefix_tokens
        # As the task does it: only what lacks the first token gets it, and a given prefix never has it.
        if prompt.numel() and (prefix_tokens is not None or not prompt[:, 0].eq(first).all()):
            prompt = torch.cat([prompt.new_full((len(prompt), 1), first), prompt], 1)
        shortest = int(prompt.ne(dictionary.pad()).sum(1).min()) if prompt.numel() else 0
        ours = [model for model in models if hasattr(getattr(model, "decoder", None), "prompted")]
        limit = min((model.max_positions() for model in ours), default=prompt.shape[1])
        if prompt.shape[1] > limit:
            raise LeapformerError(
                f"a prompt of {prompt.shape[1]} tokens is longer than the model's {limit} positions; shorten it"
            )
        with ExitStack() as stack:
            for model in ours if shortest > 1 else ():
                stack.enter_context(model.decoder.prompted(prompt[:, :shortest]))
            return step(self, generator, models, sample, prefix_tokens, **more)

    LanguageModelingTask.inference_step = inference_step


def _refuse_to_skip_blocks() -> None:
    """Stop before an evaluation that would leave out blocks of text, or all of them."""
    from fairseq.tasks.language_modeling import LanguageModelingTask

    load = LanguageModelingTask.eval_lm_dataloader

    @functools.wraps(load)
    def eval_lm_dataloader(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        limit, window = kwargs.get("max_positions"), kwargs.get("context_window", 0)
        longest = int(max(dataset.sizes, default=0)) + window
        if limit is not None and longest > limit:
            raise LeapformerError(
                f"blocks of up to {longest} tokens do not fit the model's {limit} positions and would be left out; "
                f"give --tokens-per-sample {limit} or less (a --context-window counts)"
            )
        return load(self, dataset, *args, **kwargs)

    LanguageModelingTask.eval_lm_dataloader = eval_lm_dataloader


# ------------------------------------------------------------------------------------------------------- precision
def _refuse_half_precision_without_gpu() -> None:
    """Say it in one line before the model is moved: fairseq fails with an assertion about CUDA, or runs into None."""
    from fairseq.trainer import Trainer

    build = Trainer.__init__

    @functools.wraps(build)
    def init(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        asked = [name for name in ("fp16", "bf16") if getattr(cfg.common, name)]
        in_memory = cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16
        if asked and not in_memory and not cfg.common.tpu and (cfg.common.cpu or not torch.cuda.is_available()):
            raise LeapformerError(f"--{asked[0]} needs a GPU; leave it out on a CPU")
        build(self, cfg, *args, **kwargs)

    Trainer.__init__ = init


# ------------------------------------------------------------------------------------------------------- user-dir
def _recognise_own_user_dir() -> None:
    """Accept any path to this package as --user-dir once it is imported, and explain a second copy."""
    from fairseq import utils

    import_other = utils.import_user_module

    @functools.wraps(import_other)
    def import_user_module(args: Any) -> None:
        user_dir = getattr(args, "user_dir", None)
        if user_dir is None or _is_this_package(user_dir):
            return
        if Path(user_dir).name == PLUGIN_DIR.name and Path(user_dir).is_dir():
            raise LeapformerError(
                f"--user-dir={user_dir} is a second copy of the plugin, {PLUGIN_DIR} is already in use; "
                "leave --user-dir out or give it the output of `leapformer user-dir`"
            )
        import_other(args)

    utils.import_user_module = import_user_module


def _is_this_package(user_dir: str) -> bool:
    path = Path(user_dir)
    # fairseq also looks for a bare name beside itself, whatever the current folder.
    return path.samefile(PLUGIN_DIR) if path.exists() else str(path) == PLUGIN_DIR.name


PATCHES = (
    Patch(
        "checkpoint-types",
        "torch.load refuses argparse.Namespace and numpy arrays, which fairseq writes into its checkpoints",
        "torch >= 2.6 (weights_only=True by default)",
        _namespace_is_refused,
        _allow_checkpoint_types,
    ),
    Patch(
        "np.compat",
        "np.compat.long is used by --sample-break-mode eos, language model generation and --num-batch-buckets",
        "numpy >= 2.0",
        _np_compat_is_missing,
        _restore_np_compat,
    ),
    Patch(
        "audio-without-torchaudio",
        "resampling needs torchaudio.sox_effects and features torchaudio.compliance; soundfile, scipy and "
        "kaldi-native-fbank do it, with the same features offline and streaming",
        "torchaudio >= 2.9, absent, or built for another torch",
        _fairseq_wants_torchaudio,
        _replace_torchaudio,
    ),
    Patch(
        "manifest-row",
        "a missing or unreadable recording is reported without its manifest and row",
        "fairseq 0.12",
        _always,
        _name_unreadable_rows,
    ),
    Patch(
        "exit-code-134",
        "the daemon thread that reads batches can be inside torch when the interpreter ends, which then aborts",
        "fairseq 0.12 with --num-workers 0",
        _consumer_is_daemon,
        _stop_consumers_at_exit,
    ),
    Patch(
        "prompts",
        "a language model reads its prompt token by token; our decoders read it in one pass",
        "fairseq 0.12",
        _always,
        _read_prompts_at_once,
    ),
    Patch(
        "eval-lm-blocks",
        "fairseq-eval-lm leaves out blocks longer than the model's positions and reports perplexity 1 for none at all",
        "fairseq 0.12",
        _always,
        _refuse_to_skip_blocks,
    ),
    Patch(
        "half-precision",
        "--fp16 and --bf16 without a GPU end in an assertion about CUDA or an AttributeError",
        "fairseq 0.12",
        _always,
        _refuse_half_precision_without_gpu,
    ),
    Patch(
        "user-dir",
        "another spelling of the path of a plugin that is already imported is refused or registers it twice",
        "fairseq 0.12",
        _always,
        _recognise_own_user_dir,
    ),
)
