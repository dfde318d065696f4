"""The layers of the package, read off its import statements, and what must work without fairseq."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR, __version__

PACKAGE = PLUGIN_DIR.name
# below every layer but attention, which may use errors only
BASE = {
    "errors",
    "acoustics",
    "audio",
    "compat",
    "checkpoints",
    "fairseq_errors",
    "files",
    "loading",
    "progress",
    "signature",
    "synthesis",
    "trainings",
}
LAYERS = [
    {"attention"},
    {"lengths"},
    {"modules"},
    {"models"},
    {"criterions", "data", "optimizers", "pictures", "scoring"},
    {"tasks"},
    {"ablation", "agents", "lra", "sparsefinder"},
    {"benchmarks"},
    {"cli"},
]  # lowest first
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names} | dict.fromkeys(BASE, -1)
SOURCES = sorted(PLUGIN_DIR.rglob("*.py"))


def imported(tree: ast.AST, file: Path) -> set[str]:
    """Absolute dotted names of everything imported anywhere in a file of the package."""
    parts = (PACKAGE, *file.relative_to(PLUGIN_DIR).parent.parts)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = parts[: len(parts) - node.level + 1] if node.level else ()
            module = ".".join((*origin, *filter(None, [node.module])))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def violations(source: str, file: Path) -> list[str]:
    """What `file` imports against the rule."""
    here = file.relative_to(PLUGIN_DIR).parts[0].removesuffix(".py")
    wrong = []
    for name in sorted(imported(ast.parse(source), file)):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if top != PACKAGE:
            allowed = here != "attention" or top == "torch" or top in sys.stdlib_module_names
        elif here == "attention":
            allowed = target in {"attention", "errors"}
        elif here == "__init__":
            allowed = True  # it registers everything
        else:
            in_root = target in {"PLUGIN_DIR", "__version__", "register"}
            allowed = in_root or target == here or LEVEL.get(target, -1) < LEVEL[here] or {target, here} <= BASE
        if not allowed:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(PLUGIN_DIR)))
def test_layers(file):
    assert violations(file.read_text(encoding="utf-8"), file) == []


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("attention/a.py", "import fairseq"),
        ("attention/a.py", "import numpy"),
        ("attention/a.py", "from ..audio import fbank"),
        ("attention/a.py", "from ..modules.b import c"),
        ("modules/a.py", "from .. import models"),
        ("models/a.py", "def f():\n    from ..tasks.b import c"),
        ("agents/a.py", "from ..cli.main import main"),
        ("audio.py", "from .attention import build"),
    ],
)
def test_rule_refuses(file, statement):
    assert violations(statement, PLUGIN_DIR / file)


def test_every_module_has_a_layer():
    assert {file.relative_to(PLUGIN_DIR).parts[0].removesuffix(".py") for file in SOURCES} <= {*LEVEL, "__init__"}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(PLUGIN_DIR)))
def test_imports_within_the_package_are_relative(file):
    """Under another absolute name the plugin would be imported twice."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        absolute = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            absolute = [node.module or ""]
        assert not any(name.split(".")[0] == PACKAGE for name in absolute)


def test_attention_works_without_fairseq():
    code = """
import sys

class NoFairseq:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            raise ModuleNotFoundError(f"blocked: {name}")

sys.meta_path.insert(0, NoFairseq())
from leapformer_fairseq.attention import MECHANISMS
assert MECHANISMS and "fairseq" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_setup_reads_the_version():
    root = PLUGIN_DIR.parent
    if not (root / "setup.py").is_file():
        pytest.skip("the installed package has no setup.py beside it")
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split()[-1] == __version__
