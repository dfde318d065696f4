"""`leapformer serve`: as `runtime.commands.serve`, also with checkpoints."""

from argparse import Namespace

from ..runtime.commands import serve
from ..runtime.commands.serve import HELP, add_arguments
from ..simul.live import load_sessions, prepare_thread

__all__ = ["HELP", "add_arguments", "run"]


def run(args: Namespace) -> int:
    """Serve an exported model or a checkpoint until Ctrl-C or SIGTERM."""
    return serve.run(args, load_sessions, prepare_thread(args))
