"""Running: prompts, evaluation, precision, and where the plugin is found."""

from __future__ import annotations

import functools
import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ..errors import LeapformerError, one_line
from .patch import Patch, always

PLUGIN_DIR = Path(__file__).absolute().parent.parent


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


def _no_xla() -> bool:
    return importlib.util.find_spec("torch_xla") is None


def _let_bf16_run_on_gpus() -> None:
    """fairseq takes --bf16 for a TPU, which there is none of."""
    from fairseq import options

    parse = options.parse_args_and_arch

    @functools.wraps(parse)
    def parse_args_and_arch(*args: Any, **kwargs: Any) -> Any:
        found = parse(*args, **kwargs)
        (found[0] if isinstance(found, tuple) else found).tpu = False
        return found

    options.parse_args_and_arch = parse_args_and_arch


def _check_window() -> None:
    """Say what is wrong with the sizes of eval-lm before they end in a division by zero."""
    from fairseq.tasks.language_modeling import LanguageModelingTask

    load = LanguageModelingTask.load_dataset

    @functools.wraps(load)
    def load_dataset(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.args.tokens_per_sample < 1:
            raise LeapformerError(
                f"--tokens-per-sample leaves {self.args.tokens_per_sample} new tokens a block; give at least 1, and "
                "more than --context-window"
            )
        return load(self, *args, **kwargs)

    LanguageModelingTask.load_dataset = load_dataset


def _refuse_other_models_as_language_models() -> None:
    """One line for a translation model in eval-lm, and for options that language models cannot serve."""
    from fairseq.tasks.language_modeling import LanguageModelingTask

    build, generator = LanguageModelingTask.build_model, LanguageModelingTask.build_generator

    @functools.wraps(build)
    def build_model(self: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
        try:
            return build(self, args, *more, **kwargs)
        except AttributeError as error:
            if "supported_targets" not in str(error):
                raise
            name = getattr(args, "arch", None) or getattr(args, "_name", None)
            raise LeapformerError(
                f"architecture {name!r} is no language model; give the checkpoint of one, or another --task"
            ) from None

    @functools.wraps(generator)
    def build_generator(self: Any, models: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
        for flag in ("print_alignment", "constraints"):
            if getattr(args, flag, None):
                raise LeapformerError(
                    f"--{flag.replace('_', '-')}: a language model has no source for that; leave it out"
                )
        return generator(self, models, args, *more, **kwargs)

    LanguageModelingTask.build_model, LanguageModelingTask.build_generator = build_model, build_generator


def _print_our_errors_in_one_line() -> None:
    """Under fairseq's own commands, and SimulEval's, a LeapformerError is for the user: no traceback."""
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if isinstance(error, LeapformerError):
            sys.stderr.write(f"leapformer: error: {one_line(error)}\n")
        else:
            before(kind, error, trace)

    sys.excepthook = excepthook


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
        "prompts",
        "a language model reads its prompt token by token; our decoders read it in one pass",
        "fairseq 0.12",
        always,
        _read_prompts_at_once,
    ),
    Patch(
        "eval-lm-blocks",
        "fairseq-eval-lm leaves out blocks longer than the model's positions and reports perplexity 1 for none at all",
        "fairseq 0.12",
        always,
        _refuse_to_skip_blocks,
    ),
    Patch(
        "half-precision",
        "--fp16 and --bf16 without a GPU end in an assertion about CUDA or an AttributeError",
        "fairseq 0.12",
        always,
        _refuse_half_precision_without_gpu,
    ),
    Patch(
        "bf16",
        "--bf16 means a TPU, so that it ends in an AttributeError on a GPU",
        "fairseq 0.12 without torch_xla",
        _no_xla,
        _let_bf16_run_on_gpus,
    ),
    Patch(
        "eval-lm-window",
        "--context-window beyond --tokens-per-sample ends in a ZeroDivisionError",
        "fairseq 0.12",
        always,
        _check_window,
    ),
    Patch(
        "language-models-only",
        "other models, and generator options that need a source, end in a traceback in language modelling",
        "fairseq 0.12",
        always,
        _refuse_other_models_as_language_models,
    ),
    Patch(
        "one-line-errors",
        "an error that is for the user ends in a traceback under fairseq's and SimulEval's own commands",
        "everywhere but in leapformer's commands",
        always,
        _print_our_errors_in_one_line,
    ),
    Patch(
        "user-dir",
        "another spelling of the path of a plugin that is already imported is refused or registers it twice",
        "fairseq 0.12",
        always,
        _recognise_own_user_dir,
    ),
)
