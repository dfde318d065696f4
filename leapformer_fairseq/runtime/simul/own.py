"""Policies that users bring: files that they name on the command line, and entry points of installed packages.

Only the command line, or a caller's own arguments, name a file; checkpoints and exported folders never do.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...support.declared import Option
from ...support.errors import LeapformerError
from .policy import ENTRY_POINTS, OPTIONS, POLICIES, Draft, Policy, find, is_ours, of_policy, of_user

FLAG = "--policy-file"


def load(file: str) -> None:
    """Run a file that registers policies, or a package, a folder with an `__init__.py`; once in a process.

    Raises LeapformerError if there is none, if it fails, or if it registers nothing.
    """
    path = Path(file)
    place = path / "__init__.py" if path.is_dir() else path
    if not place.is_file():
        raise LeapformerError(f"{FLAG} {file}: no file {place}; give a Python file, or a folder with an __init__.py")
    name = f"leapformer_own_{hashlib.sha256(str(place.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, place, submodule_search_locations=[str(path)] if path.is_dir() else None)
    if spec is None or spec.loader is None:
        raise LeapformerError(f"{FLAG} {file}: this is no Python file; give one that ends in .py")
    module = sys.modules[name] = module_from_spec(spec)  # classes of the file find their module there
    run: Callable[[ModuleType], object] = spec.loader.exec_module
    registries: tuple[dict[str, Any], ...] = (POLICIES, OPTIONS)
    before = [dict(registry) for registry in registries]
    try:
        of_user(lambda: run(module), FLAG, name, str(place))
        if before[0] == POLICIES:
            raise LeapformerError(
                f"{FLAG} {file} registers no policy; write @register(NAME) above its class, or import the file of it"
            )
    except LeapformerError:
        for part in [part for part in sys.modules if f"{part}.".startswith(f"{name}.")]:
            del sys.modules[part]
        for registry, entries in zip(registries, before, strict=True):
            registry.clear()
            registry.update(entries)
        raise


def installed() -> list[str]:
    """The names of the policies that installed packages bring, which `find` loads."""
    return [point.name for point in entry_points(group=ENTRY_POINTS)]


def load_installed() -> dict[str, str]:
    """Load the policies of all installed packages, and return the errors of those that fail, by their names."""
    failed = dict[str, str]()
    for name in installed():
        try:
            find(name)
        except LeapformerError as error:
            failed[name] = str(error)
    return failed


def decide(policy: Policy, draft: Draft) -> None:
    """Let a policy write.

    Raises LeapformerError for whatever one of a user raises, if it computes NaN, and if it returns something.
    """

    def write() -> None:
        with np.errstate(invalid="raise"):  # what compares NaN never writes, and nobody would be told why
            returned: object = policy.write(draft)
        if returned is not None:
            raise LeapformerError(
                f"write returned {returned!r}, which has no effect; call methods of the draft to write, and return None"
            )

    of_policy(type(policy), write)


def digest(files: Sequence[str]) -> str:
    """Their names, and what tells their versions apart; "" without any. Of a folder, all its Python files count."""
    found = hashlib.sha256()
    if not files:
        return ""
    for path in map(Path, files):
        for place in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(place.read_bytes())
    return f"{', '.join(Path(file).name for file in files)}, version {found.hexdigest()[:12]}"


def options(words: Sequence[str]) -> list[Option]:
    """Load the files and entry points that the words of a command name; return the options that ours do not have.

    Raises LeapformerError for files that fail, and for a policy that there is not.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(FLAG, action="append", nargs="?", default=[])
    parser.add_argument("--policy", nargs="?", default="")
    parser.add_argument("--policies", nargs="*", default=[])
    given, _ = parser.parse_known_args([*words])
    for file in filter(None, given.policy_file):
        load(file)
    for name in " ".join([given.policy or "", *given.policies]).split():
        find(name)
    known = {option for policy in POLICIES.values() if is_ours(policy) for option in policy.options}
    found = (option for policy in POLICIES.values() if not is_ours(policy) for option in policy.options)
    return [option for option in dict.fromkeys(found) if option not in known]
