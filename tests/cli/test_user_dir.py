"""Mechanisms in a folder of one's own (`--user-dir`): every command finds them, and so does what it starts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from leapformer_fairseq.attention import find
from leapformer_fairseq.cli import fairseq_commands
from leapformer_fairseq.cli.main import COMMANDS, main
from leapformer_fairseq.support import user_dir
from leapformer_fairseq.support.declared import place as place_of
from leapformer_fairseq.support.errors import LeapformerError
from tests.commands import leapformer, run
from tests.made import made
from tests.reversed_text import reversed_text

TOY = Path(__file__).parent.parent / "toys" / "gate.py"
NAME = "toy-gate"
LM = "--task language_modeling --arch leapformer_lm_tiny --tokens-per-sample 64 --max-tokens 512 --optimizer adam"
PROBE = f"--probes recall --updates 1 --rates 1e-3 --seeds 1 --attention {NAME}"
UNKNOWN = (
    f"unknown attention mechanism '{NAME}'; `leapformer list` shows all; --user-dir FOLDER adds those that its "
    "__init__.py imports"
)


@pytest.fixture(scope="module")
def place() -> Path:
    """A folder of one's own, my_attention, data, and a language model trained with its mechanism."""

    def make(folder: Path) -> None:
        (folder / "my_attention").mkdir()
        shutil.copy(TOY, folder / "my_attention" / "gate.py")
        (folder / "my_attention" / "__init__.py").write_text("from . import gate\n")
        reversed_text(folder, train=20, valid=5, test=5)
        words = f"train lm {LM} --max-update 2 --save-dir model --decoder-self-attention {NAME} --cpu"
        trained = run(leapformer(*words.split(), "--user-dir", "my_attention"), folder)
        assert trained.returncode == 0, trained.stderr[-2000:]

    return made("user_dir", make)


def test_a_checkpoint_names_no_folder_and_says_what_is_missing_without_it(place):
    words = "eval-lm lm --path model/checkpoint_best.pt --cpu --batch-size 4 --tokens-per-sample 64"
    refused = run(leapformer(*words.split()), place)
    assert refused.returncode == 2 and refused.stderr.splitlines()[-1].endswith(f"error: {UNKNOWN}")
    evaluated = run(leapformer(*words.split(), "--user-dir=my_attention"), place)
    assert evaluated.returncode == 0 and "Perplexity" in evaluated.stdout + evaluated.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (f"list {NAME}", "S_t = g_t S_(t-1)"),
        (
            f"probe --out {{out}} --dry-run {PROBE}",
            f"recall-{NAME}",
        ),
        (f"recipe multi30k --out {{out}} --attention {NAME} --dry-run", f"--encoder-self-attention {NAME}"),
        (f"ablate --out {{out}} --dry-run --mechanisms {NAME} -- lm {LM} --max-update 2", f"\n# {NAME}"),
        ("average --inputs model --last 1 --output {out}.pt", ""),
        pytest.param("export --path model/checkpoint_best.pt --data lm --out {out}", "", marks=pytest.mark.full),
    ],
)
def test_commands_know_its_mechanism(words, shown, place, tmp_path):
    words = words.format(out=tmp_path / "out").split()
    finished = run(leapformer("--user-dir", "my_attention", *words), place)
    assert finished.returncode == 0 and shown in finished.stdout, finished.stderr[-2000:]
    printed = [line for line in finished.stdout.splitlines() if " train " in line]
    assert all(line.endswith(f"--user-dir {place}/my_attention") for line in printed), "a line can be copied"


def test_trainings_that_a_command_starts_know_it(place, tmp_path):
    words = f"ablate --out {tmp_path} --mechanisms {NAME} --blocks decoder-self -- train lm {LM} --max-update 1 --cpu"
    finished = run(leapformer(*words.split(), "--user-dir", "my_attention"), place)
    assert finished.returncode == 0 and NAME in (tmp_path / "table.md").read_text(), finished.stderr[-2000:]


def test_a_defect_in_it_is_placed_there(place, tmp_path):
    own = tmp_path / "defective"
    own.mkdir()
    text = TOY.read_text()
    (own / "__init__.py").write_text(text.replace("F.softplus(x)", "x.no_such_method()"))
    line = next(number for number, code in enumerate(text.splitlines(), 1) if "F.softplus(x)" in code)
    words = f"train {place}/lm {LM} --max-update 1 --no-save --decoder-self-attention {NAME} --cpu"
    failed = run(leapformer(*words.split(), "--user-dir", str(own)), tmp_path)
    where, _, log = failed.stderr.splitlines()[-1].partition("; the traceback is in ")
    assert failed.returncode == 1 and where.endswith(f"(defective/__init__.py, line {line})")
    Path(log.partition(",")[0]).unlink()


@pytest.mark.full
def test_processes_of_jobs_know_it(place, tmp_path):
    words = f"probe --out {tmp_path} --jobs 2 {PROBE} leap"
    finished = run(leapformer(*words.split(), "--user-dir", "my_attention"), place)
    assert finished.returncode == 0, finished.stderr[-2000:]


@pytest.mark.full
def test_fairseq_alone_trains_with_a_folder_that_registers_ours(place, tmp_path):
    own = tmp_path / "own_attention"
    shutil.copytree(place / "my_attention", own)
    (own / "__init__.py").write_text("import leapformer_fairseq\nfrom . import gate\nleapformer_fairseq.register()\n")
    words = f"{place}/lm {LM} --max-update 1 --save-dir {tmp_path}/model --decoder-self-attention {NAME} --cpu"
    train = Path(sys.executable).with_name("fairseq-train")
    finished = run([str(train), *words.split(), "--user-dir", str(own)], place)
    assert finished.returncode == 0 and (tmp_path / "model/checkpoint_best.pt").is_file(), finished.stderr[-2000:]


BROKEN = {
    "raises": ("x = 1\n\ny = x / 0\n", "line 3: ZeroDivisionError: division by zero"),
    "no_python": ("def f(:\n", "line 1: invalid syntax"),
    "lacks_a_package": ("import no_such_package\n", "line 1: ModuleNotFoundError: No module named 'no_such_package'"),
    "leaves": ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
    "takes_a_name": (
        "from leapformer_fairseq.attention import Mechanism, register\nregister('leap')(Mechanism)\n",
        "mechanism 'leap' is already registered by {ours}, line {line}; rename it",
    ),
    "lacks_a_method": (
        "from leapformer_fairseq.attention import Mechanism, register\n\n"
        "@register('toy-less')\nclass Less(Mechanism):\n    init_stat = read = write = None\n",
        "line 3: mechanism 'toy-less': class Less has no method init_state; did you mean init_stat? define it as in "
        "Mechanism",
    ),
    "shares_an_option": (
        "from leapformer_fairseq.attention import OPTIONS, find, register\n\n"
        "register('toy-other', OPTIONS['leap_factor']._replace(default=7))(find('leap'))\n",
        "line 3: option 'leap_factor' of mechanism 'toy-other' has default 7, but 4 in its first declaration "
        "({ours}, line {line}); declare it identically or rename it",
    ),
}


@pytest.fixture
def own_path(monkeypatch):
    """fairseq adds the folder around a plugin to the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_cannot_be_imported_is_explained_in_one_line(name, tmp_path, capsys, own_path):
    code, reason = BROKEN[name]
    ours, line = place_of(find("leap")).split(", line ")
    reason = reason.format(ours=ours, line=line)
    folder = tmp_path / f"broken_{name}"
    folder.mkdir()
    (folder / "__init__.py").write_text(code)
    for _ in range(2):  # fairseq would believe that it is loaded
        assert main(["list", "--user-dir", str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"--user-dir {folder} cannot be imported: {folder}/__init__.py, line " in line and line.endswith(reason)


def test_what_is_no_folder_with_python_is_refused(tmp_path, capsys, own_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.py").write_text("")
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("")
    for name, reason in (
        ("empty", "has no __init__.py, so nothing in it is imported; give a folder"),
        ("file.py", "is no folder; give a folder"),
        ("nowhere", "cannot be imported: there is no such folder; check the path"),
        ("json", "cannot be imported: another module is called json, of "),
    ):
        assert main(["list", "--user-dir", str(tmp_path / name)]) == 2
        assert f"--user-dir {tmp_path / name} {reason}" in capsys.readouterr().err
    assert main(["list", "--user-dir"]) == 2 and "--user-dir needs a folder" in capsys.readouterr().err
    assert (
        main(["list", "--user-dir=a", "--user-dir", "b"]) == 2 and "is given twice, a and b" in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", sorted({*COMMANDS, *fairseq_commands.COMMANDS}))
def test_every_command_loads_the_folder(command, tmp_path, capsys, own_path):
    assert main([command, "--user-dir", str(tmp_path / "nowhere"), "--help"]) == 2
    assert "there is no such folder; check the path" in capsys.readouterr().err
    assert not user_dir.given(), "the next command in this process has its own"


def test_processes_get_the_folder_and_printed_commands_have_it(tmp_path):
    own = tmp_path / "my attention"
    own.mkdir()
    with user_dir.taken(["train", "--user-dir", str(own), "data"]) as words:
        assert words == ["train", "data"] and os.environ[user_dir.VARIABLE] == str(own)
        assert user_dir.typed("leapformer", words) == ["leapformer", "train", "data", "--user-dir", str(own)]
        assert user_dir.typed("simuleval", ["x"]) == ["env", f"{user_dir.VARIABLE}={own}", "simuleval", "x"]
        with user_dir.taken(["list"]):
            assert user_dir.given() == str(own), "a command that a command calls has it, too"
    assert not user_dir.given() and user_dir.typed("leapformer", words) == ["leapformer", "train", "data"]


def test_a_relative_folder_is_that_of_the_command(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with user_dir.taken(["--user-dir", "mine"]):
        assert user_dir.given() == str(tmp_path / "mine")
    monkeypatch.setenv(user_dir.VARIABLE, "mine")
    with user_dir.taken([]):
        assert user_dir.given() == str(tmp_path / "mine")
    with pytest.raises(LeapformerError, match="needs a folder"), user_dir.taken(["--user-dir="]):
        pass
