"""A model that runs in a page: the same events as in Python, and the page with a recording as its microphone."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("websockets", reason="the extra live")
pytest.importorskip("onnxscript", reason="the extra onnx")

from leapformer_fairseq.cli.main import main  # noqa: E402
from leapformer_fairseq.runtime.audio import fbank  # noqa: E402
from leapformer_fairseq.runtime.sentences import SentenceModel  # noqa: E402
from leapformer_fairseq.runtime.serve.files import (  # noqa: E402
    FileServer,
    model_files,
    page_files,
    sentence_files,
    translator,
)
from leapformer_fairseq.runtime.simul.exported import ExportedSystem  # noqa: E402
from leapformer_fairseq.runtime.simul.policy import PolicyOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.segments import SegmentOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.session import Session  # noqa: E402
from leapformer_fairseq.runtime.simul.stream import DecodingOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.text import Detokenizer  # noqa: E402
from leapformer_fairseq.support.errors import LeapformerError  # noqa: E402
from tests.exported import speech as exported_speech  # noqa: E402
from tests.simul.browser import CHROMIUM, Browser, until  # noqa: E402
from tests.simul.test_page import Served, shown  # noqa: E402

NPM = shutil.which("npm")
VERSION = "1.30.0"  # of onnxruntime-web
in_chromium = pytest.mark.skipif(CHROMIUM is None or NPM is None, reason="no Chromium or npm: apt-get install them")
WINDOW = {"kind": "seconds", "history": "window", "history_words": 1, "max_seconds": 6.0}
DECODING, SEGMENTS = DecodingOptions(max_len_b=20), SegmentOptions(min_seconds=1.0, max_seconds=4.0)
PARTS = """(async () => {
  const [{ ExportedSystem }, { SentenceModel }, { Session }, { Detokenizer }, { env, InferenceSession, Tensor }] =
    await Promise.all(["local/exported", "local/sentences", "local/session", "local/text", "runtime/ort.wasm.min"]
      .map((name) => import(`/${name}.${name.endsWith("min") ? "mjs" : "js"}`)));
  Object.assign(env.wasm, { numThreads: 1, wasmPaths: "/runtime/" });
  const read = async (name) => new Uint8Array(await (await fetch(`/${name}`)).arrayBuffer());
  const system = await ExportedSystem.load({ InferenceSession, Tensor }, read, null, 0);
  const floats = (pcm) => Float32Array.from(pcm, (value) => value / 32768);
  const all = async (generator, found = []) => { for await (const one of generator) found.push(one); return found; };
  Object.assign(window, {
    decode: (symbols) => new Detokenizer({ symbols, unk: symbols.indexOf("<unk>") }).decode([...symbols.keys()]),
    frames: async (pcm) => (await system.fbank().push(floats(pcm))).map((frame) => [...frame]),
    events: async (pcm, size, { decoding, policy, segments, step_frames: stepFrames }) => {
      const of = new ExportedSystem(system.runtime, system.graphs, system.about, policy, stepFrames);
      if (segments.sentences) segments.sentences = await SentenceModel.load(of, read, segments.sentences);
      const [session, found] = [new Session(of, decoding, segments, true), []];
      for (let i = 0; i < pcm.length; i += size) await all(session.push(floats(pcm.slice(i, i + size))), found);
      return all(session.finish(), found);
    },
  });
})()"""


def network() -> SentenceModel:
    """One with random weights, which finds ends here and there."""
    rng, units = np.random.default_rng(1), 8
    sizes = {"mean": 80, "std": 80, "enter_weight": (units, 320), "enter_bias": units, "input_weight": (24, units),
             "input_bias": 24, "state_weight": (24, units), "state_bias": 24, "leave_weight": (2, units),
             "leave_bias": 2}  # fmt: skip
    weights = {name: rng.normal(0, 0.5, size).astype(np.float32) for name, size in sizes.items()}
    weights |= {"mean": np.full(80, 8, np.float32), "std": np.full(80, 3, np.float32)}
    return SentenceModel(**weights, ahead=3, threshold=0.83, about={})


# What the page hears takes as long as it is.
SHORT = replace(SEGMENTS, kind="sentence", min_seconds=0.4, max_seconds=1.2, sentences=network())


@pytest.fixture(scope="module")
def runtime() -> Path:
    """onnxruntime-web of the package registry, which stays beside this Python's other packages."""
    folder = Path(sys.prefix) / "share" / f"onnxruntime-web-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "node_modules" / "onnxruntime-web" / "dist"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not found.is_dir():
            words = [str(NPM), "install", "--ignore-scripts", "--no-audit", "--no-fund", f"onnxruntime-web@{VERSION}"]
            made = subprocess.run([*words, "--prefix", str(folder)], capture_output=True, text=True, timeout=600)
            if made.returncode:  # a machine that does not reach npm's registry
                pytest.skip(f"onnxruntime-web cannot be installed: {made.stderr.strip()[-200:]}")
    return found


@pytest.fixture(scope="module")
def folder() -> Path:
    """An exported model with a look-ahead."""
    return exported_speech()[1].path


@pytest.fixture(scope="module")
def served(folder: Path, runtime: Path) -> Iterator[Served]:
    local = translator(ExportedSystem.load(folder), DECODING, SHORT)
    about = {"model": "a tiny model", "between": " ", "lagging": 2, "local": local}
    files = {**page_files(about), **model_files(folder, runtime), **sentence_files(network())}
    made = Served(FileServer(files))  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(speech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all, since starting it takes longer than most of what it does."""
    folder = tmp_path_factory.mktemp("browser")
    soundfile.write(folder / "speech.wav", speech(20.0), 16_000, "PCM_16")
    with Browser(folder / "profile", folder / "speech.wav") as made:
        yield made


@pytest.fixture(scope="module")
def parts(browser: Browser, served: Served) -> Browser:
    """What the page is made of, to be called."""
    browser.go(served.url)
    until(lambda: browser.text("status") == "Ready", "the model is loaded")
    browser.evaluate(PARTS)
    return browser


def pcm_of(samples: np.ndarray) -> np.ndarray:
    return np.round(samples * 32767).astype(np.int16)


@in_chromium
def test_a_damaged_model_is_told_on_the_page(browser, folder, runtime):
    """Of files that were copied to another server, which does not look at them."""
    local = translator(ExportedSystem.load(folder), DECODING, SHORT)
    about = {"model": "", "between": " ", "lagging": 2, "local": local}
    files = {**page_files(about), **model_files(folder, runtime), **sentence_files(network())}
    kind, weights = files["/model/weights.safetensors"]
    files["/model/weights.safetensors"] = kind, weights[:-1] + bytes([weights[-1] ^ 1])
    made = Served(FileServer(files))  # type: ignore[arg-type]
    try:
        browser.go(made.url)
        message = "weights.safetensors is damaged, or of another export"
        until(lambda: message in browser.text("status"), "the page says so")
    finally:
        made.close()


@in_chromium
class TestParts:
    def test_frames(self, parts, speech):
        pcm = pcm_of(speech(0.7))
        found = np.array(parts.evaluate(f"frames({pcm.tolist()})"))
        expected = fbank(pcm.astype(np.float32) / 32768)
        assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-4
        silence = parts.evaluate(f"frames({[0] * 800})")
        assert np.abs(np.array(silence) - fbank(np.zeros(800, np.float32))).max() < 1e-4

    def test_text(self, parts, spm_model, symbols):
        words, rng = Detokenizer(symbols, spm_model), np.random.default_rng(1)
        plain = [index for index, symbol in enumerate(symbols) if index > 3 and not symbol.startswith("<")]
        umlaut = [symbols.index(f"<0x{byte:02X}>") for byte in "\u0160".encode()]
        for _ in range(30):
            tokens = [*rng.choice(plain, 7).tolist(), 3, *umlaut, *rng.choice(plain, 3).tolist()]
            pieces = [symbols[token] for token in tokens]
            assert parts.evaluate(f"decode({json.dumps(pieces)})") == words.decode(tokens)

    @pytest.mark.parametrize(
        ("policy", "decoding", "segments"),
        [
            (PolicyOptions(k=2), {}, {}),
            (PolicyOptions(k=3, catch_up=2.0), {"no_repeat_ngram_size": 2}, {"kind": "tokens", "tokens": 4}),
            (PolicyOptions("hold-n", hold=2), {"unit": "char"}, {"kind": "seconds", "max_seconds": 1.7}),
            (
                PolicyOptions("local-agreement"),
                {"max_draft": 6, "max_after_read": 3},
                {"silence_db": -30.0, "lead_ms": 200},
            ),
            (PolicyOptions("offline"), {"max_len_a": 0.02, "max_len_b": 1}, {"pause_ms": 200, "silence_db": None}),
            (
                PolicyOptions(k=1),
                {"early_eos": "wait"},
                {"kind": "sentence", "min_seconds": 0.3, "sentences": network()},
            ),
            (PolicyOptions(k=1), {"max_len_b": 200, "unit": "char"}, WINDOW),
        ],
        ids=lambda one: one.name if isinstance(one, PolicyOptions) else "",
    )
    def test_events_are_those_of_python(self, parts, folder, speech, policy, decoding, segments):
        system = ExportedSystem.load(folder, policy)
        decoding, segments = replace(DECODING, **decoding), replace(SEGMENTS, **segments)
        quiet = 0.001 * speech(1.3, 5)
        pcm = pcm_of(
            np.concatenate([0.5 * quiet[:9_999], speech(2.3, 1), quiet, speech(1.9, 2), quiet, speech(0.45, 3)])
        )
        session = Session(system, decoding, segments, drafts=True)
        expected = [*session.push(pcm.astype(np.float32) / 32768), *session.finish()]
        assert session.n_segments > 1 or session.n_tokens > 2 * DECODING.max_len_b
        assert any(event.text for event in expected)
        for size in (3001, 40_000):
            options = json.dumps(translator(system, decoding, segments))
            assert parts.evaluate(f"events({pcm.tolist()}, {size}, {options})") == [asdict(event) for event in expected]


@pytest.mark.full
@in_chromium
def test_the_page(browser, served, folder, speech, tmp_path):
    """A microphone, reloaded meanwhile, then a file in place of it."""
    recording = pcm_of(speech(3.0, 7))
    soundfile.write(tmp_path / "file.wav", recording, 16_000, "PCM_16")
    browser.go(served.url)
    until(lambda: browser.text("privacy") == "Nothing leaves this browser.", "the page knows who translates")
    until(lambda: browser.text("status") == "Ready", "the model is loaded")
    browser.click("start")
    until(lambda: len(shown(browser)) >= 2, "two segments")
    assert "real-time factor" in browser.text("figures")
    before = shown(browser)[:2]
    browser.go(served.url)  # a reload: what was being said is lost, the text is not
    until(lambda: shown(browser)[:1] == before[:1], "the text is back")
    until(lambda: browser.text("status") == "Ready", "the model is loaded again")
    browser.click("start")
    kept = len(shown(browser))
    until(lambda: len(shown(browser)) > kept and "s heard" in browser.text("figures"), "the talk goes on")
    assert shown(browser)[:1] == before[:1]
    browser.click("stop")
    until(lambda: browser.text("status") == "Finished", "the rest is translated")

    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(tmp_path / "file.wav")], nodeId=node)
    session = Session(ExportedSystem.load(folder), DECODING, SHORT)
    expected: dict[int, list[str]] = {}
    for event in (*session.push(recording.astype(np.float32) / 32768), *session.finish()):
        expected.setdefault(event.segment, []).extend([event.text] if event.text else [])
    lines = [" ".join(words) for words in expected.values() if words]
    until(lambda: shown(browser) == lines != [], "the file is translated as in Python")
    until(lambda: browser.text("status") == "Finished", "the page knows that it is over")
    browser.go(served.url)
    until(lambda: shown(browser) == lines, "the text is back once more")
    assert not browser.complaints


class TestRefusals:
    @pytest.fixture
    def refused(self, capsys, tmp_path) -> Callable[..., str]:
        def run(*options: object) -> str:
            assert main(["serve", "--in-browser", "--port", "0", *map(str, options)]) == 2
            (line,) = capsys.readouterr().err.strip().split("\n")
            return line

        return run

    def test_what_is_no_exported_model(self, refused, tmp_path):
        (tmp_path / "checkpoint.pt").write_bytes(b"")
        assert "give a folder made by `leapformer export`" in refused("--checkpoint", tmp_path / "checkpoint.pt")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ("--carry encoder", "--carry encoder with --in-browser"),
            (
                "--policy alignatt",
                "--policy alignatt with --in-browser, which has only wait-k, hold-n, local-agreement,",
            ),
            ("--policy mine", "--policy 'mine': choose from wait-k, hold-n"),
            ("--beam 4", "--beam 4 with --in-browser, which does not have it"),
            ("--policy hold-n --history window", "--history window with --policy hold-n and --in-browser"),
            ("--policy offline --history window", "--history window with --policy offline and --in-browser"),
        ],
    )
    def test_what_the_page_does_not_do(self, refused, folder, options, message):
        assert message in refused("--checkpoint", folder, *options.split())

    def test_a_network_for_other_frames(self, refused, folder, runtime, tmp_path):
        shapes = {"mean": 40, "std": 40, "enter_weight": (8, 160)}
        parts = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        replace(network(), **parts).save(tmp_path / "ends.npz")
        words = ("--onnxruntime-web", runtime, "--sentence-ends", tmp_path / "ends.npz")
        assert "a network for 40 filterbank bins" in refused("--checkpoint", folder, *words)

    def test_without_the_runtime(self, refused, folder, tmp_path):
        found = refused("--checkpoint", folder, "--onnxruntime-web", tmp_path)
        assert "npm install onnxruntime-web" in found

    def test_an_address_that_is_taken(self, folder, tmp_path):
        made = Served(FileServer({}))  # type: ignore[arg-type]
        try:
            with pytest.raises(LeapformerError, match="give another --port"):
                made.wait(FileServer({}).start("127.0.0.1", int(made.url.rstrip("/").rpartition(":")[2])))
        finally:
            made.close()
