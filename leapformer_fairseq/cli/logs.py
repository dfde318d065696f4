"""Logging of `leapformer train` and fairseq's other commands: as in fairseq, without messages users cannot act on."""

from __future__ import annotations

import logging
import os
import sys
import warnings

from .. import PLUGIN_DIR

# Beginning of the message, category, module that is named: fairseq 0.12 calls its libraries in ways they deprecate.
DEPRECATED = (
    (r"hydra\.experimental\.\w+\(\) is no longer experimental", UserWarning, r"hydra\.experimental\."),
    (r"\nThe version_base parameter is not specified", UserWarning, r"hydra\.experimental\."),
    (r"In 'config': Usage of deprecated keyword in package header", UserWarning, r"hydra\.core\.default_element"),
    (r"\n'config' is validated against ConfigStore schema", UserWarning, ""),  # named is whoever called fairseq
    (r"\nThe strict flag in the compose API is deprecated", UserWarning, r"hydra\.compose"),
    (r"'pin_memory' argument is set as true but no accelerator", UserWarning, r"torch\.utils\.data\.dataloader"),
    (r"`torch\.cuda\.amp\.autocast", FutureWarning, r"fairseq\."),
    (r"`broadcast_buffers` is deprecated", FutureWarning, r"leapformer_fairseq\.compat\.distributed"),
)
FAIRSEQS = {"ignore:semaphore_tracker:UserWarning"}  # which it leaves in the environment of what a process starts later
# logger -> beginning of what it logs while it is imported, or before an error that ends the command
KNOWN = {
    "fairseq.tasks.text_to_speech": "Please install tensorboardX",  # also where no speech is synthesised
    "fairseq.checkpoint_utils": "Traceback (most recent call last)",  # of a checkpoint that cannot be written
    "fairseq.utils": f"--user-dir={PLUGIN_DIR} has already been imported",  # by this command
}


def set_up() -> None:
    """Set up logging. Call this before fairseq is imported: one of its models sets the level of all libraries to DEBUG.

    LOGLEVEL works as in fairseq's own commands. If Python's -W or PYTHONWARNINGS is given, no warning is hidden.
    """
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
    )
    for name in KNOWN:
        logging.getLogger(name).addFilter(_is_news)
    if set(sys.warnoptions) <= FAIRSEQS:
        for message, category, module in DEPRECATED:
            warnings.filterwarnings("ignore", message, category, module)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(KNOWN[record.name])
