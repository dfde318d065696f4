"""The list of mutants fits the code: each is one line of it, in another way Python, and its tests are there."""

from __future__ import annotations

import pytest

from leapformer_fairseq import PLUGIN_DIR

from .mutants.run import Copy, Mutant, load, table

ROOT = PLUGIN_DIR.parent
SLIPS = {
    "option without effect", "order", "wrong seed", "state", "resume", "fork", "timer", "unit", "wrong count",
    "padding counted", "last item dropped", "wrong subset", "flag not recorded", "reorder forgotten",
}  # fmt: skip


def test_every_mutant_is_one_line_of_the_code_and_has_tests() -> None:
    mutants = load()
    assert len(mutants) >= 80
    unfit = []
    for mutant in mutants:
        try:
            mutant.applied((PLUGIN_DIR / mutant.file).read_text(encoding="utf-8"))
        except (ValueError, SyntaxError) as error:
            unfit.append(str(error))
        unfit += [f"{mutant.name}: no {test}" for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]
    assert not unfit
    assert sum(mutant.kind in SLIPS for mutant in mutants) >= len(mutants) / 2, "of the kinds that slip through"
    folders = {mutant.file.partition("/")[0] for mutant in mutants}
    assert folders >= {"attention", "modules", "models", "simul", "data", "studies", "criterions", "runtime"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a", "b", "occurs 2 times"),
        ("c", "b", "occurs 0 times"),
        ("a = 1\n", "a = 1\n\n", "one line"),
        ("1", "(", "never"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str, message: str) -> None:
    mutant = Mutant("x/y", "x.py", old, new, "kind", ())
    with pytest.raises((ValueError, SyntaxError), match=message):
        mutant.applied("a = 1\nb = a\n" if message != "one line" else "a = 1\nb = 2\n")


def test_a_copy_is_mutated_and_restored(tmp_path, monkeypatch) -> None:
    copy = object.__new__(Copy)
    copy.folder, copy.count = tmp_path, 0
    name = "runtime/simul/times.py"
    (tmp_path / "leapformer_fairseq/runtime/simul").mkdir(parents=True)
    text = (PLUGIN_DIR / name).read_text(encoding="utf-8")
    path = tmp_path / "leapformer_fairseq" / name
    path.write_text(text, encoding="utf-8")
    mutant = Mutant("agents/x", name, "features_s: float = 0.0", "features_s: float = 1.0", "kind", ())
    copy.mutate(mutant)
    assert path.read_text(encoding="utf-8") != text and path.stat().st_mtime == 1_000_000_001
    copy.restore(mutant)
    assert path.read_text(encoding="utf-8") == text
    found = {"agents/x": {"result": "killed", "by": "tests/a.py::test_b[c]", "seconds": 1.5}}
    assert "| agents/x | kind | 1 | killed | 1.5 | a.py::test_b |" in table([mutant], found)
