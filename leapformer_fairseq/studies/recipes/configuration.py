"""Configurations of recipes, configs/DATASET/NAME.yaml: settings of the recipe and options for fairseq.

    base: roberta                 values that are missing here come from that file
    epochs: 10                    a setting, the default of `leapformer recipe DATASET --epochs`
    train:                        options of a command; one without a value is a flag
      lr: 5e-4
      share-all-embeddings:

All values are text, as on a command line. In a checkout the files are in configs/, in an installed package next to this
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ...support.errors import LeapformerError

_PACKAGE = Path(__file__).parents[2]
Options = Mapping[str, str]


@cache
def configs() -> Path:
    """The folder of all configurations. Raises LeapformerError if the package was installed without them."""
    for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs"):
        if (folder / "tables.yaml").is_file():
            return folder
    raise LeapformerError(f"no configs in {_PACKAGE} or beside it; install the package again")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of text and mappings."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506  # makes nothing but text
    except yaml.YAMLError as error:
        raise LeapformerError(f"{path} is no YAML: {' '.join(str(error).split())}; mend it") from error
    return found or {}


def names(dataset: str) -> list[str]:
    """The names of the configurations of a data set."""
    return sorted(path.stem for path in (configs() / dataset).glob("*.yaml"))


def load(dataset: str, name: str) -> dict[str, Any]:
    """Settings and options of a configuration, including those of its bases.

    Raises LeapformerError if there is none of that name.
    """
    path = configs() / dataset / f"{name}.yaml"
    if not path.is_file():
        raise LeapformerError(
            f"--paper {name}: there is no configs/{dataset}/{name}.yaml; choose from {', '.join(names(dataset))}"
        )
    return _load(path)


def _load(path: Path) -> dict[str, Any]:
    own = read_yaml(path)
    base = own.pop("base", None)
    return _merged(_load((path.parent / f"{base}.yaml").resolve()), own) if base else own


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Both, where they differ `own`, mappings by their keys."""
    both = {**base, **own}
    for key in base.keys() & own.keys():
        if isinstance(base[key], dict) and isinstance(own[key], dict):
            both[key] = _merged(base[key], own[key])
    return both


def flags(options: Options) -> list[str]:
    """Options as command-line words."""
    return [word for name, value in options.items() for word in (f"--{name}", *([value] if value else []))]
