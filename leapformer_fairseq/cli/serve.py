"""`leapformer serve`: translate live on a page in the browser."""

from argparse import Namespace

from ..runtime.commands import serve
from ..runtime.commands.serve import OPTIONS as OPTIONS
from ..runtime.commands.serve import more_options as more_options
from ..simul.live import load_sessions, prepare_thread


def run(args: Namespace) -> int:
    """Serve an exported model or a checkpoint until Ctrl-C or SIGTERM."""
    return serve.run(args, load_sessions, prepare_thread(args))
