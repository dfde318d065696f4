"""The page of `leapformer serve` in a real browser, with a recording as its microphone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import soundfile

pytest.importorskip("websockets", reason="the extra live")

from leapformer_fairseq.runtime.serve.server import LiveServer  # noqa: E402
from leapformer_fairseq.runtime.serve.talk import Limits, Talk  # noqa: E402
from leapformer_fairseq.runtime.simul.segments import SegmentOptions  # noqa: E402
from leapformer_fairseq.runtime.simul.session import Session  # noqa: E402
from leapformer_fairseq.runtime.simul.stream import DecodingOptions  # noqa: E402
from tests.simul.browser import CHROMIUM, Browser, until  # noqa: E402

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
OPTIONS, SEGMENTS = DecodingOptions(max_len_b=20), SegmentOptions("seconds", max_seconds=0.8, min_seconds=0.5)


class Served:
    """A server in a thread of its own."""

    def __init__(self, server: LiveServer) -> None:
        self.server, self.loop = server, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._listening = self.wait(server.start("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{next(iter(self._listening.sockets)).getsockname()[1]}/"

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def drop_connections(self) -> None:
        for connection in list(self._listening.connections):
            self.loop.call_soon_threadsafe(connection.transport.abort)

    def talk(self) -> Talk:
        return list(self.server.talks.values())[-1]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._listening.close)
        self.loop.call_soon_threadsafe(self.server.close)
        self.wait(self._listening.wait_closed())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


@pytest.fixture
def served(make_system: Callable[..., Any]) -> Iterator[Served]:
    system = make_system(lagging=1)
    about = {"model": "a tiny model", "between": " ", "lagging": 3}
    made = Served(LiveServer(lambda drafts: Session(system, OPTIONS, SEGMENTS, drafts=drafts), about, Limits()))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(speech: Callable[..., np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all, since starting it takes longer than all else."""
    folder = tmp_path_factory.mktemp("browser")
    soundfile.write(folder / "speech.wav", speech(20.0), 16_000, "PCM_16")
    with Browser(folder / "profile", folder / "speech.wav") as made:
        yield made


def final(talk: Talk) -> list[str]:
    """Its words, segment by segment."""
    found: dict[int, list[str]] = {}
    for event in talk.history:
        found.setdefault(event.segment, []).extend([event.text] if event.text else [])
    return [" ".join(words) for words in found.values() if words]


def shown(browser: Browser) -> list[str]:
    """The page's segments without drafts and delays."""
    script = (
        "JSON.stringify([...document.querySelectorAll('#text p')].map((p) => [...p.childNodes]"
        ".filter((node) => node.nodeType === 3).map((node) => node.data).join('').trim()).filter(Boolean))"
    )
    return list(json.loads(browser.evaluate(script)))


def test_speaking_losing_the_connection_reloading_and_listening(browser, served):
    browser.go(served.url)
    until(lambda: browser.text("model") == "a tiny model", "the page knows its model")
    browser.click("start")
    until(lambda: len(shown(browser)) >= 2, "two segments")
    assert browser.evaluate("document.querySelectorAll('#text .draft').length") <= 1
    assert browser.evaluate("document.getElementById('level').value") > -50
    assert "real-time factor" in browser.text("figures")
    assert browser.evaluate("document.querySelectorAll('#text small').length") > 0, "words have their delay"
    talk = served.talk()

    served.drop_connections()
    before = len(shown(browser))
    until(lambda: len(shown(browser)) > before + 1, "the talk goes on by itself")
    assert served.talk() is talk

    browser.click("pause")
    until(lambda: talk.behind_s == 0, "all is translated")
    assert browser.text("status") == "Paused"
    until(lambda: shown(browser) == final(talk), "the page has what the server wrote")
    written = shown(browser)

    browser.go(served.url)  # a reload: the speaker is gone, the text is not
    until(lambda: shown(browser) == written, "the text is back")

    browser.go(f"{served.url}?listen={talk.name}")
    until(lambda: shown(browser) == written, "a listener has the whole text")
    assert browser.evaluate("document.getElementById('start').disabled")
    served.loop.call_soon_threadsafe(talk.end)
    until(lambda: browser.text("status") == "Finished", "a listener knows that it is over")
    assert not [text for text in browser.complaints if "favicon" not in text and "ERR_" not in text]


@pytest.mark.full
def test_audio_that_is_not_sent_outlives_a_reload(browser, served):
    for script in ("sessionStorage.clear()", "0"):
        browser.go(served.url)
        browser.evaluate(script)
    browser.complaints.clear()
    until(lambda: browser.text("model") == "a tiny model", "the page knows its model")
    browser.click("start")
    until(lambda: shown(browser), "a segment")
    served.server.token = "another"  # no connection gets through
    served.drop_connections()
    talk, came = served.talk(), served.talk().received
    until(lambda: "No connection" in browser.text("status"), "the page knows")
    time.sleep(3)
    browser.click("stop")
    browser.go(served.url)
    until(lambda: shown(browser), "the text is there before the server is")
    samples = browser.evaluate("(({ from, audio }) => from + atob(audio).length / 2)(JSON.parse(sessionStorage.left))")
    assert samples > came + 2 * 16_000
    served.server.token = None
    until(lambda: browser.text("status") == "Finished", "the talk ends")
    assert served.talk() is talk and talk.received == samples
    assert shown(browser) == final(talk)
    assert not [text for text in browser.complaints if "WebSocket connection" not in text]


def test_a_file_is_translated_and_saved(browser, served, speech, tmp_path):
    browser.complaints.clear()
    stereo = np.stack([speech(3.0)] * 2, 1)
    soundfile.write(tmp_path / "stereo.wav", stereo, 44_100, "PCM_16")
    browser.go(served.url)
    until(lambda: browser.text("model") == "a tiny model", "the page knows its model")
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(tmp_path / "stereo.wav")], nodeId=node)
    until(lambda: browser.text("status") == "Finished", "the file is translated")
    talk = served.talk()
    assert shown(browser) == final(talk) != []
    assert abs(talk.session.audio_s - len(stereo) / 44_100) < 0.1
    lines = browser.evaluate("import('./talk.js').then(({ srt }) => srt([{text: 'a b', start_s: 0, end_s: 3661.5}]))")
    assert lines == "1\n00:00:00,000 --> 01:01:01,500\na b\n"
    assert not browser.evaluate("document.getElementById('srt').disabled")
    assert not browser.complaints
