"""How many parameters rows have, and which share is the mechanism's: the papers' claims of 0.2 and 1.5 per cent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from ...data.lra import prepare
from .protocols import BASELINE, Options, Protocol, words


@dataclass(frozen=True)
class Count:
    """Parameters that are trained: all, those that are no embeddings, and those of mechanisms."""

    task: str
    row: str
    total: int
    body: int
    mechanism: int

    @property
    def share(self) -> float:
        """Of the mechanism in all others, in per cent."""
        return 100 * self.mechanism / (self.total - self.mechanism)

    @property
    def share_of_body(self) -> float:
        """Of the mechanism in all others that are no embeddings, in per cent."""
        return 100 * self.mechanism / (self.body - self.mechanism)


def count(protocol: Protocol, task: str, row: str, quirks: Sequence[str]) -> Count:
    """The parameters of the model that this row trains in this task."""
    model = _model(protocol, task, row, quirks)
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    body = sum(size for name, size in sizes.items() if "embed_" not in name)
    return Count(task, row, sum(sizes.values()), body, sum(n for name, n in sizes.items() if ".mechanism." in name))


def counts(protocol: Protocol, tasks: Sequence[str], rows: Sequence[str], quirks: Sequence[str]) -> list[Count]:
    return [count(protocol, task, row, quirks) for row in rows for task in tasks]


def relative(found: Sequence[Count]) -> dict[tuple[str, str], tuple[float, float]]:
    """Totals and bodies over those of softmax, by row and task, where softmax is among the counts."""
    baseline = {one.task: one for one in found if one.row == BASELINE}
    return {
        (one.row, one.task): (one.total / baseline[one.task].total, one.body / baseline[one.task].body)
        for one in found
        if one.task in baseline
    }


def _model(protocol: Protocol, task: str, row: str, quirks: Sequence[str]) -> Any:
    return model_of(protocol.options(task, row, quirks), task, quirks)


def model_of(options: Options, task: str, quirks: Sequence[str] = ()) -> Any:
    """The model with these options of `leapformer train`, for the data of a task."""
    from types import SimpleNamespace

    from fairseq import options as fairseq_options
    from fairseq.models import ARCH_MODEL_REGISTRY

    from ... import register

    register()
    parser = fairseq_options.get_training_parser()
    args = fairseq_options.parse_args_and_arch(parser, ["-", *words({**options, "task": "leapformer_classification"})])
    about = prepare.TASKS[task].about([name for name in quirks if name in prepare.QUIRKS])
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, SimpleNamespace(about=about))


def table(found: Sequence[Count], protocol: Protocol) -> str:
    """Markdown: a line for each row and task."""
    over = relative(found)
    lines = []
    for one in found:
        line = [protocol.rows[one.row].title, one.task, f"{one.total:,}", f"{one.body:,}", f"{one.mechanism:,}"]
        line += [f"{one.share:.2f}", f"{one.share_of_body:.2f}"]
        line += [f"{ratio:.3f}" for ratio in over.get((one.row, one.task), ())] or ["–", "–"]
        lines.append(line)
    headers = ["", "task", "parameters", "without embeddings", "of the mechanism", "% of the others"]
    headers += ["% without embeddings", "× softmax", "× without embeddings"]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True) + "\n"


def content(found: Sequence[Count]) -> list[dict[str, Any]]:
    """The same for a machine."""
    return [
        {**asdict(one), "share": round(one.share, 4), "share_of_body": round(one.share_of_body, 4)} for one in found
    ]
