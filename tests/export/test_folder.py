"""An exported folder is one export as it was made, or refused in one line: damaged, mixed, crafted, killed half-way."""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leapformer_fairseq.cli.main import main as leapformer
from leapformer_fairseq.export import tracing, write
from leapformer_fairseq.runtime.__main__ import main
from leapformer_fairseq.runtime.commands import demo
from leapformer_fairseq.runtime.engine import Graphs
from leapformer_fairseq.runtime.folder import (
    FILES,
    FORMATS,
    GRAPHS,
    HASH,
    MODEL,
    STEP,
    SUBWORDS,
    WEIGHTS,
    WRITE,
    Folder,
)  # fmt: skip
from leapformer_fairseq.runtime.simul.exported import ExportedSystem
from leapformer_fairseq.support import files
from leapformer_fairseq.support.errors import LeapformerError
from leapformer_fairseq.support.files import write_json
from tests.simul.conftest import subwords

from .. import covering
from ..exported import language_model, recordings, resealed, speech, translation, voice


def opened(path: Path) -> Folder:
    """A folder all of whose files were opened, as its users do."""
    folder = Folder.read(path)
    for name in folder.files:
        folder.file(name)
    return folder


def refusal(path: Path) -> str:
    """The one line that a folder is refused with; empty if it is not."""
    try:
        opened(path)
    except LeapformerError as error:
        assert "\n" not in str(error) and str(error).strip()
        return str(error)
    return ""


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> dict[str, Path]:
    """Folders that may be changed, of speech and of text, each of which uses files that another has, too."""
    folder = tmp_path_factory.mktemp("folders")
    made = {"speech": speech()[1].path, "text": translation().exported, "demo": demo.MODEL}
    return {name: shutil.copytree(path, folder / name) for name, path in made.items()}


def test_the_layer_of_attention_weights_is_known():
    _, folder = speech()
    assert folder.align_layer() == folder.align_layer(1) == folder.alignments == folder.layers == 1
    with pytest.raises(LeapformerError, match="weights of layer 1, not of 2; give --align-layer 1, or export it with"):
        folder.align_layer(2)
    with pytest.raises(LeapformerError, match="is a language model, which has no source to attend to"):
        replace(folder, task="language_modeling").align_layer()


# -------------------------------------------------------------------------------------------------------------- damage
def damages(path: Path, others: list[Path], rng: random.Random, count: int) -> Iterator[str]:
    """Damage a folder in one way after the other, undone before the next; tells which it is."""
    names = [MODEL, *opened(path).files]
    for number in range(count):
        name = names[number % len(names)]
        before = (path / name).read_bytes()
        kind = rng.choice(["flipped", "cut", "longer", "of another", "gone", "empty", "swapped"])
        place = rng.randrange(len(before))
        if kind == "flipped":
            changed = before[:place] + bytes([before[place] ^ 1 << rng.randrange(8)]) + before[place + 1 :]
        elif kind == "cut":
            changed = before[:place]
        elif kind == "longer":
            changed = before + rng.randbytes(rng.randrange(1, 9))
        elif kind == "swapped":
            changed = before[place:] + before[:place]
        else:
            found = [other / name for other in others if (other / name).is_file()]
            changed = rng.choice(found).read_bytes() if kind == "of another" and found else b""
        if changed == before or (name == MODEL and said(changed) == said(before)):
            continue  # the same, or written otherwise
        if kind == "gone":
            (path / name).unlink()
        else:
            (path / name).write_bytes(changed)
        yield f"{name} {kind} at {place}"
        (path / name).write_bytes(before)


def said(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


@pytest.mark.parametrize("kind", ["speech", "text", "demo"])
def test_every_damage_is_refused_in_one_line(copies, kind):
    path, others = copies[kind], [other for name, other in copies.items() if name != kind]
    assert not refusal(path)
    count = 150 if covering.whole_products else 30
    found = [(how, refusal(path)) for how in damages(path, others, random.Random(1), count)]
    assert len(found) > 0.8 * count and not [how for how, line in found if not line]
    assert not refusal(path), "undone"


def test_without_hashes_damage_would_be_read(copies, monkeypatch):
    """The control: what finds it is the hash, not the test's way to damage."""
    monkeypatch.setattr(Folder, "file", lambda folder, name: folder.path / name)
    path = copies["speech"]
    found = [(how, refusal(path)) for how in damages(path, [copies["demo"]], random.Random(1), 50)]
    assert [how for how, line in found if not line and how.startswith(WEIGHTS)]


def test_subwords_of_nobody_and_none(copies, tmp_path):
    text = shutil.copytree(copies["text"], tmp_path / "text")
    shutil.copyfile(copies["speech"] / SUBWORDS, text / SUBWORDS)
    assert f"{SUBWORDS} is not of this export; delete it" in refusal(text)
    spoken = shutil.copytree(copies["speech"], tmp_path / "speech")
    (spoken / SUBWORDS).unlink()
    assert f"has no {SUBWORDS}; export the model again" in refusal(spoken)


def test_all_who_open_a_folder_look_at_its_hashes(copies, tmp_path, monkeypatch, capsys):
    """A byte of the weights, and of the sentencepiece model; in Python, by the runtime, by what serves a browser."""
    from leapformer_fairseq.runtime.serve.files import model_files

    path = shutil.copytree(copies["speech"], tmp_path / "speech")
    for name in (WEIGHTS, WRITE, SUBWORDS):
        before = (path / name).read_bytes()
        (path / name).write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        with pytest.raises(LeapformerError, match=f"{name} is damaged, or of another export"):
            ExportedSystem.load(path)
        if name != SUBWORDS:
            with pytest.raises(LeapformerError, match=f"{name} is damaged"):
                model_files(path, tmp_path)
        assert main([str(path), str(demo.FOLDER / "example.flac")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        (path / name).write_bytes(before)
    assert ExportedSystem.load(path)


def test_a_folder_without_hashes_is_of_an_older_version(copies, tmp_path):
    path = shutil.copytree(copies["text"], tmp_path / "old")
    about = json.loads((path / MODEL).read_text())
    write_json(path / MODEL, {**{name: about[name] for name in about if name not in ("files", HASH)}, "format": 4})
    assert refusal(path) == f"{path / MODEL} has format 4, not {FORMATS[0]} to {FORMATS[-1]}; export it again"


# ------------------------------------------------------------------------------------------------------------- crafted
def put(where: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value, by the names that lead to it; without a value it is taken away."""

    def change(about: dict[str, Any]) -> None:
        *path, last = where.split(">")
        inner: Any = about
        for name in path:
            inner = inner[int(name) if isinstance(inner, list) else name]
        if value is put:
            del inner[last]
        else:
            inner[int(last) if isinstance(inner, list) else last] = value

    return change


NAN, HUGE = float("nan"), 10**400
SPEECH_CASES = [
    *[put(name, put) for name in ("task", "states", "starts", "vocabularies", "max_target", "signature", "checkpoint",
      "speech", "files", "format")],
    *[put(name, value) for name in ("task", "signature") for value in (None, 7, ["speech"], {}, "\ud800")],
    *[put("task", name) for name in ("translation", "text_to_speech", "language_modeling", "", "../speech")],
    *[put(name, value) for name in ("states", "vocabularies", "checkpoint", "files", "speech", "starts")
      for value in (None, [], "x", 3)],
    *[put("max_target", value) for value in (0, -1, 1.5, "9", True, HUGE, None, NAN)],
    *[put("states>self", value) for value in ({}, [], {"self.0.kv": None}, {"self.0.kv": [2, -1]})],
    *[put("alignments", value) for value in (0, 2, -1, "1", 1.5, True, [1])],
    *[put("states>self>self.0.kv", value) for value in ("2", [2.5], [2**40], [1] * 99, [2**20, 2**20], [True])],
    put("states>hidden", {}),
    put("states>heard", put),
    *[put("starts>self.0.kv", value) for value in (1.0, [NAN], [["x"]], [[[1, 2], [3]]], {})],
    put("starts>no.such", [1.0]),
    *[put(f"vocabularies>target>{name}", value) for name in ("pad", "eos", "unk") for value in (-1, 10**6, "2", None)],
    *[put("vocabularies>target>symbols", value) for value in ([], None, "abc", [1, 2, 3], [None] * 40, {"a": 1})],
    put("vocabularies>target>symbols>4", "a\nb"),
    put("vocabularies>target>symbols>4", "\udfff"),
    put("vocabularies>target>words", []),
    put("vocabularies>source", {"symbols": ["a"], "pad": 0, "eos": 0, "unk": 0}),
    put("vocabularies", {}),
    *[put(f"speech>{name}", value) for name in ("state_frames", "chunk_states", "step_frames", "n_bins")
      for value in (0, -4, 2**40, "4", None, 2.5)],
    *[put("speech>ahead_states", value) for value in (-1, 2**50, None)],
    *[put("speech>lagging", value) for value in (0, -1, "3", [3])],
    *[put("speech>forbidden", value) for value in (None, [-1], [10**7], ["a"], 3)],
    *[put("speech>mean", value) for value in (None, [], [1.0], [NAN] * 80, ["1"] * 80, [HUGE] * 80, 3)],
    *[put("speech>std", value) for value in (None, [-1.0] * 80, [1e999] * 80)],
    put("speech>more", 1),
    put("speaking", {}),
    put("language", {"first": 1, "longest": None, "segment": 3}),
    put("shared", ["self.0.kv"]), put("shared", ["heard.0.kv"]),
    put("path", "/etc"),
    put("origin", {}),
    put("more", 1),
    put("format", NAN), put("format", None), put("format", "5"), put("format", [5] * 999),
    *[put(f"files>{name}", {"size": 1, "sha256": ""}) for name in ("../model.json", "/etc/passwd", "a/../b", "", ".",
      "extra.bin")],
    *[put(f"files>{WEIGHTS}", value) for value in (None, [], {}, {"size": 3}, {"size": -1, "sha256": ""}, "abc",
      {"size": 3, "sha256": 7}, {"size": "3", "sha256": ""}, {"size": 3, "sha256": "", "x": 1})],
    put(f"files>{STEP}", put), put(f"files>{SUBWORDS}", put),
    lambda about: [about], lambda about: "text", lambda about: {"format": FORMATS[0]},
]  # fmt: skip
OTHERS = {
    "voice": [
        *[put(f"speaking>{name}", value) for name in ("per_step", "values", "layers", "units")
          for value in (0, -1, 2**40, None, "1", 1.5)],
        put("states>self", {"self.0.kv": [0]}),  # its format is of folders in which no state grows
        *[put("speaking>dropout", value) for value in (-0.1, 1, NAN, None, "0")],
        *[put("speaking>data", value) for value in (None, [], "x")],
        *[put("speaking>speakers", value) for value in ([], {}, {"ann": "x"}, {"ann": -1}, {"ann": None}, 3)],
        *[put("speaking>mean", value) for value in ([], None, [1.0])],
    ],
    "recordings": [
        *[put("recordings>n_bins", value) for value in (0, -1, 2**40, None, "1", 1.5)],
        *[put("recordings>mean", value) for value in ([1.0], [NAN] * 80, 3)],
        *[put(f"recordings>{name}", value) for name in ("own_mean", "own_std") for value in (None, 1, "yes")],
        *[put("max_source", value) for value in (0, -1, "1", 1.5)],
        put("recordings", put), put("task", "translation"), put("task", "speech"),
        *[put("format", version) for version in FORMATS[:-1]],
        *[put("shared", value) for value in (put, [], None, "self.0.k", [3], ["self.0.no"], ["self.0.k", "cross.0.k"])],
        put("vocabularies>source", {"symbols": ["a"], "pad": 0, "eos": 0, "unk": 0}),
    ],
    "language": [
        *[put("language>first", value) for value in (-1, 10**6, None, "2")],
        *[put("language>longest", value) for value in (0, "1", 1.5)],
        *[put("language>segment", value) for value in (0, None, "1")],
    ],
}  # fmt: skip


def folder_of(kind: str) -> Path:
    if kind == "speech":
        return speech()[1].path
    if kind == "recordings":
        return recordings().exported
    return voice()[1].folder.path if kind == "voice" else language_model().exported


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("speech", SPEECH_CASES),
        ("voice", OTHERS["voice"]),
        ("recordings", OTHERS["recordings"]),
        pytest.param("language", OTHERS["language"], marks=pytest.mark.full),  # its graphs are made for this alone
    ],
)
def test_crafted_contents_are_refused_in_one_line(kind, changes, tmp_path):
    """Their hashes fit."""
    path = shutil.copytree(folder_of(kind), tmp_path / kind)
    original = (path / MODEL).read_text()
    resealed(path, lambda about: None)
    assert not refusal(path), "the control"
    taken = []
    for number, change in enumerate(changes):
        (path / MODEL).write_text(original)
        resealed(path, change)
        line = refusal(path)
        if not line or len(line) > 400:
            taken.append((number, line, (path / MODEL).read_text()))
    assert not taken
    assert kind != "speech" or len(changes) >= 70


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b'"x"', b"[" * 100_000, b'{"a":' * 100_000, b'{"format": 1e999}',
     b'{"format": ' + b"9" * 5000 + b"}", b"\xef\xbb\xbf{}", b'{"format": 5, "format": 4}', b"\0" * 64],
)  # fmt: skip
def test_what_is_no_description(content, copies, tmp_path):
    path = shutil.copytree(copies["text"], tmp_path / "folder")
    (path / MODEL).write_bytes(content)
    assert refusal(path)


def test_links_stay_in_the_folder(copies, tmp_path):
    path, elsewhere = shutil.copytree(copies["text"], tmp_path / "folder"), tmp_path / "elsewhere"
    for name in (MODEL, WEIGHTS, STEP):
        (path / name).rename(elsewhere)
        (path / name).symlink_to(elsewhere)
        assert "is a link that leads out of the folder" in refusal(path)
        (path / name).unlink()
        elsewhere.rename(path / "other")
        (path / name).symlink_to("other")
        assert not refusal(path), "inside it may"
        (path / "other").replace(path / name)
    (tmp_path / "linked").symlink_to(path)
    assert not refusal(tmp_path / "linked"), "the folder itself may be one"


def test_graphs_for_other_shapes_are_told_in_one_line(copies, tmp_path, monkeypatch, capsys):
    """What model.json says is possible, but not of these graphs."""
    path = shutil.copytree(copies["text"], tmp_path / "folder")
    own = json.loads((path / MODEL).read_text())["states"]["self"]
    resealed(path, put(f"states>self>{next(iter(own))}", [3, 3]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"red\n")))
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{STEP} cannot be run (" in error and error.count("\n") == 1


# ------------------------------------------------------------------------------------------------------------- exports
@pytest.fixture
def exporting(monkeypatch, tmp_path) -> Callable[..., int]:
    """`leapformer export` that writes graphs of the text it is given, which takes no time."""
    content, checkpoint = {"now": b""}, str(translation().checkpoint)

    def touch(*given: Any) -> None:
        given[-1].write_bytes(content["now"])

    def share(folder: Folder) -> None:
        for name in (*GRAPHS[folder.task], WEIGHTS):
            (folder.path / name).write_bytes(content["now"])

    for module in tracing, write:
        monkeypatch.setattr(module, "write_graph", touch)
    monkeypatch.setattr(write, "share", share)
    monkeypatch.setattr(write, "check_subwords", lambda *given: None)  # the model has others

    def export(of: str, *options: str, out: str = "out") -> int:
        content["now"] = of.encode()
        return leapformer(["export", "--path", checkpoint, "--out", str(tmp_path / out), *options])

    return export


def holds(path: Path) -> str:
    """Which export a folder is: the text of its graphs, which are all of one, or that it is refused."""
    if refusal(path):
        return "refused"
    folder = opened(path)
    (text,) = {(path / name).read_bytes() for name in folder.files if name != SUBWORDS}
    return text.decode()


def test_a_repeat_takes_the_place_of_all(exporting, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    for exchange in (files._exchange, lambda one, other: False):
        monkeypatch.setattr(files, "_exchange", exchange)
        assert exporting("one", "--sentencepiece-model", str(subwords())) == 0
        assert holds(out) == "one" and (out / SUBWORDS).is_file()
        assert exporting("two") == 0
        assert holds(out) == "two" and not (out / SUBWORDS).exists()
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    (tmp_path / "link").symlink_to(out)
    assert exporting("three", out="link") == 0 and holds(out) == "three" and (tmp_path / "link").is_symlink()


def test_foreign_files_are_not_lost(exporting, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    assert exporting("one") == 0, "an empty folder may be there"
    for name, message in (
        ("notes.txt", "has notes.txt in it"),
        (f"{MODEL}.d", "is no part of the export"),
    ):
        (out / name).write_text("mine")
        assert exporting("two") == 2 and message in capsys.readouterr().err
        assert (out / name).read_text() == "mine" and holds(out) == "one"
        (out / name).unlink()
    (out / MODEL).unlink()
    assert exporting("two") == 2 and "is not empty and holds no export" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert exporting("two", out="file") == 2 and "is a file" in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "out"]


def test_an_export_that_fails_leaves_what_was_there(exporting, tmp_path, capsys, monkeypatch):
    assert exporting("one") == 0

    def fail(*given: Any) -> None:
        given[-1].write_bytes(b"half")
        raise LeapformerError("no graph")

    monkeypatch.setattr(tracing, "write_graph", fail)
    assert exporting("two") == 2 and "no graph" in capsys.readouterr().err
    assert holds(tmp_path / "out") == "one" and [one.name for one in tmp_path.iterdir()] == ["out"]


@contextmanager
def at_every_moment(look: Callable[[], object]) -> Iterator[None]:
    """Meanwhile `look` at what is on the disk before and after each call of the system, as after a kill there."""

    def called(frame: Any, event: str, function: Any) -> None:
        if event in ("c_call", "c_return") and getattr(function, "__module__", "") in ("posix", "_io", "io"):
            sys.setprofile(None)
            look()
            sys.setprofile(called)

    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_kill_at_any_moment_leaves_one_export(exporting, tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    out, seen, states = tmp_path / "out", list[str](), dict[Any, str]()
    assert exporting("one", "--sentencepiece-model", str(subwords())) == 0

    def look() -> None:
        found = sorted((one.name, one.stat().st_ino, one.stat().st_size) for one in out.glob("*"))
        state = states.setdefault(str(found), "") or holds(out)
        states[str(found)] = state
        seen.append(state)

    with at_every_moment(look):
        assert exporting("two") == 0
    order = [state for number, state in enumerate(seen) if number == 0 or seen[number - 1] != state]
    assert order == (["one", "two"] if exchanges else ["one", "refused", "two"]) and len(seen) > 200
    assert holds(out) == "two"


def test_exports_in_place_would_mix(exporting, tmp_path, monkeypatch):
    """The control of the test above: graphs that are written into the old folder are seen as refused."""

    @contextmanager
    def in_place(path: Path, *_: Any) -> Iterator[Path]:
        yield Path(path)

    assert exporting("one") == 0
    monkeypatch.setattr("leapformer_fairseq.cli.export.replacing_folder", in_place)
    seen = set[str]()
    with at_every_moment(lambda: seen.add(holds(tmp_path / "out"))):
        assert exporting("two") == 0
    assert seen == {"one", "refused", "two"}


def test_the_files_of_every_task_are_known():
    assert {MODEL, WEIGHTS, SUBWORDS, *GRAPHS["translation"]} <= FILES
    assert Graphs(Folder.read(demo.MODEL)).folder.files
