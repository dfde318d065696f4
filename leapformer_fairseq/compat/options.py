"""Command-line options that fairseq misreads."""

from __future__ import annotations

import argparse
import functools
import importlib.util
from typing import Any

from .patch import Patch


def _bf16_means_tpu() -> bool:
    from fairseq import options

    parser = argparse.ArgumentParser()
    parser.set_defaults(bf16=True, fp16=False, batch_size=None, max_tokens=None)
    return importlib.util.find_spec("torch_xla") is None and options.parse_args_and_arch(parser, []).tpu


def _let_bf16_run_on_gpus() -> None:
    """Clear `tpu`, which fairseq sets for --bf16."""
    from fairseq import options

    parse = options.parse_args_and_arch

    @functools.wraps(parse)
    def parse_args_and_arch(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)  # with parse_known=True, a tuple with the unknown arguments
        (parsed[0] if isinstance(parsed, tuple) else parsed).tpu = False
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


PATCHES = (
    Patch(
        "bf16",
        "--bf16 is taken for a TPU, so that it ends in an AttributeError on a GPU",
        "fairseq 0.12 without torch_xla",
        _bf16_means_tpu,
        _let_bf16_run_on_gpus,
    ),
)
