"""`leapformer ablate`: which attention blocks can be linear, one at a time. The costs are ranked, and a plan is
recommended.
"""

from __future__ import annotations

import logging
import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from ..support import user_dir
from . import calls

if TYPE_CHECKING:
    from ..studies.ablation.study import Study

USAGE = "leapformer ablate --out DIR [OPTIONS] -- train DATA --arch leapformer_... --max-epoch N ..."

KEPT = "everything is kept, the same command resumes"


OPTIONS = f"""
--out DIR!              runs and results; the same command resumes there
--baseline PLAN = softmax  of all blocks
--mechanisms NAME... = leap relu cosformer  what is tried in each block; `leapformer list` shows all (default: leap relu
                        cosformer)
--blocks BLOCK...       encoder-self, decoder-self, decoder-cross (default: those that the model has)
--layer-groups N:int = 1  cut the layers of each block into N groups, replaced one at a time (default: 1, all at once)
--tolerance X:float = 0.01  how much larger than the baseline's a loss may be, as a part of it (default: 0.01, one per
                        cent)
--speed-weight X:float = 0  let log(training speed / baseline's) count X times against the relative loss (default: 0,
                        quality alone)
--jobs N:int = 1        replacements trained at once, one thread each if more than one
{calls.study_options("trainings")}
command train...        after --: a training as for `leapformer train`, with a budget
"""


def run(args: Namespace) -> int:
    """Train, rank and recommend; the status is 1 if a run failed.

    Raises LeapformerError for unsuitable options and commands, and if the baseline's training fails.
    """
    logging.disable(logging.INFO)  # fairseq, hydra and matplotlib would interrupt the progress bar
    try:
        return _ablate(args)
    finally:
        logging.disable(logging.NOTSET)


def _ablate(args: Namespace) -> int:
    from ..studies import trainings
    from ..studies.ablation import report
    from ..studies.ablation.running import NOUN, Ablation
    from ..studies.ablation.study import Settings, plan_study
    from ..studies.engine import State, planned
    from ..studies.training_command import read_training

    settings = Settings(
        baseline=args.baseline,
        mechanisms=tuple(args.mechanisms),
        blocks=tuple(args.blocks) if args.blocks else None,
        layer_groups=args.layer_groups,
        tolerance=args.tolerance,
        speed_weight=args.speed_weight,
        jobs=args.jobs,
    )
    training = read_training(args.command)
    trainings.check_folder(Path(args.out), training.identity, NOUN)
    ablation = Ablation(plan_study(Path(args.out), training, settings))
    if args.dry_run:
        state = State()
        planned(ablation, state, args.only, dry=True)
        _show(ablation.seen(state))
        return 0
    state, status = calls.run_study(ablation, args, "ablation", "run", kept=KEPT)
    if status != calls.INTERRUPTED:
        study = ablation.seen(state)
        print(report.table(study))
        print("\n".join([*report.outcome(study), report.SPEED_NOTE]))
    return status


def _show(study: Study) -> None:
    """Print the trainings to do, with their commands."""
    from ..studies.ablation.report import outcome
    from ..studies.ablation.search import plan_text
    from ..studies.ablation.study import TO_DO, TRAINED

    states = [run.status for run in study.runs]
    print(
        f"{states.count(TO_DO)} runs to train, {states.count(TRAINED)} trained before; "
        "one more at the end, or some, unless the recommended plan is one of these:"
    )
    for run in study.runs:
        if run.status == TO_DO:
            print(f"\n# {plan_text(run.plan)}\n{shlex.join([*study.command(run), *user_dir.option()])}")
    for sentence in outcome(study):
        print(f"\n{sentence}")
