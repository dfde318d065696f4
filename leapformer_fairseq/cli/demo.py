"""`leapformer demo`, which is `runtime.commands.demo`."""

from ..runtime.commands.demo import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
