"""`leapformer sentence-ends`: train a network that cuts speech without pauses into sentences."""

from __future__ import annotations

from pathlib import Path

from ..support.files import make_folder
from ..support.progress import progress
from ..support.signature import signature

OPTIONS = """
--train TSV!            manifest of recordings of single sentences, e.g. train_st.tsv
--valid TSV!            manifest of others, to choose the threshold, e.g. dev_st.tsv
--out FILE:path!        the trained network, such as sentence_ends.npz; the same command resumes an interrupted training
--updates N:int = 1500  updates, each of 16 samples of 12 s
--ahead-ms MS:int = 320  audio of the next sentence that is heard before an end is reported; less is quicker but finds
                        fewer
--units N:int = 96      width of the network
--lr LR:float = 0.002   highest learning rate
--seed N:int = 1
--num-threads N:int = 1  of the CPU
"""


def run(
    train: str, valid: str, out: Path, updates: int, ahead_ms: int, units: int, lr: float, seed: int, num_threads: int
) -> None:
    """Train, write the file, and print its accuracy. Raises LeapformerError for unsuitable data."""
    from .. import register
    from ..simul import sentence_training
    from ..simul.live import set_threads
    from ..simul.sentence_training import Counts, Recordings, Settings

    register()
    settings = Settings(updates, ahead_ms, units, lr, seed)
    set_threads(num_threads)
    training, held_out = Recordings(train), Recordings(valid)
    make_folder(out.parent)
    checkpoint = out.with_name(f".{out.name}.training")
    with progress("sentence ends", "update") as watch:
        model = sentence_training.train(training, held_out, settings, signature(seed=seed), watch, checkpoint)
    model.save(out)
    checkpoint.unlink(missing_ok=True)
    counts = Counts(**model.about["found"])
    off = counts.off_ms / max(1, counts.right)
    print(
        f"{out}: finds {counts.right} of {counts.right + counts.missed} ends, {off:.0f} ms off on average, and "
        f"{counts.wrong} where none is (F1 {counts.f1:.3f}, threshold {model.threshold:g}); use it with "
        f"--sentence-ends {out}"
    )
