"""`leapformer linearize`: turn a trained softmax model into a linear one. Its blocks are aligned, chosen and
distilled.
"""

from __future__ import annotations

import logging
import shlex
from argparse import Namespace
from typing import Any

from ..support.options import at_least
from . import calls, logs

USAGE = "leapformer linearize --path CHECKPOINT --attention PLAN --out DIR [OPTIONS] [-- OPTIONS OF fairseq-train]"
OPTIONS = f"""
--path FILE:path!       the teacher: a checkpoint with softmax attention
--attention PLAN!       the student's attention: a mechanism or plan for all blocks, or ENCODER/DECODER/CROSS; options
                        after colons
--out DIR:path!         stages and results; the same command resumes
--data DIR:path         the data (default: as in the teacher's training)
--keep N:int = 0        blocks that stay softmax (default: 0)
| --max-distance X:float  keep as few softmax blocks as bring the distance to the teacher, before distillation, to X: KL
                        in nats
--align-updates N:int   updates that align every replaced block by itself (default: a twentieth of the teacher's)
--distill-updates N:int  updates on the teacher's predictions (default: a sixth of the teacher's)
--task-updates N:int = 0  updates on the data alone, at the end
--align-rate LR:float = 0.001  its highest learning rate
--distill-rate LR:float = 0.0015  its highest learning rate
--task-rate LR:float = 3e-05  its highest learning rate
--distillation-weight A:float = 0.7  weight of the teacher's predictions; that of the data is 1 - A
--align-weights X:float = 0.1  weight of the error of attention weights; needs quadratic memory unless 0
--sentences N:int = 1000  validation sentences for the choice
--launcher (local|torchrun|slurm) = local  of trainings; each process takes a batch of the teacher's size
--processes N:int = 1   with torchrun or slurm: processes on each machine
--machines N:int = 1    with slurm: machines
--slurm-options TEXT =  more options for srun, e.g. "--gpus-per-node 8"
--restarts N:int = 0    how often a training that dies goes on by itself from its last checkpoint
{calls.study_options("stages")}
train_options [OPTION...]  after --: more options for fairseq-train, for all stages
"""


def run(args: Namespace) -> int:
    """Align, select, distil and report. Raises LeapformerError for an unsuitable teacher or plan."""
    logging.disable(logging.INFO)  # fairseq's, in this process; trainings have their own
    logs.set_up()
    try:
        return _linearize(args)
    finally:
        logging.disable(logging.NOTSET)


def _linearize(args: Namespace) -> int:
    from ..studies.launching import Launcher
    from ..studies.linearize.stages import CHECKPOINT, Linearize, Settings
    from ..studies.recipes.plans import Attention

    at_least(0, restarts=args.restarts)
    at_least(1, processes=args.processes, machines=args.machines)
    slurm = shlex.split(args.slurm_options)
    launcher = Launcher(args.launcher, args.processes, args.machines, slurm, args.restarts).checked()
    options: dict[str, Any] = {name: value for name, value in vars(args).items() if name in Settings.__annotations__}
    options["attention"] = Attention(args.attention)
    study = Linearize(Settings(**options), calls.say)
    state, status = calls.run_study(study, args, launcher=launcher)
    folder = study.folder(state)
    if not args.dry_run and folder in state.results:
        tables = f"; {args.out}/table.md, table.json, linearize.svg" if study.lines else ""
        calls.say("\n".join([f"done: {args.out}/{folder}/{CHECKPOINT}{tables}", *study.lines]))
    return status
