"""Linear attention for sequence generation, as a plugin (`--user-dir`) for fairseq.

Importing this package changes nothing and imports neither torch nor fairseq. `register` patches fairseq for today's
Python, PyTorch and numpy (`compat`) and registers our models, criterions, tasks and optimizers with it; fairseq's
`--user-dir` does the same; the `leapformer` command, `load_model` and the SimulEval agent call it.
`leapformer_fairseq.attention` is pure PyTorch.
"""

from pathlib import Path

__version__ = "0.1.0"

PLUGIN_DIR = Path(__file__).absolute().parent  # what fairseq wants as --user-dir


def register() -> None:
    """Patch fairseq where it is defective and register what is ours with it; a second call does nothing.

    Needed before a checkpoint is loaded with fairseq's own functions; `import fairseq, leapformer_fairseq` alone does
    not do it. Several threads may call it at once.
    """
    from .compat.register import register

    register()
