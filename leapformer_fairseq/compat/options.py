"""Options of the command line."""

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
    """fairseq treats --bf16 as a request for a TPU; clear that flag."""
    from fairseq import options

    parse = options.parse_args_and_arch

    @functools.wraps(parse)
    def parse_args_and_arch(*args: Any, **kwargs: Any) -> Any:
        found = parse(*args, **kwargs)
        (found[0] if isinstance(found, tuple) else found).tpu = False
        return found

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
