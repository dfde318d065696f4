"""`leapformer demo`: the bundled model speaks for itself, quickly, and without PyTorch and fairseq."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import numpy as np
import pytest
import soundfile

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.cli import main as cli
from leapformer_fairseq.runtime.commands import demo
from leapformer_fairseq.runtime.folder import Folder

pytest.importorskip("onnxruntime")

# Runs a module without what an installation of numpy, onnxruntime, soundfile, sentencepiece and websockets lacks.
ALONE = """
import runpy, sys

LACKS = "torch torchaudio fairseq fairseq_cli simuleval kaldi_native_fbank yaml tqdm scipy matplotlib onnx soxr".split()

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LACKS:
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""
RUNTIME, COMMAND = ("leapformer_fairseq.runtime", "demo"), ("leapformer_fairseq.cli.main", "demo")
PAGE = re.compile(r"open (http://127\.0\.0\.1:\d+/) in a browser")


def alone(*words: str) -> list[str]:
    return [sys.executable, "-c", ALONE, *words]


def shown(out: str) -> list[tuple[float, str]]:
    """The words of the translation, with their times."""
    return [(float(seconds), text) for seconds, text in re.findall(r"^ +(\d+\.\d\d) s  (.+)$", out, re.MULTILINE)]


@pytest.mark.parametrize("module", [RUNTIME, COMMAND], ids=["runtime", "command"])
def test_it_translates_without_torch_and_fairseq(module, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN_DIR.parent)}
    done = subprocess.run(alone(*module), capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    example = json.loads(demo.EXAMPLE.read_text(encoding="utf-8"))
    assert example["source"] in done.stdout and f"Reference:  {example['reference']}\n" in done.stdout
    times = [seconds for seconds, _ in shown(done.stdout)]
    assert times and times == sorted(times) and times[0] < soundfile.info(demo.FOLDER / example["audio"]).duration
    assert done.stdout.count("\n  leapformer demo ") == 2 and not list(tmp_path.iterdir())


def test_the_first_word_is_there_at_once():
    """In processor time, which other programs on this machine do not lengthen."""
    code = "import time; from leapformer_fairseq.cli.main import main; main(['demo', '--no-live']); "
    command = [sys.executable, "-c", code + "print(time.process_time())"]

    def seconds() -> float:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return float(done.stdout.splitlines()[-1])

    assert min(seconds() for _ in range(3)) < 1.5


def test_live_it_waits_for_the_speech(capsys):
    started = time.monotonic()
    assert cli.main(["demo", "--live"]) == 0
    assert time.monotonic() - started > soundfile.info(demo.FOLDER / "example.flac").duration
    live = shown(capsys.readouterr().out)
    assert cli.main(["demo", "--no-live"]) == 0
    assert shown(capsys.readouterr().out) == live


def test_its_words_are_those_of_stream(capsys):
    """The example, and another recording, which has no reference."""
    recording = str(demo.FOLDER / "example.flac")
    assert cli.main(["demo", recording, "--waitk-lagging", "1"]) == 0
    out = capsys.readouterr().out
    assert "Reference" not in out and recording in out
    words = ["--checkpoint", str(demo.MODEL), "--waitk-lagging", "1", *demo.LIMITS]
    assert cli.main(["stream", recording, *words]) == 0
    assert " ".join(text for _, text in shown(out)) == capsys.readouterr().out.strip()


def test_the_page_needs_no_torch_either(tmp_path):
    pytest.importorskip("websockets")
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN_DIR.parent), "PYTHONUNBUFFERED": "1"}
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        environment.pop(name, None)
    command = alone(*COMMAND, "--page", "--port", "0")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            assert (tmp_path / lines[0].partition("page: ")[2].strip()).is_file()
            found = PAGE.search(lines[1])
            assert found, process.stderr.read()
            with urlopen(found[1] + "config.json", timeout=30) as answer:
                about = json.load(answer)
            assert about["model"] == "the quickstart's model" and about["lagging"] == 3 and "local" not in about
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_a_browser_is_opened_where_there_is_a_screen(tmp_path):
    pytest.importorskip("websockets")
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {tmp_path}/opened.partial\nmv {tmp_path}/opened.partial {tmp_path}/opened\n'
    )
    browser.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN_DIR.parent), "DISPLAY": ":0", "BROWSER": str(browser)}
    command = [sys.executable, "-u", "-m", *COMMAND, "--page", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            found = PAGE.search(process.stdout.readline() + process.stdout.readline())
            deadline = time.monotonic() + 30
            while not (tmp_path / "opened").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert found and (tmp_path / "opened").read_text().strip() == found[1]
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.wav"], "no audio file at no.wav"),
        (["--waitk-lagging", "0"], "--waitk-lagging 0: give at least 1"),
        (["talk.wav", "--page"], "--page: choose talk.wav on the page"),
        (["--page", "--port", "70000"], "--port 70000: give 1 to 65535"),
        (["music.wav"], "is sampled at 44100 Hz, 16000 Hz is needed; resample it, e.g. `sox"),
    ],
)
def test_what_is_wrong_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    soundfile.write(tmp_path / "music.wav", np.zeros(100), 44_100)
    assert cli.main(["demo", *words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["--page"]])
def test_without_onnxruntime_the_remedy_is_one_line(words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert cli.main(["demo", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err == "leapformer: error: onnxruntime is not installed; pip install onnxruntime\n"
    assert "German" not in captured.out


def test_without_the_model_it_says_how_to_make_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "EXAMPLE", tmp_path / "example.json")
    assert cli.main(["demo"]) == 2
    assert "has no model; `bash scripts/demo_model.sh results/quickstart` makes one" in capsys.readouterr().err


def test_the_bundle_is_small_whole_and_signed():
    files = [path for path in demo.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_500_000
    signature = Folder.read(demo.MODEL).signature
    page = (demo.FOLDER / "README.md").read_text(encoding="utf-8")
    assert signature in page and "bash scripts/demo_model.sh results/quickstart" in page
    assert "leapformer train results/quickstart/corpus" in page and not re.search(r"(?<![\w.])/\w", page)
