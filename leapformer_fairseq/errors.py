"""The one exception for what a user can correct: the command line prints it as a single line, without a traceback."""


class LeapformerError(ValueError):
    """A user's value, file or combination of options is wrong.

    The message is one line that names the value, the reason and the remedy.
    """


def one_line(error: LeapformerError) -> str:
    """The message alone: an error from a data loader's worker process comes with its traceback in front."""
    return str(error).strip().splitlines()[-1].rpartition(f"{LeapformerError.__name__}: ")[2]
