"""What --attention asks for is checked by every recipe before it does anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leapformer_fairseq.cli import recipe as command
from leapformer_fairseq.studies.engine import Engine
from leapformer_fairseq.studies.recipes import catalog, facts
from leapformer_fairseq.studies.recipes.plans import Attention
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import read_json
from tests.covering import shared_out
from tests.studies.recipes.running import dry_run

WITH_PLANS = [name for name in catalog.DATASETS if name not in ("talks", "sparsefinder")]
GIVEN = ("lra", "quickstart", "espeak_tts", "talks")  # need no data, or have names of their own for it


def start(name, *words):
    return catalog.start(name, words)


@pytest.mark.parametrize("name", WITH_PLANS)
def test_an_unknown_mechanism_is_refused_by_every_recipe(name, tmp_path):
    protocol = ["--reduced"] if name == "lra" else []
    with pytest.raises(LeapformerError, match="--attention leep: "):
        start(name, *protocol, "--attention", "leep", "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", shared_out([name for name, table in catalog.tables().items() if table.rows], 0))
def test_an_unknown_row_is_refused_before_another_row_is_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Engine, "run", lambda self: pytest.fail("something was run"))
    rows = f"{catalog.tables()[name].rows[0]} leep"
    with pytest.raises(LeapformerError, match="--attention leep: "):
        command.run_recipe([name, "--out", str(tmp_path / "out"), "--rows", rows], print)
    assert not (tmp_path / "out").exists()


def test_the_mechanisms_of_a_sparsefinder_study_are_checked(tmp_path):
    with pytest.raises(LeapformerError, match="--attention leep: unknown attention mechanism"):
        start("sparsefinder", "--entmax", "leep", "--out", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "plan", "message"),
    [
        ("quickstart", "leap:leap-facto=3", "there is no option leap-facto of a mechanism; did you mean leap-factor"),
        ("quickstart", "leap:leap-factor=x", "--leap-factor x: give a value, as in --leap-factor 4"),
        ("quickstart", "leap:leap-factor", "--leap-factor : give a value"),
        ("quickstart", "gated-leap:gate-order=size", "--gate-order 'size': choose from: importance, recency"),
        ("quickstart", "leap:encoder-causal=1", "ignored explicit argument '1'"),
        ("quickstart", "leap:encoder-chunk-ms=250", "--encoder-chunk-ms 250: give a multiple of 40"),
        ("quickstart", "leap:encoder-chunk-ms=x", "invalid int value: 'x'"),
        ("quickstart", "leap/leap/leap/leap", "4 plans for encoder-self, decoder-self, decoder-cross; give at most 3"),
        ("quickstart", "leap*0", "needs a positive number after"),
        ("quickstart", "softmax/reformer/softmax", "decoder-self attention: reformer cannot be used: .*allowed: enc"),
        ("quickstart", "softmax/softmax/abc-window", "decoder-cross attention: abc-window cannot be used"),
        ("quickstart", "softmax/softmax/abc-linformer", "it is not defined over the prefixes of wait-k"),
        ("quickstart", "bigbird/softmax:encoder-chunk-ms=280", "it depends on the whole sequence"),
        ("multi30k", "softmax/softmax/abc-window", "decoder-cross attention: abc-window cannot be used"),
        ("wikitext2", "softmax reformer", "--attention reformer: decoder-self attention: reformer cannot be used"),
        ("wikitext2", "abc-mlp:abc-slots=x", "give a whole number of at least"),
        # with what the configuration has
        ("wikitext2", "softmax cosformer:cosformer-step=16", "and --cosformer-length 256: .*a length of 0 is none"),
        (
            "wikitext2 --train-options=--cosformer-step=16",
            "cosformer",
            "and --cosformer-length 256: .*a length of 0 is",
        ),
        ("wikitext103 --paper abc", "abc-linformer:abc-slots=513", "513 slots for at most 512 tokens"),
    ],
)
def test_what_no_model_can_be_built_with_is_refused(name, plan, message, tmp_path):
    with pytest.raises(LeapformerError, match=message):
        start(*name.split(), "--attention", plan, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("quickstart", "leap:encoder-right-context-ms=80:encoder-chunk-ms=280"),
        ("quickstart", "leap,softmax*3/leap/hedgehog"),
        ("quickstart", "leap:encoder-causal:join-sentences=4"),
        ("quickstart", "leap:leap-factor=64"),  # of which only the model knows whether it divides a head
        ("multi30k", "softmax/abc-linformer/abc-linformer:abc-slots=32/8/32"),
        ("multi30k", "softmax/cosformer:cosformer-length=0"),
        ("wikitext2", "cosformer:cosformer-step=16:cosformer-length=0"),
        ("wikitext2 --train-options=--cosformer-length=0", "cosformer:cosformer-step=16"),
        ("mlm", "reformer bigbird:dropout=0.2"),
    ],
)
def test_what_a_model_can_be_built_with_is_not_refused(name, plan, tmp_path):
    start(*name.split(), "--attention", plan, "--out", str(tmp_path / "out"))


def test_the_facts_are_those_of_the_registry():
    """Or else: python -m leapformer_fairseq.studies.recipes.facts"""
    assert read_json(facts.FILE) == facts.collect()


def test_a_mechanism_that_the_facts_do_not_know_is_asked_of_the_registry(tmp_path, monkeypatch):
    """It is a user's own, for instance."""
    known = read_json(facts.FILE)
    monkeypatch.setattr(facts, "_facts", lambda: {**known, "serves": {}})
    start("multi30k", "--attention", "relu", "--out", str(tmp_path / "out"))
    with pytest.raises(LeapformerError, match="unknown attention mechanism 'reluu'; did you mean"):
        start("multi30k", "--attention", "reluu", "--out", str(tmp_path / "out"))


def test_a_dry_run_imports_no_library_that_takes_seconds(tmp_path):
    code = """
import sys
from leapformer_fairseq.cli.main import main
for words in ("multi30k --attention softmax,relu*2/leap", "mustc", "leapformer-6", "wikitext2", "espeak_tts"):
    assert main(["recipe", *words.split(), "--out", "/nowhere", "--dry-run"]) == 0
print(*{"torch", "fairseq", "numpy"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stderr + done.stdout[-300:]


def test_every_row_of_every_table_is_accepted(tmp_path):
    for table in catalog.tables().values():
        for row in table.rows:
            start(table.recipe, *table.options, "--attention", row, "--out", str(tmp_path / "out"))


def test_the_softmax_recogniser_beside_a_plan_keeps_its_options():
    assert Attention("leap:encoder-causal").recogniser.flags[-1] == "--encoder-causal"


@pytest.mark.parametrize("name", catalog.DATASETS)
def test_a_dry_run_says_what_it_was_not_given(name, tmp_path):
    more = {"lra": ["--reduced"], "talks": ["prepare", "--root", tmp_path], "translation": ["--pair", "en-de"]}
    shown = dry_run(name, *more.get(name, []), "--out", tmp_path / "out")
    assert shown and not any("None" in line.split() for line in shown)
    assert any(" ... " in line for line in shown) == (name not in GIVEN)
