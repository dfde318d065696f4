"""Logging of `leapformer train` and fairseq's other commands: fairseq's, without messages that users cannot act on."""

from __future__ import annotations

import logging
import os
import sys
import warnings

from .. import PLUGIN_DIR

# (start of the message, category, module) of warnings, because fairseq 0.12 calls its libraries in deprecated ways.
DEPRECATED = (
    (r"hydra\.experimental\.\w+\(\) is no longer experimental", UserWarning, r"hydra\.experimental\."),
    (r"\nThe version_base parameter is not specified", UserWarning, r"hydra\.experimental\."),
    (r"In 'config': Usage of deprecated keyword in package header", UserWarning, r"hydra\.core\.default_element"),
    (r"\n'config' is validated against ConfigStore schema", UserWarning, ""),  # the module is fairseq's caller
    (r"\nThe strict flag in the compose API is deprecated", UserWarning, r"hydra\.compose"),
    (r"'pin_memory' argument is set as true but no accelerator", UserWarning, r"torch\.utils\.data\.dataloader"),
    (r"`torch\.cuda\.amp\.autocast", FutureWarning, r"fairseq\."),
    (r"`broadcast_buffers` is deprecated", FutureWarning, r"leapformer_fairseq\.compat\.distributed"),
)
# fairseq puts this into PYTHONWARNINGS of its child processes, where it must not count as the user's.
FAIRSEQS = {"ignore:semaphore_tracker:UserWarning"}
# logger -> start of a message to hide: one logged during imports, or one before an error that ends the command
HIDDEN = {
    "fairseq.tasks.text_to_speech": "Please install tensorboardX",  # logged even if no speech is synthesised
    "fairseq.checkpoint_utils": "Traceback (most recent call last)",  # for a checkpoint that cannot be written
    "fairseq.utils": f"--user-dir={PLUGIN_DIR} has already been imported",  # by this command itself
}


def set_up() -> None:
    """Set up logging; must be called before fairseq is imported, since one of its models sets the root level to DEBUG.

    LOGLEVEL works as in fairseq's own commands. With Python's -W or PYTHONWARNINGS, no warning is hidden.
    """
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
    )
    for name in HIDDEN:
        logging.getLogger(name).addFilter(_is_shown)
    if set(sys.warnoptions) <= FAIRSEQS:
        for message, category, module in DEPRECATED:
            warnings.filterwarnings("ignore", message, category, module)


def _is_shown(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(HIDDEN[record.name])
