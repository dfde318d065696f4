"""The floors of the package, read off its import statements, and what must work without fairseq, or PyTorch."""

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR, __version__

from .fresh import run_after
from .sources import copied_sources

PACKAGE = PLUGIN_DIR.name
# Lowest first, as docs/floors.svg draws them; a room imports only from lower floors, and attention of support only the
# errors and what options are.
FLOORS = (
    ("support",), ("attention", "runtime", "optim"), ("compat", "data"), ("modules",), ("models",),
    ("scoring", "simul", "criterions", "tasks"), ("export", "agents"), ("studies",), ("cli",),
)  # fmt: skip
# What an installation without extras has, and packages that are imported where something optional needs them.
BASE = {"numpy", "onnxruntime", "soundfile", "sentencepiece", "websockets"}
LIBRARIES = {
    "support": {"tqdm"},
    "attention": {"torch"},
    "runtime": {*BASE, "ctranslate2", "onnx", "sacremoses", "soxr", "subword_nmt"},
}
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
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
            allowed = here not in LIBRARIES or top in LIBRARIES[here] or top in sys.stdlib_module_names
        elif here == "attention" and target == "support":
            allowed = rest.startswith(("support.errors.", "support.declared."))
        elif here == "__init__":
            allowed = target == "compat"  # whose `register` imports the rest by name
        else:
            in_root = target in {"PLUGIN_DIR", "__version__", "register"}
            allowed = in_root or target == here or LEVEL[target] < LEVEL[here]
        if not allowed:
            wrong.append(name)
    return wrong


def test_layers():
    found = {str(file.relative_to(PLUGIN_DIR)): violations(file.read_text(encoding="utf-8"), file) for file in SOURCES}
    assert len(found) > 300 and {file: names for file, names in found.items() if names} == {}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The groups of files that import each other in a circle."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        numbers[file] = lowest[file] = len(numbers)
        path.append(file)
        for other in imports[file]:
            if other not in numbers:
                visit(other)
                lowest[file] = min(lowest[file], lowest[other])
            elif other in path:
                lowest[file] = min(lowest[file], numbers[other])
        if lowest[file] == numbers[file]:
            group = path[path.index(file) :]
            del path[path.index(file) :]
            if len(group) > 1:
                found.append(sorted(group))

    for file in imports:
        if file not in numbers:
            visit(file)
    return found


def test_no_files_import_each_other_in_a_circle():
    """Imports inside of functions and for types alone count, too."""
    names = {".".join((PACKAGE, *file.relative_to(PLUGIN_DIR).with_suffix("").parts)): file for file in SOURCES}
    names = {name.removesuffix(".__init__"): file for name, file in names.items()}
    imports = {}
    for name, file in names.items():
        targets = set()
        for target in imported(ast.parse(file.read_text(encoding="utf-8")), file):
            while target and target not in names:
                target = target.rpartition(".")[0]
            targets |= {target} - {"", name, PACKAGE}
        imports[name] = targets
    assert len(imports) > 300 and circles(imports) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("attention/a.py", "import fairseq"),
        ("attention/a.py", "import numpy"),
        ("support/a.py", "import numpy"),
        ("runtime/a.py", "def f():\n    from torch.cuda import synchronize"),
        ("runtime/a.py", "import yaml"),
        ("runtime/a.py", "import kaldi_native_fbank"),
        ("attention/a.py", "from ..runtime.audio import fbank"),
        ("attention/a.py", "from ..modules.b import c"),
        ("modules/a.py", "from .. import models"),
        ("models/a.py", "def f():\n    from ..tasks.b import c"),
        ("attention/a.py", "from ..support.files import owned"),
        ("simul/a.py", "from ..cli.main import main"),
        ("support/a.py", "from ..attention import build"),
        ("runtime/engine.py", "from ..simul.engine import Engine"),
        ("runtime/__main__.py", "from ..cli.main import main"),
        ("data/a.py", "from ..models import task"),
        ("runtime/a.py", "def f():\n    from ..attention import build"),
        ("simul/a.py", "from ..scoring.quality import score"),
    ],
)
def test_rule_refuses(file, statement):
    assert violations(statement, PLUGIN_DIR / file)


def test_the_picture_shows_the_floors():
    picture = PLUGIN_DIR.parent / "docs" / "floors.svg"
    if not picture.is_file():
        pytest.skip("the installed package has no docs beside it")
    rows: dict[int, list[str]] = {}
    for height, room in re.findall(r'<text x="\d+" y="(\d+)" class="name">(\w+)/</text>', picture.read_text()):
        rows.setdefault(int(height), []).append(room)
    assert tuple(tuple(rows[height]) for height in sorted(rows, reverse=True)) == FLOORS


def test_every_module_has_a_layer():
    assert {file.relative_to(PLUGIN_DIR).parts[0].removesuffix(".py") for file in SOURCES} <= {*LEVEL, "__init__"}


def absolute(source: str) -> list[str]:
    """What a file imports from this package by its absolute name."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module or "")
    return [name for name in names if name.partition(".")[0] == PACKAGE]


def test_imports_within_the_package_are_relative():
    """Under another absolute name the plugin would be imported twice."""
    found = {str(file.relative_to(PLUGIN_DIR)): absolute(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert {file: names for file, names in found.items() if names} == {}
    assert absolute(f"def f():\n    import {PACKAGE}.a\n    from {PACKAGE} import b") == [f"{PACKAGE}.a", PACKAGE]


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
    done = run_after("import torch", code)
    assert done.returncode == 0, done.stderr


def test_runtime_works_without_what_only_training_needs():
    blocked = "torch torchaudio fairseq fairseq_cli simuleval kaldi_native_fbank yaml tqdm scipy matplotlib onnx soxr"
    blocked += " praatio"
    code = f"""
import importlib, pkgutil, sys
for name in {blocked.split()}:
    sys.modules[name] = None
from leapformer_fairseq import runtime, support
for package in (runtime, support):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
from leapformer_fairseq.cli.main import main
for command in (["demo", "--no-live"], ["--help"]):
    main(command)
"""
    done = run_after("import numpy", code)
    assert done.returncode == 0 and "Reference: " in done.stdout and "linearize" in done.stdout, done.stderr


def test_setup_reads_the_version():
    root = PLUGIN_DIR.parent
    if not (root / "setup.py").is_file():
        pytest.skip("the installed package has no setup.py beside it")
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split()[-1] == __version__


# ------------------------------------------------------------------------------------------------ the wheel, elsewhere
ROOT = PLUGIN_DIR.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the source distribution."""
    if not (ROOT / "setup.py").is_file():
        pytest.skip("the installed package has no setup.py beside it")
    source, out = copied_sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("dist")
    for words in (
        ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), "."],
        ["setup.py", "--quiet", "sdist", "--dist-dir", str(out)],
    ):
        done = subprocess.run([sys.executable, *words], cwd=source, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def elsewhere(built, tmp_path_factory):
    """Runs `leapformer` of the wheel, away from the repository; returns what it prints."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    (wheel,) = built.glob("*.whl")
    install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run([sys.executable, *install], check=True, capture_output=True, timeout=300)

    def run(*words: str) -> str:
        code = (
            f"import sys; sys.path.insert(0, {str(site)!r}); from {PACKAGE}.cli.main import main; exit(main({words}))"
        )
        done = run_after("import fairseq", code, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert run("user-dir").strip() == str(site / PACKAGE)
    return run


def test_the_wheel_is_small_and_the_source_is_whole(built):
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.stat().st_size < 2_700_000  # of which the model of `leapformer demo` has 1.3 million
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        requires = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", archive.read(about).decode(), re.MULTILINE)
    assert set(requires) == BASE
    needed = {"configs/tables.yaml", "configs/multi30k/small.yaml", f"{PACKAGE}/studies/lra/protocols/luna.yaml"}
    needed |= {f"{PACKAGE}/data/corpus/language/words.yaml", f"{PACKAGE}/data/corpus/language/grammar.yaml"}
    assert needed | {f"{PACKAGE}/attention/ops/cpu/linear_step.c", f"{PACKAGE}/py.typed"} <= names


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["recipe", "multi30k", "--out", "out", "--dry-run"], "--arch leapformer_nmt_multi30k"),
        (["recipe", "abc-3b", "--out", "out", "--dry-run"], "--arch leapformer_lm_wiki103_32"),
        (
            ["lra", "params", "--protocol", "luna", "--tasks", "text", "--attention", "luna-16", "--out", "out"],
            "Luna-16",
        ),
        (["corpus", "--task", "listops", "--out", "corpus", "--train", "20", "--dev", "5", "--test", "5"], ""),
        (["list", "models"], "leapformer_simulst"),
        (["demo"], "Reference: "),
        pytest.param(
            ["bench", "attention", "--quick", "--mechanisms", "leap", "--out", "bench"],
            "leap",
            marks=pytest.mark.full,
        ),
    ],
)
def test_commands_work_outside_the_repository(elsewhere, words, shown):
    assert shown in elsewhere(*words)


def test_every_pinned_version_has_its_hashes():
    folder = ROOT / "requirements"
    pins = re.findall(r"^([\w.-]+==\S+)$", (folder / "constraints.txt").read_text(), re.MULTILINE)
    entries = re.split(r"^(?=\w)", (folder / "hashes.txt").read_text(), flags=re.MULTILINE)[1:]
    hashed = [entry.split()[0] for entry in entries]
    same = [re.sub(r"[._-]+", "-", pin.partition("==")[0]).lower() + "==" + pin.partition("==")[2] for pin in pins]
    assert sorted(hashed) == sorted(same)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE) for entry in entries)
