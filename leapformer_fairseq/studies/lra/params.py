"""Numbers of parameters, and the mechanism's share of them, for the papers' claims of 0.2 and 1.5 per cent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...data.lra import prepare
from ...scoring.table import NOTHING, Column, Table, page
from .protocols import BASELINE, Options, Protocol, words


@dataclass(frozen=True)
class Count:
    """Numbers of trained parameters: all (`total`), without embeddings (`body`), and of mechanisms."""

    task: str
    row: str
    total: int
    body: int
    mechanism: int

    @property
    def share(self) -> float:
        """The mechanism's parameters as a percentage of all others."""
        return 100 * self.mechanism / (self.total - self.mechanism)

    @property
    def share_of_body(self) -> float:
        """The mechanism's parameters as a percentage of all others except embeddings."""
        return 100 * self.mechanism / (self.body - self.mechanism)


def count(protocol: Protocol, task: str, row: str, quirks: Sequence[str]) -> Count:
    """Count the parameters of a row's model for a task."""
    model = _model(protocol, task, row, quirks)
    sizes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    body = sum(size for name, size in sizes.items() if "embed_" not in name)  # embed_tokens, embed_positions
    return Count(task, row, sum(sizes.values()), body, sum(n for name, n in sizes.items() if ".mechanism." in name))


def counts(protocol: Protocol, tasks: Sequence[str], rows: Sequence[str], quirks: Sequence[str]) -> list[Count]:
    return [count(protocol, task, row, quirks) for row in rows for task in tasks]


def relative(rows: Sequence[Count]) -> dict[tuple[str, str], tuple[float, float]]:
    """Totals and bodies relative to softmax, by row and task, for tasks in which softmax was counted."""
    baseline = {row.task: row for row in rows if row.row == BASELINE}
    return {
        (row.row, row.task): (row.total / baseline[row.task].total, row.body / baseline[row.task].body)
        for row in rows
        if row.task in baseline
    }


def _model(protocol: Protocol, task: str, row: str, quirks: Sequence[str]) -> Any:
    return model_of(protocol.options(task, row, quirks), task, quirks)


def model_of(options: Options, task: str, quirks: Sequence[str] = ()) -> Any:
    """Build the model with these options of `leapformer train`, for the data of a task."""
    from types import SimpleNamespace

    from fairseq import options as fairseq_options
    from fairseq.models import ARCH_MODEL_REGISTRY

    from ... import register

    register()
    parser = fairseq_options.get_training_parser()
    # "-" stands for the data folder, which fairseq requires and building a model does not read.
    args = fairseq_options.parse_args_and_arch(parser, ["-", *words({**options, "task": "leapformer_classification"})])
    about = prepare.TASKS[task].about([name for name in quirks if name in prepare.QUIRKS])
    return ARCH_MODEL_REGISTRY[args.arch].build_model(args, SimpleNamespace(about=about))


def table(rows: Sequence[Count], protocol: Protocol) -> str:
    """A table in Markdown, with a line for each row and task."""
    ratios = relative(rows)
    records = []
    for row in rows:
        total, body = ratios.get((row.row, row.task), (None, None))
        shares = {"share": row.share, "share_of_body": row.share_of_body, "to_total": total, "to_body": body}
        records.append({**asdict(row), "row": protocol.rows[row.row].title, **shares})
    columns = [
        *(Column("row", ""), Column("task"), Column("total", "parameters", ",")),
        *(Column("body", "without embeddings", ","), Column("mechanism", "of the mechanism", ",")),
        *(Column("share", "% of the others", ".2f"), Column("share_of_body", "% without embeddings", ".2f")),
        Column("to_total", "× softmax", ".3f", missing=NOTHING),
        Column("to_body", "× without embeddings", ".3f", missing=NOTHING),
    ]
    return page(Table(records, columns).markdown())


def content(rows: Sequence[Count]) -> list[dict[str, Any]]:
    """The content of the table, for JSON."""
    return [{**asdict(row), "share": round(row.share, 4), "share_of_body": round(row.share_of_body, 4)} for row in rows]
