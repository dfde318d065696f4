"""`leapformer average`: average the last or best checkpoints of a training."""

from __future__ import annotations

OPTIONS = """
--inputs DIR!           the --save-dir of a training
--last N:int!           the last N epochs, or else --save-interval-updates
| --best N:int!         the best N of --keep-best-checkpoints
--output FILE!          the checkpoint to write
"""


def run(inputs: str, last: int | None, best: int | None, output: str) -> None:
    """Average the checkpoints and print their names. Raises LeapformerError for too few or incompatible checkpoints."""
    from ..models.averaging import average_checkpoints, best_checkpoints, last_checkpoints, save_checkpoint

    paths = best_checkpoints(inputs, best) if best is not None else last_checkpoints(inputs, last or 0)
    save_checkpoint(average_checkpoints(paths), output)
    print(f"{output}: average of {', '.join(path.name for path in paths)}")
