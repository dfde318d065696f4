"""`leapformer check-mechanism`: what it says of a mechanism, and how the shared tests end."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from leapformer_fairseq.attention.softmax import CachedMechanism
from leapformer_fairseq.cli import check_mechanism
from leapformer_fairseq.cli.check_mechanism import first_failure, support
from leapformer_fairseq.cli.main import main
from leapformer_fairseq.support import user_dir
from tests import conftest
from tests.commands import leapformer, run

TOYS = Path(__file__).parent.parent / "toys"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.attention.test_forms" name="test_a"/>
<testcase classname="tests.attention.test_forms" name="test_left_out"><skipped/></testcase>
<testcase classname="tests.attention.test_forms" name="test_forms_agree[mine-1]"><failure message="cut">where
E   assert 0.5 &lt; 1e-12
E    +  where 0.5 = f([tensor([[1.0, 2.0]]), 7])
</failure></testcase>
<testcase classname="tests.modules.test_attention.TestSteps" name="test_x"><error message="no setup"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_its_first_failure_can_be_repeated():
    outcome = check_mechanism._outcome(ElementTree.fromstring(REPORT))
    assert outcome.passed == 1
    assert [failure.place for failure in outcome.failures] == [
        "tests/attention/test_forms.py::test_forms_agree[mine-1]",
        "tests/modules/test_attention.py::TestSteps::test_x",
    ]
    assert outcome.failures[1].reason == ["no setup"]
    title, first, second, again = first_failure(outcome, Path("/checkout/tests"))
    assert (title, first) == ("the first failure: forms agree", "  assert 0.5 < 1e-12") and second.endswith(
        "f([tensor(...)"
    )
    assert again.startswith("repeat it with: cd /checkout; ") and " -m pytest -q " in again
    assert again.endswith("'tests/attention/test_forms.py::test_forms_agree[mine-1]'")


@pytest.mark.parametrize("kind", ["Failed: ", "leapformer_fairseq.support.errors.LeapformerError: ", ""])
def test_a_sentence_is_given_without_the_class_of_its_error(kind):
    assert check_mechanism._said(f"where\nE   {kind}it is so\n") == ["it is so"]


def test_the_line_of_ones_own_folder_is_named(tmp_path):
    output = (
        f"tests/a.py:1: in f\n..{tmp_path}/own/gate.py:7: in __init__\n    x\ntorch/b.py:3: in g\nE   Wrong\nE   no\n"
    )
    with user_dir.taken(["--user-dir", f"{tmp_path}/own"]):
        assert check_mechanism._said(output) == ["own/gate.py, line 7: Wrong", "no"]
    assert check_mechanism._said(output) == ["Wrong", "no"]


def test_the_table_says_what_is_not_supported_and_why():
    rows = {line[2:38].strip(): line[39:].split(maxsplit=1) for line in support("softmax") if line[2] != " "}
    assert rows["decoder-self"] == ["yes"] and rows["many tokens at once"] == ["yes"]
    assert rows["text without end"][0] == "no" and rows["text without end"][1].startswith("it keeps every key")
    assert rows["`leapformer export`, as a decoder"] == ["yes"] and rows["a fused decoding step"] == ["yes"]
    rows = {line[2:38].strip(): line[39:].split(maxsplit=1) for line in support("longformer") if line[2] != " "}
    assert rows["encoder-self"] == ["yes"] and rows["decoder-cross"][0] == "no"
    assert rows["`leapformer export`, as a decoder"] == ["no", "no decoder can write with it token by token"]


def test_a_state_that_grows_is_exported_where_graphs_can_hold_it(monkeypatch):
    monkeypatch.delattr(CachedMechanism, "loop_state")
    (line,) = (line for line in support("entmax") if "`leapformer export`" in line)
    assert line.split("decoder")[1].split(maxsplit=1)[0] == "no" and "its state grows" in line


def test_without_a_checkout_it_says_where_to_run(tmp_path, monkeypatch, capsys):
    own = tmp_path / "own_mechanisms"
    own.mkdir()
    (own / "__init__.py").write_text("")
    monkeypatch.setattr(check_mechanism, "_names", lambda folder, mechanism: ["leap"])
    monkeypatch.setattr(check_mechanism, "PLUGIN_DIR", tmp_path / "site" / "leapformer_fairseq")
    monkeypatch.chdir(tmp_path)
    assert main(["check-mechanism", str(own)]) == 2
    assert "repeat the command in the folder of a checkout of the repository" in capsys.readouterr().err


def test_a_folder_without_that_mechanism_is_refused(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "__init__.py").write_text("")
    nothing = run(leapformer("check-mechanism", str(own)))
    assert nothing.returncode == 2 and f"{own} registers no mechanism; let its __init__.py import" in nothing.stderr
    shutil.copy(TOYS / "cubic.py", own / "__init__.py")
    other = run(leapformer("check-mechanism", str(own), "--mechanism", "leap"))
    assert other.returncode == 2 and f"--mechanism leap: {own} registers toy-cubic" in other.stderr


def test_code_of_the_user_that_fails_is_named_by_file_and_line(tmp_path):
    own = tmp_path / "failing"
    own.mkdir()
    text = (TOYS / "decay.py").read_text()
    (own / "__init__.py").write_text(f"{text}\n    def kernel(self):\n        return 1 / 0\n")
    failed = run(leapformer("check-mechanism", str(own)))
    line = len(text.splitlines()) + 3
    assert (
        failed.returncode == 2 and f"{own}/__init__.py, line {line}: toy-decay cannot be built: Zero" in failed.stderr
    )


def test_a_constructor_without_options_is_named_by_file_and_line(tmp_path, capsys):
    own = tmp_path / "bare"
    own.mkdir()
    text = (TOYS / "cubic.py").read_text()
    (own / "__init__.py").write_text(f"{text}\n    def __init__(self, head_dim, num_heads):\n        pass\n")
    line = next(n for n, words in enumerate(text.splitlines(), 1) if words.startswith("@register"))
    refused = run(leapformer("check-mechanism", str(own)))
    assert (
        refused.returncode == 2
        and f"{own}/__init__.py, line {line}: mechanism 'toy-cubic': __init__ " in refused.stderr
    )
    assert "write `def __init__(self, head_dim, num_heads, **options)`" in refused.stderr


@pytest.mark.parametrize("rest", ["", "cd here; pytest"])
def test_a_run_that_ended_early_says_how_to_run_all(rest, monkeypatch, capsys):
    outcome = check_mechanism.Outcome(2, [check_mechanism.Failure("tests/a.py::test_a", ["no"])], rest)
    monkeypatch.setattr(check_mechanism, "test", lambda *_: outcome)
    assert check_mechanism._check("leap", Path("/checkout/tests"), True) == 1
    printed = capsys.readouterr().out
    assert ("the run ended there, before the other tests; run all with: cd here; pytest\n" in printed) == bool(rest)


@pytest.mark.parametrize(
    ("file", "failed", "most", "ends"),
    [
        ("contract", True, 5, True),
        ("contract", True, 0, False),
        ("contract", False, 5, False),
        ("forms", True, 5, False),
    ],
)
def test_a_broken_promise_ends_a_run_that_may_end_early(file, failed, most, ends):
    options = SimpleNamespace(mechanism="mine", maxfail=most)
    session, config = SimpleNamespace(shouldfail=False), SimpleNamespace(option=options)
    item = SimpleNamespace(nodeid=f"tests/attention/test_{file}.py::test_a", config=config, session=session)
    hook = conftest.pytest_runtest_makereport(item)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(SimpleNamespace(failed=failed))
    assert bool(session.shouldfail) == ends
    assert not ends or re.search(check_mechanism.STOPPED, f"!!!!! {session.shouldfail} !!!!!")


@pytest.mark.full
@pytest.mark.parametrize("right", [True, False])
def test_the_shared_tests_tell_a_right_mechanism_from_a_wrong_one(right, tmp_path):
    own = tmp_path / "own_decay"
    own.mkdir()
    text = (TOYS / "decay.py").read_text()
    wrong = text.replace("faded.unsqueeze(-1) * state.kv", "state.kv")
    assert wrong != text
    (own / "__init__.py").write_text(text if right else wrong)
    checked = run(leapformer("check-mechanism", str(own), "--quick"), tmp_path)
    assert checked.returncode == (not right), checked.stdout + checked.stderr
    assert (", 0 failed" in checked.stdout) == right
    assert ("repeat it with: cd " in checked.stdout) == ("run all with: cd " in checked.stdout) == (not right)
