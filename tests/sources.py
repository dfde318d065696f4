"""What a distribution is built from, copied: pip builds in place, and leaves its folders in the checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

from leapformer_fairseq import PLUGIN_DIR

ROOT = PLUGIN_DIR.parent


def copied_sources(folder: Path) -> Path:
    """The folder, with copies of the files from which the wheel and the source distribution are built."""
    for name in ("setup.py", "pyproject.toml", "README.md", PLUGIN_DIR.name, "configs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder
