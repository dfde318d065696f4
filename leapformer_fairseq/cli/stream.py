"""`leapformer stream`: as `runtime.commands.stream`, also with checkpoints."""

from argparse import Namespace

from ..runtime.commands import stream
from ..runtime.commands.stream import HELP, add_arguments
from ..simul.live import load_sessions

__all__ = ["HELP", "add_arguments", "run"]


def run(args: Namespace) -> int:
    """Translate a recording or standard input with an exported model or a checkpoint."""
    return stream.run(args, load_sessions)
