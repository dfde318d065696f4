"""`leapformer stream`: translate a recording or standard input live in the terminal."""

from argparse import Namespace

from ..runtime.commands import stream
from ..runtime.commands.stream import OPTIONS as OPTIONS
from ..runtime.commands.stream import more_options as more_options
from ..simul.live import load_sessions


def run(args: Namespace) -> int:
    """Translate a recording or standard input with an exported model or a checkpoint."""
    return stream.run(args, load_sessions)
