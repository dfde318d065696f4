"""`leapformer user-dir`: print the plugin's folder, for `fairseq-train --user-dir $(leapformer user-dir) ...`."""

from __future__ import annotations

import argparse

from .. import PLUGIN_DIR

HELP = "the path to give to fairseq's --user-dir"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: there are no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the folder."""
    print(PLUGIN_DIR)
    return 0
