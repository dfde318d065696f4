"""Configurations of recipes, configs/DATASET/NAME.yaml: settings of the recipe and options for fairseq.

    base: roberta                 another file, for what is missing here
    epochs: 10                    a setting, the default of `leapformer recipe DATASET --epochs`
    train:                        options of a command; one without a value is a flag
      lr: 5e-4
      share-all-embeddings:

All values are text, as on a command line. The files are in configs/ of a checkout, or of the installed package.
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
    """Read a YAML file whose values are text, lists and mappings. Raises LeapformerError if it is damaged."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506  # creates text only
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise LeapformerError(f"{path} is not valid YAML: {' '.join(str(error).split())}; correct it") from error
    return content or {}


def names(dataset: str) -> list[str]:
    """The names of the configurations of a data set."""
    return sorted(path.stem for path in (configs() / dataset).glob("*.yaml"))


def load(dataset: str, name: str) -> dict[str, Any]:
    """Read the settings and options of a configuration, including those of its bases.

    Raises LeapformerError if there is no such configuration.
    """
    path = configs() / dataset / f"{name}.yaml"
    if not path.is_file():
        raise LeapformerError(
            f"--paper {name}: there is no configs/{dataset}/{name}.yaml; choose from {', '.join(names(dataset))}"
        )
    return _load(path)


def _load(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    base = content.pop("base", None)
    return _merge(_load((path.parent / f"{base}.yaml").resolve()), content) if base else content


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The values of `base`, overridden by `changes`; mappings are merged key by key."""
    merged = {**base, **changes}
    for key in base.keys() & changes.keys():
        if isinstance(base[key], dict) and isinstance(changes[key], dict):
            merged[key] = _merge(base[key], changes[key])
    return merged


def flags(options: Options) -> list[str]:
    """Options as command-line words."""
    return [word for name, value in options.items() for word in (f"--{name}", *([value] if value else []))]
