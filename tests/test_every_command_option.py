"""Every option of `score`, `tts`, `maps`, `serve`, `export` and the runtime changes what is done, or is refused.

Commands run in this process. What they ask of models, servers and graphs is written down instead of done where that
takes long; how models and sessions obey is proven in the other tests of this kind.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from leapformer_fairseq.cli import export as export_command
from leapformer_fairseq.cli import main as entry
from leapformer_fairseq.export import check, write
from leapformer_fairseq.models import hifigan, synthesis
from leapformer_fairseq.models.loading import load_model
from leapformer_fairseq.runtime import __main__ as runtime_command
from leapformer_fairseq.runtime.beam import Search
from leapformer_fairseq.runtime.commands import serve as serve_command
from leapformer_fairseq.runtime.commands import tts as tts_command
from leapformer_fairseq.runtime.folder import Folder
from leapformer_fairseq.runtime.serve import files as served_files
from leapformer_fairseq.runtime.serve.files import FileServer
from leapformer_fairseq.runtime.serve.talk import Limits
from leapformer_fairseq.runtime.simul import live
from leapformer_fairseq.runtime.simul.options import policy_options
from leapformer_fairseq.runtime.spoken import Manifests, Manner, Script, Utterance
from leapformer_fairseq.runtime.translator import Text, TooLong
from leapformer_fairseq.scoring import alignment, pieces
from leapformer_fairseq.scoring.pictures import heatmaps, inputs
from leapformer_fairseq.scoring.pictures.proportions import Proportions
from leapformer_fairseq.simul import loading
from leapformer_fairseq.support.options import add_command, add_options

from .exported import MELS
from .runtime.serve.cases import silent
from .scripted import ScriptedSystem, drawn
from .test_every_session_option import ARRIVES
from .untrained import save_checkpoint

Found = dict[str, Any]  # all that can be seen of a command, by where it is seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read; nothing of it is changed."""
    return tmp_path_factory.mktemp("given")


def texts(folder: Path, **lines: str) -> None:
    for name, text in lines.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(" / ", "\n") + "\n", encoding="utf-8")


class Command:
    """Runs a command in a new folder, and tells what is printed and what is written there."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys, self._runs = folder, capsys, 0

    def __call__(self, name: str, *words: str, seen: Found | None = None) -> Found:
        self._runs += 1
        work = self.folder / str(self._runs)
        work.mkdir()
        self._capsys.readouterr()
        status = entry.main([name, *(word.replace("WORK", str(work)) for word in words)])
        printed = self._capsys.readouterr()
        found: Found = {"status": status, "out": printed.out, "err": printed.err, **(seen or {})}
        for path in sorted(work.rglob("*")):
            if path.is_file():
                found[str(path.relative_to(work))] = path.read_bytes()
        return {
            place: value.replace(str(work), "WORK") if isinstance(value, str) else
            value.replace(str(work).encode(), b"WORK") if isinstance(value, bytes) else value
            for place, value in found.items()
        }  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capsys)


@pytest.fixture(autouse=True)
def a_day_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures have the minute in them."""
    monkeypatch.setattr("leapformer_fairseq.support.signature.environment", dict)


def options_of(name: str) -> set[str]:
    parser = argparse.ArgumentParser()
    add_command(parser, importlib.import_module(f"leapformer_fairseq.cli.{name}"))
    return {action.option_strings[0] if action.option_strings else action.dest for action in parser._actions} - {"-h"}


def changed(before: Found, after: Found) -> set[str]:
    """Where two runs differ."""
    return {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}


# -------------------------------------------------------------------------------------------------------------- score
GENERATED, TALKS = ["generate.txt", "--references", "references"], ["talks.jsonl", "--references", "pieces"]
SEGMENTED = [*TALKS, "--segments", "segments.yaml"]
QUALITY = (
    "import json, sys; n = [len(json.loads(line)['src']) + 1 for line in sys.stdin];"
    "[print(json.dumps({'score': one})) for one in n];"
    "print(json.dumps({'system': sum(n), 'name': 'N', 'version': '1'}))"
)
# option -> words without it, words with it, and where that shows among the scores
SCORE: dict[str, tuple[list[str], list[str], set[str]]] = {
    "output": (GENERATED, ["other.txt", *GENERATED[1:]], {"scores"}),
    "--references": (GENERATED, ["generate.txt", "--references", "pieces"], {"scores", "length_ratio"}),
    "--training-text": (GENERATED, [*GENERATED, "--training-text", "text"], {"scores", "signatures"}),
    "--text": (["eval.log", "--text", "references"], ["eval.log", "--text", "text"], {"status"}),
    "--examples": (
        ["validate.log", "--examples", "references"],
        ["validate.log", "--examples", "text"],
        {"n_instances"},
    ),
    "--checkpoint": (GENERATED, [*GENERATED, "--checkpoint", "model.pt"], {"model"}),
    "--tokenize": (GENERATED, [*GENERATED, "--tokenize", "char"], {"scores", "signatures"}),
    "--unit": (["run"], ["run", "--unit", "char"], {"unit", "scores"}),
    "--json": (GENERATED, [*GENERATED, "--json", "WORK/more.json"], {"more.json"}),
    "--segments": (SEGMENTED, [*TALKS, "--segments", "later.yaml"], {"scores"}),
    "--segmenter": (SEGMENTED, [*SEGMENTED, "--segmenter", "mwer"], {"scores", "segmenter", "signature"}),
    "--lang": (SEGMENTED, [*SEGMENTED, "--lang", "en"], {"lang", "signature", "cut for"}),
    "--resegmented": (SEGMENTED, [*SEGMENTED, "--resegmented", "WORK/pieces.jsonl"], {"pieces.jsonl"}),
    "--quality-command": (SEGMENTED, [*SEGMENTED, "--quality-command", "QUALITY"], {"scores", "signatures"}),
    "--transcripts": (
        [*SEGMENTED, "--quality-command", "QUALITY"],
        [*SEGMENTED, "--quality-command", "QUALITY", "--transcripts", "pieces"],
        {"scores"},
    ),
}


@pytest.fixture(scope="module")
def scored(folder: Path) -> Path:
    texts(
        folder,
        generate_txt="D-0\t0\tabc b, c d efg / D-1\t0\tf g h i",
        other_txt="D-0\t0\tabc b, c d / D-1\t0\tf g h",
        references="abc b, c d ef / f g h j",
        pieces="a b c / d e x f",
        text="a b / c / d",
        eval_log="Evaluated 11 tokens / Loss (base 2): 3.0, Perplexity: 8.0",
        validate_log="valid on 'valid' subset | loss 1 | accuracy 10",
        segments_yaml="- {wav: a.wav, offset: 1.0, duration: 2.0} / - {wav: a.wav, offset: 4.0, duration: 2.5}",
        later_yaml="- {wav: a.wav, offset: 1.5, duration: 2.0} / - {wav: a.wav, offset: 4.5, duration: 2.5}",
    )
    one = {"index": 0, "prediction": "a b", "reference": "ab cde", "delays": [400.0, 900.0], "elapsed": [500.0, 990.0],
           "source_length": 1000.0}  # fmt: skip
    texts(folder, run__instances_log=json.dumps(one))
    talk = {"source": "a.wav", "prediction": "a b c d e f", "delays": [2000, 2500, 3000, 5000, 5500, 6000],
            "elapsed": [2100, 2600, 3200, 5100, 5700, 6100]}  # fmt: skip
    texts(folder, talks_jsonl=json.dumps(talk))
    state = {"cfg": {"model": argparse.Namespace(arch="x"), "checkpoint": {}}, "model": {"weight": torch.ones(2)}}
    torch.save(state, folder / "model.pt")
    return folder


def test_every_option_of_score_is_known_here() -> None:
    assert options_of("score") == SCORE.keys()


@pytest.mark.parametrize("option", SCORE)
def test_every_option_of_score_changes_the_scores(
    option: str, command: Command, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scored)
    # In place of mweralign, a package that few have: the first unit for the first segment, all others for the second.
    monkeypatch.setattr(pieces, "mwer_segments", lambda parts, units, characters: [0, *[1] * (len(units) - 1)])

    seen: dict[str, Any] = {}

    def soft_segments(*given: Any) -> Any:
        seen["cut for"] = given[-1]
        return alignment.soft_segments(*given)

    monkeypatch.setattr(pieces, "soft_segments", soft_segments)

    def run(words: list[str]) -> Found:
        seen.clear()
        words = [f"{sys.executable} -c {json.dumps(QUALITY)}" if word == "QUALITY" else word for word in words]
        found = command("score", *words, *([] if option == "--json" else ["--json", "WORK/scores.json"]))
        written = found.pop("scores.json", None)
        return {**found, **seen, **(json.loads(written) if written else {})}

    before, after, places = run(SCORE[option][0]), run(SCORE[option][1]), SCORE[option][2]
    assert before["status"] == 0, before["err"]
    assert changed(before, run(SCORE[option][0])) == set(), "nothing else changes them"
    assert places <= changed(before, after), after["err"]
    assert after["status"] == 0 or "status" in places


# ----------------------------------------------------------------------------------------------------------------- tts
class Speaks:
    """In place of a checkpoint's voice, and an exported one's: frames follow from all that a voice is told."""

    seen: list[Any]

    def __init__(self, about: Any, manifests: Manifests | None, one_by_one: bool) -> None:
        self.seen.append(("voice", about))
        self.data, self.origin = {"features": MELS.features(), "espeak": {"voice": "en-us"}}, {}
        self.manifests, self.one_by_one = manifests, one_by_one
        self.speakers = {"ann": 0, "bob": 1}

    def numbers(self, script: Script) -> list[int]:
        return [3, 2]

    def speak(self, scripts: Any, manner: Manner, done: Any = ()) -> Iterator[tuple[Script, Utterance]]:
        for place, script in enumerate(scripts):
            batch = 0 if self.one_by_one else place // manner.batch_size
            about = (
                drawn(ord(script.phonemes[0]), script.speaker, batch, manner.seed) + int(100 * manner.threshold)
            ) % 97
            frames = np.full((min(manner.max_steps, 9), MELS.n_mels), about / 97, np.float32)
            frames += np.arange(len(frames), dtype=np.float32)[:, None] % 3
            draws = place < manner.alignments and not self.one_by_one
            yield script, Utterance(frames, True, np.ones(len(frames)), alignment=np.ones((2, 2)) if draws else None)


NUMBERS = ["--phonemes", "said"]
# option -> words with it, words beside it, and where that shows, beside run.json and what is printed; FILES: in all
FILES = {"manifest.tsv", "mel/0001.npy", "wav/0001.wav"}
TTS: dict[str, tuple[list[str], list[str], set[str]]] = {
    "--path": (["--path", "other.pt"], NUMBERS, {"voice"}),
    "--subset": (["--subset", "test"], [], {"manifest.tsv", "mel/one.npy"}),
    "--phonemes": (["--phonemes", "x y"], [], {"manifest.tsv", "mel/0001.npy"}),
    "--text": (["--text", "x y"], [], {"manifest.tsv", "mel/0001.npy", "espeak"}),
    "--speaker": (["--speaker", "bob"], NUMBERS, {"mel/0001.npy", "wav/0001.wav"}),
    "--out": (["--out", "WORK/elsewhere"], NUMBERS, {"elsewhere/manifest.tsv"}),
    "--data": (["--data", "speech"], NUMBERS, {"voice"}),
    "--eos-threshold": (["--eos-threshold", "0.75"], NUMBERS, {"mel/0001.npy"}),
    "--max-steps": (["--max-steps", "5"], NUMBERS, FILES),
    "--batch-size": (["--batch-size", "1"], NUMBERS, {"mel/0002.npy"}),
    "--plots": (["--plots", "2"], NUMBERS, {"plots/0001.svg", "plots/0002.svg"}),
    "--hifigan": (["--hifigan", "a.pt", "a.json"], NUMBERS, {"wav/0001.wav", "hifigan"}),
    "--iterations": (["--iterations", "7"], NUMBERS, {"wav/0001.wav"}),
    "--model-overrides": (["--model-overrides", "{'a': 7}"], NUMBERS, {"voice"}),
    "--seed": (["--seed", "7"], NUMBERS, {"mel/0001.npy"}),
    "--cpu": (["--cpu"], NUMBERS, {"voice"}),
}
# Of an exported model; others are as of a checkpoint.
EXPORTED: dict[str, tuple[list[str], list[str], set[str]]] = {
    "--path": (["--path", "another"], NUMBERS, {"voice"}),
    "--data": (["--data", "speech"], ["--subset", "test"], {"status", "manifest.tsv"}),
    "--batch-size": (["--batch-size", "1"], NUMBERS, set()),  # it speaks one sentence at a time,
    "--cpu": (["--cpu"], NUMBERS, set()),  # always on the CPU,
    "--plots": (["--plots", "2"], NUMBERS, {"status"}),  # does not tell what it attends to,
    "--model-overrides": (["--model-overrides", "{'a': 7}"], NUMBERS, {"status"}),  # and stays as it is
    "--subset": (["--subset", "test"], ["--data", "speech"], {"manifest.tsv"}),
}


UNRECORDED = {"--out", "--plots", "--cpu"}  # which do not decide about what is said


@pytest.fixture(scope="module")
def spoken(folder: Path) -> Path:
    texts(
        folder,
        speech__config_yaml="audio_root: /root",
        speech__test_tsv="id\tn_frames\ttgt_text\tspeaker / one\t5\tp q\tann",
    )
    texts(folder, said="p q / r s / t u")
    for name in ("exported", "another"):
        (folder / name).mkdir()
    return folder


def test_every_option_of_tts_is_known_here() -> None:
    assert options_of("tts") == TTS.keys() and EXPORTED.keys() <= TTS.keys()


@pytest.mark.parametrize("path", ["model.pt", "exported"])
@pytest.mark.parametrize("option", TTS)
def test_every_option_of_tts_changes_what_is_spoken(
    option: str, path: str, command: Command, spoken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def vocoder(*given: str) -> Any:
        seen.append(("hifigan", given))
        return lambda frames: frames[:, 0]

    monkeypatch.chdir(spoken)
    monkeypatch.setattr(Speaks, "seen", seen, raising=False)
    at = Manifests(spoken / "speech", Path("/"))
    monkeypatch.setattr(synthesis, "TrainedVoice", lambda *given: Speaks(given, at, False))
    monkeypatch.setattr(Folder, "read", lambda path: path)
    monkeypatch.setattr(tts_command, "ExportedVoice", lambda given, manifests: Speaks(given, manifests, True))
    monkeypatch.setattr(tts_command, "phonemes_of", lambda lines, data: seen.append(("espeak", data)) or lines)
    monkeypatch.setattr(
        hifigan, "load_hifigan", lambda *given: seen.append(("hifigan", given)) or (lambda mel: mel[:, 0])
    )
    monkeypatch.setattr(heatmaps, "draw_utterance", lambda one, script, path: path.write_text(script.id))

    def run(words: list[str]) -> Found:
        seen.clear()
        found = command("tts", "--path", path, "--out", "WORK", "--iterations", "2", *words)
        return {**found, **dict(seen)}

    words, more, places = (EXPORTED if path == "exported" else TTS).get(option, TTS[option])
    says = option in ("--subset", "--phonemes", "--text")  # one of them is needed
    before, after = run([*more, *NUMBERS] if says else more), run([*more, *words])
    assert places <= changed(before, after), after["err"]
    if not places:
        assert changed(before, after) <= {"run.json", "err"}, "then say so here"
    if "status" not in places:
        assert before["status"] == after["status"] == 0, after["err"]
        records = [json.loads(one.get("run.json") or one["elsewhere/run.json"])["options"] for one in (before, after)]
        assert (records[0] == records[1]) == (option in UNRECORDED), "a run is known by its options"


# ---------------------------------------------------------------------------------------------------------------- maps
GIVEN, OWN = ["--target", "lines"], ["--max-length", "6"]  # the model's own translation would be long
MAPS: dict[str, tuple[list[str], list[str], set[str]]] = {
    "--path": (["--path", "relu.pt"], GIVEN, {"drawn", "out"}),
    "--input": (["--input", "others"], GIVEN, {"drawn", "rows"}),
    "--target": (["--target", "lines"], OWN, {"drawn", "err"}),
    "--out": (["--out", "WORK/elsewhere"], GIVEN, {"elsewhere/proportions.json"}),
    "--data": (["--data", "words"], GIVEN, {"loaded"}),
    "--subwords": (["--subwords", "cut.model"], GIVEN, {"drawn", "subwords"}),
    "--block": (["--block", "decoder-self"], GIVEN, {"drawn", "out"}),
    "--layer": (["--layer", "2"], GIVEN, {"drawn", "out"}),
    "--head": (["--head", "1"], GIVEN, {"drawn"}),
    "--lines": (["--lines", "2"], GIVEN, {"rows"}),
    "--max-length": (["--max-length", "3"], GIVEN, {"drawn", "rows", "err"}),
}


@pytest.fixture(scope="module")
def mapped(folder: Path) -> Path:
    lines = "w1 w2 w3 w4 w5 / w6 w7 w8 / w9 w1 w2 w3"
    texts(folder, lines=lines, others="w4 w5 / w6 / w7 w8 w9")
    symbols = " / ".join(f"w{n} 1" for n in range(30))
    for name in ("pairs", "words"):
        texts(folder, **{f"{name}__dict_{side}_txt": symbols for side in ("de", "en")})
    flags = ("--source-lang", "de", "--target-lang", "en", "--encoder-layers", "2", "--decoder-layers", "2")
    for name, plan in (("leap", "leap"), ("relu", "relu")):
        save_checkpoint(
            folder / f"{name}.pt", folder / "pairs", "leapformer_nmt_tiny", *flags,
            f"--decoder-self-attention={plan}", task="translation",
        )  # fmt: skip
    return folder


def test_every_option_of_maps_is_known_here() -> None:
    assert options_of("maps") == MAPS.keys()


@pytest.mark.parametrize("option", MAPS)
def test_every_option_of_maps_changes_what_is_drawn(
    option: str, command: Command, mapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def draw(title: str, captured: Any, panels: Any, scale: Any, *more: Any) -> None:
        seen.setdefault("drawn", []).append((title, captured.block, captured.layer, str(panels), *map(str, more[:2])))

    def subwords(model_file: str) -> Any:
        seen["subwords"] = model_file
        return SimpleNamespace(encode=lambda line, out_type: line.split()[::-1])

    def load(*given: Any) -> Any:
        seen["loaded"] = given
        return load_model(*given)

    monkeypatch.chdir(mapped)
    monkeypatch.setattr(inputs, "load_model", load)
    monkeypatch.setattr(heatmaps, "_draw", draw)
    monkeypatch.setattr(Proportions, "draw", lambda self, path: None)
    monkeypatch.setattr("sentencepiece.SentencePieceProcessor", subwords)

    def run(words: list[str]) -> Found:
        seen.clear()
        found = command("maps", "--path", "leap.pt", "--input", "lines", "--out", "WORK", *words)
        written = found.get("proportions.json") or found.get("elsewhere/proportions.json")
        return {**found, **seen, "rows": json.loads(written)["rows"] if written else []}

    words, more, places = MAPS[option]
    before, after = run(more), run([*more, *words])
    assert before["status"] == after["status"] == 0, before["err"] + after["err"]
    assert places <= changed(before, after)


# -------------------------------------------------------------------------------------------------------------- export
KINDS = {"text": "leapformer_nmt", "synthesis": "leapformer_tts", "speech": "leapformer_simulst"}
# option -> words with it, where it shows, and for which kinds of models it has a meaning
EXPORT: dict[str, tuple[list[str], set[str], set[str]]] = {
    "--path": (["--path", "other.pt"], {"loaded"}, {*KINDS}),
    "--average": (["--average", "--path", "one.pt:other.pt"], {"averaged"}, {*KINDS}),
    "--out": (["--out", "WORK/elsewhere"], {"elsewhere/graph"}, {*KINDS}),
    "--data": (["--data", "elsewhere"], {"loaded"}, {*KINDS}),
    "--source-lang": (["--source-lang", "en"], {"languages"}, {"text"}),
    "--target-lang": (["--target-lang", "en"], {"languages"}, {"text"}),
    "--lang-dict": (["--lang-dict", "lines"], {"loaded"}, {"text"}),
    "--lang-pairs": (["--lang-pairs", "en-de"], {"loaded"}, {"text"}),
    "--fixed-dictionary": (["--fixed-dictionary", "lines"], {"loaded"}, {"text"}),
    "--encoder-langtok": (["--encoder-langtok", "tgt"], {"loaded"}, {"text"}),
    "--decoder-langtok": (["--decoder-langtok"], {"loaded"}, {"text"}),
    "--config-yaml": (["--config-yaml", "other.yaml"], {"loaded"}, {"speech"}),
    "--pre-decision-ratio": (["--pre-decision-ratio", "7"], {"loaded"}, {"speech"}),
    "--sentencepiece-model": (["--sentencepiece-model", "lines"], {"subwords"}, {"text"}),
    "--bpe-codes": (["--bpe-codes", "lines"], {"subwords"}, {"text"}),
    "--gpt2-bpe": (["--gpt2-bpe", "lines", "more"], {"subwords"}, {"text"}),
    "--moses": (["--moses", "en-de"], {"subwords"}, {"text"}),
    "--alignments": (["--alignments", "-2"], {"alignments"}, {"text", "speech"}),
    "--engine": (["--engine", "ctranslate2"], {"engine"}, {"text"}),
    "--quantize": (["--quantize"], {"quantized"}, {*KINDS}),
    "--check": (["--check", "7"], {"compared", "out"}, {*KINDS}),
}


def test_every_option_of_export_is_known_here() -> None:
    assert options_of("export") == EXPORT.keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", EXPORT)
def test_every_option_of_export_changes_what_is_exported_or_is_refused(
    option: str, kind: str, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def written(model: Any, *given: Any, alignments: int | None = None, **more: Any) -> Any:
        seen.update({} if alignments is None else {"alignments": alignments}, **more)
        out = next(one for one in given if isinstance(one, Path))
        (out / "graph").write_text(str(model))
        if isinstance(given[-1], tuple):
            seen["languages"] = given[-1]
            seen["subwords"] = "-".join(map(str, given[-2])).replace("('en', 'de')", "en-de")
        return out

    def compared(*given: Any) -> Any:
        seen["compared"] = given[-1]
        return check.Compared(given[-1], given[-1], 0.0)

    def load_model(*given: Any) -> Any:
        seen["loaded"] = given
        return SimpleNamespace(encoder=None), SimpleNamespace(langs=["en"])

    def average(paths: list[Path]) -> dict[str, Any]:
        seen["averaged"] = ":".join(map(str, paths))
        return {}

    monkeypatch.chdir(folder)
    texts(folder, lines="w1", more="w2")
    state = {"cfg": {"model": argparse.Namespace(arch=f"{KINDS[kind]}_tiny"), "task": {"lang_pairs": "en-de"}}}
    monkeypatch.setattr("leapformer_fairseq.models.averaging.load_checkpoint", lambda path: state)
    monkeypatch.setattr("leapformer_fairseq.models.averaging.describe_checkpoint", lambda path: {})
    monkeypatch.setattr("leapformer_fairseq.models.averaging.average_checkpoints", average)
    monkeypatch.setattr("leapformer_fairseq.models.loading.load_model", load_model)

    def load_system(*given: Any) -> Any:
        seen["loaded"] = given
        decoder = SimpleNamespace(dictionary=SimpleNamespace(symbols=[]))
        return SimpleNamespace(model=SimpleNamespace(decoder=decoder), detokenizer=SimpleNamespace(model_file=None))

    monkeypatch.setattr(loading, "load_system", load_system)
    monkeypatch.setattr("leapformer_fairseq.runtime.voice.ExportedVoice", lambda folder: folder)
    for name in ("export_text", "export_synthesis", "export_speech"):
        monkeypatch.setattr(write, name, written)
    monkeypatch.setattr(export_command.Folder, "read", lambda path: path)
    monkeypatch.setattr(write, "quantize", lambda folder: seen.update(quantized=folder.name))
    for name in ("compared", "compared_synthesis", "compared_speech"):
        monkeypatch.setattr(check, name, compared)
    for name in ("one.pt", "other.pt"):
        (folder / name).write_bytes(b"")

    def run(words: list[str]) -> Found:
        seen.clear()
        return {**command("export", "--path", "one.pt", "--out", "WORK/model", "--data", "data", *words), **seen}

    words, places, kinds = EXPORT[option]
    before, after = run([]), run(words)
    assert before["status"] == 0, before["err"]
    if kind in kinds:
        assert after["status"] == 0 and places <= changed(before, after), after["err"]
        asked = [seen[place] for place in places if place in seen and len(words) > 1]
        assert not asked or words[-1] in str(asked), "the value itself arrives"
    else:
        assert after["status"] == 2 and option in after["err"], f"{option} changes nothing and is not refused"
        assert not any(place.startswith("model/") for place in after), "before anything is written"


# ------------------------------------------------------------------------------- python -m leapformer_fairseq.runtime
SAMPLING = ["--sampling"]
# option -> words without it, words with it, and where that shows
RUNTIME: dict[str, tuple[list[str], list[str], set[str]]] = {
    "folder": ([], [], {"folder"}),
    "--beam": ([], ["--beam", "7"], {"beam"}),
    "--max-len-a": ([], ["--max-len-a", "1.5"], {"max_len_a"}),
    "--max-len-b": ([], ["--max-len-b", "9"], {"max_len_b"}),
    "--min-len": ([], ["--min-len", "3"], {"min_len"}),
    "--length-penalty": ([], ["--length-penalty", "0.5"], {"penalty"}),
    "--unkpen": ([], ["--unkpen", "2"], {"unk_penalty"}),
    "--temperature": ([], ["--temperature", "0.5"], {"temperature"}),
    "--no-repeat-ngram-size": ([], ["--no-repeat-ngram-size", "3"], {"no_repeat_ngram_size"}),
    "--sampling": ([], SAMPLING, {"sampling"}),
    "--sampling-topk": (SAMPLING, [*SAMPLING, "--sampling-topk", "10"], {"topk"}),
    "--sampling-topp": (SAMPLING, [*SAMPLING, "--sampling-topp", "0.9"], {"topp"}),
    "--seed": ([], ["--seed", "7"], {"draws"}),
    "--nbest": ([], ["--nbest", "2"], {"nbest"}),
    "--scores": ([], ["--scores"], {"out"}),
    "--source-lang": ([], ["--source-lang", "en"], {"source"}),
    "--target-lang": ([], ["--target-lang", "de"], {"target"}),
    "--alignments": ([], ["--alignments"], {"alignments", "out"}),
    "--prefixes": ([], ["--prefixes", "prefixes"], {"prefixes"}),
    "--too-long": ([], ["--too-long", "cut"], {"out", "err", "status"}),
    "--batch-tokens": ([], ["--batch-tokens", "70"], {"batch_tokens"}),
    "--threads": ([], ["--threads", "2"], {"threads"}),
    "--quiet": ([], ["--quiet"], {"err"}),
}


def test_every_option_of_the_runtime_is_known_here() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, runtime_command.OPTIONS)
    names = {action.option_strings[0] if action.option_strings else action.dest for action in parser._actions}
    assert names - {"-h"} == RUNTIME.keys()


@pytest.mark.parametrize("option", RUNTIME)
def test_every_option_of_the_runtime_arrives(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: Found = {}

    class Recorded:
        def __init__(self, folder: Path, threads: int) -> None:
            seen.update(folder=str(folder), threads=threads)
            self.folder = folder

        def pieces(self, line: str, where: str, search: Search) -> list[str]:
            if len(line) > 9:
                raise TooLong(f"{where}too long", ["short"])
            return line.split()

        def unknown(self, pieces: list[str]) -> list[str]:
            return []

        def translate(self, lines: list[list[str]], **options: Any) -> Iterator[list[Text]]:
            draws = options.pop("seed").random()
            seen.update(vars(options.pop("search")), draws=draws)
            options.pop("watch")(len(lines), len(lines))
            seen.update(options)
            return iter([[Text(" ".join(pieces), pieces, -1.0)] for pieces in lines])

    texts(folder, prefixes="p1")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(runtime_command, "Translator", Recorded)
    monkeypatch.setattr(runtime_command, "marks_of", lambda *given: None)
    monkeypatch.setattr(runtime_command.Folder, "read", lambda path: SimpleNamespace(task="translation"))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def run(name: str, words: list[str]) -> Found:
        seen.clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one two\nmuch too long\nthree")))
        status = runtime_command.main([name, *words])
        printed = capsys.readouterr()
        assert printed.out.count("\n") == 3
        bar = printed.err.rpartition("\r")[2]
        assert ("3/3" in bar) == ("--quiet" not in words), "the file has three lines"
        err = re.sub(r"\r[^\r\n]*\]", "", printed.err)  # how often the bar is drawn depends on time
        return {"status": status, "out": printed.out, "err": f"{err}{'3/3' in bar}", **seen}

    without, given, places = RUNTIME[option]
    before, after = run("one", without), run("other" if option == "folder" else "one", given)
    assert changed(before, after) == places


# --------------------------------------------------------------------------------------------------------------- serve
# option -> words with it, and where it shows; --max-...: below, and those of a session: test_every_session_option.py
SERVE: dict[str, tuple[list[str], set[str]]] = {
    "--in-browser": (["--in-browser"], {"server", "page"}),
    "--host": (["--host", "localhost"], {"listens", "out"}),
    "--port": (["--port", "8123"], {"listens", "out"}),
    "--token": (["--token", "secret"], {"token", "out"}),
    "--allow-host": (["--allow-host", "talks.example"], {"hosts"}),
    "--talks": (["--talks", "kept"], {"texts", "out"}),
    "--no-talks": (["--no-talks"], {"texts", "out"}),
    "--open": (["--open"], {"opened"}),
    "--title": (["--title", "A model"], {"page"}),
    "--device": (["--device", "cuda:7"], {"device"}),
    **{
        option: ([option, "3"], {f"limits.{name}"})
        for option, name in ((f"--max-{limit.name.replace('_', '-')}", limit.name) for limit in fields(Limits))
    },
}  # fmt: skip
BROWSER: dict[str, tuple[list[str], set[str]]] = {
    "--onnxruntime-web": (["--onnxruntime-web", "elsewhere"], {"files"}),
    **{option: SERVE[option] for option in ("--host", "--port", "--token", "--allow-host", "--open", "--title")},
}
OF_SESSIONS = {*ARRIVES, "--checkpoint", "--sentence-ends", "--policy-file"}


@pytest.fixture
def serve(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Found]:
    """Runs the command until it would wait for its end."""
    seen: dict[str, Any] = {}

    async def start(self: Any, host: str, port: int) -> Any:
        seen.update(listens=(host, port), server=type(self).__name__, token=self.token)
        seen["hosts"] = sorted(self.hosts._names)
        seen["texts"] = str(self.texts.folder) if getattr(self, "texts", None) else None
        pages = self.files if isinstance(self, FileServer) else self._files
        seen["page"] = json.loads(pages["/config.json"][1])
        seen["paths"] = sorted(pages)
        for limit in fields(Limits) if hasattr(self, "limits") else ():
            seen[f"limits.{limit.name}"] = getattr(self.limits, limit.name)
        if hasattr(self, "make_session"):
            seen.update(session=self.make_session(True), unit=self.unit)
        asyncio.get_running_loop().call_soon(signals.pop())
        return SimpleNamespace(
            sockets=[SimpleNamespace(getsockname=lambda: (host, port))], close=lambda: None, wait_closed=nothing
        )

    async def nothing() -> None: ...

    def system(args: Any, device: str, open_checkpoint: Any) -> Any:
        seen["device"] = device
        return ScriptedSystem(policy_options(args), 4 * (args.pre_decision_ratio or 12))

    def model_files(path: Path, runtime: Path) -> dict[str, Any]:
        seen["files"] = (path.name, str(runtime))
        return {}

    signals: list[Any] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(asyncio.unix_events._UnixSelectorEventLoop, "add_signal_handler",
                        lambda self, number, stop: signals.append(stop))  # fmt: skip
    monkeypatch.setattr("leapformer_fairseq.runtime.serve.server.LiveServer.start", start)
    monkeypatch.setattr(FileServer, "start", start)
    monkeypatch.setattr(live, "open_system", system)
    monkeypatch.setattr(live, "Session", lambda system, *given: (system.policy, system.step_frames, *given))
    monkeypatch.setattr(serve_command, "_warm_up", lambda session: None)
    monkeypatch.setattr(served_files, "model_files", model_files)
    monkeypatch.setattr("webbrowser.open", lambda page: seen.update(opened=page))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    (folder / "folder").mkdir(exist_ok=True)

    def run(*words: str) -> Found:
        seen.clear()
        signals.clear()
        found = command("serve", "--checkpoint", "folder", *words)
        return {**found, **seen}

    return run


def test_every_option_of_serve_is_known_here() -> None:
    assert options_of("serve") == SERVE.keys() | BROWSER.keys() | OF_SESSIONS


@pytest.mark.parametrize("option", SERVE)
def test_every_option_of_serve_changes_the_server(option: str, serve: Callable[..., Found]) -> None:
    words, places = SERVE[option]
    before, after = serve(), serve(*words)
    assert before["status"] == after["status"] == 0, before["err"] + after["err"]
    assert places <= changed(before, after)
    assert len(words) == 1 or all(words[-1] in str(after[place]) for place in places), "the value itself arrives"


@pytest.mark.parametrize("option", sorted({*SERVE, *BROWSER} - {"--in-browser", "--device"}))
def test_every_option_of_serve_in_the_browser_changes_the_page_or_is_refused(
    option: str, serve: Callable[..., Found]
) -> None:
    words, places = BROWSER.get(option, SERVE.get(option, ([], set())))
    before, after = serve("--in-browser"), serve("--in-browser", *words)
    assert before["status"] == 0, before["err"]
    if option in BROWSER:
        assert after["status"] == 0 and places <= changed(before, after), after["err"]
    else:
        assert after["status"] == 2 and option in after["err"], f"{option} changes nothing and is not refused"


def test_the_browser_gets_the_network_for_ends_of_sentences(serve: Callable[..., Found], folder: Path) -> None:
    silent().save(folder / "ends.npz")
    found = serve("--in-browser", "--sentence-ends", "ends.npz")
    segments = found["page"]["local"]["segments"]
    assert segments["kind"] == "sentence" and segments["sentences"]["shapes"]["mean"] == [80]
    assert {"/graphs/sentences.onnx", "/graphs/sentences.bin"} <= {*found["paths"]}


OF_CHECKPOINTS = {"--data-root", "--config-yaml", "--engine"}  # an exported folder has its own


@pytest.mark.parametrize("option", sorted(ARRIVES.keys() - OF_CHECKPOINTS))
def test_every_option_of_a_session_arrives_at_the_server_and_in_the_browser(
    option: str, serve: Callable[..., Found]
) -> None:
    value, place, more = ARRIVES[option]
    before, after = serve(*more), serve(*more, f"{option}={value}")
    assert before["status"] == after["status"] == 0, after["err"]
    assert "session" in changed(before, after) or option == "--num-threads", option  # as of `open_system`
    more = [] if option == "--policy" else more
    before, after = serve("--in-browser", *more), serve("--in-browser", *more, f"{option}={value}")
    if more[:1] == ["--policy"] and more[1] not in served_files.POLICIES:
        assert before["status"] == 2 and f"--policy {more[1]}" in before["err"]
        return
    if option in ("--carry", "--num-threads", "--beam"):
        assert after["status"] == 2 and option in after["err"]
    else:
        assert after["page"]["local"] != before["page"]["local"], option
