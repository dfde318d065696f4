"""Load teacher and student into this process, and compare them on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ...criterions.recorder import Recorder
from ...criterions.taught import Predicted
from ...models.teacher import Teacher, load_teacher
from ...modules.alignment import ReplacedBlock, replaced_blocks
from ...modules.capture import attentions_by_block
from ...support.errors import LeapformerError
from ..trainings import parse_options


@dataclass(frozen=True)
class Pair:
    """A teacher and its student, both in eval mode; `args` are the student's training arguments."""

    args: Any
    task: Any
    teacher: Teacher
    student: Any

    @cached_property
    def blocks(self) -> list[ReplacedBlock]:
        """The attention blocks whose mechanisms differ."""
        return replaced_blocks(self.student, self.teacher.model)

    def prefixes(self) -> dict[str, str]:
        """Map the name of each replaced block to the prefix of its parameters' names."""
        places = {id(part): name for name, part in self.student.named_modules()}
        return {block.name: places[id(block.student)] + "." for block in self.blocks}

    def predicted(self, model: Any, batch: Any) -> Predicted:
        """Return a model's predictions for a batch; the teacher's criterion calls the model."""
        recorder = Recorder(model)
        self.teacher.criterion(recorder, batch)
        return Predicted(model, recorder.output)

    def batches(self, sentences: int) -> list[Any]:
        """Return batches of the validation set with at least `sentences` sentences, or all if there are fewer."""
        from fairseq import utils

        subset = self.args.valid_subset.split(",")[0]
        self.task.load_dataset(subset)
        iterator = self.task.get_batch_iterator(
            self.task.dataset(subset),
            max_tokens=self.args.max_tokens_valid and int(self.args.max_tokens_valid),
            max_sentences=self.args.batch_size_valid,
            max_positions=utils.resolve_max_positions(self.task.max_positions(), self.student.max_positions()),
            ignore_invalid_inputs=True,
        )
        batches: list[Any] = []
        count = 0
        for batch in iterator.next_epoch_itr(shuffle=False):
            if count < sentences:
                batches.append(utils.move_to_cuda(batch) if next(self.student.parameters()).is_cuda else batch)
                count += batch["nsentences"]
        return batches


def mechanisms(model: Any) -> dict[str, list[str]]:
    """Map each block of a model to the names of its mechanisms, one per layer."""
    attentions = attentions_by_block(model)
    return {block: [attention.mechanism.name for attention in layers] for block, layers in attentions.items()}


def load_pair(words: Sequence[str], teacher: str, checkpoint: Path | None = None) -> Pair:
    """Load the teacher's checkpoint, and build the student of the training command `words`.

    checkpoint: of the student, to load its parameters from; by default they are freshly initialised.

    Both are on the GPU if there is one and `words` lack --cpu. Raises LeapformerError if the student cannot learn from
    this teacher.
    """
    args = parse_options(words, "--attention, or the options after --")
    from fairseq import checkpoint_utils, tasks

    task = tasks.setup_task(args)
    pair = Pair(args, task, load_teacher(teacher, task), task.build_model(args))
    if checkpoint is not None:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))
        pair.student.load_state_dict(state["model"], strict=True, model_cfg=args)
    pair.student.eval().requires_grad_(False)
    _check(pair)
    if torch.cuda.is_available() and not args.cpu:
        pair.student.cuda(), pair.teacher.model.cuda()
    return pair


def _check(pair: Pair) -> None:
    """Raise LeapformerError for a student that would be trained to predict input that only its teacher sees."""
    teacher, student = pair.teacher.model, pair.student
    if not any("softmax" in names for names in mechanisms(teacher).values()):
        raise LeapformerError("the teacher has no softmax attention; there is nothing to replace, train it as it is")
    student_ks, teacher_ks = (set(getattr(model, "laggings", [None])) for model in (student, teacher))
    if student_ks - teacher_ks:
        raise LeapformerError(
            f"--waitk-lagging of the student: its teacher was not trained with k = {_listed(student_ks - teacher_ks)}, "
            f"only with {_listed(teacher_ks)}, and would teach it what it cannot hear; train such a teacher first"
        )
    chunks = [getattr(getattr(model, "encoder", None), "chunks", None) for model in (student, teacher)]
    if chunks[0] != chunks[1]:
        raise LeapformerError(
            "the encoders of teacher and student read speech in different chunks; train a teacher with the same "
            "--encoder-chunk-ms first"
        )


def _listed(laggings: set[Any]) -> str:
    return ", ".join(sorted("offline" if k is None else str(k) for k in laggings))
