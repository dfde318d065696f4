"""A signature names the code, the libraries and the machine, and never claims somebody else's commit."""

import re
import subprocess

from leapformer_fairseq import __version__
from leapformer_fairseq.support import signature


def test_environment_names_code_libraries_and_machine():
    found = signature.environment()
    assert found["leapformer_fairseq"] == __version__
    assert list(found) == [
        *("leapformer_fairseq", "commit", "python", "torch", "fairseq", "simuleval", "sacrebleu"),
        *("cpu", "threads", "date"),
    ]
    assert found["torch"] and found["cpu"] and found["threads"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", str(found["date"]))


def test_signature_is_one_line_with_options_last():
    text = signature.signature(seed=3, device="cpu")
    assert text.startswith(f"leapformer_fairseq:{__version__}|commit:") and text.endswith("|seed:3|device:cpu")
    assert "\n" not in text


def test_the_threads_of_another_process_can_be_given():
    for threads in (7, None):
        text = signature.signature(threads=threads, seed=3)
        assert text.count("threads:") == 1 and f"|threads:{threads}|date:" in text and text.endswith("|seed:3")


def test_a_missing_library_is_none(monkeypatch):
    monkeypatch.setattr(signature, "LIBRARIES", {"absent": "no-such-distribution"})
    assert signature.environment()["absent"] is None


def test_commit_is_that_of_the_package_only(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    package, installed = tmp_path / "package", tmp_path / "venv"
    for folder in (package, installed):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    assert signature._commit(package) is None  # no checkout
    for command in (["init", "-q"], ["add", "package"], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    found = signature._commit(package)
    assert found and commit.startswith(found)
    (package / "__init__.py").write_text("changed = True\n")
    assert signature._commit(package) == f"{found}-dirty"
    assert signature._commit(installed) is None
