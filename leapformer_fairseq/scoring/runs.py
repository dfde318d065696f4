"""Collects the scored runs of a recipe, averages them over seeds and compares them.

A run is FOLDER/RUN with a file `options` that begins with --attention, and FOLDER/RUN/SET/scores.json from `leapformer
score --json`. Runs that differ only in their seed form one row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..support.errors import LeapformerError
from ..support.files import read_json
from .table import Column, Table, differences, spread

BASELINE = "softmax"
SMALLER_IS_BETTER = ("perplexity", "bits", "loss", "L1", "MSE", "end")
# Runs are compared by the first of these scores that they have.
MEASURES = ("BLEU", "chrF", "accuracy", "perplexity", "bits", "loss", "L1", "MSE", "end")
_FORMATS = {"BLEU": ".2f", "perplexity": ".2f", **dict.fromkeys(("bits", "loss", "L1", "MSE", "end"), ".3f")}

Row = dict[str, Any]


def collect_runs(folder: str | Path, tables: Sequence[str | Path] = ()) -> list[dict[str, Any]]:
    """Collect the scored runs in a folder, and from table.json files of other folders the runs that it lacks.

    Raises LeapformerError if there are none, or if scores are damaged.
    """
    folder, runs = Path(folder), list[dict[str, Any]]()
    for path in sorted(folder.glob("*/*/scores.json")):
        run, test_set = path.parent.parent, path.parent
        options = " ".join(_read(place / "options") for place in (run, test_set)).strip()
        named = re.match(r"--attention (\S+)(?: --seed (\d+))?", options)
        if named is None:
            continue  # another recipe's run
        scores = read_json(path, ("scores", "signatures", "n_instances"), "score this run again")
        runs.append(
            {
                "run": run.name,
                "set": test_set.name,
                "attention": named[1],
                "seed": int(named[2] or 1),
                "options": re.sub(r"--attention \S+ ?(?:--seed \d+ ?)?", "", options, count=1),
                "scores": scores["scores"],
                "size": scores["n_instances"],
                "signatures": scores["signatures"],
                "model": scores.get("model") or {},
            }
        )
    for table in tables:
        identities = {_identity(run) for run in runs}
        more = read_json(Path(table), ("runs",), "give the table.json that `leapformer table` wrote")["runs"]
        runs += [run for run in more if _identity(run) not in identities]
    if not runs:
        raise LeapformerError(f"{folder} holds no scored runs; give the --out folder of a text recipe")
    return runs


def _identity(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(run[name] for name in ("attention", "seed", "options", "set"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def compare(runs: Sequence[Mapping[str, Any]], order: Sequence[str] = ()) -> list[Row]:
    """A row for every attention, options and test set: mean, minimum and maximum of each score over the seeds.

    Rows follow the `order` of attentions, others come last. "difference" is the mean of the main score minus that of
    the softmax row with the same options and test set.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["set"], run["options"], run["attention"]), []).append(run)
    rows = [_row(*key, group) for key, group in groups.items()]
    to_baseline = differences(
        rows,
        lambda row: row["scores"][row["measure"]],
        lambda row: row["attention"] == BASELINE,
        lambda row: (row["set"], row["options"]),
    )
    for row, difference in zip(rows, to_baseline, strict=True):
        row["difference"] = difference
    places = {name: place for place, name in enumerate(order)}
    return sorted(
        rows, key=lambda row: (row["set"], places.get(row["attention"], len(places)), _by_number(row["options"]))
    )


def _by_number(text: str) -> list[str | float]:
    """Sort key of a text, in which 2 comes before 10, and 0.01 after 1e-3."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]


def _row(test_set: str, options: str, attention: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    runs = sorted(runs, key=lambda run: run["seed"])
    names = [name for name in MEASURES if all(name in run["scores"] for run in runs)]  # a mean needs every seed
    if not names:
        raise LeapformerError(
            f"{runs[0]['run']}/{test_set} has none of the scores {', '.join(MEASURES)}; score it again"
        )
    losses = spread(run["model"].get("valid_loss") for run in runs)
    return {
        "set": test_set,
        "attention": attention,
        "options": options,
        "seeds": [run["seed"] for run in runs],
        "measure": names[0],
        "scores": {name: spread(run["scores"][name] for run in runs) for name in names},
        "epochs": [run["model"].get("epoch") for run in runs],
        "parameters": runs[0]["model"].get("parameters"),
        "valid_loss": losses and losses["mean"],
    }


def check_order(runs: Sequence[Mapping[str, Any]], expected: Sequence[str]) -> dict[str, Any]:
    """Check whether the attentions in `expected` rank from best to worst, in the mean and for every seed they share.

    "held" is None if an attention has no run, or runs with different options, which cannot be averaged. Raises
    LeapformerError for fewer than two names.
    """
    if len(expected) < 2:
        raise LeapformerError(f"--expect {' '.join(expected)}: give at least two attentions, from best to worst")
    all_rows = compare(runs)
    rows_of = {name: [row for row in all_rows if row["attention"] == name] for name in expected}
    missing = [name for name, rows in rows_of.items() if len(rows) != 1]
    measure = next((rows[0]["measure"] for rows in rows_of.values() if rows), all_rows[0]["measure"])
    means = {name: rows[0]["scores"][measure]["mean"] for name, rows in rows_of.items() if rows}
    shared = sorted(set.intersection(*(set(rows[0]["seeds"]) if rows else set() for rows in rows_of.values())))
    by_seed = {(run["attention"], run["seed"]): run["scores"].get(measure) for run in runs}
    return {
        "expected": list(expected),
        "measure": measure,
        "held": None if missing else _worsens(list(means.values()), measure),
        "missing": missing,
        "means": means,
        "seeds": {seed: _worsens([by_seed[name, seed] for name in expected], measure) for seed in shared},
    }


def _worsens(values: Sequence[float], measure: str) -> bool:
    """Whether each value is worse than the one before it."""
    sign = 1 if measure in SMALLER_IS_BETTER else -1
    return all(sign * before < sign * after for before, after in zip(values, values[1:], strict=False))


def order_sentence(check: Mapping[str, Any]) -> str:
    """Describe the outcome of `check_order` in a sentence."""
    sign = " < " if check["measure"] in SMALLER_IS_BETTER else " > "
    expected = f"{sign.join(check['expected'])} in {check['measure']}"
    if check["missing"]:
        return f"Expected: {expected}. Not known: no run, or several different ones, of {', '.join(check['missing'])}."
    means = ", ".join(f"{name} {mean:{_form(check['measure'])}}" for name, mean in check["means"].items())
    seeds = f"; it held for {sum(check['seeds'].values())} of {len(check['seeds'])} seeds" if check["seeds"] else ""
    return f"Expected: {expected}. This {'held' if check['held'] else 'did not hold'} in the mean ({means}){seeds}."


def runs_table(rows: Sequence[Row]) -> Table:
    """The table of the rows of `compare`: scores with their range over seeds, and the difference from softmax."""
    names = [name for name in MEASURES if any(name in row["scores"] for row in rows)]
    sets = [Column("set")] if len({row["set"] for row in rows}) > 1 else []
    shared = set.intersection(*(set(_options(row)) for row in rows))
    differing = Column("options", of=lambda row: " ".join(word for word in _options(row) if word not in shared))
    varied = [differing] if len({(row["set"], row["attention"]) for row in rows}) < len(rows) else []
    columns = [*sets, Column("attention"), *varied, Column("seeds")]
    columns += [Column(f"scores.{name}", name, _form(name)) for name in names]
    differences = Column(
        "difference",
        f"to {BASELINE}",
        of=lambda row: None if row["difference"] is None else f"{row['difference']:+{_form(row['measure'])}}",
    )
    columns += [differences, Column("valid_loss", "valid loss", ".3f"), Column("epochs", "best epoch")]
    return Table(rows, [*columns, Column("parameters", form=",")])


def _options(row: Mapping[str, Any]) -> list[str]:
    """The options of a row's runs, each with its value."""
    return re.split(r" (?=--)", row["options"])


def _form(measure: str) -> str:
    return _FORMATS.get(measure, ".1f")
