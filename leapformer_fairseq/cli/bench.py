"""`leapformer bench`: measurements; `leapformer bench attention` compares attention mechanisms with torch's softmax."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import LeapformerError

HELP = "speed and memory of attention mechanisms by sequence length"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-command per measurement."""
    actions = parser.add_subparsers(metavar="WHAT", required=True)
    text = "every form of every attention mechanism against torch's scaled dot-product attention"
    attention = actions.add_parser("attention", help=text, description=text)
    attention.add_argument("--out", metavar="DIR", default="bench", help="for attention.json and .md (default: bench)")
    attention.add_argument("--quick", action="store_true", help="short sequences only, in less than a minute")
    attention.add_argument("--mechanisms", nargs="+", metavar="NAME", help="default: all but softmax")
    attention.add_argument("--device", nargs="+", metavar="DEVICE", help="default: cpu, and cuda where there is a GPU")
    attention.add_argument("--seed", type=int, default=1, help="of the random inputs (default: 1)")
    attention.set_defaults(measure=_attention)


def run(args: argparse.Namespace) -> int:
    """Measure; the status is 1 when something was wrong and is missing from the results."""
    return args.measure(args)


def _attention(args: argparse.Namespace) -> int:
    from ..benchmarks import attention, tables

    names, devices = attention.check_names(args.mechanisms), attention.check_devices(args.device)
    wrong = {name: error for name in names if (error := attention.disagreement(name))}
    for name, error in wrong.items():
        print(f"leapformer: error: {name} is not measured: {error}", file=sys.stderr)
    names = [name for name in names if name not in wrong]
    if names:
        folder = _made(args.out)
        found = attention.run(names, devices, args.quick, args.seed)
        _write(folder, found, {"seed": args.seed, "quick": args.quick, "devices": "+".join(devices)})
        for title, table in tables.summary(found):
            print(f"{title}\n{table}\n")
        print("\n".join(f"aim missed: {line}" for line in tables.missed(found)) or "No aim measured here is missed.")
    return 1 if wrong else 0


def _made(path: str) -> Path:
    """The folder for the results, before minutes are spent on them."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeapformerError(f"--out {path} cannot be made: {error.strerror}; choose another folder") from error
    return folder


def _write(folder: Path, found: dict[str, list[dict[str, Any]]], options: dict[str, Any]) -> None:
    """attention.json and attention.md in `folder`."""
    from ..benchmarks import attention, measure, tables
    from ..signature import environment, signature

    method = attention.__doc__ or ""
    with measure.one_thread():  # as it was measured
        about = {"signature": signature(**options), "environment": environment(), "options": options, "method": method}
    (folder / "attention.json").write_text(json.dumps({**about, **found}, indent=2) + "\n", encoding="utf-8")
    (folder / "attention.md").write_text(tables.markdown(found, method, about["signature"]), encoding="utf-8")
